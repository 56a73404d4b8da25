"""What is said of bundles and items now. A change makes a new one and leaves this one as it was.

A bundle without a category of its own has the most frequent one of its items; one without a title is named
after the most frequent titles of its items.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from coheat.attributes import Attributes, Column, Value, column_of, on_offer
from coheat.attributes.column import DAY, LONGEST, written_time
from coheat.served.ranking import Positions
from coheat.served.relations import Csr

DERIVED = ("category", "title")
TITLES = 2
"""Titles of items that a bundle is named after."""
LONGEST_TITLE = 200
HISTORY = 365 * DAY
"""Data that end so long ago, all of whose bundles have ended, are history and not a shop that is closed."""


@dataclass(frozen=True, eq=False)
class Offered:
    """Which rows are on offer from a moment until another."""

    rows: npt.NDArray[np.bool_]
    since: float
    until: float

    def holds(self, n: int, now: float) -> bool:
        return len(self.rows) == n and self.since <= now < self.until


@dataclass(frozen=True, eq=False)
class Described:
    """The columns of bundles (by row of the catalogue, with what follows from items) and of items."""

    bundles: Attributes
    items: Attributes
    own: Mapping[str, npt.NDArray[np.bool_]]
    """Of the DERIVED columns: which rows have a value of their own."""
    offered: list[Offered] = field(default_factory=list)
    """Once asked for, what is on offer; at most a few."""

    @staticmethod
    def of_training(bundles: Attributes, items: Attributes, bundle_item: Csr) -> Described:
        own = {
            name: np.zeros(0, np.bool_) if (column := bundles.get(name)) is None else column.known
            for name in DERIVED
        }
        found = Described(bundles, items, own)
        owners = np.repeat(np.arange(len(bundle_item)), bundle_item.sizes)
        return found._derived(np.arange(len(bundle_item)), owners, np.asarray(bundle_item.indices))

    def with_contents(self, rows: Positions, items: Sequence[Positions]) -> Described:
        """With what follows from other contents of some bundles."""
        owners = np.repeat(np.arange(len(rows)), [len(one) for one in items])
        return self._derived(rows, owners, np.concatenate([np.zeros(0, np.int64), *items]))

    def bundles_changed(
        self, changes: Mapping[int, Mapping[str, Value]], items_of: Callable[[int], Positions]
    ) -> Described:
        """With other values for some columns of some bundles."""
        own = dict(self.own)
        for name in DERIVED:
            set_here = {row: values[name] for row, values in changes.items() if name in values}
            if set_here:
                mask = np.pad(own[name], (0, max(0, max(set_here) + 1 - len(own[name]))))
                mask[list(set_here)] = [value not in (None, "") for value in set_here.values()]
                own[name] = mask
        found = Described(self.bundles.changed(changes), self.items, own)
        rows = np.array(sorted(changes), dtype=np.int64)
        return found.with_contents(rows, [items_of(row) for row in rows.tolist()])

    def items_changed(
        self,
        changes: Mapping[int, Mapping[str, Value]],
        holders: Callable[[Positions], Positions],
        items_of: Callable[[int], Positions],
    ) -> Described:
        """With other values for some columns of some items; `holders` finds the bundles that hold them."""
        found = replace(self, items=self.items.changed(changes))
        named = [row for row, values in changes.items() if values.keys() & set(DERIVED)]
        if not named:
            return found
        rows = holders(np.array(named, dtype=np.int64))
        return found.with_contents(rows, [items_of(row) for row in rows.tolist()])

    def only(self, rows: Positions) -> Described:
        """These bundles alone, numbered anew."""
        own = {
            name: np.pad(mask, (0, int(rows.max(initial=-1)) + 1))[rows] for name, mask in self.own.items()
        }
        return Described(self.bundles.only(rows), self.items, own)

    def _derived(self, rows: Positions, owners: Positions, items: Positions) -> Described:
        """With what the items (each with the place of its bundle among `rows`) say of these bundles."""
        columns: dict[str, Column] = {}
        for name, texts_of in (("category", categories), ("title", titles)):
            column = self.items.get(name)
            if column is None:
                continue
            own = self.own[name]
            free = ~((rows < len(own)) & np.pad(own, (0, 1))[np.minimum(rows, len(own))])
            values: dict[int, Value] = dict.fromkeys(rows[free].tolist())
            derived = texts_of(column, owners, items)
            values |= {int(rows[place]): text for place, text in derived.items() if free[place]}
            if values:
                begun = self.bundles.get(name) or column_of((), "text", name)
                columns[name] = begun.changed(values, name)
        return replace(self, bundles=self.bundles.with_columns(columns), offered=[]) if columns else self

    def on_offer(self, n: int, now: float) -> npt.NDArray[np.bool_]:
        """Which of the first n bundles are on offer now; not the caller's to write on."""
        for known in tuple(self.offered):
            if known.holds(n, now):
                return known.rows
        rows, until = on_offer(self.bundles, n, now)
        rows.flags.writeable = False
        self.offered[:] = [*self.offered[-1:], Offered(rows, now, until)]
        return rows

    @property
    def has_offers(self) -> bool:
        """Whether anything says what is on offer."""
        return any(name in self.bundles for name in ("available", "launched", "ends"))

    def moment(self, clock: float, data_until: float | None, n_trained: int) -> tuple[float, str | None]:
        """The moment that counts as now, and a note where that is not the clock's."""
        ends = self.bundles.get("ends")
        if ends is None or data_until is None or clock - data_until < HISTORY or not n_trained:
            return clock, None
        if not bool((ends.resized(n_trained) + DAY < clock).all()):  # NaN is not below anything
            return clock, None
        day = written_time(data_until).partition("T")[0]
        return data_until, (
            f"all offers of the data have ended long ago, so what is listed was on offer on {day}, where the "
            "data end; choose another moment with now"
        )


