"""Prospects: how popular a bundle is likely to become, foretold from its items.

A new bundle that suits two users alike is taken by more of them if it is the kind of bundle that people take.
What tells that kind: how large it is, how popular the other bundles are that hold its items, how many of
these there are, and how many users have the items. How they tell it is different in every shop and no
straight line (long lists may be popular, the longest not), so it is learned: boosted trees (Friedman, 2001)
predict by how much the log of the number of takers differs from its mean. Each tree asks the same `DEPTH`
questions of every bundle, as in CatBoost (Prokhorenkova et al., 2018), which keeps it small and hard to
overfit.

Young bundles count the less the younger they are, as examples and among the other bundles: their takers are
still to come. No bundle is an example for itself: bundles are divided into `FOLDS`, and each that counts is
predicted by trees that have seen the others only. Where a bundle's takers do not count at all, the mean of
all trees predicts it, in training as while serving.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coheat.data.dataset import BundleData
from coheat.served.forest import Forest, features

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

FOLDS = 5
TREES = 60
DEPTH = 3
RATE = 0.1
"""How much of what is left to explain a tree may take."""
RIDGE = 20.0
"""Bundles that it is worth, in a leaf, that nothing is left to explain."""
BINS = 32
"""Between how many equal parts of the bundles a question may divide."""


@dataclass(frozen=True, eq=False)
class Prospects:
    """Of every bundle (n_bundles,), as the log of a number of takers, less its mean; and what tells them of a
    new one: a forest over sums of what is known of each item (n_items, STATISTICS)."""

    bundles: Floats
    items: Floats
    forest: Forest


def prospects(data: BundleData, youth: Numbers) -> Prospects:
    """See the module's text. `youth` (n_bundles,) is 1 for a bundle whose takers say nothing yet."""
    held, sizes = data.bundle_item, np.asarray(data.bundle_sizes)
    weights = 1 - youth
    takers = np.asarray(data.popularity, dtype=np.float64)
    log_takers = np.log1p(takers)
    users: Numbers = np.asarray(data.user_item.sum(axis=0), dtype=np.float64).ravel()
    told = weights[:, None] * np.stack([np.ones(len(takers)), log_takers, takers], axis=1)
    items = np.concatenate([held.T @ told, np.log1p(users)[:, None]], axis=1).astype(np.float32)
    sums = np.asarray(held @ items, dtype=np.float64)
    own = sizes[:, None] * np.concatenate([told, np.zeros((len(takers), 1))], axis=1)
    points = features(sums - own, sizes)
    fold = np.arange(len(takers)) % FOLDS
    forests = []
    for number in range(FOLDS):
        seen = (fold != number) & (weights > 0)
        forests.append(grown(points[seen], log_takers[seen], weights[seen]))
    forest = Forest.mean(forests)
    found = forest.at(points)
    for number, one in enumerate(forests):
        unseen = (fold == number) & (weights > 0)
        found[unseen] = one.at(points[unseen])
    return Prospects(found, items, forest)


def grown(points: Numbers, wanted: Numbers, weights: Numbers) -> Forest:
    """Trees that together predict `wanted` (n,), less its mean, from `points` (n, n_features)."""
    total = weights.sum()
    mean = float(weights @ wanted / total) if total > 0 else 0.0
    borders = [_borders(column, weights) for column in points.T]
    codes = np.stack(
        [np.searchsorted(border, column) for border, column in zip(borders, points.T, strict=True)]
    )
    real = np.arange(BINS - 1) < np.array([len(border) for border in borders])[:, None]
    asked = np.zeros((TREES, DEPTH), dtype=np.int64)
    thresholds = np.full((TREES, DEPTH), np.finfo(np.float64).max)
    values = np.zeros((TREES, 1 << DEPTH))
    left = wanted - mean
    for tree in range(TREES):
        leaf = np.zeros(len(points), dtype=np.int64)
        for level in range(DEPTH):
            feature, place = _best_question(codes, real, leaf, 1 << level, weights * left, weights)
            leaf *= 2
            if place >= 0:
                asked[tree, level], thresholds[tree, level] = feature, borders[feature][place]
                leaf += codes[feature] > place
        sums, counted = (np.bincount(leaf, each, 1 << DEPTH) for each in (weights * left, weights))
        values[tree] = RATE * sums / (counted + RIDGE)
        left = left - values[tree][leaf]
    return Forest(asked, thresholds, values)


def _borders(column: Numbers, weights: Numbers) -> Numbers:
    """Numbers half way between two values that divide the bundles into at most `BINS` equal parts."""
    order = np.argsort(column, kind="stable")
    values, reached = column[order], np.cumsum(weights[order])
    if not len(values) or not reached[-1] > 0:
        return np.zeros(0)
    steps = np.flatnonzero(values[1:] > values[:-1])
    wanted = reached[-1] * np.arange(1, BINS) / BINS
    chosen = np.unique(np.searchsorted(reached[steps], wanted))
    places = steps[chosen[chosen < len(steps)]]
    return np.asarray((values[places] + values[places + 1]) / 2)


def _best_question(
    codes: Codes, real: npt.NDArray[np.bool_], leaf: Codes, n_leaves: int, left: Numbers, weights: Numbers
) -> tuple[int, int]:
    """Which feature and border explain most of what is `left`, asked in all leaves alike; -1: none does.

    `codes` (n_features, n) count the borders of each feature that a bundle is above, and `real`
    (n_features, BINS - 1) says which borders there are."""
    shape = len(codes), n_leaves, BINS
    cells = (codes + BINS * (leaf + n_leaves * np.arange(len(codes))[:, None])).ravel()
    sums, counted = (
        np.bincount(cells, np.tile(each, len(codes)), np.prod(shape)).reshape(shape).cumsum(axis=2)
        for each in (left, weights)
    )
    above, counted_above = sums[:, :, -1:] - sums, counted[:, :, -1:] - counted
    gains = (sums**2 / (counted + RIDGE) + above**2 / (counted_above + RIDGE)).sum(axis=1)[:, :-1]
    best = np.where(real, gains, 0.0)
    feature, place = divmod(int(best.argmax()), BINS - 1)
    return (feature, place) if best[feature, place] > 0 else (0, -1)
