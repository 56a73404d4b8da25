"""Graphs whose edges have weights of their own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from coheat.data.dataset import Sparse


def normalised(matrix: Sparse) -> Sparse:
    """D^(-1/2) A D^(-1/2) of a symmetric matrix A with row sums D; a row without edges stays empty."""
    sums: npt.NDArray[np.float32] = matrix.sum(axis=1)
    factors = sparse.diags_array(1 / np.sqrt(np.where(sums > 0, sums, 1)))
    return (factors @ matrix @ factors).tocsr().astype(np.float32)


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
