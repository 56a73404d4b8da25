"""Stand-ins: the training data divided once more, so that weights can be learned out of fold.

How much a bundle's history, items and youth should count is a question about bundles of which little is known
yet, and its answer is in the training data: take bundles whose takers are known, hide most of them, and see
what would have found the hidden ones. So some bundles *stand in* for young ones. Some are new: all of their
takers are held out. Some are thinned: they keep 1, 2, 4, 8 or 16 takers, the earliest where interactions are
dated, and the rest is held out. Of the other interactions a tenth is held out as well: they tell what finds
the takers of an established bundle.

Nothing outside of the training part is looked at. Only bundles with some success stand in: those, from the
most popular down, that make two thirds of all interactions (`BUSINESS`). Of a bundle that two people took,
one or two are left to hold out, and nothing can be learned from them; and what is lost when a new bundle is
not shown is lost on the bundles that people want.

Where taking a bundle also puts its items among the user's, held-out interactions would give themselves away,
and "the user has all of it" would seem to find everything. There, what only the held-out bundles of a user
explain is taken from the user's items.

A division may go on from an earlier one (`Before`), whose rehearsal today's starts from. What that has seen
is not held out any more: stand-ins stand in as before, what was held out stays held out, and only what has
come since is divided anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from coheat.data.dataset import BundleData, Indices, Sparse, pairs, relation
from coheat.data.sampling import contains

BUSINESS = 2 / 3
"""Share of all interactions that the bundles have which may stand in."""
LEVELS = (1, 2, 4, 8, 16)
"""How many takers a thinned bundle may keep: each step doubles what is known of it."""
NEW = 0.12
"""Share of these bundles that stand in for new ones."""
THINNED = 0.18
"""Share of these bundles, if with two takers and more, that stand in for young ones with some."""
INTERACTIONS = 0.1
"""Share of the other bundles' interactions that is held out."""
BLOCK = 50_000
"""Interactions looked at together."""
GIVEN_AWAY = 0.5
"""Share of interactions with all items of the bundle among the user's from which on they come from it."""


@dataclass(frozen=True, eq=False)
class StandIns:
    """A training part divided in two: `kept` and `held_out` (n_users, n_bundles) share no interaction."""

    kept: BundleData
    held_out: Sparse
    is_stand_in: npt.NDArray[np.bool_]
    """(n_bundles,) which bundles were thinned as if young; the others are as old as the data say."""
    seen: Sparse
    """What a rehearsal has seen by now: `kept`, and what those had that it goes on from."""
    took_items: bool
    """Whether what only held-out bundles explain was taken from the users' items."""
    goes_on: bool
    """Whether it goes on from an earlier division."""


@dataclass(frozen=True, eq=False)
class Before:
    """An earlier division, in the rows of today's data: the fields of `StandIns` of these names."""

    seen: Sparse
    held_out: Sparse
    is_stand_in: npt.NDArray[np.bool_]
    took_items: bool


