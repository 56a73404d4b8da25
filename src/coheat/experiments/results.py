"""Measurements gathered beside the published figures: one document per experiment, ready for JSON.

Everything that tables, pictures and the report show comes from this document alone, so they can be made again
from it on any machine, without data and without training.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat import __version__
from coheat.data.stats import stats
from coheat.experiments.certainty import Samples, intervals, rivals_among, row_name
from coheat.experiments.jobs import Group, Job, group_for, job_for, read_measured, read_per_user
from coheat.experiments.plan import Experiment, Row, rows
from coheat.experiments.published import METRICS, published_counts, published_figures
from coheat.experiments.sources import Dataset, Sources
from coheat.models import MODELS
from coheat.presets import origin_of, resolve_settings

FORMAT = 1
CURVE_POINTS = 200
Document = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A row in one table: where its runs are, or, where there can be none, why."""

    row: Row
    group: Group | None
    jobs: tuple[Job, ...]
    note: str = ""


@dataclass(frozen=True)
class Table:
    """One data set divided in one way, and the rows of the experiment there."""

    dataset: str
    division: str
    parts: Mapping[str, Any]
    entries: tuple[Entry, ...]


def plan_tables(
    experiment: Experiment,
    datasets: Sequence[Dataset],
    sources: Sources,
    seeds: int | None = None,
    epochs: int | None = None,
) -> list[Table]:
    """Every table of an experiment with the trainings it needs."""
    asked = rows(experiment, seeds, epochs)
    return [
        _table(experiment, asked, dataset, division, sources)
        for dataset in chosen_datasets(experiment, datasets, sources)
        for division in experiment.divisions
        if sources.has(dataset, division)
    ]


def chosen_datasets(
    experiment: Experiment, datasets: Sequence[Dataset], sources: Sources
) -> Sequence[Dataset]:
    """Those data sets that an experiment is about."""
    if experiment.worlds:
        return [sources.world(name) for name in experiment.worlds]
    divided = [dataset for dataset in datasets if dataset.is_divided]
    if experiment.data == "other":
        return [dataset for dataset in datasets if not dataset.is_divided]
    return divided if experiment.data == "divided" and divided else datasets


def _table(
    experiment: Experiment, asked: Sequence[Row], dataset: Dataset, division: str, sources: Sources
) -> Table:
    clean, candidates = experiment.without_leaks, experiment.candidates
    first = sources.source(dataset, division, 0, clean)
    entries = []
    for row in asked:
        if not row.belongs_in(division):
            continue
        if row.model not in MODELS:
            entries.append(Entry(row, None, (), f"model {row.model} is not in this version"))
            continue
        group = group_for(row, dataset.name, division, first, candidates)
        found = [sources.source(dataset, division, seed, clean) for seed in range(row.seeds)]
        jobs = tuple(
            job_for(sources.out, row, group, source, seed, candidates) for seed, source in enumerate(found)
        )
        entries.append(Entry(row, group, jobs))
    # Without times nobody knows what was on offer, and everything is ranked.
    judged = {"candidates": candidates} if candidates != "all" and division == "time" else {}
    return Table(dataset.name, division, {**first.report, **judged}, tuple(entries))


def missing_divisions(experiment: Experiment, datasets: Sequence[Dataset], sources: Sources) -> list[str]:
    """A note for each table that there is no data for; other shops are divided in one way each."""
    notes = []
    for dataset in chosen_datasets(experiment, datasets, sources):
        missing = [division for division in experiment.divisions if not sources.has(dataset, division)]
        if experiment.data != "other" or len(missing) == len(experiment.divisions):
            notes += [f"{dataset.name}: there is no data for the scenario {division}" for division in missing]
    return notes


def gather(
    experiment: Experiment,
    datasets: Sequence[Dataset],
    sources: Sources,
    out: Path,
    seeds: int | None = None,
    epochs: int | None = None,
) -> Document:
    """The document of an experiment, from whatever has been measured so far in `out`."""
    document: Document = {
        "format": FORMAT,
        "experiment": experiment.name,
        "title": experiment.title,
        "view": experiment.view,
        "grid": next(iter(experiment.grid), None),
        "environment": environment(),
        "notes": missing_divisions(experiment, datasets, sources),
    }
    if experiment.view == "datasets":
        return {**document, "datasets": [_statistics(dataset, sources) for dataset in datasets]}
    tables = plan_tables(experiment, datasets, sources, seeds, epochs)
    return {**document, "tables": [_filled(table, out) for table in tables]}


