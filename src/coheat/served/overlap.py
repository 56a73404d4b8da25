"""What a user and a bundle have in common, counted exactly over their items: terms that need no training.

An item speaks to a user who has it, or who took a bundle that holds it. The overlap o_ub adds up what the
items of b are worth to u; a kind of overlap says how it counts in the score. A new kind is one entry in
`KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coheat.served.curves import Curve
from coheat.served.ranking import Doubles, Floats, Positions
from coheat.served.relations import NOTHING, Csr, Relations, by_key, distinct

MUCH_FEWER = 6
"""All bundles are this many times as many as those that are counted alone."""
USUAL_SIZE = 255
"""Items of a bundle up to which it is kept what each brings."""
LATE = 1 << 14
"""Entries beside an index by item at which the index is rebuilt."""


@dataclass(frozen=True)
class Overlap:
    """One term of a score: curve(evidence of b) * kind(o_ub / (scale |b| ** size_exponent)).

    Item i brings to o_ub: item_weights[i] * (own, where u has it, + taken / |c| ** taken_exponent for each
    bundle c of u's that holds it).
    """

    name: str
    kind: str
    curve: Curve
    own: float = 1.0
    taken: float = 1.0
    taken_exponent: float = 0.0
    size_exponent: float = 0.0
    scale: float = 1.0
    item_weights: Floats | None = None

    def worth(self, items: Positions, sizes: Positions) -> Doubles:
        """What each item brings that came with a bundle of this size (0: the user's own)."""
        largest = int(sizes.max(initial=0))
        said = (self._said if largest <= USUAL_SIZE else self.said(largest))[sizes]
        return said if self.item_weights is None else said * self.item_weights[items]

    @cached_property
    def _said(self) -> Doubles:
        return self.said(USUAL_SIZE)

    def said(self, largest: int) -> Doubles:
        """The same but for the item's own weight, by the bundle's size from 0 up."""
        found = np.maximum(np.arange(largest + 1), 1.0) ** -self.taken_exponent * self.taken
        found[0] = self.own
        return found

    def measure(self, shared: npt.NDArray[Any], divisors: Floats) -> Floats:
        """How overlaps count before the curve's weight; `divisors` are those of their bundles."""
        return KINDS[self.kind](np.divide(shared, divisors, dtype=np.float32, casting="same_kind"))

    def divisors(self, sizes: Positions) -> Floats:
        """What overlaps with bundles of these sizes are divided by, so that they compare."""
        return np.asarray(self.scale * np.maximum(sizes, 1.0) ** self.size_exponent, dtype=np.float32)


def _logarithm(shared: Floats) -> Floats:
    shared += 1  # and not log1p, which is many times slower: a score has no use for more digits
    return np.log(shared, out=shared)


def _fourth_power(shared: Floats) -> Floats:
    shared *= shared
    shared *= shared
    return shared


KINDS: dict[str, Callable[[Floats], Floats]] = {
    "log": _logarithm,
    "linear": lambda shared: shared,
    "fourth": _fourth_power,
}
"""How an overlap o / (scale |b| ** size_exponent) counts: log(1 + it), as it is, or its fourth power, which
for a share says whether it is nearly all; 0 counts as 0. May write on it."""


@dataclass(frozen=True)
class Belongings:
    """What people have, item by item; the size of the bundle it came with (0: alone); and whose it is."""

    items: Positions
    sizes: Positions
    owners: Positions

    @staticmethod
    def of(items: Positions, bundles: Sequence[Positions]) -> Belongings:
        """Of one person with these items, and bundles with these contents."""
        sizes = np.repeat([0, *map(len, bundles)], [len(items), *map(len, bundles)]).astype(np.int64)
        return Belongings(np.concatenate([items, *bundles]), sizes, np.zeros_like(sizes))

    @staticmethod
    def of_rows(relations: Relations, rows: Positions, since: Mapping[int, Belongings]) -> Belongings:
        """Of users of training (-1: not in it) and of those, by place, of whom more is known since; person
        after person."""
        known = (rows >= 0).nonzero()[0]
        items, places = relations.user_item.entries(rows[known])
        bundles, takers = relations.user_bundle.entries(rows[known])
        held, holders = relations.bundle_item.entries(bundles)
        parts = [
            (items, np.zeros_like(items), known[places]),
            (held, relations.bundle_item.sizes[bundles][holders], known[takers[holders]]),
            *((one.items, one.sizes, one.owners + place) for place, one in since.items()),
        ]
        items, sizes, owners = (np.concatenate(part) for part in zip(*parts, strict=True))
        if len(rows) == 1:
            return Belongings(items, sizes, owners)
        order = np.argsort(owners, kind="stable")
        return Belongings(items[order], sizes[order], owners[order])


class Shared(NamedTuple):
    """What is shared with the bundles of some columns (None: all), the last axis; nothing with the others."""

    columns: Positions | None
    sums: npt.NDArray[Any]

    def dense(self, n: int) -> npt.NDArray[Any]:
        """With all of n bundles."""
        if self.columns is None:
            return self.sums
        found = np.zeros((*self.sums.shape[:-1], n))
        found[..., self.columns] = self.sums
        return found


@dataclass(frozen=True)
class ItemIndex:
    """Which bundles hold an item, at one moment. A change makes a new one and leaves this as it was.

    Most bundles stand in an index by item, which is costly to make; those that came or changed since stand
    in a short list beside it, until that is long enough for a new index to be worth it.
    """

    by_item: Csr
    outdated: Positions = field(default_factory=lambda: NOTHING)
    """Bundles whose entries in the index no longer hold."""
    late_items: Positions = field(default_factory=lambda: NOTHING)
    late_rows: Positions = field(default_factory=lambda: NOTHING)

    def shared(self, items: Positions, weights: Doubles, n: int) -> Shared:
        """For each of n bundles and each line of `weights` (j, m), the worth of the `items` (m,) it holds."""
        known, which = distinct(items)
        worth = [np.bincount(which, line, len(known)) for line in weights]
        rows, places = self._holding(known)
        if len(rows) * MUCH_FEWER > n:
            return Shared(None, np.array([np.bincount(rows, line[places], n) for line in worth], np.float64))
        held, which = distinct(rows)
        found = [np.bincount(which, line[places], len(held)) for line in worth]
        return Shared(held, np.array(found, np.float64))

    def _holding(self, items: Positions) -> tuple[Positions, Positions]:
        """The bundles that hold these (distinct, ordered) items now, and the places of the items."""
        rows, places = self.by_item.entries(items)
        if len(self.outdated):
            kept = ~np.isin(rows, self.outdated)
            rows, places = rows[kept], places[kept]
        if len(self.late_items) and len(items):
            late = np.minimum(np.searchsorted(items, self.late_items), len(items) - 1)
            met = items[late] == self.late_items
            rows = np.concatenate([rows, self.late_rows[met]])
            places = np.concatenate([places, late[met]])
        return rows, places

    def with_bundles(self, rows: Positions, items: Sequence[Positions]) -> ItemIndex:
        """With these items for some (distinct) bundles, new or not."""
        kept = ~np.isin(self.late_rows, rows)
        late_items = np.concatenate([self.late_items[kept], *items])
        late_rows = np.concatenate([self.late_rows[kept], np.repeat(rows, [len(one) for one in items])])
        changed = ItemIndex(self.by_item, np.union1d(self.outdated, rows), late_items, late_rows)
        return changed if len(late_items) <= LATE else changed._of(*changed._entries())

    def only(self, rows: Positions) -> ItemIndex:
        """These bundles (in order) alone, renumbered."""
        items, held_by = self._entries()
        kept = np.isin(held_by, rows)
        return self._of(items[kept], np.searchsorted(rows, held_by[kept]))

    def _entries(self) -> tuple[Positions, Positions]:
        """All entries: items, and the bundles that hold them."""
        items = np.repeat(np.arange(len(self.by_item)), self.by_item.sizes)
        valid = ~np.isin(self.by_item.indices, self.outdated)
        return (
            np.concatenate([items[valid], self.late_items]),
            np.concatenate([self.by_item.indices[valid], self.late_rows]),
        )

    def _of(self, items: Positions, rows: Positions) -> ItemIndex:
        return ItemIndex(by_key(items, rows, len(self.by_item), int(rows.max(initial=-1)) + 1))


def shared(
    overlaps: Sequence[Overlap],
    relations: Relations,
    rows: Positions,
    since: Mapping[int, Belongings],
    index: ItemIndex,
    n: int,
) -> Iterator[Shared]:
    """What the people share with every bundle, a few of them at a time: (overlaps, people, n).

    A few, so that these sums are still at hand in the processor's cache when they are used.
    """
    have = Belongings.of_rows(relations, rows, since)
    worth = np.stack([overlap.worth(have.items, have.sizes) for overlap in overlaps])
    ends = np.cumsum(np.bincount(have.owners, minlength=len(rows))).tolist()
    for start, end in pairwise([0, *ends]):
        columns, sums = index.shared(have.items[start:end], worth[:, start:end], n)
        yield Shared(columns, sums[:, None])


in_use = [shared]
"""How overlaps are added up. Training code puts a compiled twin here, whose results are the same but for
rounding (see `coheat.graph.overlap`); serving does without."""
