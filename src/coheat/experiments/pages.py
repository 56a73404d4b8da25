"""An experiment's document as tables: cells for everybody, and Markdown from them.

Numbers are means over seeds ± standard deviation; "difference" is (measured - published) / published. Below
the figures stand their intervals (`certainty`) and who is seen in the lists (`coheat.evaluation.exposure`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coheat.errors import DataError
from coheat.experiments.published import METRICS
from coheat.experiments.sources import RATIO
from coheat.plots import OTHERS
from coheat.storage import replacing_file

Document = dict[str, Any]
LABELS = {"recall@20": "Recall@20", "ndcg@20": "nDCG@20"}
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Sheet:
    """A table ready to be written: heads, rows of texts, the number of the best row, remarks below it.

    Of the best row the first `marked` cells stand out: up to the figure by which it is the best.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: int | None
    remarks: tuple[str, ...]
    marked: int = 3


def decimal(value: float) -> str:
    """Four decimals without a leading zero, as the paper has it.

    >>> decimal(0.01834), decimal(1.0), decimal(-0.5)
    ('.0183', '1.0000', '-.5000')
    """
    text = f"{value:.4f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def mean_and_deviation(values: Sequence[float]) -> str:
    """Mean over the seeds, and the sample's standard deviation where there are several."""
    spread = f" ± {decimal(statistics.stdev(values))}" if len(values) > 1 else ""
    return decimal(statistics.mean(values)) + spread


def relative_difference(measured: float, published: float) -> str:
    """How far a measured figure is from the published one, in percent of it."""
    return f"{measured / published - 1:+.0%}" if published else ""


def row_name(row: Document, grid: str | None) -> str:
    return str(row["name"]) if row["at"] is None else f"{row['name']}, {grid} = {row['at']:g}"


def sheets(document: Document) -> list[Sheet]:
    """All tables of an experiment."""
    if document["view"] == "datasets":
        return [_dataset_sheet(entry) for entry in document["datasets"]]
    tables, grid = document["tables"], document["grid"]
    figures: dict[str, Sheet] = {}
    if document["view"] == "warm-up":
        figures = {_title(table): _level_sheet(table) for table in tables}
    elif not any(table["division"].startswith(RATIO) for table in tables):
        figures = {_title(table): _sheet([table], grid) for table in tables}
    else:
        by_dataset: dict[str, list[Document]] = {}
        for table in tables:
            by_dataset.setdefault(table["dataset"], []).append(table)
        for group in by_dataset.values():
            figures[_title(group[-1])] = _sheet(group, grid)
    found: list[Sheet] = []
    for table in tables:
        found += [figures[_title(table)]] if _title(table) in figures else []
        found += _interval_sheet(table, grid) + _exposure_sheet(table, grid)
    return found


def _title(table: Document) -> str:
    return f"{table['dataset']}, {table['division']}"


def _interval_sheet(table: Document, grid: str | None) -> list[Sheet]:
    """How sure the figures are; none where no values of single users are kept."""
    rows = []
    for row in table["rows"]:
        if not row.get("intervals"):
            continue
        cells = [row_name(row, grid)]
        for metric in METRICS:
            found = row["intervals"][metric]
            cells.append(f"{decimal(found['low'])} to {decimal(found['high'])}")
            if "rival" in found:
                gap, low, high = (f"{'+' if one > 0 else ''}{decimal(one)}" for one in found["difference"])
                cells += [found["rival"], f"{gap} ({low} to {high})", f"{found['p']:.2g}"]
            else:
                cells += ["", "", ""]
        rows.append(tuple(cells))
    if not rows:
        return []
    heads = tuple(
        head for metric in METRICS for head in (LABELS[metric], "best rival", "difference to it", "p")
    )
    remark = (
        "Bootstrap over users and seeds: bounds within which 95% of the means lie. The best rival is the "
        "best row of another model, where there is one; p is two-sided and Holm-corrected over the rows."
    )
    missing = [row for row in table["rows"] if row["seeds"] and "rival" not in _first_interval(row)]
    if missing:
        names = ", ".join(row_name(row, grid) for row in missing)
        remark += f" Not compared, since no values of single users were kept: {names}."
    return [Sheet(f"{_title(table)}: how sure", ("model", *heads), tuple(rows), None, (remark,))]


def _first_interval(row: Document) -> Document:
    found: Document = row.get("intervals", {}).get(METRICS[0], {})
    return found


EXPOSURE = {
    "gini@20": "Gini",
    "coverage@20": "catalogue shown",
    "popularity_lift@20": "popularity lift",
    "young_share@20": "young in lists",
}
"""Figures of `coheat.evaluation.exposure` as they are called in tables."""


def exposure_cells(seen: Document) -> tuple[str, ...]:
    """Means over seeds of who is seen; empty where a figure means nothing for the data."""
    cells = []
    for name in EXPOSURE:
        values = [value for value in seen[name] if value is not None]
        mean = statistics.mean(values) if values else None
        as_share = name in ("coverage@20", "young_share@20")
        cells.append("" if mean is None else f"{mean:.1%}" if as_share else f"{mean:+.2f}".lstrip("+"))
    return tuple(cells)


