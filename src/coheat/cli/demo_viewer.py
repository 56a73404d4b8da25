"""What `coheat demo` shows while it goes on."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD

from coheat.cli.output import console, headline, table
from coheat.data import BundleData
from coheat.data.stats import stats
from coheat.demo import MODELS, OURS, FirstDays, K, Knob, NewBundle, Scenario, ShownUser, Viewer
from coheat.progress import ProgressBar
from coheat.training import Watcher

EXPLAINED = {
    "cold": "Scenario cold: judged on bundles that nobody took in training",
    "warm": "Scenario warm: judged on held-out interactions of known bundles",
    "all": "Scenario all: judged on half of each",
    "warm-up": "The first days of a bundle: some keep only a few of their takers, judged on the others",
    "everything": "The model to serve: it learns from everything",
}

LOOKS: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False}
"""Of the demo's tables."""


class Printing(Viewer):
    """Prints headlines and tables."""

    def world(self, data: BundleData) -> None:
        found = stats(data)
        headline("A made-up shop")
        console.print(
            f"{found.users:,} users took {found.bundles:,} bundles {found.user_bundle:,} times. The most "
            f"popular fifth of the bundles has {found.top_20_percent_share:.0%} of that. "
            f"A bundle holds {found.average_bundle_size:.0f} of {found.items:,} items.",
            highlight=False,
        )

    def begin(self, scenario: str) -> None:
        headline(EXPLAINED[scenario])

    def training(self, model: str) -> Watcher:
        console.print(f"{MODELS[model]} learns", style="dim", highlight=False)
        return ProgressBar(show_memory=False)

    def scenario(self, found: Scenario) -> None:
        names = ("test", f"Recall@{K}", f"nDCG@{K}", "cold in lists", "epoch", "seconds")
        made = table(names, ("test",), **LOOKS)
        for model, report in found.models.items():
            test = report["test"]
            made.add_row(
                model,
                *(f"{test[f'{metric}@{K}']:.4f}" for metric in ("recall", "ndcg")),
                f"{test[f'cold_share@{K}']:.0%}",
                str(report["epoch"]),
                f"{report['seconds']:.1f}",
                style="bold" if model == OURS else None,
            )
        console.print(made)
        console.print(found.verdict, highlight=False)

    def knob(self, found: Knob) -> None:
        headline("The knob: how many places for new bundles? Scenario all, without training again")
        made = table((found.name, f"Recall@{K} of new bundles", "of known ones"), **LOOKS)
        for value, sides in found.turned:
            made.add_row(
                f"{value:g}",
                f"{sides.new:.4f}",
                f"{sides.known:.4f}",
                style="bold" if value == found.value else None,
            )
        console.print(made)

    def first_days(self, found: FirstDays) -> None:
        levels, first = list(found.levels[OURS]), f"Recall@{K}, takers kept"
        made = table((first, *levels), (first,), **LOOKS)
        for model, values in found.levels.items():
            numbers = (f"{values[level][f'recall@{K}']:.4f}" for level in levels)
            made.add_row(model, *numbers, style="bold" if model == OURS else None)
        console.print(made)
        console.print(found.verdict, highlight=False)

    def user(self, shown: ShownUser) -> None:
        has = f"{len(shown.items)} items and took {len(shown.bundles)} bundles"
        headline(f"A list for {shown.user_id}, who has {has}")
        made = table(("rank", "bundle", "taken", "they have"), ("bundle",), **LOOKS)
        made.add_column("such as", overflow="ellipsis", no_wrap=True)
        for bundle in shown.recommended:
            made.add_row(
                str(bundle.rank),
                bundle.bundle_id,
                f"{bundle.times_taken} times" if bundle.times_taken else "never",
                f"{len(bundle.shared_items)} of {bundle.size}",
                ", ".join(bundle.shared_items[:2]),
            )
        console.print(made)

    def new_bundle(self, shown: NewBundle) -> None:
        headline(f"A bundle that did not exist in training: {shown.bundle_id}")
        console.print("made of", ", ".join(shown.items), highlight=False)
        made = table(("rank", "who gets it", "they have", "score"), ("who gets it",), **LOOKS)
        for receiver in shown.audience[:5]:
            made.add_row(
                str(receiver.rank),
                receiver.user_id,
                f"{receiver.owned} of {len(shown.items)}",
                f"{receiver.score:.3f}",
            )
        console.print(made)
        first = shown.audience[0].user_id
        place = (
            f"stands at place {shown.list_of_first.index(shown.bundle_id) + 1} of {first}'s list"
            if shown.bundle_id in shown.list_of_first
            else f"does not reach the list of {first}"
        )
        console.print(
            f"It {place} and enters the lists of {shown.lists_entered:,} of {shown.n_users:,} users. "
            f"The average user has {shown.owned_on_average:.2f} of its items.",
            highlight=False,
        )