def _filled(table: Table, out: Path) -> Document:
    found = [_row(entry, table, out) for entry in table.entries]
    groups = {
        number: entry.group.directory
        for number, entry in enumerate(table.entries)
        if entry.group is not None and found[number]["seeds"]
    }
    for metric in METRICS:
        _add_intervals(found, groups, out, metric)
    return {
        "dataset": table.dataset,
        "division": table.division,
        "parts": dict(table.parts),
        "rows": found,
    }


def _row(entry: Entry, table: Table, out: Path) -> Document:
    """One row: the measurements of every seed there is, beside the published figure."""
    row, group = entry.row, entry.group
    measured = read_measured(out, group.directory) if group else []
    good = [document for document in measured if "failed" not in document]
    asked = {job.seed for job in entry.jobs}
    document: Document = {
        "name": row.name,
        "model": row.model,
        "family": row.family,
        "at": row.at,
        "preset": group.preset if group else None,
        "settings": group.settings if group else {},
        "origin": origin_of(row.model, group.preset) if group else "",
        "overrides": row.settings,
        "published": _published(entry, table),
        "note": entry.note,
        "failures": [
            {"seed": m["seed"], "reason": m["failed"]}
            for m in measured
            if "failed" in m and m["seed"] in asked
        ],
    }
    for key in ("seed", "epoch", "seconds", "seconds_per_epoch"):
        document[f"{key}s" if key in ("seed", "epoch") else key] = [m[key] for m in good]
    for part in ("test", "validation", "shelf"):
        there = [m[part] for m in good if m[part] is not None]
        document[part] = {name: [values[name] for values in there] for name in (there[0] if there else {})}
    if seen := [m["exposure"] for m in good if m.get("exposure")]:
        document["exposure"] = {name: [one[name] for one in seen] for name in seen[0]}
    if levels := [m["warm_up"] for m in good if m.get("warm_up")]:
        document["warm_up"] = _levels(levels)
    return document


def _levels(found: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """The warm-up of several seeds, every number as a list; each seed thins other bundles."""
    return {
        level: {name: [one[level][name] for one in found if level in one] for name in numbers}
        for level, numbers in found[0].items()
    }


def _published(entry: Entry, table: Table) -> dict[str, float] | None:
    """The paper's figure: also for that value of a grid which is the row's own setting anyway."""
    row, group = entry.row, entry.group
    if row.varied is not None and group is not None:
        config, _ = resolve_settings(row.model, group.preset, {})
        if config.model_dump(mode="json").get(row.varied) != row.settings[row.varied]:
            return None
    return published_figures(table.dataset, table.division, row.name)


def _add_intervals(found: Sequence[Document], groups: Mapping[int, str], out: Path, metric: str) -> None:
    """Give every measured row its interval, and that of its difference to its best rival."""
    samples = {
        number: _by_split(out, group, found[number]["seeds"], metric) for number, group in groups.items()
    }
    rivals = rivals_among({number: found[number] for number in groups})
    for number, interval in intervals(samples, rivals).items():
        if "rival" in interval:
            interval["rival"] = row_name(found[interval["rival"]])
        found[number].setdefault("intervals", {})[metric] = interval


def _by_split(out: Path, directory: str, seeds: Iterable[int], metric: str) -> Samples:
    """A metric for each user of a row, one line per seed, by the split that they were judged on."""
    found: dict[str, list[npt.NDArray[np.float64]]] = {}
    for seed in seeds:
        arrays = read_per_user(out, directory, seed)
        found.setdefault(str(arrays["split"]), []).append(arrays[metric])
    return {split: np.stack(values) for split, values in found.items()}


def _statistics(dataset: Dataset, sources: Sources) -> Document:
    data = sources.whole(dataset)
    ordered = np.sort(data.popularity)[::-1]
    places = np.unique(np.linspace(0, len(ordered) - 1, CURVE_POINTS).round().astype(int))
    return {
        "dataset": dataset.name,
        "statistics": stats(data).to_dict(),
        "published": published_counts(dataset.name),
        "curve": [[int(place) + 1, int(ordered[place])] for place in places],
    }


def environment() -> dict[str, Any]:
    """What the numbers were made with."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "coheat": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "numba", "numpy", "scipy")},
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
    }