def note_described(known: dict[str, dict[str, Value]], changes: Mapping[str, Mapping[str, Value]]) -> None:
    """Remember what was set, so that it can be set again; in place of what was set before."""
    for name, values in changes.items():
        known[name] = {**known.get(name, {}), **values}


def _counted(column: Column, owners: Positions, items: Positions) -> tuple[Positions, Positions]:
    """Of each owner the distinct texts of its items (as places among the texts), the most frequent first."""
    found = column.resized(int(items.max(initial=-1)) + 1)[items]
    known = found >= 0
    if not known.any():
        return owners[:0], owners[:0]
    used, codes = np.unique(found[known], return_inverse=True)
    places = {column.texts[place]: place for place in used.tolist()}  # one for a text that has several
    ranks = {text: rank for rank, text in enumerate(sorted(places))}
    by_code = np.array([ranks[column.texts[place]] for place in used.tolist()], dtype=np.int64)
    keys, counts = np.unique(owners[known] * len(ranks) + by_code[codes], return_counts=True)
    whose, rank = np.divmod(keys, len(ranks))
    best = np.lexsort((rank, -counts, whose))
    return whose[best], np.array([places[text] for text in ranks], dtype=np.int64)[rank[best]]


def categories(column: Column, owners: Positions, items: Positions) -> dict[int, str]:
    """By owner, the most frequent text of its items, of equally frequent ones the first by the alphabet."""
    whose, places = _counted(column, owners, items)
    first = np.flatnonzero(np.diff(whose, prepend=-1))
    return {int(whose[one]): column.texts[int(places[one])][:LONGEST] for one in first}


def titles(column: Column, owners: Positions, items: Positions) -> dict[int, str]:
    """By owner, a name made of the most frequent titles of its items, in no language: "Cups, Tea + 3"."""
    whose, places = _counted(column, owners, items)
    starts = np.flatnonzero(np.diff(whose, prepend=-1)).tolist()
    found = {}
    for start, end in pairwise([*starts, len(whose)]):
        first = places[start : min(end, start + TITLES)].tolist()
        names = [column.texts[place][:LONGEST_TITLE] for place in first]
        more = f" + {end - start - TITLES}" if end - start > TITLES else ""
        found[int(whose[start])] = ", ".join(names) + more
    return found
