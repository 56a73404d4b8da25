"""The bundles and their ids at one moment. A change makes a new catalogue and leaves this one as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coheat.artifact import Contents
from coheat.attributes import Value
from coheat.ids import unknown
from coheat.recommender.described import Described
from coheat.served import Bundles, Served
from coheat.served.ranking import Positions

DEAD = 256
"""Removed rows that are kept in any case: with fewer, closing the gaps is not worth it."""


@dataclass(frozen=True)
class Catalogue:
    """All bundles: rows 0 .. n_trained - 1 are those of training, in its order, then those added since.

    `ids`, `rows` and `contents` only ever grow and are shared by successive catalogues; how many of them
    count here is the length of the arrays. A removed bundle keeps its row and is no longer `alive`; once most
    rows of added bundles are such, a catalogue without them takes over, with ids of its own.
    """

    served: Served
    ids: list[str]
    rows: dict[str, int]
    bundles: Bundles
    alive: npt.NDArray[np.bool_]
    contents: dict[int, Positions]
    """Items of the bundles (by row) that were added or replaced."""
    described: Described
    """What is said of bundles and items in columns."""

    @staticmethod
    def of_training(contents: Contents) -> Catalogue:
        served, ids = contents.served, contents.bundles.ids
        alive = np.ones(len(ids), dtype=np.bool_)
        rows = {name: row for row, name in enumerate(ids)}
        about = contents.bundle_attributes, contents.item_attributes, served.relations.bundle_item
        return Catalogue(served, list(ids), rows, served.bundles, alive, {}, Described.of_training(*about))

    def __len__(self) -> int:
        return len(self.alive)

    @property
    def n_trained(self) -> int:
        return len(self.served.bundles)

    def find(self, name: str) -> int | None:
        """The row of a bundle, or None."""
        row = self.rows.get(name)
        return row if row is not None and row < len(self) and self.alive[row] else None

    def row(self, name: str) -> int:
        row = self.find(name)
        if row is None:
            raise unknown(name, "bundle", self.names())
        return row

    def history_weight(self, row: int) -> float | None:
        """How far history counts for a bundle now; None where evidence does not decide it."""
        return self.served.history_weight(float(self.bundles.taken[row]), float(self.bundles.youth[row]))

    def names(self) -> list[str]:
        """Ids of all bundles there are."""
        if self.alive.all():
            return self.ids[: len(self)]
        return [self.ids[row] for row in np.flatnonzero(self.alive)]

    def items_of(self, row: int) -> Positions:
        """Rows of the items of a bundle now."""
        found = self.contents.get(row)
        return self.served.relations.bundle_item.row(row) if found is None else found

    def added(self, names: Sequence[str], items: Sequence[Positions]) -> Catalogue:
        """With new bundles after the last row."""
        rows = range(len(self), len(self) + len(names))
        self.ids.extend(names)
        self.rows.update(zip(names, rows, strict=True))
        self.contents.update(zip(rows, items, strict=True))
        alive = np.pad(self.alive, (0, len(names)), constant_values=True)
        return replace(
            self,
            bundles=self.served.added(self.bundles, items),
            alive=alive,
            described=self.described.with_contents(np.array(rows, dtype=np.int64), items),
        )

    def replaced(self, rows: Positions, items: Sequence[Positions]) -> Catalogue:
        """With other items for some bundles."""
        contents = {**self.contents, **dict(zip(rows.tolist(), items, strict=True))}
        return replace(
            self,
            bundles=self.served.replaced(self.bundles, rows, items),
            contents=contents,
            described=self.described.with_contents(rows, items),
        )

    def with_bundles_described(self, changes: Mapping[str, Mapping[str, Value]]) -> Catalogue:
        """With other values for some columns of some bundles."""
        by_row = {self.row(name): values for name, values in changes.items()}
        return replace(self, described=self.described.bundles_changed(by_row, self.items_of))

    def with_items_described(self, changes: Mapping[int, Mapping[str, Value]]) -> Catalogue:
        """With other values for some columns of some items (by row)."""
        return replace(self, described=self.described.items_changed(changes, self._holders, self.items_of))

    def _holders(self, items: Positions) -> Positions:
        """Rows of the bundles that hold one of these items."""
        trained = self.served.relations.bundle_item
        entries = np.flatnonzero(np.isin(trained.indices, items))
        rows = np.unique(np.searchsorted(trained.indptr, entries, side="right") - 1)
        since = [row for row, held in self.contents.items() if row < len(self) and np.isin(held, items).any()]
        unchanged = [row for row in rows.tolist() if row not in self.contents]
        return np.array(sorted([*unchanged, *since]), dtype=np.int64)

    def removed(self, names: Sequence[str]) -> Catalogue:
        alive = self.alive.copy()
        alive[[self.row(name) for name in names]] = False
        return replace(self, alive=alive)._without_gaps()

    def _without_gaps(self) -> Catalogue:
        """Without the rows of removed bundles, where they are many among those added."""
        added = self.alive[self.n_trained :]
        dead = len(added) - int(added.sum())
        if dead <= max(DEAD, len(added) // 2):
            return self
        kept = np.flatnonzero(self.alive | (np.arange(len(self)) < self.n_trained))
        ids = [self.ids[row] for row in kept]
        return replace(
            self,
            ids=ids,
            rows={name: row for row, name in enumerate(ids)},  # of an id that is there twice, the later row
            bundles=self.bundles.only(kept),
            alive=self.alive[kept],
            described=self.described.only(kept),
            contents={
                new: self.contents[old] for new, old in enumerate(kept.tolist()) if old in self.contents
            },
        )
