"""Metrics of ranked lists: each a pure function, its formula in its docstring.

Throughout, `ranked` (n, at least k) holds bundle positions, best first, -1 where a list has ended;
`relevant` (n, n_bundles) is a relation whose row r holds the positives T of the user of list r.
L_j is the bundle at rank j (counted from 1) and [x] is 1 where x holds, else 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from coheat.data.dataset import Indices, Sparse
from coheat.data.sampling import contains

PerUser = npt.NDArray[np.float64]
PerBundle = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def hits(ranked: npt.NDArray[Any], relevant: Sparse, k: int) -> Mask:
    """Whether the bundle at each of the first k ranks is a positive: [L_j in T], shape (n, k)."""
    top = ranked[:, :k].astype(np.int64)
    rows = np.repeat(np.arange(len(top), dtype=np.int64), top.shape[1])
    return contains(relevant, rows, top.ravel()).reshape(top.shape)


def recall(ranked: npt.NDArray[Any], relevant: Sparse, k: int) -> PerUser:
    """Recall@k = sum over j <= k of [L_j in T] / |T|; NaN for a user without positives.

    The divisor is all of the user's positives, also where there are more than k of them.
    """
    return _ratio(hits(ranked, relevant, k).sum(axis=1), np.diff(relevant.indptr))


def ndcg(ranked: npt.NDArray[Any], relevant: Sparse, k: int) -> PerUser:
    """nDCG@k = DCG / ideal DCG; NaN for a user without positives.

    DCG = sum over j <= k of [L_j in T] / log2(j + 1); the ideal list starts with all positives, and
    is cut at k too: sum over j <= min(k, |T|) of 1 / log2(j + 1).
    """
    gains = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.concatenate([[0.0], np.cumsum(gains)])
    # Both sums are taken in order of rank, so that a perfect list gives exactly 1.
    gained = np.cumsum(hits(ranked, relevant, k) * gains[: ranked.shape[1]], axis=1)[:, -1]
    return _ratio(gained, ideal[np.minimum(np.diff(relevant.indptr), k)])


def by_bundle(ranked: npt.NDArray[Any], relevant: Sparse, k: int) -> PerBundle:
    """What each bundle adds to the mean of recall@k + nDCG@k, (n_bundles,); all users have positives."""
    found, counts = hits(ranked, relevant, k), np.diff(relevant.indptr)
    gains = 1 / np.log2(np.arange(2, k + 2))
    worth = 1 / counts[:, None] + gains[: found.shape[1]] / np.cumsum(gains)[np.minimum(counts, k) - 1, None]
    return np.bincount(ranked[:, :k][found], worth[found], relevant.shape[1]) / len(counts)


def coverage(ranked: npt.NDArray[Any], candidates: Mask, k: int) -> float:
    """Share of the candidate bundles (mask of n_bundles) that are in at least one list of k."""
    top = ranked[:, :k]
    listed = np.unique(top[top >= 0])
    return float(candidates[listed].sum() / candidates.sum())


def cold_share(ranked: npt.NDArray[Any], popularity: Indices, k: int) -> float:
    """Share of the filled places in the lists of k held by bundles without training interactions."""
    top = ranked[:, :k]
    listed = top[top >= 0]
    return float((popularity[listed] == 0).mean()) if len(listed) else 0.0


def restrict(relevant: Sparse, bundles: Mask) -> Sparse:
    """The same relation with only the entries whose bundle is in the mask (n_bundles,).

    Recall on it is the recall of those bundles: hits on positives among them / positives among them.
    """
    kept = bundles[relevant.indices]
    indptr = np.concatenate([[0], np.cumsum(kept)])[relevant.indptr].astype(np.int32)
    return sparse.csr_array((relevant.data[kept], relevant.indices[kept], indptr), shape=relevant.shape)


def _ratio(numerator: npt.NDArray[Any], divisor: npt.NDArray[Any]) -> PerUser:
    values = np.full(len(divisor), np.nan)
    np.divide(numerator, divisor, out=values, where=divisor > 0)
    return values
