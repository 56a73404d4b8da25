"""The data of an experiment: published splits where there are any, else splits made here.

Of a directory DIR these are understood, NAME being what the data set is called in the tables:

    DIR/cold/NAME, DIR/warm/NAME, DIR/all/NAME   published splits; likewise DIR/NAME/cold, ...
    DIR/NAME                                     data without a split; splits are made for each seed
    DIR/NAME                                     data with one split of their own, the division "published"
    DIR                                          the same, the data set being called like the directory

A cold-ratio or warm-up split is always made here, from all interactions that a data set has, and so is a
split by time where there are times. Worlds are made up here too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coheat.data.dataset import BundleData
from coheat.data.files import find_layout, has_split, read_data, read_split
from coheat.data.leaks import leakage, without_leaks
from coheat.data.problems import Problems
from coheat.data.split import split as make_split
from coheat.data.synthetic import LIKE, realistic_world
from coheat.data.writing import write_tables
from coheat.errors import DataError
from coheat.runs import fingerprint

SCENARIOS = ("cold", "warm", "all")
RATIO = "cold-ratio-"
AS_PUBLISHED = "published"
"""The one split that a data set came with, whatever its scenario is."""


@dataclass(frozen=True)
class Dataset:
    """A data set: its published splits by scenario, and a directory that holds all its interactions."""

    name: str
    published: dict[str, Path]
    whole: Path

    @property
    def is_divided(self) -> bool:
        """Whether splits of it are published under the names of scenarios."""
        return any(scenario in self.published for scenario in SCENARIOS)


@dataclass(frozen=True)
class Source:
    """A directory with a split to train on.

    `identity` stands for the data and how it is divided, whatever the seed; `fingerprint` for this very
    split; `report` has the sizes of its parts.
    """

    directory: Path
    identity: str
    fingerprint: str
    report: dict[str, Any]
    validates_new_bundles_only: bool


def find_datasets(directory: Path) -> list[Dataset]:
    """The data sets in a directory, sorted by name; none is a DataError that says what was expected."""
    if not directory.is_dir():
        raise DataError(f"{directory}: there is no such directory; name the one that holds the data sets")
    if _is_data(directory):
        return [Dataset(directory.resolve().name, _own_split(directory), directory)]
    published: dict[str, dict[str, Path]] = {}
    whole: dict[str, Path] = {}
    for below in sorted(path for path in directory.iterdir() if path.is_dir()):
        if _is_data(below) and below.name not in SCENARIOS:
            whole[below.name] = below
            published.setdefault(below.name, {}).update(_own_split(below))
            continue
        for place in sorted(path for path in below.iterdir() if path.is_dir() and _is_data(path)):
            names = (below.name, place.name)
            scenario, name = names if below.name in SCENARIOS else reversed(names)
            if scenario in SCENARIOS and has_split(place):
                published.setdefault(name, {})[scenario] = place
    if not published and not whole:
        raise DataError(
            f"{directory}: no data set found. Expected published splits as DIR/cold/NAME, DIR/warm/NAME, "
            "DIR/all/NAME, or data without a split as DIR or DIR/NAME"
        )
    for name, places in published.items():
        if name not in whole:
            whole[name] = next(places[scenario] for scenario in SCENARIOS if scenario in places)
    return [Dataset(name, published.get(name, {}), whole[name]) for name in sorted(whole)]


def _is_data(directory: Path) -> bool:
    return find_layout(directory, Problems()) is not None


def _own_split(directory: Path) -> dict[str, Path]:
    return {AS_PUBLISHED: directory} if has_split(directory) else {}


@dataclass
class Sources:
    """Finds and makes the splits of experiments; made ones are kept in `out`."""

    out: Path
    _data: dict[str, BundleData] = field(default_factory=dict)
    _found: dict[tuple[str, str, int, bool], Source] = field(default_factory=dict)

    def whole(self, dataset: Dataset) -> BundleData:
        """All interactions of a data set, however they are divided."""
        if dataset.name not in self._data:
            self._data[dataset.name] = read_data(dataset.whole)
        return self._data[dataset.name]

    def has(self, dataset: Dataset, division: str) -> bool:
        """Whether there is data: where some scenarios are published, the others of these are not made."""
        if division in dataset.published:
            return True
        if division == AS_PUBLISHED:
            return False
        if division == "time":
            return self.whole(dataset).timestamps is not None
        return not dataset.published or division not in SCENARIOS

    def source(self, dataset: Dataset, division: str, seed: int, remove_leaks: bool = False) -> Source:
        """Where to train: the same published split for every seed, or a split made with the seed.

        With `remove_leaks`, without what only held-out bundles explain, where they give themselves away.
        """
        if division in dataset.published:
            seed = 0
        key = (dataset.name, division, seed, remove_leaks)
        if key not in self._found:
            published = dataset.published.get(division)
            found = self._open(published) if published else self._make(dataset, division, seed)
            self._found[key] = self._cleaned(dataset, division, found) if remove_leaks else found
        return self._found[key]

    def world(self, name: str) -> Dataset:
        """A made-up world of this size (`coheat data synth --like`), without a split."""
        directory = self.out / "worlds" / name
        if not directory.is_dir():
            write_tables(realistic_world(**LIKE[name]), directory)
        return Dataset(name, {}, directory)

    def _open(self, directory: Path) -> Source:
        split = read_split(directory)
        found = fingerprint(split)
        return Source(directory, found, found, split.report(), split.validates_new_bundles_only)

    def _make(self, dataset: Dataset, division: str, seed: int) -> Source:
        data = self.whole(dataset)
        identity = hashlib.sha256(f"{data.fingerprint} {division}".encode()).hexdigest()
        directory = self.out / "splits" / dataset.name / f"{division}-{identity[:8]}-seed-{seed}"
        if not directory.is_dir():
            share = float(division.removeprefix(RATIO)) if division.startswith(RATIO) else None
            scenario = division if share is None else "cold-ratio"
            write_tables(make_split(data, scenario, seed, cold_share=share), directory)
        opened = self._open(directory)
        return replace(opened, identity=identity)

    def _cleaned(self, dataset: Dataset, division: str, source: Source) -> Source:
        split = read_split(source.directory)
        if not (leaks := leakage(split)).is_suspicious:
            return source
        name = f"{division}-{source.fingerprint[:8]}-without-leaks"
        directory = self.out / "splits" / dataset.name / name
        if not directory.is_dir():
            write_tables(without_leaks(split), directory)
        opened = self._open(directory)
        identity = f"{source.identity} without leaks"
        return replace(opened, identity=identity, report={**opened.report, "leaks_removed": str(leaks)})
