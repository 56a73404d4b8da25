"""The warm-up scenario: bundles made young again, to see how they fare from their first taker on.

Of the bundles with enough takers a share is drawn and thinned: each keeps 0, 1, 2, 4, 8 or 16 of its takers
(the earliest where interactions are dated, any elsewhere) for training. The rest of its takers are divided
between validation and test, one by one and for each bundle alone, so that every level has some in both. All
other interactions are divided as in the warm scenario.

A bundle with one taker is either young or unwanted, and only time tells which. So the thinned ones are made
young. Where interactions are dated, the life of a thinned bundle is moved: the moment of its first held-out
taker becomes now, and its launch, its end, its kept takers and its showings up to then move along. Where they
are not, launches are made up: the thinned ones begin a day before now, the others long ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.data.dataset import DAY, BundleData, Indices, Moments, Shown, Sparse
from coheat.data.divisions import TEST, TRAIN, VALIDATION, counts_of
from coheat.errors import DataError

LEVELS = (0, 1, 2, 4, 8, 16)
AT_LEAST = 20
"""Takers that a bundle must have to be thinned, unless the data are too small for that."""
SHARE = 0.3
"""How many of the bundles with enough takers are thinned: enough to measure, few enough to leave a shop."""
HELD_OUT = 2
"""Takers that must be left to hold out: one for validation, one for test."""
SOME_DAY = 1_704_067_200.0  # 2024-01-01; where nothing is dated any moment is as good as another
OLD_DAYS = 1_000


@dataclass(frozen=True, eq=False)
class WarmUp:
    """Which bundles were thinned: `levels` (n_bundles,) is how many takers each kept, -1 for all others.

    `at_least` is how many takers a bundle had to have.
    """

    levels: Indices
    at_least: int

    def __post_init__(self) -> None:
        self.levels.flags.writeable = False

    def report(self, validation: Sparse, test: Sparse) -> dict[str, Any]:
        """Bundles and held-out interactions of each level and of all others; ready for JSON."""
        names = {-1: "others"} | {level: str(level) for level in LEVELS}
        counts = {}
        for level in (*LEVELS, -1):
            chosen = self.levels == level
            counts[names[level]] = {
                "bundles": int(chosen.sum()),
                "validation": int(chosen[validation.indices].sum()),
                "test": int(chosen[test.indices].sum()),
            }
        return {"at_least": self.at_least, "levels": counts}


@dataclass(frozen=True)
class Thinned:
    """The part (0, 1, 2) of every interaction in CSR order, and the data with the thinned bundles young."""

    data: BundleData
    part: Indices
    warm_up: WarmUp


def thin(
    data: BundleData, ratios: Sequence[float], at_least: int | None, rng: np.random.Generator
) -> Thinned:
    """Draw the bundles, thin them, hold out the rest of their takers and a share of everybody else's."""
    least, levels = _least_takers(data.popularity, at_least)
    levels_of = _draw_levels(data.popularity, least, levels, rng)
    bundles: Indices = data.user_bundle.indices.astype(np.int64)
    rank = _ranks(bundles, data.timestamps, rng)
    level = levels_of[bundles]
    part = np.full(len(bundles), TRAIN, dtype=np.int64)
    others = np.flatnonzero(level < 0)
    part[others] = rng.permutation(np.repeat(np.arange(3), counts_of(len(others), ratios, "interactions")))
    held_out = np.flatnonzero((level >= 0) & (rank >= level))
    part[held_out] = TEST
    left = data.popularity - levels_of  # of a thinned bundle, how many are held out
    for_validation = np.round(left * ratios[VALIDATION] / (ratios[VALIDATION] + ratios[TEST]))
    for_validation = np.clip(for_validation, int(ratios[VALIDATION] > 0), left - 1)
    turn = _ranks(bundles[held_out], None, rng)
    part[held_out[turn < for_validation[bundles[held_out]]]] = VALIDATION
    first_held_out = np.full(data.n_bundles, np.nan)
    if data.timestamps is not None:
        first = (level >= 0) & (rank == level)
        first_held_out[bundles[first]] = data.timestamps[first]
        young = _moved(data, levels_of, first_held_out, part)
    else:
        young = _made_young(data, levels_of >= 0)
    shown = None if data.shown is None else _thin_showings(data, levels_of, first_held_out, rng)
    return Thinned(replace(young, shown=shown), part, WarmUp(levels_of, least))


