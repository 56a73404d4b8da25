"""The demo's findings as one HTML page that needs nothing else: no network, no script, no other file.

It follows the reader's light or dark setting and fits a phone: pictures are inline SVG in a grid that
becomes one column, tables scroll by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from coheat import plots
from coheat.data.files import read_data
from coheat.data.stats import draw_skew
from coheat.demo import LEARNING, MODELS, OURS, SCENARIOS, Demo, K, run_directory
from coheat.runs import open_run
from coheat.storage import replacing_file

REPORT = "report.html"
OVERVIEW = "overview.png"
RECALL, NDCG = f"recall@{K}", f"ndcg@{K}"

STYLE = """
:root { color-scheme: light dark; --paper: #fbfbf9; --card: #fff; --ink: #1f2430; --muted: #6b7285;
  --line: #d5d9e2; --first: #d9480f; --second: #1971c2; --third: #8a93a6; --fourth: #2b8a3e; }
@media (prefers-color-scheme: dark) { :root { --paper: #14161b; --card: #1c1f26; --ink: #e6e8ee;
  --muted: #9aa1b3; --line: #363b47; --first: #ff8a5b; --second: #6cb2f5; --fourth: #69c77b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 4rem;
  background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
p, ul { max-width: 46rem; }
ul { padding-left: 1.2rem; }
.muted { color: var(--muted); font-size: .9rem; }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); }
.grid > * { min-width: 0; }
figure, pre { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
figure { margin: 0; padding: .8rem; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--muted); font-size: .85rem; margin-top: .4rem; }
pre { overflow-x: auto; padding: .8rem; font-size: .85rem; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { text-align: right; padding: .3rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--muted); font-weight: 600; font-size: .85rem; }
.left { text-align: left; }
td.wide { white-space: normal; min-width: 14rem; }
tr.best td { font-weight: 650; }
tr.new td { color: var(--first); font-weight: 650; }
"""


def write_report(demo: Demo) -> Path:
    """Write the page and the picture of it in small (for a README or a slide) beside the demo's data."""
    out = Path(demo.out)
    figures = _results_drawn(demo) | _learning_drawn(demo)
    with replacing_file(out / REPORT) as aside:
        aside.write_text(_page(demo, figures), encoding="utf-8")
    plots.to_png([figures[name][0] for name in ("skew", "recall", "knob")], out / OVERVIEW)
    return out / REPORT


Figures = dict[str, tuple[plots.Draw, str]]
"""What to draw by name, with its caption."""


def _results_drawn(demo: Demo) -> Figures:
    """The shop, and how well the models did in it."""
    data = read_data(Path(demo.out) / "data")
    reports = demo.scenarios["all"].models
    taken = {group: values["positives"] for group, values in _groups(reports[OURS]).items()}
    popularity = {
        group: {MODELS[model]: _groups(report)[group][RECALL] for model, report in reports.items()}
        for group in taken
    }
    return {
        "skew": (
            lambda axes: draw_skew(axes, data, "Few bundles have most of the interactions"),
            "How often each bundle was taken, most taken first. On the right stand those that have to be "
            "judged by their items.",
        ),
        "recall": (
            lambda axes: plots.draw_bars(axes, _by_scenario(demo, RECALL), f"Recall@{K} on test"),
            f"Share of a user's held-out bundles among the first {K}; all bundles are ranked.",
        ),
        "ndcg": (
            lambda axes: plots.draw_bars(axes, _by_scenario(demo, NDCG), f"nDCG@{K} on test"),
            "The same, with the first places of the list counting more.",
        ),
        "popularity": (
            lambda axes: plots.draw_bars(
                axes,
                {f"{group}\n({taken[group]} taken)": values for group, values in popularity.items()},
                f"Recall@{K} by popularity, scenario all",
                "training interactions of the bundle",
            ),
            f"Bundles without a single training interaction stand on the left. Ahead: {_ahead(popularity)}.",
        ),
        "knob": (
            lambda axes: plots.draw_trade(axes, *_trade(demo)),
            "What is found of new and of known bundles as Ember's knob turns, without training again. The "
            f"numbers are its values; all else on this page has {demo.knob.value:g}. Scenario all; "
            "right and up is better.",
        ),
        "warm-up": (
            lambda axes: plots.draw_warm_up(
                axes,
                {MODELS[model]: levels for model, levels in demo.first_days.levels.items()},
                RECALL,
                "The first days of a bundle",
                list(MODELS.values()),
            ),
            f"Share of a bundle's held-out takers who find it in their list of {K}, by how many takers it "
            "kept in training. A line that falls from the left drops bundles at their first sales.",
        ),
    }


def _learning_drawn(demo: Demo) -> Figures:
    """What happened over the epochs."""
    histories = {
        model: {name: open_run(run_directory(Path(demo.out), name, model)).history for name in SCENARIOS}
        for model in LEARNING
    }
    kept = {
        model: {name: demo.scenarios[name].models[model]["epoch"] for name in SCENARIOS} for model in LEARNING
    }
    return {
        "validation": (
            lambda axes: plots.draw_validation(
                axes, histories[OURS], kept[OURS], RECALL, "Ember on validation; a dot: the kept epoch"
            ),
            "Ember keeps its last epoch, by rule, also where an earlier one was better on validation.",
        ),
        "loss": (
            lambda axes: plots.draw_losses(axes, histories[OURS]["cold"], "Loss terms of Ember"),
            "Mean of each loss term per epoch, scenario cold. Only the two views are learned in epochs; the "
            "rest follows from the data.",
        ),
        "heating": (
            lambda axes: plots.draw_heating(axes, histories["coheat"]["cold"], kept["coheat"]["cold"]),
            "As the temperature rises, warm bundles too are judged less by their history and more by their "
            "items. Scenario cold.",
        ),
        "coheat-loss": (
            lambda axes: plots.draw_losses(axes, histories["coheat"]["cold"], "Loss terms of CoHeat"),
            "Scenario cold. CoHeat keeps the epoch that is best on the validation part: "
            f"{', '.join(f'{name} {epoch}' for name, epoch in kept['coheat'].items())}.",
        ),
    }


def _groups(report: Mapping[str, Any]) -> Mapping[str, Mapping[str, float]]:
    """How a model did on the test part, by popularity of the bundle."""
    found: Mapping[str, Mapping[str, float]] = report["test"]["by_popularity"]
    return found


def _ahead(values: plots.Values) -> str:
    """Who is first in each group, in words."""
    return ", ".join(
        f"{max(found, key=lambda name: found[name])} at {group}" for group, found in values.items()
    )


def _by_scenario(demo: Demo, metric: str) -> dict[str, dict[str, float]]:
    return {
        name: {MODELS[model]: report["test"][metric] for model, report in scenario.models.items()}
        for name, scenario in demo.scenarios.items()
    }


def _trade(demo: Demo) -> tuple[plots.Trade, tuple[str, str], str]:
    """Ember as its knob turns and the rivals as they are, as points of new against known."""
    trade = {MODELS[OURS]: {f"{turn:g}": (sides.new, sides.known) for turn, sides in demo.knob.turned}}
    trade |= {MODELS[model]: {"": (sides.new, sides.known)} for model, sides in demo.knob.rivals.items()}
    labels = (f"Recall@{K} of new bundles", f"Recall@{K} of known bundles")
    return trade, labels, "New against known as the knob turns"


def _page(demo: Demo, figures: Figures) -> str:
    def figure(name: str) -> str:
        draw, caption = figures[name]
        picture = plots.to_svg(draw, name, caption)
        return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"

    def grid(*names: str) -> str:
        return f'<div class="grid">{"".join(figure(name) for name in names)}</div>'

    parts = [
        "<h1>Recommending bundles that nobody has bought yet</h1>",
        f'<div class="grid"><div>{"".join(_introduction(demo))}</div>{figure("skew")}</div>',
        "<h2>How well</h2>",
        *_results(demo),
        grid("recall", "ndcg", "popularity", "knob"),
        "<h2>The first days of a bundle</h2>",
        f'<div class="grid"><div>{"".join(_first_days(demo))}</div>{figure("warm-up")}</div>',
        "<h2>How Ember learns</h2>",
        grid("validation", "loss"),
        "<h2>How CoHeat learns</h2>",
        _coheat(demo),
        grid("heating", "coheat-loss"),
        *_user(demo),
        *_new_bundle(demo),
        "<h2>Go on</h2>",
        f"<pre>{escape(chr(10).join(demo.commands))}</pre>",
        "<h2>Settings and versions</h2>",
        '<p class="muted">The preset demo of both models, the same in cold, warm and all. For its first days '
        "and on everything Ember has the same, but for the first days fewer epochs.</p>",
        '<div class="grid">',
        *(f"<div>{_settings(demo, model)}</div>" for model in LEARNING),
        f"<div>{table(('package', 'version'), list(demo.versions.items()))}</div>",
        "</div>",
    ]
    return page("coheat demo", parts)


def page(title: str, parts: Iterable[str]) -> str:
    """A whole HTML page from the parts of its body, with the style of all our reports."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _introduction(demo: Demo) -> list[str]:
    world, versions = demo.world, demo.versions
    made = f"coheat {versions['coheat']}, seed {demo.seed}, {demo.seconds:.0f} s on {versions['machine']}"
    return [
        f'<p class="muted">{escape(made)}</p>',
        "<p><b>A quick run on a tiny shop: it shows how, not how well.</b></p>" if demo.quick else "",
        f"<p>A made-up shop with {world['users']:,} users, {world['bundles']:,} bundles and "
        f"{world['items']:,} items. Users took bundles {world['user_bundle']:,} times; a bundle holds "
        f"{world['average_bundle_size']:.1f} items on average.</p>",
        "<p>Ember scores a bundle that somebody has taken by its history and its items: two learned views, "
        "one of each, the bundles that go together with it, and what its items share with the user's. One "
        f"that nobody has taken is scored by its items alone. Its knob <code>{demo.knob.name}</code> says how"
        f" many places in lists such new bundles get: here {demo.knob.value:g} times their fair share.</p>",
    ]


def _results(demo: Demo) -> list[str]:
    rows: list[tuple[str, ...]] = []
    best: list[int] = []
    for name, scenario in demo.scenarios.items():
        leader = max(scenario.models, key=lambda model: scenario.models[model]["test"][RECALL])
        for model, report in scenario.models.items():
            if model == leader:
                best.append(len(rows))
            rows.append(
                (
                    name,
                    model,
                    *(f"{report['test'][metric]:.4f}" for metric in (RECALL, NDCG)),
                    *(f"{report['validation'][metric]:.4f}" for metric in (RECALL, NDCG)),
                    f"{report['test'][f'cold_share@{K}']:.0%}",
                    str(report["epoch"]),
                    f"{report['seconds']:.1f}",
                )
            )
    measured = (f"Recall@{K}", f"nDCG@{K}", "validation Recall", "validation nDCG")
    heads = ("scenario", "model", *measured, "cold in lists", "epoch", "seconds")
    verdicts = "".join(f"<li>{escape(scenario.verdict)}</li>" for scenario in demo.scenarios.values())
    return [
        f"<ul>{verdicts}</ul>",
        "<p>In <b>cold</b> the held-out bundles have no training interactions at all, in <b>warm</b> "
        "interactions are held out at random, in <b>all</b> one half is of each kind. Every model ranks all "
        "bundles. Counting scores a bundle by how many of its items the user has or took before.</p>",
        table(heads, rows, left=(0, 1), classes=dict.fromkeys(best, "best")),
    ]


def _first_days(demo: Demo) -> list[str]:
    levels = demo.first_days.levels
    names = list(levels[OURS])
    rows = [
        (MODELS[model], *(f"{found[level][RECALL]:.3f}".lstrip("0") for level in names))
        for model, found in levels.items()
    ]
    return [
        "<p>Some bundles were made young again: they keep 0, 1, 2, 4, 8 or 16 of their takers, the earliest, "
        "and the others are held out. Does a bundle that was shown while it was new vanish from the lists "
        "after its first sales?</p>",
        f"<p>{escape(demo.first_days.verdict)}</p>",
        table(("takers kept", *names), rows, left=(0,)),
    ]


def _coheat(demo: Demo) -> str:
    """What CoHeat does, and where validation chose one of its first epochs, which a curve hardly shows."""
    reports = {name: scenario.models["coheat"] for name, scenario in demo.scenarios.items()}
    early = [n for n, report in reports.items() if report["epoch"] <= report["settings"]["epochs"] / 5]
    return (
        "<p>CoHeat too looks at who took a bundle and at its items, and weighs one against the other: the "
        "fewer have taken it, the more its items decide."
        + (
            f" In {' and '.join(early)} its best epoch on validation is one of the first: training and "
            "heating further did not help there."
            if early
            else ""
        )
        + "</p>"
    )


def _settings(demo: Demo, model: str) -> str:
    settings = demo.scenarios["cold"].models[model]["settings"]
    return table((f"setting of {MODELS[model]}", "value"), [(name, str(v)) for name, v in settings.items()])


def _user(demo: Demo) -> list[str]:
    user = demo.user
    rows = [
        (
            str(shown.rank),
            shown.bundle_id,
            f"{shown.times_taken} times" if shown.times_taken else "never",
            f"{len(shown.shared_items)} of {shown.size}",
            _some(shown.shared_items),
        )
        for shown in user.recommended
    ]
    heads = ("rank", "bundle", "taken so far", "items they have", "which")
    return [
        f"<h2>A list for {escape(user.user_id)}</h2>",
        "<p>What is judged must not have seen what it is judged by; what is served should have seen all of "
        f"it. So Ember was trained once more, on everything, and <code>{escape(demo.served)}</code> is the "
        "run to serve. Nothing is left to compare its lists with; how good they are stands above.</p>",
        f"<p>{escape(user.user_id)} has {len(user.items)} items and took {len(user.bundles)} bundles, more "
        "than anybody else. For the list, the items of these bundles count too; the table has only items of "
        "their own.</p>",
        table(heads, rows, left=(1, 4), wide=(4,)),
    ]


def _some(names: Sequence[str], most: int = 4) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - most
    return (", ".join(names[:most]) or "none") + (f" and {rest} more" if rest > 0 else "")


def _new_bundle(demo: Demo) -> list[str]:
    new = demo.new_bundle
    rows = [
        (
            str(receiver.rank),
            receiver.user_id,
            f"{receiver.owned} of {len(new.items)}",
            f"{receiver.score:.3f}",
        )
        for receiver in new.audience
    ]
    owned = sum(receiver.owned for receiver in new.audience) / len(new.audience)
    ranks = [(str(rank), bundle) for rank, bundle in enumerate(new.list_of_first, start=1)]
    marked = {row: "new" for row, (_, bundle) in enumerate(ranks) if bundle == new.bundle_id}
    return [
        "<h2>A bundle that did not exist in training</h2>",
        f"<p><b>{escape(new.bundle_id)}</b> is made of {escape(', '.join(new.items))}. The trained model "
        "places it by its items alone, without training again. It enters the lists of "
        f"{new.lists_entered:,} of {new.n_users:,} users. Those it suits best have {owned:.1f} of its "
        f"{len(new.items)} items on average; all users together have {new.owned_on_average:.2f}.</p>",
        '<div class="grid"><div>',
        table(("rank", "who gets it", "items they have", "score"), rows, left=(1,)),
        "</div><div>",
        table(("rank", f"the list of {new.audience[0].user_id}"), ranks, left=(1,), classes=marked),
        "</div></div>",
    ]


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Sequence[int] = (0, 1),
    wide: Sequence[int] = (),
    classes: Mapping[int, str] | None = None,
) -> str:
    """A table. Columns: `left` ones stand left, `wide` ones may wrap. Rows: `classes` by number."""

    def line(tag: str, cells: Sequence[str], kind: str = "") -> str:
        text = ""
        for place, cell in enumerate(cells):
            style = "left wide" if place in wide else "left" if place in left else ""
            text += f'<{tag} class="{style}">{escape(cell)}</{tag}>'
        return f'<tr class="{kind}">{text}</tr>'

    classes = classes or {}
    body = "".join(line("td", row, classes.get(number, "")) for number, row in enumerate(rows))
    return f'<div class="scroll"><table>{line("th", heads)}{body}</table></div>'
