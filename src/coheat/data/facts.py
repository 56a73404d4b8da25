"""split.json: what a directory tells about its split beside the parts themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from coheat.data.dataset import Indices
from coheat.data.problems import Problems, listed
from coheat.data.split import Split
from coheat.data.warm_up import LEVELS, WarmUp
from coheat.ids import Vocabulary

SPLIT_FACTS = "split.json"
FORM = (
    'it must hold {"scenario": text, "seed": number or null} and, where there are any, "as_of": number, '
    '"times": three numbers, "offer_times_hidden": true or false, '
    '"warm_up": {"at_least": number, "levels": {number: list of bundle ids}}'
)


@dataclass(frozen=True)
class SplitFacts:
    """Scenario and seed; the moment the training data are of; of a split by time the moments at which it was
    cut; whether launches and ends are hidden from models; of the warm-up scenario how many takers a bundle
    had to have, and which bundles keep how many.
    """

    scenario: str = "published"
    seed: int | None = None
    as_of: float | None = None
    times: tuple[float, float, float] | None = None
    at_least: int | None = None
    levels: Mapping[int, tuple[str, ...]] | None = None
    offer_times_hidden: bool = False

    def warm_up(self, bundles: Vocabulary) -> WarmUp | None:
        """The thinned bundles as positions; ids that are none of `bundles` are left out."""
        if self.levels is None or self.at_least is None:
            return None
        levels_of = np.full(len(bundles), -1, dtype=np.int64)
        for level, names in self.levels.items():
            levels_of[[bundles.index[name] for name in names if name in bundles]] = level
        return WarmUp(levels_of, self.at_least)


def write_facts(directory: Path, split: Split) -> None:
    """Leave the facts of a split beside its parts; what it does not have is left out."""
    facts: dict[str, Any] = {"scenario": split.scenario, "seed": split.seed}
    if split.train.as_of is not None:
        facts["as_of"] = split.train.as_of
    if {"launched", "ends"} & split.train.bundle_attributes.columns.keys():
        facts["offer_times_hidden"] = True
    if split.times is not None:
        facts["times"] = split.times
    if split.warm_up is not None:
        levels_of, ids = split.warm_up.levels, split.train.bundles.ids
        facts["warm_up"] = {
            "at_least": split.warm_up.at_least,
            "levels": {str(n): [ids[b] for b in np.flatnonzero(levels_of == n).tolist()] for n in LEVELS},
        }
    (directory / SPLIT_FACTS).write_text(json.dumps(facts) + "\n", encoding="utf-8")


def read_facts(directory: Path, problems: Problems) -> SplitFacts:
    """The facts that were left; where they are not in the form of `write_facts`, an error is told."""
    path = directory / SPLIT_FACTS
    if not path.is_file():
        return SplitFacts()
    try:
        return _parse(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        problems.error(SPLIT_FACTS, FORM, "mend or delete it")
        return SplitFacts()


def _parse(facts: Any) -> SplitFacts:
    """Facts of the right form; anything else raises one of Python's own errors."""
    scenario, seed = facts["scenario"], facts["seed"]
    if not isinstance(scenario, str) or not (seed is None or isinstance(seed, int)):
        raise TypeError("scenario or seed")
    as_of, times, warm_up = (facts.get(name) for name in ("as_of", "times", "warm_up"))
    cut = None
    if times is not None:
        begin, middle, end = (_moment(moment) for moment in times)
        cut = (begin, middle, end)
    hidden = facts.get("offer_times_hidden", False)
    if not isinstance(hidden, bool):
        raise TypeError("offer_times_hidden")
    found = SplitFacts(
        scenario, seed, None if as_of is None else _moment(as_of), cut, offer_times_hidden=hidden
    )
    if warm_up is None:
        return found
    levels = {int(level): _ids(names) for level, names in warm_up["levels"].items()}
    if not set(levels) <= set(LEVELS) or not isinstance(warm_up["at_least"], int):
        raise TypeError("warm_up")
    return replace(found, at_least=warm_up["at_least"], levels=levels)


def _moment(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise TypeError("a moment is a number of seconds")
    return float(value)


def _ids(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("ids are texts")
    return tuple(names)


def check_levels(facts: SplitFacts, bundles: Vocabulary, popularity: Indices, problems: Problems) -> None:
    """Every thinned bundle is there and has as many training takers as it should."""
    named = {name: level for level, names in (facts.levels or {}).items() for name in names}
    unknown = [repr(name) for name in named if name not in bundles]
    if unknown:
        what = f"{len(unknown)} of the thinned bundles stand in no table: {listed(unknown)}"
        problems.error(SPLIT_FACTS, what, "make the split again")
    other = [
        f"{name!r} has {count}, not {level}"
        for name, level in named.items()
        if name in bundles and (count := int(popularity[bundles.index[name]])) != level
    ]
    if other:
        what = f"{len(other)} of the thinned bundles have other numbers of training takers: {listed(other)}"
        problems.error(SPLIT_FACTS, what, "make the split again")
