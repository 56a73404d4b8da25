"""What speaks to a user: the profile of training, what was recorded since, what a newcomer says.

For models whose score has an overlap of items beside the inner product (`coheat.models.base.Overlap`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from coheat.artifact import ServingOverlap
from coheat.recommender.catalogue import Catalogue
from coheat.recommender.csr import STRETCH, Csr
from coheat.recommender.holders import Profile
from coheat.recommender.ranking import Doubles, Floats, Positions
from coheat.recommender.taken import Taken

TAKERS = 256
"""Users whose vectors stand for all who took a bundle: a mean needs no more."""


class Profiles:
    """Profiles of all users, and the rule that makes them. `contents` gives the items of a bundle's row."""

    def __init__(self, stored: ServingOverlap, taken: Taken, contents: Callable[[int, Catalogue], Positions]):
        self.stored, self.taken, self.contents = stored, taken, contents
        self.item_weights: Floats = np.asarray(stored.item_weights)

    def of_row(self, row: int) -> Profile:
        """The profile that a user had in training."""
        part = slice(int(self.stored.indptr[row]), int(self.stored.indptr[row + 1]))
        return Profile(self.stored.items[part].astype(np.int64), np.asarray(self.stored.weights[part]))

    def of_items(self, items: Positions) -> Profile:
        """What somebody's own items say."""
        return Profile(items, np.float32(self.stored.own_item_weight) * self.item_weights[items])

    def of_bundle(self, items: Positions) -> Profile:
        """What a bundle of these items says of somebody who took it."""
        return Profile(items, self.item_weights[items] / np.float32(np.sqrt(max(len(items), 1))))

    def of_bundles(self, rows: Positions, catalogue: Catalogue) -> list[Profile]:
        """What each of these bundles says, by its items of now."""
        return [self.of_bundle(self.contents(row, catalogue)) for row in rows.tolist()]

    def recorded(self, user: str, catalogue: Catalogue) -> Profile | None:
        """What the bundles recorded since training say of a user; None where there are none."""
        found = self.of_bundles(self.taken.recorded_rows(user, catalogue), catalogue)
        return Profile.joined(found) if found else None

    def since(self, users: Sequence[str], catalogue: Catalogue) -> dict[int, Profile]:
        """`recorded` for those of the users for whom there is something, by their place."""
        if not self.taken.by_user:
            return {}
        found = ((place, self.recorded(user, catalogue)) for place, user in enumerate(users))
        return {place: profile for place, profile in found if profile is not None}

    def whole(self, row: int, since: Profile | None) -> Profile:
        """All that speaks to a user; `row` is -1 for one who was not in training."""
        if since is None:
            return self.of_row(row)
        return since if row < 0 else Profile.joined([self.of_row(row), since])

    def part(self, overlaps: Doubles, is_new: bool) -> Doubles:
        """Overlaps as they count in the score of a bundle, without the offset of new ones."""
        weight = self.stored.new_weight if is_new else self.stored.weight
        return np.asarray(weight * np.log1p(overlaps / self.stored.scale))

    def offset(self, is_new: bool) -> float:
        return self.stored.new_offset if is_new else 0.0

    def overlaps_with(self, items: Positions, catalogue: Catalogue) -> Doubles:
        """The overlap of all users of training with a bundle of these items (n_users,).

        All profiles are read once, in stretches: an index of them by item would be as large as they are.
        """
        stored = self.stored
        n_users = len(stored.indptr) - 1
        worth = np.zeros(len(self.item_weights), dtype=np.float32)
        worth[items] = self.item_weights[items]
        inside = worth > 0
        total = np.zeros(n_users)
        for start in range(0, len(stored.items), STRETCH):
            hits = start + np.flatnonzero(inside[stored.items[start : start + STRETCH]])
            users = np.searchsorted(stored.indptr, hits, side="right") - 1
            total += np.bincount(users, stored.weights[hits], minlength=n_users)
        for bundle, takers in list(self.taken.by_bundle.items()):
            row = catalogue.find(bundle)
            if row is None:
                continue
            contents = self.contents(row, catalogue)
            given = float(worth[contents].sum()) / np.sqrt(max(len(contents), 1))
            if given > 0:
                total[self.taken.known_rows(takers)] += given
        return total


class Lookalikes:
    """A vector for a newcomer, from those of users who took the same.

    The learned part of a score has no rule for users to come. Without any, known bundles would score far
    below what the offset of new ones was measured against. So a newcomer gets the mean over the bundles
    taken of their takers' mean vector; with no such bundle, the same over the items and their owners;
    with none of these, everybody's mean.
    """

    def __init__(self, users: Floats, user_bundle: Csr, user_item: Csr, n_bundles: int, n_items: int):
        self.users, self.user_bundle, self.user_item = users, user_bundle, user_item
        self.n_bundles, self.n_items = n_bundles, n_items

    @cached_property
    def _takers(self) -> Csr:
        return self.user_bundle.transposed(self.n_bundles)

    @cached_property
    def _owners(self) -> Csr:
        return self.user_item.transposed(self.n_items)

    @cached_property
    def _everybody(self) -> Floats:
        mean: Floats = self.users.mean(axis=0)
        return mean

    def vector(self, items: Positions, bundles: Positions) -> Floats:
        """The vector (width,) of somebody with these items and bundles, all of training."""
        means = self._means(self._takers, bundles) or self._means(self._owners, items)
        return np.mean(means, axis=0, dtype=np.float32) if means else self._everybody

    def _means(self, relation: Csr, rows: Positions) -> list[Floats]:
        found = [relation.row(row) for row in rows.tolist()]
        return [self.users[_spread(users)].mean(axis=0) for users in found if len(users)]


def _spread(users: Positions) -> Positions:
    """At most TAKERS of these, evenly over all: the same ones each time."""
    step = max(-(-len(users) // TAKERS), 1)
    return users[::step]
