"""Whether kept results still hold: some of their rows trained afresh, with the same data, settings and seed.

A row drifts where a fresh figure is further from the kept one than rounding explains, where today's settings
are not those it was measured with, or where the experiment does not have it any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from coheat.errors import ConfigError
from coheat.experiments.jobs import Job, measured_path
from coheat.experiments.kept import Document, changed_settings, kept_documents, row_key
from coheat.experiments.plan import check_only, load_experiment, load_experiments
from coheat.experiments.published import METRICS
from coheat.experiments.reproduce import announce, train
from coheat.experiments.results import Entry, plan_tables
from coheat.experiments.sources import Sources, find_datasets
from coheat.storage import read_json

RELATIVE, ABSOLUTE = 0.01, 0.0002
"""How far a fresh figure may be from the kept one, as a share of it, or where it is near 0: other versions
of libraries and other numbers of threads round differently, and now and then a hit falls the other way."""
SAMPLE_SECONDS = 180.0
"""Without a choice of models so many recorded seconds are trained, the quickest rows first."""


@dataclass(frozen=True)
class Checked:
    """One figure of a kept row: what it was, what it is, or why it cannot be had."""

    experiment: str
    dataset: str
    division: str
    row: str
    seed: int | None
    metric: str | None
    committed: float | None
    fresh: float | None
    problem: str = ""

    @property
    def drifted(self) -> bool:
        if self.problem or self.committed is None or self.fresh is None:
            return True
        return abs(self.fresh - self.committed) > max(ABSOLUTE, RELATIVE * abs(self.committed))

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "drifted": self.drifted}


@dataclass(frozen=True)
class Pair:
    """A kept row and the training that makes its first seed today."""

    experiment: str
    table: Document
    kept: Document
    job: Job | None
    problem: str = ""

    @property
    def seconds(self) -> float:
        return float(self.kept["seconds"][0]) if self.kept["seconds"] else float("inf")


def check(
    name: str,
    data: Path,
    results: Path,
    out: Path,
    only: Sequence[str] = (),
    parallel: int = 1,
    console: Console | None = None,
) -> list[Checked]:
    """Train a sample of the rows kept in `results` afresh in `out` and compare.

    The sample has the quickest rows, or with `only` all rows of these models.
    """
    if only:
        check_only(only)
    documents = kept_documents(results, [experiment.name for experiment in load_experiments(name)])
    if not documents:
        raise ConfigError(
            f"{results}: there are no results of experiments here; name their place: --results DIR"
        )
    out.mkdir(parents=True, exist_ok=True)
    datasets, sources = find_datasets(data), Sources(out)
    pairs: list[Pair] = []
    for document in documents:
        experiment = load_experiment(name if name.endswith(".toml") else document["experiment"])
        if experiment.view == "datasets":
            continue
        found = {
            row_key(table.dataset, table.division, entry.row.name, entry.row.model, entry.row.at): entry
            for table in plan_tables(experiment, datasets, sources)
            for entry in table.entries
        }
        names = {(key[0], key[1]) for key in found}
        for table in document["tables"]:
            if (table["dataset"], table["division"]) in names:
                pairs += [
                    _pair(document["experiment"], table, row, found)
                    for row in table["rows"]
                    if row["seeds"] and (not only or row["model"] in only)
                ]
    sample = _sample([pair for pair in pairs if pair.job is not None], bool(only))
    jobs = {pair.job.place: pair.job for pair in sample if pair.job is not None}
    waiting = [job for job in jobs.values() if not job.is_done()]
    if waiting:
        announce(waiting, parallel, out, documents, results, console)
        train(waiting, data, out, parallel, console=console)
    checked = [_refused(pair) for pair in pairs if pair.problem]
    return checked + [one for pair in sample for one in _compared(pair, out)]


def _pair(experiment: str, table: Document, row: Document, found: dict[tuple[Any, ...], Entry]) -> Pair:
    entry = found.get(row_key(table["dataset"], table["division"], row["name"], row["model"], row["at"]))
    if entry is None or entry.group is None:
        return Pair(experiment, table, row, None, "the experiment does not have this row any more")
    if changed := changed_settings(row, {"settings": entry.group.settings}):
        values = ", ".join(f"{key} was {old} and is {new}" for key, (old, new) in changed.items())
        return Pair(experiment, table, row, None, f"measured with other settings: {values}")
    job = next((job for job in entry.jobs if job.seed == row["seeds"][0]), None)
    problem = "" if job else f"the experiment has no seed {row['seeds'][0]}"
    return Pair(experiment, table, row, job, problem)


def _sample(pairs: Sequence[Pair], everything: bool) -> list[Pair]:
    """The quickest rows, as many as fit; a training that stands in several tables is done once."""
    chosen: list[Pair] = []
    places: set[str] = set()
    spent = 0.0
    for pair in sorted(pairs, key=lambda pair: pair.seconds):
        assert pair.job is not None
        if pair.job.place not in places:
            if places and not everything and spent + pair.seconds > SAMPLE_SECONDS:
                continue
            places.add(pair.job.place)
            spent += pair.seconds
        chosen.append(pair)
    return chosen


def _refused(pair: Pair) -> Checked:
    where = (pair.experiment, pair.table["dataset"], pair.table["division"], pair.kept["name"])
    return Checked(*where, None, None, None, None, pair.problem)


def _compared(pair: Pair, out: Path) -> list[Checked]:
    assert pair.job is not None
    measured = read_json(measured_path(out, pair.job.place))
    where = (pair.experiment, pair.table["dataset"], pair.table["division"], pair.kept["name"], pair.job.seed)
    if "failed" in measured:
        return [Checked(*where, None, None, None, f"failed: {measured['failed']}")]
    return [
        Checked(*where, metric, pair.kept["test"][metric][0], measured["test"][metric]) for metric in METRICS
    ]
