"""The k largest of each row of scores, without sorting the rows."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Positions: TypeAlias = npt.NDArray[np.int64]

GROUPS = 48
"""For a list of k, a row is cut into about GROUPS x k groups."""


def best_of_rows(scores: Floats, k: int) -> list[Positions]:
    """For each row of `scores` (n, m) the positions of its k largest, best first, equal ones in order.

    A score of -inf is never listed. The k-th largest of the maxima of disjoint groups cannot exceed the
    k-th largest score. So only groups whose maximum reaches it are looked into, and only the few scores
    that reach it are sorted.
    """
    n_groups = GROUPS * k
    size = scores.shape[1] // n_groups
    if size < 4 or scores.shape[1] >= 1 << 24 or len(scores) > 256:  # too little to save, or beyond a key
        return [best(row, k) for row in scores]
    # Group g holds the columns g, g + n_groups, ...: maxima of whole stretches at once.
    grouped = scores[:, : size * n_groups].reshape(len(scores), size, n_groups)
    maxima = grouped.max(axis=1)
    least = np.partition(maxima, n_groups - k, axis=1)[:, n_groups - k, None]
    rows, groups = np.nonzero(maxima >= least)
    hit, place = np.nonzero(grouped[rows, :, groups] >= least[rows])
    rest_rows, rest = np.nonzero(scores[:, size * n_groups :] >= least)
    all_rows = np.concatenate([rows[hit], rest_rows])
    columns = np.concatenate([place * n_groups + groups[hit], rest + size * n_groups])
    keys = _keys(all_rows, scores[all_rows, columns], columns)
    keys.sort()
    ends = np.searchsorted(keys, np.arange(len(scores) + 1, dtype=np.uint64) << np.uint64(56)).tolist()
    ordered = (keys & np.uint64((1 << 24) - 1)).astype(np.int64)
    return [ordered[start : min(end, start + k)] for start, end in pairwise(ends)]


def _keys(rows: Positions, scores: Floats, columns: Positions) -> npt.NDArray[np.uint64]:
    """Whole numbers that sort by row, then score downwards, then column; without scores of -inf.

    8 bits of row, 32 of score, 24 of column: sorting these is many times faster than by three keys. The
    bits of positive floats sort as the floats do and those of negative ones the other way round.
    """
    real = scores > -np.inf
    bits = (scores[real] + np.float32(0)).view(np.uint32)  # + 0 makes -0 an ordinary 0
    falling = np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF)).astype(np.uint64)
    shifted = (rows[real].astype(np.uint64) << np.uint64(56)) | (falling << np.uint64(24))
    keys: npt.NDArray[np.uint64] = np.bitwise_or(shifted, columns[real].astype(np.uint64))
    return keys


def best(scores: Floats, k: int) -> Positions:
    """The same for one row (m,)."""
    if k >= len(scores):
        return _ordered(scores, np.arange(len(scores)), k)
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    return _ordered(scores, np.flatnonzero(scores >= least), k)


def _ordered(scores: Floats, chosen: Positions, k: int) -> Positions:
    """The k best of the chosen positions, which are in order."""
    found = scores[chosen]
    real = found > -np.inf
    if not real.all():
        chosen, found = chosen[real], found[real]
    ordered: Positions = chosen[np.argsort(-found, kind="stable")[:k]]
    return ordered
