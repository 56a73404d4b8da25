"""Split: what a model may learn from, what chooses its best epoch, and what judges it.

Five scenarios divide interactions; every one keeps all users, bundles and items as candidates.

- warm: interactions at random, 7:1:2.
- cold: bundles at random, 7:1:2; all interactions of a bundle go to its part.
- all: interactions 7:1:2, half of validation and of test from bundles held out altogether (cold),
  half from bundles that keep at least one training interaction.
- cold-ratio: the same with any share of cold interactions in place of one half.
- time: earlier interactions train, later ones judge; a bundle first taken after the cut is cold.

Launch times stay only in a split by time: the others treat bundles as new that are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.data.dataset import BundleData, Indices, Sparse, check_relation, freeze, pairs, relation
from coheat.errors import DataError
from coheat.rng import Randomness

PARTS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)
SCENARIOS = ("warm", "cold", "all", "cold-ratio", "time")


@dataclass(frozen=True, eq=False)
class Split:
    """A world divided for training and judging.

    `train` is the whole world (all users, bundles, items and their affiliations), its `user_bundle`
    only the training interactions. `validation` and `test` are relations of the same shape
    (n_users, n_bundles). The three never share an interaction. A bundle without training
    interactions is cold; it stays a candidate like every other.
    """

    train: BundleData
    validation: Sparse
    test: Sparse
    scenario: str = "published"
    seed: int | None = None

    def __post_init__(self) -> None:
        parts = self.parts
        for name in ("validation", "test"):
            check_relation(name, parts[name], self.train.user_bundle.shape)
            freeze(parts[name])
        for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
            shared = parts[one].multiply(parts[other]).nnz
            if shared:
                raise DataError(
                    f"{shared} interactions stand in both {one} and {other}; the parts of a split share none"
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
        """Whether all of validation is with bundles that have no training interactions: the cold scenario."""
        return bool(self.validation.nnz) and bool(self.cold_bundles[self.validation.indices].all())

    def report(self) -> dict[str, Any]:
        """Sizes of the parts, and how much of validation and test is cold; ready for JSON."""
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
        return report


def split(
    data: BundleData,
    scenario: str,
    seed: int = 0,
    ratios: Sequence[float] = (7, 1, 2),
    cold_share: float | None = None,
    times: tuple[float, float] | None = None,
) -> Split:
    """Divide the interactions of `data` for one of the SCENARIOS; the same seed gives the same split.

    `ratios` weigh train, validation and test. `cold_share`, for cold-ratio only, is the share (0..1)
    of validation and test interactions that fall on cold bundles. `times`, for time only, are the two
    moments (Unix seconds) at which validation and test begin; by default the ratios choose them.
    """
    if scenario not in SCENARIOS:
        raise DataError(f"there is no scenario {scenario!r}; choose one of {', '.join(SCENARIOS)}")
    if (cold_share is not None) != (scenario == "cold-ratio"):
        raise DataError(
            f"a cold share belongs to the scenario cold-ratio, and only there; this is {scenario}"
        )
    if times is not None and scenario != "time":
        raise DataError(f"cut times belong to the scenario time; this is {scenario}")
    if len(ratios) != 3 or min(ratios) < 0 or ratios[TRAIN] <= 0 or ratios[TEST] <= 0:
        raise DataError(f"the ratios {ratios} must be three numbers, those of train and test above 0")
    rng = Randomness(seed).generator("split")
    if scenario == "warm":
        part = _warm(data, ratios, rng)
    elif scenario == "cold":
        part = _cold(data, ratios, rng)
    elif scenario == "time":
        part = _by_time(data, ratios, times)
    else:
        part = _mixed(data, ratios, 0.5 if cold_share is None else cold_share, rng)
    return _divide(data, part, scenario, seed)


def _divide(data: BundleData, part: Indices, scenario: str, seed: int) -> Split:
    """A Split from the part (0, 1, 2) of every interaction in CSR order."""
    users, bundles = pairs(data.user_bundle)
    train, validation, test = (
        relation(users[part == number], bundles[part == number], data.user_bundle.shape)
        for number in range(3)
    )
    timestamps = None if data.timestamps is None else data.timestamps[part == TRAIN]
    world = data.with_user_bundle(train, timestamps)
    if scenario != "time":
        world = replace(world, launched=None)
    return Split(world, validation, test, scenario, seed)


def _counts(total: int, ratios: Sequence[float], what: str) -> list[int]:
    """`total` things in proportion to `ratios`; every part with a ratio gets at least one.

    >>> _counts(100, (7, 1, 2), "bundles"), _counts(3, (7, 1, 2), "bundles")
    ([70, 10, 20], [1, 1, 1])
    """
    asked = [ratio > 0 for ratio in ratios]
    if total < sum(asked):
        raise DataError(
            f"{total} {what} cannot be divided into {sum(asked)} parts; each of train, validation and test "
            "needs at least one"
        )
    ends = np.round(np.cumsum(ratios) / np.sum(ratios) * total).astype(int)
    counts = np.diff(ends, prepend=0)
    for number in np.flatnonzero((counts == 0) & asked):
        counts[number] += 1
        counts[np.argmax(counts)] -= 1
    return [int(count) for count in counts]


def _warm(data: BundleData, ratios: Sequence[float], rng: np.random.Generator) -> Indices:
    counts = _counts(data.user_bundle.nnz, ratios, "interactions")
    return rng.permutation(np.repeat(np.arange(3), counts))


def _cold(data: BundleData, ratios: Sequence[float], rng: np.random.Generator) -> Indices:
    """Only bundles with interactions are divided; the others are nobody's answer and stay candidates."""
    taken = np.flatnonzero(data.popularity)
    part_of_bundle = np.zeros(data.n_bundles, dtype=np.int64)
    part_of_bundle[taken] = rng.permutation(np.repeat(np.arange(3), _counts(len(taken), ratios, "bundles")))
    part: Indices = part_of_bundle[data.user_bundle.indices]
    return part


