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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coheat.plots import OTHERS, plot_warm_up

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PICTURE = ROOT / "docs" / "images" / "first-days.png"
SCENARIOS = ("cold", "warm", "all")
EXPERIMENTS = ("current-rivals", "cold-methods", "warm-methods", "figure-comparison")
OURS = ("Ember", "CoHeat")
YARDSTICKS = ("Counting", "Popularity")
METRICS = ("recall@20", "ndcg@20")
Figures = dict[str, tuple[float, ...]]
"""Recall@20 and nDCG@20 of a model, by scenario."""


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def ember(choice: str) -> Figures:
    """`choice`: the knob "chosen" on validation, or its "default"."""
    found = read("ember-youshu")[choice]
    return {scenario: tuple(found[scenario][metric] for metric in METRICS) for scenario in SCENARIOS}


def coheat() -> Figures:
    """Means over the seeds, with today's preset."""
    runs = read("coheat-youshu")["results"]
    return {
        scenario: tuple(
            statistics.mean(
                run["test"][metric] for key, run in runs.items() if key.startswith(f"{scenario}-")
            )
            for metric in METRICS
        )
        for scenario in SCENARIOS
    }


def experiments() -> tuple[dict[str, Figures], dict[str, Figures]]:
    """What was measured and what was published, by model; what we measured of ours has files of its own."""
    measured: dict[str, Figures] = {}
    published: dict[str, Figures] = {}
    for name in EXPERIMENTS:
        if not (RESULTS / f"{name}.json").exists():
            continue
        for table in read(name)["tables"]:
            for row in table["rows"]:
                if row["published"]:
                    figures = tuple(row["published"][metric] for metric in METRICS)
                    published.setdefault(row["name"], {})[table["division"]] = figures
                if row["seeds"] and row["name"] not in OURS:
                    figures = tuple(statistics.mean(row["test"][metric]) for metric in METRICS)
                    measured.setdefault(row["name"], {})[table["division"]] = figures
    return measured, published


def comparison() -> str:
    """Every model in the three scenarios, the best recall of a scenario in bold."""
    measured, published = experiments()
    yardsticks = {name: measured.pop(name) for name in YARDSTICKS}
    by_warm = sorted(measured, key=lambda name: measured[name]["warm"], reverse=True)
    rows = {"Ember": ember("chosen"), "Ember, default knob": ember("default"), "CoHeat": coheat()}
    rows |= {name: measured[name] for name in by_warm} | yardsticks
    best = {s: max(figures[s] for figures in rows.values() if s in figures) for s in SCENARIOS}
    lines = [
        "| model | cold | published | warm | published | all | published |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, figures in rows.items():
        cells = [name]
        for scenario in SCENARIOS:
            found = figures.get(scenario)
            text = pair(found) if found else ""
            cells.append(f"**{text}**" if found == best[scenario] else text)
            cells.append(short(published.get(name, {}).get(scenario, ())[:1]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary() -> str:
    """The README's: three models, three scenarios."""
    columns = {"Ember": ember("chosen"), "Ember, default knob": ember("default"), "CoHeat": coheat()}
    measured, published = experiments()
    columns |= {"CoHeat, published": published["CoHeat"], "CrossCBR": measured["CrossCBR"]}
    columns |= {"Counting": measured["Counting"]}
    lines = [f"| Recall@20 / nDCG@20 | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    lines += [
        f"| {scenario} | {' | '.join(pair(figures[scenario]) for figures in columns.values())} |"
        for scenario in SCENARIOS
    ]
    return "\n".join(lines)


def first_days() -> str:
    """Recall by the takers that a bundle kept in training."""
    models = read("first-days")["models"]
    levels = list(next(iter(models.values())))
    names = ["all others" if level == OTHERS else level for level in levels]
    lines = [f"| takers kept in training | {' | '.join(names)} |", "| --- |" + " ---: |" * len(levels)]
    for name, found in models.items():
        lines.append(f"| {name} | {' | '.join(short([found[level][METRICS[0]]], 3) for level in levels)} |")
    counts = [f"{found['positives']:,}" for found in next(iter(models.values())).values()]
    lines.append(f"| *held-out takers* | {' | '.join(counts)} |")
    return "\n".join(lines)


def other_data() -> str:
    """One row per data set, the best recall in bold."""
    data = read("other-data")["data"]
    models = list(next(iter(data.values())))
    lines = [f"| data | {' | '.join(models)} |", "| --- |" + " ---: |" * len(models)]
    for name, found in data.items():
        best = max(models, key=lambda model: found[model][METRICS[0]])
        cells = {model: pair(tuple(found[model][metric] for metric in METRICS)) for model in models}
        cells[best] = f"**{cells[best]}**"
        lines.append(f"| {name} | {' | '.join(cells.values())} |")
    return "\n".join(lines)


PLACES: dict[str, dict[str, Callable[[], str]]] = {
    "docs/results.md": {"comparison": comparison, "first days": first_days, "other data": other_data},
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
        plot_warm_up(
            read("first-days")["models"], PICTURE, METRICS[0], "Who finds a bundle in its first days?"
        )


if __name__ == "__main__":
    main()
