"""Companions: which bundles go together, solved in closed form and kept as short vectors.

A ridge regression predicts each bundle from the user's other bundles (Steck, WWW 2019: EASE). With G = X'X
counting how often two bundles were taken together, plus `content_weight` times how alike their items are,

    P = (G + ridge I)^-1,   W = -P / diag(P) column by column, with a zero diagonal,   E = X W,

so that E_ub says how strongly u's other bundles point to b. The largest `size` singular directions of E give
a vector to each bundle, and to a user the sum over the bundles taken; they keep what generalises.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg, sparse
from scipy.sparse.linalg import LinearOperator, svds

from coheat.data.dataset import BundleData
from coheat.graph.overlap import rarity
from coheat.graph.parallel import one_blas_thread

Floats = npt.NDArray[np.float32]

AT_ONCE = 512
"""Rows of the matrix that are looked at together."""


@dataclass(frozen=True)
class Companions:
    """score(u, b) = (sum of taken[c] over the bundles c that u took) . wanted[b]; both (n_bundles, size)."""

    taken: Floats
    wanted: Floats


@one_blas_thread()
def companions(
    data: BundleData, size: int, ridge: float, content_weight: float, limit: int, rng: np.random.Generator
) -> Companions:
    """Solve among the `limit` most popular bundles that were taken at all; the others have zero vectors.

    The cost is limit^3 multiplications and a matrix (limit, limit) of floats, whatever the data.
    """
    chosen = np.argsort(-data.popularity, kind="stable")[:limit]
    chosen = np.sort(chosen[data.popularity[chosen] > 0])
    taken = np.zeros((data.n_bundles, size), dtype=np.float32)
    wanted = np.zeros_like(taken)
    if len(chosen) < 2:
        return Companions(taken, wanted)
    together = data.user_bundle[:, chosen]
    weights = _weights(data, chosen, ridge, content_weight)
    rank = min(size, len(chosen) - 1, data.n_users - 1)
    transposed = sparse.csr_array(together.T)
    predicted = LinearOperator(
        (data.n_users, len(chosen)),
        matvec=lambda x: together @ (weights @ x),
        rmatvec=lambda y: weights.T @ (transposed @ y),
        dtype=np.float32,
    )
    start = rng.standard_normal(min(predicted.shape)).astype(np.float32)
    _, _, directions = svds(predicted, k=rank, v0=start)
    wanted[chosen, :rank] = directions.T
    taken[chosen, :rank] = weights @ directions.T
    return Companions(taken, wanted)


def _weights(data: BundleData, chosen: npt.NDArray[np.int64], ridge: float, content_weight: float) -> Floats:
    """The matrix W (n, n) of the module's text, made in one piece of memory: it is the largest there is."""
    together = data.user_bundle[:, chosen]
    takers = sparse.csr_array(together.T)
    alike = _scaled_items(data, chosen)
    gram = np.empty((len(chosen), len(chosen)), dtype=np.float32)
    for start in range(0, len(chosen), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        gram[rows] = (alike[rows] @ alike.T).toarray()
        gram[rows] *= content_weight
        gram[rows] += (takers[rows] @ together).toarray()
    gram[np.diag_indices_from(gram)] += ridge
    _invert(gram)
    gram /= -np.diag(gram)
    np.fill_diagonal(gram, 0.0)
    return gram


def _scaled_items(data: BundleData, chosen: npt.NDArray[np.int64]) -> sparse.csr_array:
    """Rows whose products say how much the items of two bundles have in common: sum of rarities / sqrt(size *
    size)."""
    rows = data.bundle_item[chosen]
    sizes = np.maximum(np.diff(rows.indptr), 1)
    roots = np.sqrt(rarity(data.bundle_item))
    weights = np.repeat(sizes**-0.5, np.diff(rows.indptr)) * roots[rows.indices]
    return sparse.csr_array((weights.astype(np.float32), rows.indices, rows.indptr), shape=rows.shape)


def _invert(matrix: Floats) -> None:
    """Put the inverse of a symmetric, positive matrix (n, n) in its place."""
    factor, failed = linalg.lapack.spotrf(matrix.T, lower=0, overwrite_a=1)
    inverse, failed_too = linalg.lapack.spotri(factor, lower=0, overwrite_c=1)
    assert failed == failed_too == 0, "a Gram matrix with a ridge is positive"
    if not np.shares_memory(inverse, matrix):
        matrix[:] = inverse.T
    for start in range(0, len(matrix), AT_ONCE):  # only one half of it was written
        rows = slice(start, start + AT_ONCE)
        block = matrix[rows, rows]
        block[:] = np.tril(block) + np.tril(block, -1).T
        matrix[: rows.start, rows] = matrix[rows, : rows.start].T
