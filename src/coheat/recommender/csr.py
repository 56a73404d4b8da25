"""A sparse 0/1 relation by rows, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.recommender.mapped import let_go
from coheat.recommender.ranking import Positions

STRETCH = 1 << 20
"""Entries that are looked at together: what is mapped from the disk is copied to be counted."""


class Csr:
    """A relation: the columns of a row, and the rows of a column."""

    def __init__(self, indptr: npt.NDArray[Any], indices: npt.NDArray[Any]):
        self.indptr, self.indices = np.asarray(indptr), np.asarray(indices)

    def row(self, row: int) -> Positions:
        return self.indices[self.indptr[row] : self.indptr[row + 1]].astype(np.int64)

    def entries(self, rows: Positions) -> tuple[Positions, Positions]:
        """All columns of these rows, one after the other; and the place in `rows` that each belongs to."""
        starts, ends = self.indptr[rows], self.indptr[rows + 1]
        counts = (ends - starts).astype(np.int64)
        places = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        columns = self.indices[places].astype(np.int64, copy=False)
        return columns, np.repeat(np.arange(len(rows)), counts)

    def column(self, column: int) -> Positions:
        entries = np.flatnonzero(self.indices == column)
        return (np.searchsorted(self.indptr, entries, side="right") - 1).astype(np.int64)

    def degrees(self, n_columns: int) -> Positions:
        """How many rows each column has."""
        total = np.zeros(n_columns, dtype=np.int64)
        for start in range(0, len(self.indices), STRETCH):
            total += np.bincount(self.indices[start : start + STRETCH], minlength=n_columns)
            let_go(self.indices)
        return total

    def transposed(self, n_columns: int) -> Csr:
        """The rows of each column, in order."""
        rows = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        return by_key(self.indices, rows, n_columns)


def by_key(keys: npt.NDArray[Any], values: Positions, n_keys: int) -> Csr:
    """The relation of the pairs (keys[k], values[k]); the values of a key stay in their order."""
    counts = np.bincount(keys, minlength=n_keys)
    return Csr(np.concatenate([[0], np.cumsum(counts)]), values[np.argsort(keys, kind="stable")])