def _least_takers(popularity: Indices, at_least: int | None) -> tuple[int, tuple[int, ...]]:
    """How many takers a bundle must have to be thinned, and the levels that this leaves room for.

    For small data fewer than usual: as many as leave, for every level, two bundles to draw one from.
    """
    for least in range(AT_LEAST, HELD_OUT - 1, -1) if at_least is None else (at_least,):
        levels = tuple(level for level in LEVELS if level + HELD_OUT <= least)
        if levels and int((popularity >= least).sum()) >= 2 * len(levels):
            return least, levels
    asked = HELD_OUT if at_least is None else at_least
    raise DataError(
        f"{int((popularity >= asked).sum())} bundles have {asked} takers and more, which is too few to thin "
        "some of them and leave others; choose another scenario"
        + ("" if at_least is None else f", or a least number from {HELD_OUT} to {AT_LEAST}")
    )


def _draw_levels(
    popularity: Indices, least: int, levels: tuple[int, ...], rng: np.random.Generator
) -> Indices:
    """(n_bundles,) how many takers each bundle keeps, evenly over the levels; -1 for those left alone."""
    eligible = rng.permutation(np.flatnonzero(popularity >= least))
    chosen = eligible[: max(int(SHARE * len(eligible)), len(levels))]
    levels_of = np.full(len(popularity), -1, dtype=np.int64)
    levels_of[chosen] = np.resize(levels, len(chosen))
    return levels_of


def _ranks(bundles: Indices, timestamps: Indices | None, rng: np.random.Generator) -> Indices:
    """Of each interaction its place among those of its bundle: in order of time, else at random."""
    keys = (rng.random(len(bundles)), *(() if timestamps is None else (timestamps,)), bundles)
    order = np.lexsort(keys)
    starts = np.concatenate([[0], np.cumsum(np.bincount(bundles, minlength=1))])
    ranks = np.empty(len(bundles), dtype=np.int64)
    ranks[order] = np.arange(len(bundles)) - starts[bundles[order]]
    return ranks


def _made_young(data: BundleData, thinned: npt.NDArray[np.bool_]) -> BundleData:
    """Interactions without times: thinned bundles begin a day before now, others as known or long ago."""
    now = SOME_DAY if np.isnan(data.now) else data.now
    known = np.full(data.n_bundles, np.nan) if data.launched is None else data.launched
    launched = np.where(np.isnan(known), now - OLD_DAYS * DAY, known)
    launched[thinned] = now - DAY
    return replace(data, launched=launched, as_of=now)


def _moved(data: BundleData, levels_of: Indices, first_held_out: Moments, part: Indices) -> BundleData:
    """Interactions with times: a thinned bundle's life moves so that its first held-out taker comes now."""
    assert data.timestamps is not None, "only dated interactions can be moved"
    thinned = levels_of >= 0
    shift = np.where(thinned, data.now - first_held_out, 0)
    bundles = data.user_bundle.indices
    kept = part == TRAIN
    timestamps = data.timestamps + np.where(kept, shift[bundles], 0).astype(np.int64)
    first_kept = np.full(data.n_bundles, data.now)
    np.minimum.at(first_kept, bundles[kept], timestamps[kept])
    launched = np.full(data.n_bundles, np.nan) if data.launched is None else data.launched + shift
    # A launch that is not known, or after the first taker, is when the first taker came.
    launched[thinned] = np.fmin(launched, first_kept)[thinned]
    ends = None if data.ends is None else data.ends + shift
    return replace(data, timestamps=timestamps, launched=launched, ends=ends, as_of=data.now)


def _thin_showings(
    data: BundleData, levels_of: Indices, first_held_out: Moments, rng: np.random.Generator
) -> Shown:
    """Showings of a thinned bundle up to its first held-out taker, or, without times, in proportion."""
    assert data.shown is not None, "nothing was shown"
    shown, thinned = data.shown, levels_of >= 0
    if data.timestamps is not None and shown.timestamps is not None:
        kept = ~(thinned[shown.bundles] & (shown.timestamps >= first_held_out[shown.bundles]))
        shift = np.where(thinned, data.now - first_held_out, 0)[shown.bundles].astype(np.int64)
        return Shown(shown.users[kept], shown.bundles[kept], (shown.timestamps + shift)[kept])
    share = np.where(thinned, levels_of / np.maximum(data.popularity, 1), 1)[shown.bundles]
    return shown.keep(rng.random(len(shown)) < share)
