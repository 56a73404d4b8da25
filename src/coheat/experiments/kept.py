"""Results that were kept, such as those in docs/results: the time they took, and rows to carry over."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coheat.errors import ArtifactError
from coheat.experiments.certainty import rivals_among, row_name
from coheat.experiments.jobs import Job, measured_path
from coheat.experiments.writing import read_document
from coheat.storage import read_json
from coheat.tasks.running import duration

Document = dict[str, Any]
KEPT = Path("docs") / "results"
"""Where a working copy of this project keeps its results."""


def kept_documents(directory: Path | None, names: Iterable[str]) -> list[Document]:
    """The documents of these experiments that a directory holds; another file of such a name is left out."""
    found = []
    for name in names if directory else ():
        assert directory is not None
        if (directory / f"{name}.json").exists():
            try:
                found.append(read_document(directory, name))
            except ArtifactError:
                continue
    return found


def carry_over(document: Document, kept: Sequence[Document]) -> Document:
    """The document with the rows that were kept of this experiment in the place of its own, where they have
    more seeds and the same settings.

    So a table can be measured anew row by row, on several machines or days. Rows whose settings have changed
    since are not carried: their own command would not give them any more. A row is compared with its best
    rival of all; where those two were never in one run, there is no difference to show.
    """
    own = [one for one in kept if one["experiment"] == document["experiment"]]
    before = {_place(table): table["rows"] for one in own for table in one.get("tables", [])}
    tables = []
    for table in document.get("tables", []):
        earlier = {_key(table, row): row for row in before.get(_place(table), [])}
        rows = []
        for row in table["rows"]:
            old = earlier.get(_key(table, row))
            if old is not None and len(old["seeds"]) > len(row["seeds"]) and same_settings(old, row):
                here = ("note", "origin", "overrides", "published", "settings")
                row = {**old, **{name: row[name] for name in here}, "failures": [], "carried": True}
            rows.append(row)
        runs = [table["rows"], before.get(_place(table), [])]
        tables.append({**table, "rows": _compared(rows, runs)})
    return {**document, "tables": tables} if tables else document


def _compared(rows: Sequence[Document], runs: Sequence[Sequence[Document]]) -> list[Document]:
    """The rows with those of their differences that compare them with the best rival of all, from any of the
    `runs` in which both have the figures that they have here."""
    measured = {number: row for number, row in enumerate(rows) if row["seeds"]}
    rivals = rivals_among(measured)
    found = list(rows)
    for number, row in measured.items():
        intervals = {}
        for metric, interval in row.get("intervals", {}).items():
            intervals[metric] = {bound: interval[bound] for bound in ("low", "high")}
            if rivals[number]:
                best = max(rivals[number], key=lambda one: statistics.mean(rows[one]["test"][metric]))
                known = (_difference(row, rows[best], metric, run) for run in runs)
                intervals[metric] = next((one for one in known if one), intervals[metric])
        if intervals:
            found[number] = {**row, "intervals": intervals}
    return found


def _difference(row: Document, best: Document, metric: str, run: Sequence[Document]) -> Document | None:
    """The interval of the row in a run that compared it with this rival, if both had the same figures."""
    then = {row_name(one): one for one in run}
    own, other = (then.get(row_name(one)) for one in (row, best))
    if own is None or other is None:
        return None
    same = all(a["test"].get(metric) == b["test"][metric] for a, b in ((own, row), (other, best)))
    found: Document = own.get("intervals", {}).get(metric, {})
    return found if same and found.get("rival") == row_name(best) else None


def _place(table: Document) -> tuple[str, str]:
    return table["dataset"], table["division"]


def row_key(dataset: str, division: str, name: str, model: str, at: float | None) -> tuple[Any, ...]:
    """What tells a row from all others of its experiment."""
    return dataset, division, name, model, at


def _key(table: Document, row: Document) -> tuple[Any, ...]:
    return row_key(table["dataset"], table["division"], row["name"], row["model"], row["at"])


def same_settings(old: Document, new: Document) -> bool:
    """Whether every setting that both know is the same; what one does not know did not exist then."""
    return not changed_settings(old, new)


def changed_settings(old: Document, new: Document) -> dict[str, tuple[Any, Any]]:
    """The settings, then and now, that are not the same."""
    return {
        key: (value, new["settings"][key])
        for key, value in old["settings"].items()
        if key in new["settings"] and new["settings"][key] != value
    }


@dataclass(frozen=True)
class Forecast:
    """How long trainings will take, and what this rests on: how many were timed before, or similar ones."""

    seconds: float | None
    trainings: int
    parallel: int
    source: str
    timed: int
    similar: int
    guessed: int

    def __str__(self) -> str:
        count = f"{self.trainings:,} training{'s' if self.trainings > 1 else ''} to do"
        if self.seconds is None:
            return f"{count}; how long they take is not known, since none was timed in {self.source}"
        return (
            f"{count}, about {duration(self.seconds)} with {self.parallel} at a time. {self.timed:,} of "
            f"these were timed in {self.source}, {self.similar:,} are taken to be like the same model "
            f"elsewhere, and {self.guessed:,} like the average; another machine takes another time."
        )


Timed = tuple[str, str, str]
"""Data set, division and model of a training."""


def forecast(
    jobs: Sequence[Job], parallel: int, out: Path, kept: Sequence[Document], source: str
) -> Forecast:
    """The time of these trainings, from the seconds of earlier ones in `out` and in kept documents."""
    means = _seconds_of_trainings(out, kept)
    of_model: dict[str, list[float]] = {}
    for (_, _, model), seconds in means.items():
        of_model.setdefault(model, []).append(seconds)
    total, timed, similar = 0.0, 0, 0
    for job in jobs:
        dataset, division = job.place.split("/")[:2]
        known = means.get((dataset, division, job.model))
        timed += known is not None
        if known is None and job.model in of_model:
            known, similar = statistics.mean(of_model[job.model]), similar + 1
        total += known if known is not None else statistics.mean(means.values()) if means else 0.0
    left = total / max(min(parallel, len(jobs)), 1) if means else None
    return Forecast(left, len(jobs), parallel, source, timed, similar, len(jobs) - timed - similar)


def _seconds_of_trainings(out: Path, kept: Sequence[Document]) -> dict[Timed, float]:
    exact: dict[Timed, list[float]] = {}
    for document in kept:
        for table in document.get("tables", []):
            for row in table["rows"]:
                key = (table["dataset"], table["division"], row["model"])
                exact.setdefault(key, []).extend(row["seconds"])
    for path in measured_path(out, "", "").rglob("seed-*.json"):
        dataset, division, group = path.relative_to(measured_path(out, "", "")).parts[:3]
        if (seconds := read_json(path).get("seconds")) is not None:
            exact.setdefault((dataset, division, group.rpartition("-")[0]), []).append(seconds)
    return {key: statistics.mean(values) for key, values in exact.items() if values}
