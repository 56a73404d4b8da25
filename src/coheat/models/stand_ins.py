"""Stand-ins: the training data divided once more, so that weights can be learned out of fold.

How much a bundle's history, items and youth should count is a question about bundles of which little is known
yet, and its answer is in the training data: take bundles whose takers are known, hide most of them, and see
what would have found the hidden ones. So some bundles *stand in* for young ones: they keep 0, 1, 2, 4, 8 or
16 takers, the earliest where interactions are dated, and the rest is held out. Of the other interactions a
tenth is held out as well: they tell what finds the takers of an established bundle.

Nothing outside of the training part is looked at, and no bundle is chosen for being popular: of ordinary
bundles, most are not, and a bundle launched tomorrow is an ordinary one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coheat.data.dataset import BundleData, Indices, Sparse, pairs, relation

LEVELS = (0, 1, 2, 4, 8, 16)
"""How many takers a stand-in may keep: each step doubles what is known of it."""
BUNDLES = 0.15
"""Share of the bundles with takers that stand in for young ones."""
INTERACTIONS = 0.1
"""Share of the other bundles' interactions that is held out."""


@dataclass(frozen=True, eq=False)
class StandIns:
    """A training part divided in two: `kept` and `held_out` (n_users, n_bundles) share no interaction."""

    kept: BundleData
    held_out: Sparse
    is_stand_in: npt.NDArray[np.bool_]
    """(n_bundles,) which bundles were thinned as if young; the others are as old as the data say."""


def divide(
    data: BundleData,
    rng: np.random.Generator,
    bundles: float = BUNDLES,
    interactions: float = INTERACTIONS,
) -> StandIns:
    """Divide the interactions of `data`: see the module's text. The same generator gives the same division.

    A stand-in keeps fewer takers than it has, so each of them has something held out; a bundle that is not
    one keeps at least one taker. A user may lose all bundles, as a newcomer has none.
    """
    users, columns = pairs(data.user_bundle)
    popularity = data.popularity
    is_stand_in = np.zeros(data.n_bundles, dtype=np.bool_)
    is_stand_in[_spread_over_popularity(popularity, bundles, rng)] = True
    levels = np.array(LEVELS)
    possible = np.searchsorted(levels, popularity, side="left")  # levels below the number of takers
    keep = np.where(is_stand_in, levels[rng.integers(0, np.maximum(possible, 1))], popularity)

    # Takers in the order in which they came, or in a random one where no times are known.
    order = rng.permutation(len(users))
    if data.timestamps is not None:
        order = order[np.argsort(data.timestamps[order], kind="stable")]
    order = order[np.argsort(columns[order], kind="stable")]
    start = np.cumsum(popularity) - popularity
    rank = np.empty(len(users), dtype=np.int64)
    rank[order] = np.arange(len(users)) - start[columns[order]]
    held_out = rank >= keep[columns]
    # Rank 0 stays, so that what counts as established has a taker. Which of the takers it is, is random
    # without times; with times it is the first, and held out are any of the later ones.
    held_out |= ~is_stand_in[columns] & (rank > 0) & (rng.random(len(users)) < interactions)

    shape = data.user_bundle.shape
    stays = ~held_out
    kept = relation(users[stays], columns[stays], shape)
    times = None if data.timestamps is None else data.timestamps[stays]
    return StandIns(
        data.with_user_bundle(kept, times),
        relation(users[held_out], columns[held_out], shape),
        is_stand_in,
    )


def _spread_over_popularity(popularity: Indices, share: float, rng: np.random.Generator) -> Indices:
    """Every so-and-so-many-th of the bundles with takers, ordered by popularity, with a random start.

    Drawn one by one, a handful of the most popular bundles would decide how much is held out.
    """
    taken = rng.permutation(np.flatnonzero(popularity))
    taken = taken[np.argsort(popularity[taken], kind="stable")]
    places = (np.arange(len(taken)) + rng.random()) * share
    chosen = np.floor(places) > np.floor(places - share)
    return np.asarray(taken[chosen], dtype=np.int64)
