"""Pictures of experiments, from their documents alone; colours and style are those of `coheat.plots`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from coheat.experiments.pages import LABELS, decimal
from coheat.experiments.published import METRICS
from coheat.experiments.sources import RATIO
from coheat.plots import COLOURS, PANEL, Draw, Levels, colours_of, draw_warm_up

Document = dict[str, Any]
FAMILIES = {"cold-start": "second", "warm-start": "fourth", "ours": "first", "yardstick": "third"}


@dataclass(frozen=True)
class Picture:
    """Panels side by side: a name for its files, what to draw, what it shows, and the size of a panel."""

    name: str
    panels: tuple[Draw, ...]
    caption: str
    size: tuple[float, float] = PANEL


def pictures(document: Document) -> list[Picture]:
    """The pictures of an experiment; none while nothing has been measured."""
    view, name = document["view"], document["experiment"]
    if view == "datasets":
        draw = partial(draw_skews, entries=document["datasets"])
        caption = "How often each bundle was taken, most taken first, in percent of all bundles."
        return [Picture(name, (draw,), caption)]
    tables = [{**t, "rows": [r for r in t["rows"] if r["seeds"]]} for t in document["tables"]]
    tables = [table for table in tables if table["rows"]]
    found = []
    for dataset in dict.fromkeys(table["dataset"] for table in tables):
        own = [table for table in tables if table["dataset"] == dataset]
        found.append(_picture(document, dataset, own))
    return found


def _picture(document: Document, dataset: str, tables: Sequence[Document]) -> Picture:
    name = f"{document['experiment']}-{dataset.lower()}"
    if document["view"] == "lines":
        grid = document["grid"]
        panels = [partial(draw_lines, tables=tables, grid=grid, metric=metric) for metric in METRICS]
        caption = f"{dataset}: {grid or 'share of test interactions on cold bundles'}, test figures."
        return Picture(name, tuple(panels), caption)
    if document["view"] == "warm-up":
        return Picture(name, *_warm_up_panels(tables))
    if document["view"] == "bars":
        caption = f"{dataset}: Recall@20 on test. Colours tell the kind of method; the dots are published."
        size = (max(5.2, 0.22 * sum(len(table["rows"]) for table in tables)), 3.6)
        return Picture(name, (partial(draw_families, tables=tables),), caption, size)
    panels = [partial(draw_methods, table=table, metric=METRICS[0]) for table in tables]
    caption = f"{dataset}: Recall@20 on test, bars measured, diamonds published."
    return Picture(name, tuple(panels), caption, (4.2, 0.9 + 0.27 * max(len(t["rows"]) for t in tables)))


PANELS = {
    "ours": "Ours and yardsticks",
    "cold-start": "Cold-start methods",
    "warm-start": "Warm-start methods",
}
"""Families that get a panel of their own; yardsticks stand beside ours."""


def _warm_up_panels(tables: Sequence[Document]) -> tuple[tuple[Draw, ...], str, tuple[float, float]]:
    """A panel per family with a line per model, all at one scale; our first model stands in each."""
    rows = [row for table in tables for row in table["rows"] if row.get("warm_up")]
    levels = {row["name"]: _means(row["warm_up"]) for row in rows}
    reference = next((row["name"] for row in rows if row["family"] == "ours"), None)
    top = max((group[METRICS[0]] for found in levels.values() for group in found.values()), default=0.0)
    panels = []
    for family, title in PANELS.items():
        families = (family, "yardstick") if family == "ours" else (family,)
        names = [row["name"] for row in rows if row["family"] in families]
        if names:
            shown = list(dict.fromkeys([*([reference] if reference else []), *names]))
            found = {name: levels[name] for name in shown}
            panels.append(partial(_draw_levels, found=found, title=title, top=1.05 * top))
    caption = (
        f"{tables[0]['dataset']}: {LABELS[METRICS[0]]} of held-out takers, by how many takers a bundle kept "
        "in training; on the right all other bundles."
    )
    return tuple(panels), caption, (5.2, 4.4)


def _means(levels: Document) -> dict[str, dict[str, float]]:
    return {
        level: {name: float(statistics.mean(values)) for name, values in numbers.items()}
        for level, numbers in levels.items()
    }


def _draw_levels(axes: Any, found: Levels, title: str, top: float) -> None:
    draw_warm_up(axes, found, METRICS[0], title)
    axes.set_ylim(0, top)


def _mean(row: Document, metric: str) -> float:
    return float(statistics.mean(row["test"][metric]))


def _deviation(row: Document, metric: str) -> float:
    values = row["test"][metric]
    return statistics.stdev(values) if len(values) > 1 else 0.0


def draw_methods(axes: Any, table: Document, metric: str) -> None:
    """A bar for each row, in the table's order from top to bottom; a diamond is the published figure."""
    rows = table["rows"]
    places = range(len(rows))
    means = [_mean(row, metric) for row in rows]
    axes.barh(
        places,
        means,
        0.7,
        xerr=[_deviation(row, metric) for row in rows],
        color=[COLOURS[FAMILIES[row["family"]]] for row in rows],
        error_kw={"ecolor": COLOURS["ink"], "elinewidth": 1},
    )
    published = [(row["published"][metric], place) for place, row in enumerate(rows) if row["published"]]
    if published:
        axes.plot(*zip(*published, strict=True), "D", color=COLOURS["ink"], markersize=4)
    for place, (row, mean) in enumerate(zip(rows, means, strict=True)):
        end = max(mean + _deviation(row, metric), (row["published"] or {}).get(metric, 0.0))
        axes.annotate(
            decimal(mean), (end, place), (5, 0), textcoords="offset points", va="center", fontsize=7.5
        )
    axes.set_yticks(places, [row["name"] for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set(title=f"{table['dataset']}, {table['division']}", xlabel=LABELS[metric])
    axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])