def _exposure_sheet(table: Document, grid: str | None) -> list[Sheet]:
    measured = [row for row in table["rows"] if row.get("exposure")]
    if not measured:
        return []
    young = statistics.mean(measured[0]["exposure"]["young_of_candidates"])
    remark = (
        "Of the first 20 places: Gini of their sharing among bundles, the share of bundles shown at all, "
        "how much more popular they are than what the users took before, and the share of places of bundles "
        f"with at most 4 takers, which {young:.0%} of the bundles are."
    )
    rows = tuple((row_name(row, grid), *exposure_cells(row["exposure"])) for row in measured)
    return [Sheet(f"{_title(table)}: who is seen", ("model", *EXPOSURE.values()), rows, None, (remark,))]


def _sheet(tables: Sequence[Document], grid: str | None) -> Sheet:
    """One table, or several divisions of one data set under each other with their share in front."""
    shares = tables[0]["division"].startswith(RATIO)
    heads: tuple[str, ...] = ("cold share",) if shares else ()
    heads += ("model", "seeds")
    for metric in METRICS:
        heads += (LABELS[metric], "paper", "difference")
    heads += ("epoch",)
    rows, remarks, means = [], [], []
    for table in tables:
        share = (f"{float(table['division'].removeprefix(RATIO)):.0%}",) if shares else ()
        for row in table["rows"]:
            if row["seeds"] or row["failures"]:
                rows.append((*share, *_cells(row, grid)))
                means.append(statistics.mean(row["test"][METRICS[0]]) if row["seeds"] else -1.0)
        remarks += _remarks(table, grid)
    title = f"{tables[0]['dataset']}, cold ratio" if shares else _title(tables[0])
    best = max(range(len(rows)), key=means.__getitem__) if rows and not shares and max(means) >= 0 else None
    return Sheet(title, heads, tuple(rows), best, tuple(dict.fromkeys(remarks)))


def _level_sheet(table: Document) -> Sheet:
    """Recall by how many takers a bundle kept; the best row is the best on those with some."""
    metric, measured = METRICS[0], [row for row in table["rows"] if row.get("warm_up")]
    levels = list(measured[0]["warm_up"]) if measured else []
    some = [level for level in levels if level not in ("0", OTHERS)] or levels[:1]  # tiny data have none
    rows: list[tuple[str, ...]] = []
    means = []
    for row in table["rows"]:
        if row in measured:
            found = {level: numbers[metric] for level, numbers in row["warm_up"].items()}
            over = [statistics.mean(values) for values in zip(*(found[level] for level in some), strict=True)]
            cells = (mean_and_deviation(values) for values in (*found.values(), over, row["test"][metric]))
            rows.append((row["name"], str(len(row["seeds"])), *cells, ", ".join(map(str, row["epochs"]))))
            means.append(statistics.mean(over))
        elif row["failures"]:
            rows.append((row["name"], "0", *(["failed"] * (len(levels) + 2)), ""))
            means.append(-1.0)
    span = f"mean of {some[0]} to {some[-1]}" if some else ""
    heads = ("takers kept", "seeds", *levels, span, LABELS[metric], "epoch")
    best = max(range(len(rows)), key=means.__getitem__) if means and max(means) >= 0 else None
    remarks = _level_remarks(measured, levels) + _remarks(table, None)
    return Sheet(_title(table), heads, tuple(rows), best, tuple(remarks), marked=1)


def _level_remarks(measured: Sequence[Document], levels: Sequence[str]) -> list[str]:
    if not measured:
        return []
    counts = {level: measured[0]["warm_up"][level]["positives"][0] for level in levels}
    held_out = ", ".join(f"{level}: {count:,}" for level, count in counts.items())
    return [
        "A column has the share of held-out takers of its bundles who find them among their first 20. "
        f"So many are held out (seed 0): {held_out}.",
    ]


def _cells(row: Document, grid: str | None) -> tuple[str, ...]:
    name, published = row_name(row, grid), row["published"] or {}
    if not row["seeds"]:
        paper = [decimal(published[m]) if m in published else "" for m in METRICS]
        return (name, "0", "failed", paper[0], "", "failed", paper[1], "", "")
    cells: list[str] = [name, str(len(row["seeds"]))]
    for metric in METRICS:
        values = row["test"][metric]
        cells.append(mean_and_deviation(values))
        if metric in published:
            cells += [
                decimal(published[metric]),
                relative_difference(statistics.mean(values), published[metric]),
            ]
        else:
            cells += ["", ""]
    cells.append(", ".join(str(epoch) for epoch in row["epochs"]))
    return tuple(cells)


