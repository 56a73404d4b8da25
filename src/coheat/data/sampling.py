"""Training batches: shuffled interactions with negatives that the user has never taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numba
import numpy as np

from coheat.data.dataset import Indices, Sparse, pairs


@dataclass(frozen=True)
class Triples:
    """A batch: user u took bundle positives[j] and never took negatives[j]. All of length n, int64."""

    users: Indices
    positives: Indices
    negatives: Indices

    def __len__(self) -> int:
        return len(self.users)


@numba.njit(cache=True, nogil=True)
def _mark_known(indptr, indices, rows, columns, known):  # type: ignore[no-untyped-def]
    """known[j] = whether (rows[j], columns[j]) is an entry; binary search in the sorted row."""
    for j in range(len(rows)):
        low, high = indptr[rows[j]], indptr[rows[j] + 1]
        while low < high:
            middle = (low + high) // 2
            if indices[middle] < columns[j]:
                low = middle + 1
            else:
                high = middle
        known[j] = low < indptr[rows[j] + 1] and indices[low] == columns[j]


def contains(matrix: Sparse, rows: Indices, columns: Indices) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of the pairs are entries of the relation."""
    known = np.empty(len(rows), dtype=np.bool_)
    _mark_known(matrix.indptr, matrix.indices, rows, columns, known)
    return known


def draw_negatives(
    user_bundle: Sparse, users: Indices, rng: np.random.Generator, candidates: Indices | None = None
) -> Indices:
    """One bundle per user, uniform over `candidates` (default: all) without the user's own bundles.

    A user who has every candidate gets a uniform draw: no true negative exists, and such a user
    must not hang the training.
    """
    pool = np.arange(user_bundle.shape[1], dtype=np.int64) if candidates is None else candidates
    drawn = pool[rng.integers(len(pool), size=len(users))]
    open_rows = np.arange(len(users))
    for _ in range(100):
        open_rows = open_rows[contains(user_bundle, users[open_rows], drawn[open_rows])]
        if not len(open_rows):
            return drawn
        drawn[open_rows] = pool[rng.integers(len(pool), size=len(open_rows))]
    # Users who own nearly every candidate: choose among what is left, user by user.
    for row in open_rows:
        own = user_bundle.indices[user_bundle.indptr[users[row]] : user_bundle.indptr[users[row] + 1]]
        left = np.setdiff1d(pool, own)
        drawn[row] = rng.choice(left if len(left) else pool)
    return drawn


def draw_overlapping(
    sets: Sparse, bundle_item: Sparse, share: float, otherwise: Indices, rng: np.random.Generator
) -> Indices:
    """For each set of items (n, n_items) a bundle that shares many of them, where any does; else `otherwise`.

    It is drawn from the given share, those that overlap most, of the bundles that overlap at all.
    """
    overlaps = (sets @ bundle_item.T).tocsr()
    places, drawn = rng.random(len(otherwise)), otherwise.copy()
    for row in range(len(otherwise)):
        part = slice(overlaps.indptr[row], overlaps.indptr[row + 1])
        n_hard = int(np.ceil(share * (part.stop - part.start)))
        if n_hard:
            order = np.argsort(-overlaps.data[part], kind="stable")
            drawn[row] = overlaps.indices[part][order[int(places[row] * n_hard)]]
    return drawn


def triples(
    user_bundle: Sparse,
    batch_size: int,
    rng: np.random.Generator,
    candidates: Indices | None = None,
    drop_last: bool = True,
) -> Iterator[Triples]:
    """Every interaction once in random order, with one negative drawn from `candidates` (default: all).

    With `drop_last`, the last incomplete batch is left out; where there are fewer interactions than
    `batch_size`, all of them make the one batch.
    """
    all_users, all_bundles = pairs(user_bundle)
    order = rng.permutation(len(all_users))
    users, positives = all_users[order], all_bundles[order]
    negatives = draw_negatives(user_bundle, users, rng, candidates)
    end = max(len(users) - batch_size, 0) + 1 if drop_last else len(users)
    for start in range(0, end, batch_size):
        part = slice(start, start + batch_size)
        yield Triples(users[part], positives[part], negatives[part])