def draw_families(axes: Any, tables: Sequence[Document]) -> None:
    """Upright bars for all rows, scenario by scenario; dots are published figures."""
    metric, place = METRICS[0], 0
    middles, shown = [], set()
    for table in tables:
        first = place
        for row in table["rows"]:
            family = row["family"]
            label = None if family in shown else family
            shown.add(family)
            axes.bar(place, _mean(row, metric), 0.8, color=COLOURS[FAMILIES[family]], label=label)
            axes.annotate(
                row["name"],
                (place, max(_mean(row, metric), (row["published"] or {}).get(metric, 0.0))),
                (0, 4),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=7,
            )
            if row["published"]:
                axes.plot(place, row["published"][metric], "o", color=COLOURS["ink"], markersize=3)
            place += 1
        middles.append((first + place - 1) / 2)
        place += 1
    axes.set_xticks(middles, [table["division"] for table in tables])
    axes.tick_params(axis="x", length=0, labelcolor=COLOURS["ink"])
    axes.margins(y=0.35)
    axes.set(title=tables[0]["dataset"], ylabel=LABELS[metric])
    axes.legend(fontsize=8.5)


def draw_lines(axes: Any, tables: Sequence[Document], grid: str | None, metric: str) -> None:
    """A line for each model over the grid's values or, without one, over the share of cold interactions."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    levels: dict[str, float] = {}
    published = []
    for table in tables:
        share = float(table["division"].removeprefix(RATIO)) if table["division"].startswith(RATIO) else 0.0
        for row in table["rows"]:
            if grid and row["at"] is None:  # it does not have the setting, and stands where it stands
                levels[row["name"]] = _mean(row, metric)
                continue
            at = share if row["at"] is None else row["at"]
            lines.setdefault(row["name"], []).append((at, _mean(row, metric), _deviation(row, metric)))
            if row["published"]:
                published.append((at, row["published"][metric]))
    colours = colours_of([*lines, *levels])
    for name, level in levels.items():
        axes.axhline(level, color=colours[name], linestyle="--", label=name)
    for name in lines:
        places, means, spreads = zip(*sorted(lines[name]), strict=True)
        axes.errorbar(places, means, yerr=spreads, color=colours[name], marker="o", markersize=4, label=name)
    if published:
        axes.plot(*zip(*published, strict=True), "D", color=COLOURS["ink"], markersize=5, label="published")
    if grid:
        axes.set_xscale("log")
    label = grid.replace("_", " ") if grid else "share of test interactions on cold bundles"
    axes.set(xlabel=label, ylabel=LABELS[metric], title=tables[0]["dataset"])
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8.5)


def draw_skews(axes: Any, entries: Sequence[Document]) -> None:
    """Interactions of bundles, most taken first, one line per data set."""
    for entry, colour in zip(entries, colours_of([e["dataset"] for e in entries]).values(), strict=True):
        n_bundles = entry["statistics"]["bundles"]
        points = [(100 * rank / n_bundles, max(count, 0.5)) for rank, count in entry["curve"]]
        axes.plot(*zip(*points, strict=True), color=colour, label=entry["dataset"])
    axes.axvline(20, color=COLOURS["muted"], linestyle=":", linewidth=1)
    axes.set(yscale="log", xlabel="percent of bundles, most taken first", ylabel="interactions (log scale)")
    axes.legend(fontsize=8.5)
