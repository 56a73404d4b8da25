"""The bundles' side of a score at one moment. A change makes a new `Bundles` and leaves the old as it was.

So a reader who holds one sees one consistent state however long it takes, and needs no lock. What makes this
cheap: vectors are a large matrix that is never written (mapped from the disk at first) and a small overlay of
the rows that changed; once the overlay is large, both are merged into a new matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from coheat.served.overlap import ItemIndex
from coheat.served.ranking import Floats, Positions
from coheat.served.relations import NOTHING

YOUNG = 0.5
"""Youth from which on a bundle counts as young where that is a question of yes or no."""
FEW_TAKERS = 32
"""Takers at which a bundle does no longer, however young it is."""
FEW_PEOPLE = 8
"""People up to whom a product is made one by one. One for all of them would first copy the matrix into the
order that the library behind it likes best, which for two people takes longer than both products."""
STRETCH = 2048
"""Rows that are multiplied with one after the other then: they stay in the processor's cache."""
OVERLAY = 4096
"""Changed rows at which the overlay is merged."""


@dataclass(frozen=True)
class Rows:
    """A matrix (n, width): the rows of `base`, except those listed in `changed` (in order).

    Where the columns of the base are kept together (numpy's order F), its product with one vector takes half
    the time: the processor reads ahead of long stretches. Copies of rows take longer, and are few.
    """

    base: Floats
    changed: Positions
    values: Floats
    n: int
    base_lengths: dict[tuple[int, int], Floats] = field(default_factory=dict)
    """Lengths of parts of the base's rows, once asked for; shared by all that share the base."""

    @staticmethod
    def of(matrix: Floats) -> Rows:
        base = np.asarray(matrix)  # a plain view of what is mapped: quicker to handle
        return Rows(base, NOTHING, base[:0], len(base))

    def product(self, vectors: Floats, scratch: Floats | None = None) -> Floats:
        """vectors (m, width) times the transposed matrix: (m, n), the caller's to write on.

        It is written to the first rows of `scratch` (at least m, n) where given: fresh memory is slow.
        """
        scores = np.empty((len(vectors), self.n), dtype=np.float32) if scratch is None else scratch
        scores = scores[: len(vectors)]
        if 1 < len(vectors) < FEW_PEOPLE:
            for start in range(0, len(self.base), STRETCH):
                part = self.base[start : start + STRETCH].T
                for vector, line in zip(vectors, scores, strict=True):
                    np.matmul(vector, part, out=line[start : start + part.shape[1]])
        elif len(self.base):
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
        """Some rows, copied, in the order in which the base is kept."""
        if not len(self.base):
            found = np.empty((len(rows), self.base.shape[1]), dtype=np.float32)
        elif self.base.flags.f_contiguous:
            found = self.base.T.take(rows, axis=1, mode="clip").T
        else:
            found = self.base.take(rows, axis=0, mode="clip")
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
        """These rows (in order) alone, renumbered."""
        if not np.array_equal(rows[: len(self.base)], np.arange(len(self.base))):
            return Rows.of(self.take(rows))
        kept = np.isin(self.changed, rows)
        places = np.searchsorted(rows, self.changed[kept])
        return Rows(self.base, places, self.values[kept], len(rows), self.base_lengths)


@dataclass(frozen=True)
class Bundles:
    """All bundles as a model sees them: vectors, evidence, and what follows from the evidence."""

    plain: Rows
    """The blocks' vectors side by side."""
    weighed: Rows
    """The same, each block times its weight: what users' vectors are multiplied with."""
    taken: Positions
    youth: Floats
    is_new: npt.NDArray[np.bool_]
    """Nobody had taken it when the model was trained, or it came since."""
    sizes: Positions
    terms: Floats
    """(1 + overlaps, n): what is added to each bundle's score, then the weight of each overlap."""
    divisors: Floats
    """(overlaps, n): see `Overlap.divisors`."""
    index: ItemIndex | None
    """Which bundles hold an item, for a model with overlaps."""

    def __len__(self) -> int:
        return len(self.taken)

    @cached_property
    def is_young(self) -> npt.NDArray[np.bool_]:
        """Young, and not yet taken so often that its youth no longer matters."""
        young: npt.NDArray[np.bool_] = (self.youth >= YOUNG) & (self.taken < FEW_TAKERS)
        return young

    def only(self, rows: Positions) -> Bundles:
        """These bundles (in order) alone, renumbered."""
        return Bundles(
            plain=self.plain.only(rows),
            weighed=self.weighed.only(rows),
            taken=self.taken[rows],
            youth=self.youth[rows],
            is_new=self.is_new[rows],
            sizes=self.sizes[rows],
            terms=self.terms[:, rows],
            divisors=self.divisors[:, rows],
            index=self.index and self.index.only(rows),
        )

    def resized(self, n: int) -> Bundles:
        """With room for n bundles: what is not known of a bundle yet is that of one that just came."""
        more = n - len(self)
        return replace(
            self,
            taken=np.pad(self.taken, (0, more)),
            youth=np.pad(self.youth, (0, more), constant_values=1),
            is_new=np.pad(self.is_new, (0, more), constant_values=True),
            sizes=np.pad(self.sizes, (0, more)),
            terms=np.pad(self.terms, ((0, 0), (0, more))),
            divisors=np.pad(self.divisors, ((0, 0), (0, more))),
        )