def _remarks(table: Document, grid: str | None) -> list[str]:
    """What is missing, what failed beside what succeeded, and whether the best is ahead by more than luck."""
    remarks = []
    missing = [row for row in table["rows"] if not row["seeds"] and not row["failures"]]
    if missing:
        names = (row_name(row, grid) + (f" ({row['note']})" if row["note"] else "") for row in missing)
        remarks.append(f"Not run: {', '.join(names)}.")
    for row in table["rows"]:
        failures: dict[str, list[str]] = {}
        for failure in row["failures"]:
            failures.setdefault(failure["reason"], []).append(str(failure["seed"]))
        for reason, seeds in failures.items():
            remarks.append(f"{row_name(row, grid)} failed (seed {', '.join(seeds)}): {reason}.")
    if carried := [row_name(row, grid) for row in table["rows"] if row.get("carried")]:
        remarks.append(f"Carried over from an earlier run: {', '.join(carried)}.")
    share = table["division"].removeprefix(RATIO)
    place = f" at a cold share of {share}" if table["division"].startswith(RATIO) else ""
    remarks += [_verdict(test, place) for test in table.get("significance", []) if test["p"] is not None]
    return remarks + _about_data(table["parts"]) + _origins(table["rows"], grid)


def _verdict(test: Document, place: str) -> str:
    """A paired test of the best two rows, in documents that have no intervals yet."""
    sure = "significant" if test["p"] < SIGNIFICANT else "not significant"
    among = "" if test["among"] == "all rows" else ", yardsticks aside"
    return (
        f"{LABELS[test['metric']]}{place}{among}: {test['best']} is ahead of {test['second']} by "
        f"{decimal(test['difference'])} ({sure}, p = {test['p']:.2g}, paired over {test['users']:,} users)."
    )


def _about_data(parts: Document) -> list[str]:
    remarks = []
    if "leaks_removed" in parts:
        remarks.append(f"Without what only held-out bundles explain: as published, {parts['leaks_removed']}.")
    if parts.get("candidates") == "offered":
        remarks.append("Only bundles that were on offer during the test are ranked.")
    return remarks


def _origins(rows: Sequence[Document], grid: str | None) -> list[str]:
    """Where the settings of rows come from: one remark for each origin."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["seeds"] and row.get("origin"):
            own = ", ".join(
                f"{key}={value}" for key, value in row.get("overrides", {}).items() if key != grid
            )
            found.setdefault(row["origin"], []).append(f"{row['name']} ({own})" if own else row["name"])
    return [f"Settings of {', '.join(dict.fromkeys(names))}: {origin}." for origin, names in found.items()]


def _dataset_sheet(entry: Document) -> Sheet:
    found, published = entry["statistics"], entry["published"] or {}
    names = ("users", "bundles", "items", "user_bundle", "user_item", "bundle_item", "average_bundle_size")
    rows = []
    for name in names:
        density = found.get(f"{name}_density")
        rows.append(
            (
                name.replace("_", "-") if density is not None else name.replace("_", " "),
                _count(found[name]),
                _count(published[name]) if name in published else "",
                "" if density is None else f"{density:.2f}%",
            )
        )
    remark = (
        f"The 20% most taken bundles have {found['top_20_percent_share']:.0%} of the interactions, the 10% "
        f"most taken {found['top_10_percent_share']:.0%}; Gini {found['gini']:.2f}; "
        f"{found['bundles_without_interactions']:,} bundles have none."
    )
    return Sheet(entry["dataset"], ("", "measured", "paper", "density"), tuple(rows), None, (remark,))


def _count(value: float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


def markdown(document: Document) -> str:
    """An experiment as Markdown: its tables and remarks, then what it was measured with."""
    parts = [f"### {document['title']}"]
    for sheet in sheets(document):
        parts.append(f"**{sheet.title}**")
        if sheet.rows:
            parts.append(_markdown_table(sheet))
        parts.append("\n".join(f"- {remark}" for remark in sheet.remarks))
    parts.append("\n".join(f"- {note}" for note in document["notes"]))
    parts.append(_colophon(document))
    return "\n\n".join(part for part in parts if part)


def _markdown_table(sheet: Sheet) -> str:
    n_words = 2 if sheet.heads[0] == "cold share" else 1
    sides = ["---"] * n_words + ["---:"] * (len(sheet.heads) - n_words)
    lines = [sheet.heads, tuple(sides)]
    for number, row in enumerate(sheet.rows):
        cells = [cell.replace("|", r"\|").replace("\n", " ") for cell in row]
        if number == sheet.best:
            cells[: sheet.marked] = [f"**{cell}**" for cell in cells[: sheet.marked]]
        lines.append(tuple(cells))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _colophon(document: Document) -> str:
    made = document["environment"]
    versions = ", ".join(f"{name} {made[name]}" for name in ("coheat", "python", "torch", "numba", "numpy"))
    text = f"Made with {versions} on {made['machine']}, {made['cores']} cores."
    if document["view"] != "datasets":
        text += (
            " Figures are of the test part, means over seeds ± standard deviation; the epoch was chosen on "
            f"validation. Every setting stands in `{document['experiment']}.json`."
        )
    return text


def fill_page(page: Path, name: str, text: str) -> None:
    """Put an experiment's Markdown between `<!-- results: NAME -->` and `<!-- end -->` in a page."""
    start, end = f"<!-- results: {name} -->", "<!-- end -->"
    if not page.is_file():
        raise DataError(f"{page}: there is no such page")
    before, found, rest = page.read_text(encoding="utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise DataError(f"{page}: write the lines {start} and {end} where the table should stand")
    with replacing_file(page) as aside:
        aside.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")
