"""Write the short tables of docs/results.md and README.md, and the picture of first days, from docs/results.

    python tools/results_tables.py            # write them
    python tools/results_tables.py --check    # exit with 1 where a page is out of date

The long tables, docs/results/NAME.md, are made by another command:
`coheat reproduce NAME --results docs/results --out docs/results`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coheat.experiments.pages import EXPOSURE, exposure_cells
from coheat.plots import OTHERS, plot_warm_up

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PICTURE = ROOT / "docs" / "images" / "first-days.png"
SCENARIOS = ("cold", "warm", "all")
EXPERIMENTS = ("current-rivals", "cold-methods", "warm-methods", "figure-comparison", "ember")
OURS = ("Ember", "Ember, default knob")
PICTURED = (*OURS, "CoHeat", "CrossCBR", "MultiCBR", "Counting")
"""Who is in the picture of first days; with all models nobody could tell the lines apart."""
OTHER_DATA = {
    "meal": "MealRec+H, published split, leaks taken out",
    "grocery": "a grocery, by time, bundles on offer",
}
WORLDS = {"small-bundles": "small bundles", "large-bundles": "large bundles"}
YARDSTICKS = ("Counting", "Popularity")
METRICS = ("recall@20", "ndcg@20")
Figures = dict[str, tuple[float, ...]]
"""Recall@20 and nDCG@20 of a model by scenario, or of models by name."""


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def rows(names: tuple[str, ...] = EXPERIMENTS) -> Iterator[tuple[str, Any]]:
    """Every row of the kept tables with its scenario."""
    for name in names:
        if (RESULTS / f"{name}.json").exists():
            for table in read(name)["tables"]:
                yield from ((table["division"], row) for row in table["rows"])


def experiments() -> tuple[dict[str, Figures], dict[str, Figures]]:
    """What was measured and what was published, by model."""
    measured: dict[str, Figures] = {}
    published: dict[str, Figures] = {}
    for division, row in rows():
        if row["published"]:
            figures = tuple(row["published"][metric] for metric in METRICS)
            published.setdefault(row["name"], {})[division] = figures
        if row["seeds"]:
            figures = tuple(statistics.mean(row["test"][metric]) for metric in METRICS)
            measured.setdefault(row["name"], {})[division] = figures
    return measured, published


def seeds_of(name: str) -> str:
    """How many seeds a row has: the fewest of its scenarios."""
    return str(min(len(row["seeds"]) for _, row in rows() if row["name"] == name and row["seeds"]))


def comparison() -> str:
    """Every model in the three scenarios, the best recall of a scenario in bold."""
    measured, published = experiments()
    first = [*OURS, "CoHeat"]
    others = [name for name in measured if name not in (*first, *YARDSTICKS)]
    by_warm = sorted(others, key=lambda name: measured[name]["warm"], reverse=True)
    found = {name: measured[name] for name in (*first, *by_warm, *YARDSTICKS)}
    best = {s: max(figures[s] for figures in found.values() if s in figures) for s in SCENARIOS}
    lines = [
        "| model | seeds | cold | published | warm | published | all | published |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, figures in found.items():
        cells = [name, seeds_of(name)]
        for scenario in SCENARIOS:
            one = figures.get(scenario)
            text = pair(one) if one else ""
            cells.append(f"**{text}**" if one == best[scenario] else text)
            cells.append(short(published.get(name, {}).get(scenario, ())[:1]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def shelf() -> str:
    """Who finds the new bundles where only these are candidates, the best first."""
    found = {
        row["name"]: tuple(statistics.mean(row["shelf"][metric]) for metric in METRICS)
        for division, row in rows()
        if division == "cold" and row.get("shelf")
    }
    lines = ["| only new bundles are candidates | seeds | Recall@20 / nDCG@20 |", "| --- | ---: | ---: |"]
    order = sorted(found, key=lambda name: found[name], reverse=True)
    return "\n".join([*lines, *(f"| {name} | {seeds_of(name)} | {pair(found[name])} |" for name in order)])


def exposure() -> str:
    """Who is seen in the scenario with known and new bundles, by model."""
    seen: dict[str, tuple[str, ...]] = {}
    for division, row in rows():
        if division == "all" and row.get("exposure"):
            seen[row["name"]] = exposure_cells(row["exposure"])
    heads = ("model", *EXPOSURE.values())
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " ---: |" * len(EXPOSURE)]
    order = sorted(seen, key=lambda name: (name in YARDSTICKS, float(seen[name][0])))
    return "\n".join([*lines, *(f"| {name} | {' | '.join(seen[name])} |" for name in order)])


def summary() -> str:
    """The README's: three models, three scenarios."""
    measured, published = experiments()
    columns = {name: measured[name] for name in (*OURS, "CoHeat")}
    columns |= {"CoHeat, published": published["CoHeat"], "CrossCBR": measured["CrossCBR"]}
    columns |= {"Counting": measured["Counting"]}
    lines = [f"| Recall@20 / nDCG@20 | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    lines += [
        f"| {scenario} | {' | '.join(pair(figures[scenario]) for figures in columns.values())} |"
        for scenario in SCENARIOS
    ]
    return "\n".join(lines)


