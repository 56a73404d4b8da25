"""Compiled sums for the overlaps of `coheat.served`, and how rare an item is.

Importing this module puts them in place of the plain ones, whose results they repeat to the last bit.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from coheat.data.dataset import Indices, Sparse
from coheat.served import Csr
from coheat.served import overlap as served

FloatArray = npt.NDArray[np.float32]


def sums(index: Csr, items: Indices, weights: npt.NDArray[np.float64], n: int) -> npt.NDArray[np.float64]:
    """See `coheat.served.overlap`."""
    found = np.zeros((len(weights), n))
    _add(index.indptr, index.indices, items, np.ascontiguousarray(weights), found)
    return found


@numba.njit(cache=True, nogil=True)
def _add(indptr, bundles, items, weights, found):  # type: ignore[no-untyped-def]
    """found[j, b] += weights[j, k] for each bundle b that holds items[k], in the order of items."""
    for k in range(len(items)):
        for entry in range(indptr[items[k]], indptr[items[k] + 1]):
            for line in range(len(weights)):
                found[line, bundles[entry]] += weights[line, k]


def rarity(bundle_item: Sparse) -> FloatArray:
    """1 / sqrt(number of bundles that hold the item), per item: what stands everywhere says little."""
    held = np.asarray(bundle_item.sum(axis=0), dtype=np.float64).ravel()
    return np.asarray(np.maximum(held, 1.0) ** -0.5, dtype=np.float32)


served.sums = sums
