"""Graphs whose edges have weights of their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import sparse

from coheat.data.dataset import Indices, Sparse
from coheat.graph.propagation import Weighted


def normalised(matrix: Sparse) -> Sparse:
    """D^(-1/2) A D^(-1/2) of a symmetric matrix A with row sums D; a row without edges stays empty."""
    factors = _inverse_roots(matrix, axis=1)
    scaled: Sparse = (factors @ matrix @ factors).tocsr().astype(np.float32)
    return scaled


def _inverse_roots(matrix: Sparse, axis: int) -> sparse.dia_array:
    """1 / sqrt of the sums over an axis, as a diagonal matrix; 1 where there is nothing."""
    sums: npt.NDArray[np.float32] = matrix.sum(axis=axis)
    return sparse.diags_array(1 / np.sqrt(np.where(sums > 0, sums, 1)))


def mean_rows(matrix: Sparse) -> Sparse:
    """Each row divided by its sum, so that a product with it is a weighted mean; an empty row stays empty."""
    sums: npt.NDArray[np.float32] = matrix.sum(axis=1)
    return (sparse.diags_array(1 / np.where(sums > 0, sums, 1)) @ matrix).tocsr().astype(np.float32)


@dataclass(frozen=True)
class Chosen:
    """Some rows of the left and of the right side of a graph, and the propagations to them (`last`) and to
    every row (`whole`); in pairs, left first."""

    rows: tuple[Indices, Indices]
    last: tuple[Weighted, Weighted]
    whole: tuple[Weighted, Weighted]


class WeightedGraph:
    """Both directions of a relation between a left and a right side, each edge divided by the square roots of
    the sums of weights at its ends."""

    def __init__(self, matrix: Sparse):
        scaled = _inverse_roots(matrix, axis=1) @ matrix @ _inverse_roots(matrix, axis=0)
        self.left: Sparse = scaled.tocsr().astype(np.float32)
        self.right: Sparse = self.left.T.tocsr()
        self.whole = Weighted.of(self.left), Weighted.of(self.right)

    @cached_property
    def full(self) -> Chosen:
        """All rows: what evaluation and serving use."""
        n_left, n_right = self.left.shape
        return Chosen((np.arange(n_left), np.arange(n_right)), self.whole, self.whole)

    def choose(self, left: Indices, right: Indices) -> Chosen:
        """Some rows of each side."""
        return Chosen(
            (left, right), (Weighted.of(self.left[left]), Weighted.of(self.right[right])), self.whole
        )


def closest_rows(matrix: Sparse, n_neighbours: int, block: int = 512) -> Sparse:
    """Cosines between the rows of a 0/1 matrix (n, n): each row with its closest ones, itself included.

    An entry stays where either of the two rows has the other among its closest. At most `block` x n cosines
    are held at once.
    """
    lengths = np.sqrt(np.maximum(np.diff(matrix.indptr), 1))
    unit = (sparse.diags_array(1 / lengths) @ matrix).tocsr().astype(np.float32)
    transposed, n_rows, parts = unit.T.tocsr(), matrix.shape[0], []
    for start in range(0, n_rows, block):
        cosines = (unit[start : start + block] @ transposed).toarray()
        if n_neighbours < n_rows:
            far = np.argpartition(-cosines, n_neighbours, axis=1)[:, n_neighbours:]
            np.put_along_axis(cosines, far, 0, axis=1)
        parts.append(sparse.csr_array(cosines))
    kept = sparse.vstack(parts).tocsr()
    return kept.maximum(kept.T).tocsr()
