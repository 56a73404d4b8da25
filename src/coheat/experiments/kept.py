"""Results that were kept, such as those in docs/results: the time they took, and rows to carry over."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coheat.errors import ArtifactError
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
    """The document with kept rows in the place of its own where they have more seeds and the same settings.

    So a table can be measured anew row by row, on several machines or days. Rows whose settings have changed
    since are not carried: their own command would not give them any more.
    """
    before: dict[tuple[Any, ...], Document] = {}
    for table in (table for one in kept for table in one.get("tables", [])):
        for row in table["rows"]:
            known = before.setdefault(_key(table, row), row)
            if len(row["seeds"]) > len(known["seeds"]):  # several experiments may have the same row
                before[_key(table, row)] = row
    tables = []
    for table in document.get("tables", []):
        rows = []
        for row in table["rows"]:
            old = before.get(_key(table, row))
            if old is not None and len(old["seeds"]) > len(row["seeds"]) and same_settings(old, row):
                here = ("note", "origin", "overrides", "published", "settings")
                row = {**old, **{name: row[name] for name in here}, "failures": [], "carried": True}
            rows.append(row)
        if any(row["seeds"] and not row.get("carried") for row in rows):
            rows = [_without_differences(row) if row.get("carried") else row for row in rows]
        tables.append({**table, "rows": rows})
    return {**document, "tables": tables} if tables else document


def _without_differences(row: Document) -> Document:
    """A carried row beside fresh ones: its rival may not be the best any more."""
    found = {
        metric: {bound: one[bound] for bound in ("low", "high")}
        for metric, one in row.get("intervals", {}).items()
    }
    return {**row, "intervals": found} if found else row


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
