"""coheat demo: the whole walk on a made-up shop, with a report to read."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD

from coheat.cli import app
from coheat.cli.output import console, print_json, problem, say, table

if TYPE_CHECKING:
    from coheat.demo import Demo, FirstDays, Knob, NewBundle, Scenario, ShownUser, Viewer


@app.command()
def demo(
    out: Path = typer.Option(
        Path("demo"), "--out", metavar="DIR", help="Where to write data, runs and report."
    ),
    seed: int = typer.Option(0, min=0, help="Same seed, same shop and same numbers."),
    quick: bool = typer.Option(
        False, "--quick", help="A tiny shop and a few epochs: takes seconds, with poor numbers."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print all results as JSON."),
) -> None:
    """Train and evaluate Ember on a made-up shop, recommend, add a new bundle, and write a report.

    CoHeat, counting and popularity are evaluated beside it. In the end Ember learns from everything: that
    is the run to serve. Takes about two minutes on two cores. Running it again replaces its own output and
    nothing else.

    Examples:

        coheat demo --out demo

        coheat demo --quick --json
    """
    from coheat.demo import run_demo
    from coheat.report import write_report
    from coheat.training import TrainingInterrupted

    viewer = None if as_json else _printing_viewer()
    try:
        found = run_demo(out, seed, quick, viewer, program())
    except TrainingInterrupted:
        problem("interrupted; start the demo again to see all of it")
        raise typer.Exit(130) from None
    report = write_report(found)
    if as_json:
        print_json(found.to_dict() | {"report": str(report)})
        return
    _show_end(found, report)


def program() -> str:
    """How this very program can be called again: by name where the shell finds it, else by its path."""
    called, found = Path(sys.argv[0]), shutil.which("coheat")
    if called.stem != "coheat" or (found and called.exists() and called.samefile(found)):
        return "coheat"
    return str(called)


def _printing_viewer() -> Viewer:
    """A viewer that prints; made here, because its base imports torch."""
    from coheat.data import BundleData
    from coheat.data.stats import stats
    from coheat.demo import MODELS, Viewer
    from coheat.progress import ProgressBar
    from coheat.training import Watcher

    class Printing(Viewer):
        def world(self, data: BundleData) -> None:
            found = stats(data)
            _headline("A made-up shop")
            console.print(
                f"{found.users:,} users took {found.bundles:,} bundles {found.user_bundle:,} times. The most "
                f"popular fifth of the bundles has {found.top_20_percent_share:.0%} of that. "
                f"A bundle holds {found.average_bundle_size:.0f} of {found.items:,} items.",
                highlight=False,
            )

        def begin(self, scenario: str) -> None:
            _headline(EXPLAINED[scenario])

        def training(self, model: str) -> Watcher:
            console.print(f"{MODELS[model]} learns", style="dim", highlight=False)
            return ProgressBar(show_memory=False)

        def scenario(self, found: Scenario) -> None:
            _show_scenario(found)

        def knob(self, found: Knob) -> None:
            _show_knob(found)

        def first_days(self, found: FirstDays) -> None:
            _show_first_days(found)

        def user(self, shown: ShownUser) -> None:
            _show_user(shown)

        def new_bundle(self, shown: NewBundle) -> None:
            _show_new_bundle(shown)

    return Printing()


EXPLAINED = {
    "cold": "Scenario cold: judged on bundles that nobody took in training",
    "warm": "Scenario warm: judged on held-out interactions of known bundles",
    "all": "Scenario all: judged on half of each",
    "warm-up": "The first days of a bundle: some keep only a few of their takers, judged on the others",
    "everything": "The model to serve: it learns from everything",
}

LOOKS: dict[str, Any] = {"box": SIMPLE_HEAD, "pad_edge": False}
"""Of the demo's tables."""


def _headline(text: str) -> None:
    console.print(f"\n[bold]{text}[/]", highlight=False)


def _show_scenario(found: Scenario) -> None:
    from coheat.demo import OURS, K

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


def _show_knob(found: Knob) -> None:
    from coheat.demo import K

    _headline("The knob: how many places for new bundles? Scenario all, without training again")
    made = table((found.name, f"Recall@{K} of new bundles", "of known ones"), **LOOKS)
    for value, sides in found.turned:
        made.add_row(
            f"{value:g}",
            f"{sides.new:.4f}",
            f"{sides.known:.4f}",
            style="bold" if value == found.value else None,
        )
    console.print(made)


def _show_first_days(found: FirstDays) -> None:
    from coheat.demo import OURS, K

    levels, first = list(found.levels[OURS]), f"Recall@{K}, takers kept"
    made = table((first, *levels), (first,), **LOOKS)
    for model, values in found.levels.items():
        numbers = (f"{values[level][f'recall@{K}']:.4f}" for level in levels)
        made.add_row(model, *numbers, style="bold" if model == OURS else None)
    console.print(made)
    console.print(found.verdict, highlight=False)


def _show_user(shown: ShownUser) -> None:
    has = f"{len(shown.items)} items and took {len(shown.bundles)} bundles"
    _headline(f"A list for {shown.user_id}, who has {has}")
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


def _show_new_bundle(shown: NewBundle) -> None:
    _headline(f"A bundle that did not exist in training: {shown.bundle_id}")
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


def _show_end(found: Demo, report: Path) -> None:
    _headline(f"Done in {found.seconds:.0f} s. The report: {report}")
    console.print("Go on with:", highlight=False)
    for command in found.commands:
        say(f"  {command}")