def _mixed(data: BundleData, ratios: Sequence[float], cold_share: float, rng: np.random.Generator) -> Indices:
    """Cold bundles fill their share of test and validation, random interactions of the others the rest."""
    if not 0 <= cold_share <= 1:
        raise DataError(f"the cold share is a number from 0 to 1, not {cold_share}")
    counts = _counts(data.user_bundle.nnz, ratios, "interactions")
    bundles: Indices = data.user_bundle.indices
    order = rng.permutation(np.flatnonzero(data.popularity))
    part_of_bundle = np.zeros(data.n_bundles, dtype=np.int64)
    for number in (TEST, VALIDATION):
        wanted = max(round(cold_share * counts[number]), int(cold_share * counts[number] > 0))
        chosen = _bundles_worth(wanted, order[part_of_bundle[order] == TRAIN], data.popularity)
        if wanted and not len(chosen):
            raise DataError(
                f"{wanted} interactions of {PARTS[number]} should fall on cold bundles, but every bundle "
                "left has more than that; the data are too small for this scenario"
            )
        part_of_bundle[chosen] = number
    part = part_of_bundle[bundles]
    missing = [counts[number] - int((part == number).sum()) for number in (VALIDATION, TEST)]
    # One interaction of every bundle left stays in training, so that what counts as warm is warm.
    shuffled = rng.permutation(np.flatnonzero(part == TRAIN))
    _, kept = np.unique(bundles[shuffled], return_index=True)
    free = np.delete(shuffled, kept)
    if cold_share < 1 and len(free) < sum(missing):
        raise DataError(
            f"{sum(missing)} interactions of warm bundles should be held out, but only {len(free)} can be "
            "while their bundle keeps one for training; choose a larger cold share or another scenario"
        )
    if cold_share < 1:
        part[free[: missing[0]]] = VALIDATION
        part[free[missing[0] : sum(missing)]] = TEST
    if not (part == TRAIN).any():
        raise DataError("nothing would be left to train on; choose a smaller cold share or other ratios")
    return part


def _bundles_worth(wanted: int, order: Indices, popularity: Indices) -> Indices:
    """Bundles, in the given order, each taken if it still fits into `wanted` interactions."""
    chosen = []
    for bundle in order:
        if popularity[bundle] <= wanted:
            chosen.append(bundle)
            wanted -= int(popularity[bundle])
        if not wanted:
            break
    return np.array(chosen, dtype=np.int64)


def _by_time(data: BundleData, ratios: Sequence[float], times: tuple[float, float] | None) -> Indices:
    """Before the first moment: train; from the second on: test; between them: validation."""
    moments = data.timestamps
    if moments is None:
        raise DataError(
            "a split by time needs times: add a column `timestamp` to user_bundle, or choose another scenario"
        )
    if times is None:
        counts = _counts(len(moments), ratios, "interactions")
        ordered = np.sort(moments)
        # Interactions of one moment stay together, so parts can be a little larger or smaller than asked.
        times = (ordered[counts[0]], ordered[counts[0] + counts[1]])
    if times[0] > times[1]:
        raise DataError(f"validation would begin ({times[0]}) after test ({times[1]}); swap the two")
    part: Indices = np.searchsorted(np.array(times), moments, side="right").astype(np.int64)
    for number in (TRAIN, TEST):
        if not (part == number).any():
            first, last = (np.datetime64(int(moment), "s") for moment in (moments.min(), moments.max()))
            raise DataError(
                f"{PARTS[number]} would be empty: all interactions lie between {first} and {last} (UTC); "
                "choose other times or another scenario"
            )
    return part
