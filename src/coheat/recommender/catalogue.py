"""The bundles as they are at one moment. A change makes a new catalogue and leaves the old one as it was.

So a reader who holds a catalogue sees one consistent state however long it takes, and needs no lock.
What makes this cheap: vectors are a large matrix that is never written (mapped from the disk at first)
and a small overlay of the rows that changed; once the overlay is large, both are merged into a new matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from coheat.recommender.holders import Holders
from coheat.recommender.ids import unknown
from coheat.recommender.ranking import Floats, Positions

OVERLAY = 4096
"""Changed rows at which the overlay is merged."""
DEAD = 256
"""Removed rows that are kept in any case: with fewer, closing the gaps is not worth it."""


@dataclass(frozen=True)
class Rows:
    """A matrix (n, width): the rows of `base`, except those listed in `changed` (in order)."""

    base: Floats
    changed: Positions
    values: Floats
    n: int
    base_lengths: dict[tuple[int, int], Floats] = field(default_factory=dict)
    """Lengths of parts of the base's rows, once asked for; shared by all that share the base."""

    @staticmethod
    def of(matrix: Floats) -> Rows:
        base = np.asarray(matrix)  # a plain view of what is mapped: quicker to handle
        return Rows(base, np.zeros(0, dtype=np.int64), base[:0], len(base))

    def product(self, vectors: Floats, scratch: Floats | None = None) -> Floats:
        """vectors (m, width) times the transposed matrix: (m, n), the caller's to write on.

        It is written to the first rows of `scratch` (at least m, n) where given: fresh memory is slow.
        """
        scores = np.empty((len(vectors), self.n), dtype=np.float32) if scratch is None else scratch
        scores = scores[: len(vectors)]
        if len(self.base):
            np.matmul(vectors, self.base.T, out=scores[:, : len(self.base)])
        if len(self.changed):
            scores[:, self.changed] = vectors @ self.values.T
        return scores

    def lengths(self, part: slice) -> Floats:
        """The length of these columns of each row (n,)."""
        key = (part.start, part.stop)
        if key not in self.base_lengths:
            self.base_lengths[key] = np.linalg.norm(self.base[:, part], axis=1)
        lengths = np.empty(self.n, dtype=np.float32)
        lengths[: len(self.base)] = self.base_lengths[key]
        lengths[self.changed] = np.linalg.norm(self.values[:, part], axis=1)
        return lengths

    def take(self, rows: Positions) -> Floats:
        """Some rows, copied."""
        found = np.empty((len(rows), self.base.shape[1]), dtype=np.float32)
        old = rows < len(self.base)
        found[old] = self.base[rows[old]]
        if len(self.changed):
            place = np.minimum(np.searchsorted(self.changed, rows), len(self.changed) - 1)
            newer = self.changed[place] == rows
            found[newer] = self.values[place[newer]]
        return found

    def with_rows(self, rows: Positions, values: Floats, n: int) -> Rows:
        """With other values for some (distinct) rows, and n rows in all; new rows must be given."""
        kept = ~np.isin(self.changed, rows)
        changed = np.concatenate([self.changed[kept], rows])
        order = np.argsort(changed, kind="stable")
        merged = np.concatenate([self.values[kept], values.astype(np.float32)])[order]
        grown = Rows(self.base, changed[order], merged, n, self.base_lengths)
        return Rows.of(grown.take(np.arange(n))) if len(changed) > OVERLAY else grown

    def only(self, rows: Positions) -> Rows:
        """These rows (in order) alone, numbered anew."""
        if not np.array_equal(rows[: len(self.base)], np.arange(len(self.base))):
            return Rows.of(self.take(rows))
        kept = np.isin(self.changed, rows)
        places = np.searchsorted(rows, self.changed[kept])
        return Rows(self.base, places, self.values[kept], len(rows), self.base_lengths)


@dataclass(frozen=True)
class Catalogue:
    """All bundles: rows 0 .. n_trained - 1 are those of training, in its order, then those added since.

    `ids` and `rows` only ever grow and are shared by successive catalogues; how many of them count here is
    the length of the arrays. A removed bundle keeps its row and is no longer `alive`; once most rows of added
    bundles are such, a catalogue without them takes over, with `ids` and `rows` of its own.
    """

    ids: list[str]
    rows: dict[str, int]
    n_trained: int
    served: Rows
    """Vectors whose inner product with a user's is the score."""
    plain: Rows
    """The same before the views were weighed; equal to `served` for a model with one view."""
    popularity: Positions
    alive: npt.NDArray[np.bool_]
    is_new: npt.NDArray[np.bool_]
    contents: Mapping[str, Positions]
    """Items of the bundles that were added or replaced."""
    holders: Holders | None = None
    """Which bundles hold an item, for a model whose score has an overlap."""

    def __len__(self) -> int:
        return len(self.popularity)

    def find(self, name: str) -> int | None:
        """The row of a bundle, or None."""
        row = self.rows.get(name)
        return row if row is not None and row < len(self) and self.alive[row] else None

    def row(self, name: str) -> int:
        row = self.find(name)
        if row is None:
            raise unknown(name, "bundle", self.names())
        return row

    def names(self) -> list[str]:
        """Ids of all bundles there are."""
        if self.alive.all():
            return self.ids[: len(self)]
        return [self.ids[row] for row in np.flatnonzero(self.alive)]

    def added(self, names: Sequence[str], plain: Floats, served: Floats, items: list[Positions]) -> Catalogue:
        """With new bundles after the last row."""
        first, n = len(self), len(self) + len(names)
        rows = np.arange(first, n)
        self.ids.extend(names)
        self.rows.update(zip(names, rows.tolist(), strict=True))
        return replace(
            self,
            served=self.served.with_rows(rows, served, n),
            plain=self.plain.with_rows(rows, plain, n),
            popularity=np.concatenate([self.popularity, np.zeros(len(names), dtype=np.int64)]),
            alive=np.concatenate([self.alive, np.ones(len(names), dtype=np.bool_)]),
            is_new=np.concatenate([self.is_new, np.ones(len(names), dtype=np.bool_)]),
            contents={**self.contents, **dict(zip(names, items, strict=True))},
            holders=self.holders and self.holders.with_bundles(rows, items),
        )

    def changed(
        self, rows: Positions, plain: Floats, served: Floats, items: Mapping[str, Positions] | None = None
    ) -> Catalogue:
        """With other vectors, and possibly other items (in the order of `rows`), for some bundles."""
        return replace(
            self,
            served=self.served.with_rows(rows, served, len(self)),
            plain=self.plain.with_rows(rows, plain, len(self)),
            contents={**self.contents, **items} if items else self.contents,
            holders=self.holders.with_bundles(rows, list(items.values()))
            if self.holders and items
            else self.holders,
        )

    def removed(self, names: Sequence[str]) -> Catalogue:
        alive = self.alive.copy()
        alive[[self.row(name) for name in names]] = False
        contents = {name: self.contents[name] for name in self.contents.keys() - set(names)}
        return replace(self, alive=alive, contents=contents)._without_gaps()

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
            served=self.served.only(kept),
            plain=self.plain.only(kept),
            popularity=self.popularity[kept],
            alive=self.alive[kept],
            is_new=self.is_new[kept],
            holders=self.holders and self.holders.only(kept),
        )
