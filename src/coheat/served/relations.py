"""Sparse 0/1 relations by rows, in numpy: who took what, who has what, what a bundle holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.served.ranking import Positions
from coheat.storage import release_pages

STRETCH = 1 << 20
"""Entries that are looked at together: what is mapped from the disk is copied to be counted."""
NOTHING: Positions = np.zeros(0, dtype=np.int64)


class Csr:
    """A relation: the columns of a row, and the rows of a column."""

    def __init__(self, indptr: npt.NDArray[Any], indices: npt.NDArray[Any], n_columns: int):
        self.indptr, self.indices, self.n_columns = np.asarray(indptr), np.asarray(indices), n_columns

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def row(self, row: int) -> Positions:
        return self.indices[self.indptr[row] : self.indptr[row + 1]].astype(np.int64)

    def entries(self, rows: Positions) -> tuple[Positions, Positions]:
        """All columns of these rows, one after the other; and the place in `rows` that each belongs to."""
        if len(rows) == 1:  # a service is asked for one list at a time, mostly
            columns = self.row(rows[0])
            return columns, np.zeros(len(columns), dtype=np.int64)
        starts = self.indptr[rows]
        counts = (self.indptr[rows + 1] - starts).astype(np.int64, copy=False)
        owners = np.arange(len(rows)).repeat(counts)
        places = (starts - counts.cumsum() + counts)[owners]
        places += np.arange(len(owners))
        return self.indices[places].astype(np.int64, copy=False), owners

    def column(self, column: int) -> Positions:
        entries = np.flatnonzero(self.indices == column)
        return (np.searchsorted(self.indptr, entries, side="right") - 1).astype(np.int64)

    @cached_property
    def degrees(self) -> Positions:
        """How many rows each column has."""
        total = np.zeros(self.n_columns, dtype=np.int64)
        for start in range(0, len(self.indices), STRETCH):
            total += np.bincount(self.indices[start : start + STRETCH], minlength=self.n_columns)
            release_pages(self.indices)
        return total

    @cached_property
    def sizes(self) -> Positions:
        """How many columns each row has."""
        return np.diff(self.indptr).astype(np.int64)

    @cached_property
    def transposed(self) -> Csr:
        """The rows of each column, in order."""
        rows = np.repeat(np.arange(len(self), dtype=np.int32), self.sizes)
        return by_key(self.indices, rows, self.n_columns, len(self))

    def sums(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """For each row the sum of `values` (n_columns,) over its columns, a stretch at a time."""
        total = np.zeros(len(self))
        for start in range(0, len(self.indices), STRETCH):
            found = values[self.indices[start : start + STRETCH]]
            hits = np.flatnonzero(found)
            rows = np.searchsorted(self.indptr, start + hits, side="right") - 1
            total += np.bincount(rows, found[hits], minlength=len(self))
        return total


def distinct(values: Positions) -> tuple[Positions, Positions]:
    """The distinct of some numbers, in order, and the place of each number among them.

    What np.unique gives with `return_inverse`, which takes several times as long to say it of a few hundred.
    """
    order = values.argsort(kind="stable")
    ordered = values[order]
    is_first = np.ones(len(values), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    places = np.empty(len(values), dtype=np.int64)
    places[order] = is_first.cumsum() - 1
    return ordered[is_first], places


def stable_order(keys: npt.NDArray[Any], n_keys: int) -> Positions:
    """What np.argsort gives with kind="stable", of numbers from 0 to n_keys - 1.

    Number and place in one are sorted by themselves, which is several times as fast for a million.
    """
    n = len(keys)
    if n_keys * n >= 1 << 63:
        return keys.argsort(kind="stable")
    marked = keys.astype(np.int64) * n
    marked += np.arange(n)
    marked.sort()
    marked %= max(n, 1)
    return marked


def by_key(keys: npt.NDArray[Any], values: npt.NDArray[Any], n_keys: int, n_values: int) -> Csr:
    """The relation of the pairs (keys[k], values[k]); the values of a key stay in their order."""
    counts = np.bincount(keys, minlength=n_keys)
    return Csr(np.concatenate([[0], np.cumsum(counts)]), values[stable_order(keys, n_keys)], n_values)


@dataclass(frozen=True)
class Relations:
    """The three relations of training; their one home while serving."""

    user_bundle: Csr
    user_item: Csr
    bundle_item: Csr