def divide(
    data: BundleData,
    rng: np.random.Generator,
    new: float = NEW,
    thinned: float = THINNED,
    interactions: float = INTERACTIONS,
    before: Before | None = None,
) -> StandIns:
    """Divide the interactions of `data`: see the module's text. The same generator gives the same division.

    A thinned bundle keeps fewer takers than it has, so each stand-in has something held out; a bundle that is
    none keeps at least one taker. A user may lose all bundles, as a newcomer has none. Going on from `before`
    is not possible where that left users items that have to be taken now.
    """
    users, columns = pairs(data.user_bundle)
    popularity, shape = data.popularity, data.user_bundle.shape
    takes_items = complete_share(data) > GIVEN_AWAY
    goes_on = before is not None and (before.took_items or not takes_items)
    if before is None or not goes_on:
        nothing = relation([], [], shape)
        before = Before(nothing, nothing, np.zeros(data.n_bundles, dtype=bool), takes_items)
    seen = contains(before.seen, users, columns)
    seen_takers = np.bincount(columns[seen], minlength=data.n_bundles)
    keep = np.where(before.is_stand_in, seen_takers, popularity)
    is_free = ~before.is_stand_in & (seen_takers == 0)
    wanted = np.flatnonzero((popularity >= least_takers(popularity)) & is_free)
    keep[_spread_over_popularity(wanted, popularity, new, rng)] = 0
    rest = wanted[(popularity[wanted] > 1) & (keep[wanted] > 0)]
    chosen = _spread_over_popularity(rest, popularity, min(thinned / (1 - new), 1.0), rng)
    possible = np.searchsorted(LEVELS, popularity[chosen], side="left")  # levels below the number of takers
    keep[chosen] = np.array(LEVELS)[rng.integers(0, possible)]
    is_stand_in = keep < popularity

    # Takers in the order in which they came, or in a random one where no times are known; first those that
    # were seen before.
    order = rng.permutation(len(users))
    if data.timestamps is not None:
        order = order[np.argsort(data.timestamps[order], kind="stable")]
    order = order[np.argsort(~seen[order], kind="stable")]
    order = order[np.argsort(columns[order], kind="stable")]
    start = np.cumsum(popularity) - popularity
    rank = np.empty(len(users), dtype=np.int64)
    rank[order] = np.arange(len(users)) - start[columns[order]]
    held_out = rank >= keep[columns]
    # Rank 0 stays, so that what counts as established has a taker. Which of the takers it is, is random
    # without times; with times it is the first, and held out are any of the later ones.
    drawn = (rng.random(len(users)) < interactions) | contains(before.held_out, users, columns)
    held_out |= ~is_stand_in[columns] & (rank > 0) & drawn & ~seen

    stays = ~held_out
    kept = relation(users[stays], columns[stays], shape)
    hidden = relation(users[held_out], columns[held_out], shape)
    times = None if data.timestamps is None else data.timestamps[stays]
    user_item = data.user_item
    if takes_items:
        user_item = without_explained(user_item, kept, hidden, data.bundle_item)
    left = replace(data, user_bundle=kept, timestamps=times, user_item=user_item)
    seen_users, seen_bundles = np.concatenate([pairs(kept), pairs(before.seen)], axis=1)
    seen_by_now = relation(seen_users, seen_bundles, shape)
    return StandIns(left, hidden, is_stand_in, seen_by_now, takes_items, goes_on)


def least_takers(popularity: Indices) -> int:
    """How many takers a bundle must have to stand in: those that have hold `BUSINESS` of all interactions."""
    taken = np.sort(popularity[popularity > 0])[::-1]
    if not len(taken):
        return 1
    place = int(np.searchsorted(np.cumsum(taken), BUSINESS * taken.sum()))
    return int(taken[min(place, len(taken) - 1)])


def complete_share(data: BundleData) -> float:
    """Share of the interactions in which the user has all items of the bundle."""
    users, bundles = pairs(data.user_bundle)
    owned = np.zeros(len(users))
    for first in range(0, len(users), BLOCK):
        part = slice(first, first + BLOCK)
        shared = data.user_item[users[part]].multiply(data.bundle_item[bundles[part]])
        owned[part] = np.asarray(shared.sum(axis=1)).ravel()
    return float((owned >= data.bundle_sizes[bundles]).mean()) if len(users) else 0.0


def without_explained(user_item: Sparse, kept: Sparse, held_out: Sparse, bundle_item: Sparse) -> Sparse:
    """`user_item` without the items that stand in held-out bundles of the user and in no kept one."""
    explained = (held_out @ bundle_item).sign()
    explained = explained - explained.multiply((kept @ bundle_item).sign())
    left = user_item - user_item.multiply(explained)
    return relation(*pairs(_without_zeros(left)), user_item.shape)


def _without_zeros(matrix: Sparse) -> Sparse:
    plain = sparse.csr_array(matrix)
    plain.eliminate_zeros()
    return plain


def _spread_over_popularity(
    bundles: Indices, popularity: Indices, share: float, rng: np.random.Generator
) -> Indices:
    """Every so-and-so-many-th of the bundles, ordered by popularity, with a random start.

    Drawn one by one, a handful of the most popular bundles would decide how much is held out.
    """
    ordered = rng.permutation(bundles)
    ordered = ordered[np.argsort(popularity[ordered], kind="stable")]
    places = (np.arange(len(ordered)) + rng.random()) * share
    return np.asarray(ordered[np.floor(places + share) > np.floor(places)], dtype=np.int64)
