"""What a user's items and a bundle's items have in common, exactly: the channel that needs no training.

A *profile* says how much each item speaks for a bundle to a user (n_users, n_items, sparse). The overlap of
user u and bundle b is the sum of u's profile over the items of b.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt
from scipy import sparse

from coheat.data.dataset import Indices, Sparse

FloatArray = npt.NDArray[np.float32]


def overlaps(profiles: Sparse, users: Indices, item_bundle: Sparse) -> FloatArray:
    """Overlap (len(users), n_bundles) of some users' profiles with all columns of `item_bundle`."""
    found = np.zeros((len(users), item_bundle.shape[1]), dtype=np.float32)
    _add_overlaps(
        users,
        profiles.indptr,
        profiles.indices,
        profiles.data,
        item_bundle.indptr,
        item_bundle.indices,
        found,
    )
    return found


@numba.njit(cache=True, nogil=True)
def _add_overlaps(users, indptr, items, weights, item_indptr, bundles, found):  # type: ignore[no-untyped-def]
    """found[r, b] += the weights of the items that the profile of users[r] shares with b.

    Items are taken in the profile's order, so a sum does not depend on who else is asked for. Written out
    because the result is dense: a sparse product would build and sort its structure first.
    """
    for row in range(len(users)):
        line = found[row]
        for entry in range(indptr[users[row]], indptr[users[row] + 1]):
            item = items[entry]
            for position in range(item_indptr[item], item_indptr[item + 1]):
                line[bundles[position]] += weights[entry]


def rarity(bundle_item: Sparse) -> FloatArray:
    """1 / sqrt(number of bundles that hold the item), per item: what stands everywhere says little."""
    held = np.asarray(bundle_item.sum(axis=0), dtype=np.float64).ravel()
    return np.asarray(np.maximum(held, 1.0) ** -0.5, dtype=np.float32)


def profiles(user_bundle: Sparse, user_item: Sparse, bundle_item: Sparse, own_item_weight: float) -> Sparse:
    """p_ui = rarity_i * (own_item_weight * [u has i] + sum over u's bundles b that hold i of 1 / sqrt(|b|)).

    One step along each side of a normalised graph: a bundle divides what it says among its items, and an
    item what it says among the bundles that hold it.
    """
    sizes = np.maximum(np.diff(bundle_item.indptr), 1).astype(np.float64)
    parts = sparse.diags_array(sizes**-0.5) @ bundle_item
    found = (user_bundle @ parts + own_item_weight * user_item) @ sparse.diags_array(rarity(bundle_item))
    found = sparse.csr_array(found, dtype=np.float32)
    found.sort_indices()
    return found