def warm_up() -> dict[str, dict[str, dict[str, float]]]:
    """Recall and held-out takers by the takers that a bundle kept in training, by model.

    Means over the seeds that all models have: another one draws other bundles.
    """
    measured = [row for _, row in rows(("warm-up",)) if row["seeds"]]
    common = min(len(row["seeds"]) for row in measured)
    found = {
        row["name"]: {
            level: {name: statistics.mean(values[:common]) for name, values in one.items()}
            for level, one in row["warm_up"].items()
        }
        for row in measured
    }
    return dict(sorted(found.items(), key=lambda one: -sum(level[METRICS[0]] for level in one[1].values())))


def first_days() -> str:
    """Recall by the takers that a bundle kept in training."""
    models = warm_up()
    levels = list(next(iter(models.values())))
    names = ["all others" if level == OTHERS else level for level in levels]
    lines = [f"| takers kept in training | {' | '.join(names)} |", "| --- |" + " ---: |" * len(levels)]
    for name, found in models.items():
        lines.append(f"| {name} | {' | '.join(short([found[level][METRICS[0]]], 3) for level in levels)} |")
    counts = [f"{found['positives']:,.0f}" for found in next(iter(models.values())).values()]
    lines.append(f"| *held-out takers* | {' | '.join(counts)} |")
    return "\n".join(lines)


def other_data() -> str:
    """One column per data set, the best recall in bold."""
    found = {table["dataset"]: means(table) for table in read("other-shops")["tables"]}
    columns = {title: found[dataset] for dataset, title in OTHER_DATA.items()}
    models = [name for name in found["meal"] if all(name in figures for figures in columns.values())]
    models.sort(key=lambda name: (name in YARDSTICKS, -found["meal"][name][0]))
    lines = [f"| model | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    for name in models:
        cells = (best_in_bold(figures, name) for figures in columns.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def worlds() -> str:
    """One row per generated world and scenario, the best recall in bold."""
    tables = {(table["dataset"], table["division"]): means(table) for table in read("worlds")["tables"]}
    models = list(next(iter(tables.values())))
    lines = [f"| world, scenario | {' | '.join(models)} |", "| --- |" + " ---: |" * len(models)]
    for (world, scenario), found in tables.items():
        cells = (best_in_bold(found, name) for name in models)
        lines.append(f"| {WORLDS[world]}, {scenario} | {' | '.join(cells)} |")
    return "\n".join(lines)


def means(table: Any) -> Figures:
    """Recall@20 and nDCG@20 of every model of a table that was measured."""
    return {
        row["name"]: tuple(statistics.mean(row["test"][metric]) for metric in METRICS)
        for row in table["rows"]
        if row["seeds"]
    }


def best_in_bold(found: Figures, name: str) -> str:
    text = pair(found[name])
    return f"**{text}**" if name == max(found, key=lambda one: found[one]) else text


PLACES: dict[str, dict[str, Callable[[], str]]] = {
    "docs/results.md": {
        "comparison": comparison,
        "shelf": shelf,
        "exposure": exposure,
        "first days": first_days,
        "other data": other_data,
        "worlds": worlds,
    },
    "README.md": {"summary": summary},
}


def page_with_tables(page: str) -> str:
    """A page as it should be: each table between `<!-- table: NAME -->` and `<!-- end -->`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, table in PLACES[page].items():
        before, start, rest = text.partition(f"<!-- table: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not start or not end:
            sys.exit(f"{page}: write <!-- table: {name} --> and <!-- end --> where the table belongs")
        text = before + start + table() + "\n" + end + after
    return text


def pair(figures: tuple[float, ...]) -> str:
    return short(figures, separator=" / ")


def short(figures: tuple[float, ...] | list[float], digits: int = 4, separator: str = " ") -> str:
    return separator.join(f"{figure:.{digits}f}".lstrip("0") for figure in figures)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    check = parser.parse_args().check
    for page in PLACES:
        text = page_with_tables(page)
        if not check:
            (ROOT / page).write_text(text, encoding="utf-8")
        elif text != (ROOT / page).read_text(encoding="utf-8"):
            sys.exit(f"{page} is out of date: run python tools/results_tables.py")
    if not check:
        pictured = {name: found for name, found in warm_up().items() if name in PICTURED}
        plot_warm_up(pictured, PICTURE, METRICS[0], "Who finds a bundle in its first days?")


if __name__ == "__main__":
    main()
