"""Compiled sums for the overlaps of `coheat.served`, and how rare an item is.

Importing this module puts them in place of the plain ones, whose results they repeat but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numba
import numpy as np
import numpy.typing as npt

from coheat.data.dataset import Indices, Sparse
from coheat.served import Relations
from coheat.served import overlap as served
from coheat.served.overlap import Belongings, ItemIndex, Overlap, Shared

FloatArray = npt.NDArray[np.float32]

AT_ONCE = 1 << 16
"""Sums that are made before they are used: as many as stay at hand in the processor's cache."""


def shared(
    overlaps: Sequence[Overlap],
    relations: Relations,
    rows: Indices,
    since: Mapping[int, Belongings],
    index: ItemIndex,
    n: int,
) -> Iterator[Shared]:
    """See `coheat.served.overlap`."""
    if since or len(index.outdated) or (rows < 0).any():
        yield from served.shared(overlaps, relations, rows, since, index, n)
        return
    n_items, largest = relations.bundle_item.n_columns, int(relations.bundle_item.sizes.max(initial=0))
    said = np.stack([overlap.said(largest) for overlap in overlaps])
    weights = np.ones((len(overlaps), n_items), dtype=np.float32)
    for line, overlap in enumerate(overlaps):
        if overlap.item_weights is not None:
            weights[line] = overlap.item_weights
    graphs = relations.user_item, relations.user_bundle, relations.bundle_item, index.by_item
    arrays = [array for csr in graphs for array in (csr.indptr, csr.indices)]
    worth, items = np.zeros(n_items), np.zeros(n_items + 1, dtype=np.uint32)
    at_once = max(AT_ONCE // max(len(overlaps) * n, 1), 1)
    for start in range(0, len(rows), at_once):
        people = rows[start : start + at_once]
        found = np.zeros((len(overlaps), len(people), n), dtype=np.float32)
        _add(people, *arrays, said, weights, worth, items, found)
        yield Shared(None, found)


@numba.njit(cache=True, nogil=True)
def _add(  # type: ignore[no-untyped-def]
    users,
    own_ptr,
    own,
    taken_ptr,
    taken,
    held_ptr,
    held,
    bundle_ptr,
    bundles,
    said,
    weights,
    worth,
    items,
    found,
):
    """found[j, r, b] += what the items of users[r], and those of the user's bundles, are worth to b.

    What an item is worth is added up first in `worth` (n_items,), which is zero before and afterwards: most
    items come with several bundles. `items` has room for those that are met. Positions are unsigned, because
    each signed one would be tested for counting from the end; that costs a quarter of the time.
    """
    for row in range(len(users)):
        user = users[row]
        for line in range(len(found)):
            total, weight, by_size, n = found[line, row], weights[line], said[line], 0
            # What says nothing is left out: an item is met for the first time where its worth is still zero.
            for place in range(own_ptr[user], own_ptr[user + 1] if by_size[0] > 0 else own_ptr[user]):
                item = np.uint32(own[place])
                items[n] = item
                n += worth[item] == 0
                worth[item] += by_size[0]
            for position in range(taken_ptr[user], taken_ptr[user + 1]):
                first, last = held_ptr[taken[position]], held_ptr[taken[position] + 1]
                for place in range(first, last if by_size[last - first] > 0 else first):
                    item = np.uint32(held[place])
                    items[n] = item
                    n += worth[item] == 0
                    worth[item] += by_size[last - first]
            for place in range(n):
                item = items[place]
                brought = np.float32(worth[item] * weight[item])
                worth[item] = 0
                for entry in range(bundle_ptr[item], bundle_ptr[item + 1]):
                    total[np.uint32(bundles[entry])] += brought


def shared_with_taken(
    relations: Relations, said: npt.NDArray[np.float64], own: float, weights: FloatArray
) -> float:
    """What all users share with the bundles that they took, in sum.

    An item is worth to a user its weight (n_items,) times what says so: `own` where the user has it, and
    `said` (n_bundles,) of each bundle that the user took and that holds it.
    """
    graphs = relations.user_item, relations.user_bundle, relations.bundle_item
    arrays = [array for csr in graphs for array in (csr.indptr, csr.indices)]
    return float(_add_taken(*arrays, said, own, weights, np.zeros(relations.bundle_item.n_columns)))


@numba.njit(cache=True, nogil=True)
def _add_taken(  # type: ignore[no-untyped-def]
    own_ptr, own_items, taken_ptr, taken, held_ptr, held, said, own, weights, worth
):
    """See `shared_with_taken`; `worth` (n_items,) is zero before and afterwards."""
    total = 0.0
    for user in range(len(taken_ptr) - 1):
        bundles = taken[taken_ptr[user] : taken_ptr[user + 1]]
        if not len(bundles):
            continue
        for item in own_items[own_ptr[user] : own_ptr[user + 1]]:
            worth[item] = own
        for bundle in bundles:
            for item in held[held_ptr[bundle] : held_ptr[bundle + 1]]:
                worth[item] += said[bundle]
        for bundle in bundles:
            for item in held[held_ptr[bundle] : held_ptr[bundle + 1]]:
                total += worth[item] * weights[item]
        for item in own_items[own_ptr[user] : own_ptr[user + 1]]:
            worth[item] = 0
        for bundle in bundles:
            for item in held[held_ptr[bundle] : held_ptr[bundle + 1]]:
                worth[item] = 0
    return total


def rarity(bundle_item: Sparse) -> FloatArray:
    """1 / sqrt(number of bundles that hold the item), per item: what stands everywhere says little."""
    held = np.asarray(bundle_item.sum(axis=0), dtype=np.float64).ravel()
    return np.asarray(np.maximum(held, 1.0) ** -0.5, dtype=np.float32)


served.in_use[0] = shared
