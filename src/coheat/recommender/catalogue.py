"""The bundles and their ids at one moment. A change makes a new catalogue and leaves this one as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from coheat.artifact import Contents
from coheat.attributes import Value
from coheat.ids import shortened, text_id, unknown
from coheat.recommender.answers import PlacedBy
from coheat.recommender.average import Averages
from coheat.recommender.described import Described
from coheat.served import Bundles, Served
from coheat.served.ranking import Positions

DEAD = 256
"""Removed rows that are kept in any case: with fewer, closing the gaps is not worth it."""


@dataclass(frozen=True)
class Stranger:
    """A bundle none of whose items the model knows: their ids, what it is placed by, and the items that stand
    for its own, the most frequent ones there."""

    item_ids: tuple[str, ...]
    placed_by: PlacedBy
    items: Positions


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
    averages: Averages
    strangers: Mapping[int, Stranger] = field(default_factory=dict)
    """Bundles (by row) none of whose items are known."""

    @staticmethod
    def of_training(contents: Contents) -> Catalogue:
        served, ids = contents.served, contents.bundles.ids
        alive = np.ones(len(ids), dtype=np.bool_)
        rows = {name: row for row, name in enumerate(ids)}
        about = contents.bundle_attributes, contents.item_attributes, served.relations.bundle_item
        described = Described.of_training(*about)
        averages = Averages(served.relations.bundle_item, described.bundles)
        return Catalogue(served, list(ids), rows, served.bundles, alive, {}, described, averages)

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
        row = self.find(text_id(name, "bundle"))
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

    def placing_items(self, row: int) -> Positions:
        """Rows of the items by which a bundle is placed: its own, or those that stand for them."""
        stranger = self.strangers.get(row)
        return self.items_of(row) if stranger is None else stranger.items

    def about_strangers(self, rows: Sequence[int]) -> dict[str, str]:
        """A sentence about each of these bundles that is placed by an average."""
        names = {"category": "its category", "catalogue": "the catalogue"}
        return {
            self.ids[row]: f"bundle {shortened(self.ids[row])}: the model knows none of its items, so it is "
            f"placed like an average bundle of {names[one.placed_by]}"
            for row in rows
            if (one := self.strangers.get(row))
        }

    def typical_items(self, row: int) -> tuple[PlacedBy, Positions]:
        """What stands for the items of a bundle none of which are known."""
        column = self.described.bundles.get("category")
        category = None if column is None else column.value(row)
        return self.averages.items(None if category is None else str(category))

    def _placed(
        self, rows: Sequence[int], items: Sequence[Positions], unknown: Mapping[int, Sequence[str]]
    ) -> tuple[list[Positions], dict[int, Stranger]]:
        """What bundles with these items are placed by, and those none of whose items are known."""
        strangers = {row: one for row, one in self.strangers.items() if row not in set(rows)}
        found = list(items)
        for place, row in enumerate(rows):
            if not len(items[place]):
                strangers[row] = Stranger(tuple(unknown.get(row, ())), *self.typical_items(row))
                found[place] = strangers[row].items
        return found, strangers

    def added(
        self,
        names: Sequence[str],
        items: Sequence[Positions],
        unknown: Mapping[str, Sequence[str]] | None = None,
        columns: Mapping[str, Mapping[str, Value]] | None = None,
    ) -> Catalogue:
        """With new bundles after the last row; `unknown` are ids of their items that the model does not know,
        `columns` is what is said of them."""
        rows = range(len(self), len(self) + len(names))
        numbered = dict(zip(names, rows, strict=True))
        described = self.described.with_contents(np.array(rows, dtype=np.int64), items)
        if columns:
            said = {numbered[name]: values for name, values in columns.items()}
            described = described.bundles_changed(said, lambda row: items[row - len(self)])
        missing = {numbered[name]: ids for name, ids in (unknown or {}).items()}
        placing, strangers = replace(self, described=described)._placed(rows, items, missing)
        self.ids.extend(names)
        self.rows.update(zip(names, rows, strict=True))
        self.contents.update(zip(rows, items, strict=True))
        alive = np.pad(self.alive, (0, len(names)), constant_values=True)
        return replace(
            self,
            bundles=self.served.added(self.bundles, placing),
            alive=alive,
            described=described,
            strangers=strangers,
        )

    def replaced(
        self, rows: Positions, items: Sequence[Positions], unknown: Mapping[str, Sequence[str]] | None = None
    ) -> Catalogue:
        """With other items for some bundles."""
        contents = {**self.contents, **dict(zip(rows.tolist(), items, strict=True))}
        described = self.described.with_contents(rows, items)
        missing = {self.rows[name]: ids for name, ids in (unknown or {}).items()}
        placing, strangers = replace(self, described=described)._placed(rows.tolist(), items, missing)
        return replace(
            self,
            bundles=self.served.replaced(self.bundles, rows, placing),
            contents=contents,
            described=described,
            strangers=strangers,
        )

    def with_bundles_described(self, changes: Mapping[str, Mapping[str, Value]]) -> Catalogue:
        """With other values for some columns of some bundles."""
        by_row = {self.row(name): values for name, values in changes.items()}
        found = replace(self, described=self.described.bundles_changed(by_row, self.items_of))
        moved = [row for row, values in by_row.items() if row in self.strangers and "category" in values]
        if not moved:
            return found
        strangers = {row: Stranger(self.strangers[row].item_ids, *found.typical_items(row)) for row in moved}
        rows, items = np.array(moved, dtype=np.int64), [strangers[row].items for row in moved]
        bundles = self.served.replaced(self.bundles, rows, items)
        return replace(found, bundles=bundles, strangers={**self.strangers, **strangers})

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
            strangers={
                new: self.strangers[old] for new, old in enumerate(kept.tolist()) if old in self.strangers
            },
            contents={
                new: self.contents[old] for new, old in enumerate(kept.tolist()) if old in self.contents
            },
        )
