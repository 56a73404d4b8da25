"""Split: what a model may learn from, what chooses its best epoch, and what judges it.

Seven scenarios divide interactions; every one keeps all users, bundles and items as candidates.

- warm: interactions at random, 7:1:2.
- cold: bundles at random, 7:1:2; all interactions of a bundle go to its part.
- all: interactions 7:1:2, half of validation and of test from bundles held out altogether (cold),
  half from bundles that keep at least one training interaction.
- cold-ratio: the same with any share of cold interactions in place of one half.
- time: earlier interactions train, later ones judge; a bundle first taken after the cut is cold. What users
  got and were shown after the cut is not there to learn from either, as far as it has times.
- warm-up: some bundles are thinned to 0, 1, 2, 4, 8 or 16 takers, so that one can see how they fare in the
  first days of their life (`coheat.data.warm_up`); other interactions as in warm.

- everything: all interactions train and nothing is held out, for the model that is to be served.

Models learn from launches, ends and showings only in the last three: the others treat bundles as new that are
not. Launches and ends stay among the columns of bundles in all of them, for whoever serves the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.data.dataset import BundleData, Indices, Sparse, check_relation, freeze, pairs, relation
from coheat.data.divisions import PARTS as PARTS
from coheat.data.divisions import TEST, TRAIN, by_time, cold, cut_times, mixed, warm
from coheat.data.warm_up import WarmUp, thin
from coheat.errors import DataError
from coheat.rng import Randomness

SCENARIOS = ("warm", "cold", "all", "cold-ratio", "time", "warm-up", "everything")


@dataclass(frozen=True, eq=False)
class Split:
    """A world divided for training and judging.

    `train` is the whole world (all users, bundles, items and their affiliations), its `user_bundle`
    only the training interactions. `validation` and `test` are relations of the same shape
    (n_users, n_bundles). The three never share an interaction. A bundle without training
    interactions is cold; it stays a candidate like every other.

    `times`, of a split by time, are the moments (Unix seconds) at which validation and test begin and at
    which the latest interaction was. `warm_up`, of that scenario, says which bundles were thinned, and to
    how many takers.
    """

    train: BundleData
    validation: Sparse
    test: Sparse
    scenario: str = "published"
    seed: int | None = None
    times: tuple[float, float, float] | None = None
    warm_up: WarmUp | None = None

    def __post_init__(self) -> None:
        parts = self.parts
        for name in ("validation", "test"):
            check_relation(name, parts[name], self.train.user_bundle.shape)
            freeze(parts[name])
        for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
            shared = parts[one].multiply(parts[other]).nnz
            if shared:
                raise DataError(
                    f"{shared} interactions are in both {one} and {other}; the parts of a split share none"
                )

    @property
    def parts(self) -> dict[str, Sparse]:
        """The three relations (n_users, n_bundles) by name: train, validation, test."""
        return {"train": self.train.user_bundle, "validation": self.validation, "test": self.test}

    @property
    def cold_bundles(self) -> npt.NDArray[np.bool_]:
        """(n_bundles,) which bundles have no training interactions."""
        cold: npt.NDArray[np.bool_] = self.train.popularity == 0
        return cold

    @property
    def validates_new_bundles_only(self) -> bool:
        """Whether validation contains only bundles without training interactions: the cold scenario."""
        return bool(self.validation.nnz) and bool(self.cold_bundles[self.validation.indices].all())

    def on_offer(self, part: str) -> npt.NDArray[np.bool_]:
        """(n_bundles,) which bundles were on offer during validation or test; all if that is not known."""
        if self.times is None:
            return np.ones(self.train.n_bundles, dtype=bool)
        begin, middle, end = self.times
        return self.train.on_offer(*{"validation": (begin, middle), "test": (middle, end)}[part])

    def candidates(self, part: str) -> npt.NDArray[np.bool_]:
        """(n_bundles,) which bundles the lists of that time could show: what was on offer, and what was taken
        whatever the data say about its offer.
        """
        return self.on_offer(part) | (
            np.bincount(self.parts[part].indices, minlength=self.train.n_bundles) > 0
        )

    def report(self) -> dict[str, Any]:
        """Sizes of the parts, and the share of validation and test that is cold; ready for JSON."""
        cold_users = np.diff(self.train.user_bundle.indptr) == 0
        cold_bundles = self.cold_bundles
        report: dict[str, Any] = {"scenario": self.scenario, "seed": self.seed}
        for name, part in self.parts.items():
            users = np.diff(part.indptr) > 0
            bundles = np.bincount(part.indices, minlength=part.shape[1]) > 0
            report[name] = {
                "interactions": int(part.nnz),
                "users": int(users.sum()),
                "bundles": int(bundles.sum()),
            }
            if name != "train":
                on_cold = int(cold_bundles[part.indices].sum())
                report[name] |= {
                    "cold_users": int((users & cold_users).sum()),
                    "cold_bundles": int((bundles & cold_bundles).sum()),
                    "cold_interaction_share": on_cold / part.nnz if part.nnz else 0.0,
                }
        if self.warm_up is not None:
            report["warm_up"] = self.warm_up.report(self.validation, self.test)
        return report


def split(
    data: BundleData,
    scenario: str,
    seed: int = 0,
    ratios: Sequence[float] = (7, 1, 2),
    cold_share: float | None = None,
    times: tuple[float, float] | None = None,
    at_least: int | None = None,
) -> Split:
    """Divide the interactions of `data` for one of the SCENARIOS; the same seed gives the same split.

    `ratios` are those of train, validation and test. `cold_share`, for cold-ratio only, is the share (0..1)
    of validation and test interactions with cold bundles. `times`, for time only, are the two moments (Unix
    seconds) at which validation and test begin; by default they follow from the ratios. `at_least`, for
    warm-up only, is how many takers a bundle needs to be thinned; by default 20, or fewer if the data are
    small.
    """
    if scenario not in SCENARIOS:
        raise DataError(f"there is no scenario {scenario!r}; choose one of {', '.join(SCENARIOS)}")
    if cold_share is None and scenario == "cold-ratio":
        raise DataError(
            "the scenario cold-ratio needs the share of cold interactions; make the split first, for example "
            "with: coheat data split DIR --scenario cold-ratio --cold-share 0.3 --out DIR2, and use DIR2 then"
        )
    if cold_share is not None and scenario != "cold-ratio":
        raise DataError(
            f"a cold share belongs to the scenario cold-ratio, and only there; this is {scenario}"
        )
    if times is not None and scenario != "time":
        raise DataError(f"cut times belong to the scenario time; this is {scenario}")
    if at_least is not None and scenario != "warm-up":
        raise DataError(f"a least number of takers belongs to the scenario warm-up; this is {scenario}")
    if len(ratios) != 3 or min(ratios) < 0 or ratios[TRAIN] <= 0 or ratios[TEST] <= 0:
        raise DataError(f"the ratios {ratios} must be three numbers, those of train and test above 0")
    if scenario == "everything":
        nothing = relation([], [], data.user_bundle.shape)
        return Split(data, nothing, nothing.copy(), scenario, seed)
    rng = Randomness(seed).generator("split")
    if scenario == "time":
        return _by_time(data, cut_times(data, ratios, times), seed)
    if scenario == "warm-up":
        thinned = thin(data, ratios, at_least, rng)
        return replace(_divide(thinned.data, thinned.part, scenario, seed), warm_up=thinned.warm_up)
    if scenario == "warm":
        part = warm(data, ratios, rng)
    elif scenario == "cold":
        part = cold(data, ratios, rng)
    else:
        part = mixed(data, ratios, 0.5 if cold_share is None else cold_share, rng)
    # Launches, ends and showings would tell on the bundles that these scenarios treat as new.
    return _divide(replace(data.without_offer_times(), shown=None), part, scenario, seed)


def _divide(data: BundleData, part: Indices, scenario: str, seed: int) -> Split:
    """A Split from the part (0, 1, 2) of every interaction in CSR order."""
    users, bundles = pairs(data.user_bundle)
    train, validation, test = (
        relation(users[part == number], bundles[part == number], data.user_bundle.shape)
        for number in range(3)
    )
    timestamps = None if data.timestamps is None else data.timestamps[part == TRAIN]
    return Split(data.with_user_bundle(train, timestamps), validation, test, scenario, seed)


def _by_time(data: BundleData, times: tuple[float, float], seed: int) -> Split:
    """Only what was there before the first of the two moments is there to learn from."""
    assert data.timestamps is not None, "without times there are no cut times"
    part = by_time(data.timestamps, times)
    world = replace(data, as_of=float(times[0]))
    if data.item_timestamps is not None:
        world = world.with_user_item(data.item_timestamps < times[0])
    if data.shown is not None:
        moments = data.shown.timestamps
        # Showings without times cannot be divided, and those of the days to come would tell on them.
        world = replace(world, shown=None if moments is None else data.shown.keep(moments < times[0]))
    ends = (float(times[0]), float(times[1]), float(data.timestamps.max()))
    return replace(_divide(world, part, "time", seed), times=ends)
