"""Which bundles hold an item, at one moment: what all overlaps of a user are summed over.

A change makes a new `Holders` and leaves the old one as it was (see `catalogue.py`). Most bundles stand in an
index by item, which is costly to make; bundles that came or changed since stand in a short list beside it,
until that is long enough for a new index to be worth it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coheat.recommender.csr import Csr, by_key
from coheat.recommender.ranking import Doubles, Floats, Positions

LATE = 1 << 14
"""Entries of the short list at which the index is made anew."""


@dataclass(frozen=True)
class Profile:
    """What items are worth to somebody: `weights[k]` for `items[k]`. An item's weights add up."""

    items: Positions
    weights: Floats

    @staticmethod
    def joined(parts: Sequence[Profile]) -> Profile:
        return Profile(
            np.concatenate([part.items for part in parts]), np.concatenate([part.weights for part in parts])
        )

    def dense(self, n_items: int) -> Doubles:
        """The worth of every item (n_items,)."""
        return _sums(self.items, self.weights, n_items)


@dataclass(frozen=True)
class Holders:
    """The rows of the bundles that hold each item."""

    index: Csr
    outdated: Positions
    """Bundles whose entries in the index no longer hold."""
    late_items: Positions
    late_rows: Positions
    """Entries beside the index: item and bundle."""

    @staticmethod
    def of_training(bundle_item: Csr, n_items: int) -> Holders:
        nothing = np.zeros(0, dtype=np.int64)
        return Holders(bundle_item.transposed(n_items), nothing, nothing, nothing)

    @staticmethod
    def of(items: Positions, rows: Positions, n_items: int) -> Holders:
        """From all entries: items[k] is in the bundle rows[k]."""
        nothing = np.zeros(0, dtype=np.int64)
        return Holders(by_key(items, rows, n_items), nothing, nothing, nothing)

    @property
    def n_items(self) -> int:
        return len(self.index.indptr) - 1

    def overlaps(self, profile: Profile, n: int) -> Doubles:
        """For each of the n bundles, the worth of its items to this profile (n,)."""
        rows, places = self.index.entries(profile.items)
        found = _sums(rows, profile.weights[places], n)
        found[self.outdated] = 0
        if len(self.late_items):
            worth = profile.dense(self.n_items)[self.late_items]
            found += _sums(self.late_rows, worth, n)
        return found

    def with_bundles(self, rows: Positions, items: Sequence[Positions]) -> Holders:
        """With these items for some (distinct) bundles, new or not."""
        kept = ~np.isin(self.late_rows, rows)
        late_items = np.concatenate([self.late_items[kept], *items])
        late_rows = np.concatenate([self.late_rows[kept], np.repeat(rows, [len(one) for one in items])])
        changed = Holders(self.index, np.union1d(self.outdated, rows), late_items, late_rows)
        return changed if len(late_items) <= LATE else Holders.of(*changed.entries(), self.n_items)

    def only(self, rows: Positions) -> Holders:
        """These bundles (in order) alone, numbered anew."""
        items, held_by = self.entries()
        kept = np.isin(held_by, rows)
        return Holders.of(items[kept], np.searchsorted(rows, held_by[kept]), self.n_items)

    def entries(self) -> tuple[Positions, Positions]:
        """All entries: items, and the bundles that hold them."""
        items = np.repeat(np.arange(self.n_items), np.diff(self.index.indptr))
        valid = ~np.isin(self.index.indices, self.outdated)
        return (
            np.concatenate([items[valid], self.late_items]),
            np.concatenate([self.index.indices[valid], self.late_rows]),
        )


def _sums(places: Positions, weights: Floats | Doubles, n: int) -> Doubles:
    """The sum of the weights at each of n places."""
    return np.asarray(np.bincount(places, weights, minlength=n), dtype=np.float64)
