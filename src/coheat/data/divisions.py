"""Which part (train, validation, test) each interaction goes to: one function for each way of dividing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coheat.data.dataset import BundleData, Indices
from coheat.errors import DataError

PARTS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)


def counts_of(total: int, ratios: Sequence[float], what: str) -> list[int]:
    """`total` things in proportion to `ratios`; every part with a ratio gets at least one.

    >>> counts_of(100, (7, 1, 2), "bundles"), counts_of(3, (7, 1, 2), "bundles")
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


def warm(data: BundleData, ratios: Sequence[float], rng: np.random.Generator) -> Indices:
    counts = counts_of(data.user_bundle.nnz, ratios, "interactions")
    return rng.permutation(np.repeat(np.arange(3), counts))


def cold(data: BundleData, ratios: Sequence[float], rng: np.random.Generator) -> Indices:
    """Only bundles with interactions are divided; the others are nobody's answer and stay candidates."""
    taken = np.flatnonzero(data.popularity)
    part_of_bundle = np.zeros(data.n_bundles, dtype=np.int64)
    part_of_bundle[taken] = rng.permutation(np.repeat(np.arange(3), counts_of(len(taken), ratios, "bundles")))
    part: Indices = part_of_bundle[data.user_bundle.indices]
    return part


def mixed(data: BundleData, ratios: Sequence[float], cold_share: float, rng: np.random.Generator) -> Indices:
    """Cold bundles fill their share of test and validation, random interactions of the others the rest."""
    if not 0 <= cold_share <= 1:
        raise DataError(f"the cold share is a number from 0 to 1, not {cold_share}")
    counts = counts_of(data.user_bundle.nnz, ratios, "interactions")
    bundles = data.user_bundle.indices
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


def cut_times(
    data: BundleData, ratios: Sequence[float], times: tuple[float, float] | None
) -> tuple[float, float]:
    """The moments at which validation and test begin: those asked for, or those that fit the ratios."""
    moments = data.timestamps
    if moments is None:
        raise DataError(
            "a split by time needs times: add a column `timestamp` to user_bundle, or choose another scenario"
        )
    if times is None:
        counts = counts_of(len(moments), ratios, "interactions")
        ordered = np.sort(moments)
        # Interactions of one moment stay together, so parts can be a little larger or smaller than asked.
        times = (float(ordered[counts[0]]), float(ordered[counts[0] + counts[1]]))
    if times[0] > times[1]:
        raise DataError(f"validation would begin ({times[0]}) after test ({times[1]}); swap the two")
    return times


def by_time(moments: Indices, times: tuple[float, float]) -> Indices:
    """Before the first moment: train; from the second on: test; between them: validation."""
    part: Indices = np.searchsorted(np.array(times), moments, side="right").astype(np.int64)
    for number in (TRAIN, TEST):
        if not (part == number).any():
            first, last = (np.datetime64(int(moment), "s") for moment in (moments.min(), moments.max()))
            raise DataError(
                f"{PARTS[number]} would be empty: all interactions lie between {first} and {last} (UTC); "
                "choose other times or another scenario"
            )
    return part
