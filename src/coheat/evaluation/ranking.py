"""The best k bundles of many users, in memory that does not grow with the number of users."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from coheat.data.dataset import Indices, Sparse
from coheat.errors import ConfigError, TrainingError
from coheat.models.base import FloatArray, Scorer
from coheat.threads import even_ranges, run_ranges

TILE = 256
"""Users scored by one call. A constant, because it is part of what makes results reproducible."""

BLOCK = 4 * TILE
"""Users whose scores are held in memory at once, unless the caller chooses otherwise."""

Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


def top_bundles(
    scorer: Scorer,
    users: Indices,
    seen: Sparse,
    k: int,
    candidates: Mask | None = None,
    block_size: int = BLOCK,
) -> tuple[Ids, FloatArray]:
    """The k best bundles of each user, best first: positions int32 (n, k) and scores float32 (n, k).

    A bundle in the user's row of `seen` (n_users, n_bundles), outside the mask `candidates`
    (n_bundles,) or with a score of -inf is never listed; where too few are left, a list ends in
    -1 with score -inf. Equal scores stand in order of position, which is the order of ids.

    At most `block_size` x n_bundles scores are held at once. The result does not depend on it, to the
    last bit: a matrix product may round differently for another number of rows, so users are always
    scored in tiles of `TILE` counted from the start of `users` (the last one filled up by repetition),
    and a block is a whole number of tiles (`block_size` rounded up).
    """
    if k < 1:
        raise ConfigError(f"k = {k}: a list has at least one place; choose k from 1 up")
    if block_size < 1:
        raise ConfigError(f"block_size = {block_size}: at least one user must be scored at a time")
    n_bundles = seen.shape[1]
    allowed = np.ones(n_bundles, dtype=np.bool_) if candidates is None else candidates
    if allowed.shape != (n_bundles,):
        raise ValueError(f"candidates has shape {allowed.shape}, but there are {n_bundles} bundles")
    users = np.ascontiguousarray(users, dtype=np.int64)
    ids = np.full((len(users), k), -1, dtype=np.int32)
    best = np.full((len(users), k), -np.inf, dtype=np.float32)

    def rank_block(first: int, last: int) -> None:
        starts = range(first, min(last, len(users)), TILE)
        # Scorers use all cores themselves, so tiles are scored one by one and ranked side by side.
        tiles = [_score_tile(scorer, users[start : start + TILE], n_bundles) for start in starts]

        def rank(from_tile: int, to_tile: int) -> None:
            for start, tile in zip(starts[from_tile:to_tile], tiles[from_tile:to_tile], strict=True):
                part = slice(start, start + TILE)
                if not _rank(tile, users[part], seen.indptr, seen.indices, allowed, ids[part], best[part]):
                    raise TrainingError(
                        "the model scores some bundles as NaN (not a number), so they cannot be ranked; "
                        "its training has most likely diverged: train again with a lower learning_rate"
                    )

        run_ranges(rank, even_ranges(len(tiles), work=len(tiles) * TILE * n_bundles))

    block = -(-block_size // TILE) * TILE
    for first in range(0, len(users), block):
        rank_block(first, first + block)
    return ids, best


def _score_tile(scorer: Scorer, users: Indices, n_bundles: int) -> FloatArray:
    """Scores (TILE, n_bundles) of at most TILE users; rows past them repeat the last user."""
    scores = scorer.scores(np.pad(users, (0, TILE - len(users)), mode="edge"))
    if scores.shape != (TILE, n_bundles):
        raise ValueError(f"the scorer returned shape {scores.shape} instead of {(TILE, n_bundles)}")
    return np.ascontiguousarray(scores, dtype=np.float32)


@numba.njit(cache=True, nogil=True)
def _rank(scores, users, indptr, indices, allowed, ids, best):  # type: ignore[no-untyped-def]
    """Fill `ids` and `best` (n, k) from `scores` (at least n rows); False where a score is NaN.

    One scan per row: a score that does not beat the worst of the k so far costs one comparison.
    A tie does not beat it, so the lower position, which came first, stays.
    """
    k = ids.shape[1]
    for row in range(len(users)):
        line = scores[row]
        for entry in range(indptr[users[row]], indptr[users[row] + 1]):
            line[indices[entry]] = -np.inf
        threshold = np.float32(-np.inf)
        filled = 0
        for bundle in range(len(line)):
            value = line[bundle]
            if value <= threshold:
                continue
            # NaN compares as neither smaller nor equal, so it arrives here without a test of its own.
            if np.isnan(value):
                return False
            if not allowed[bundle]:
                continue
            place = min(filled, k - 1)
            while place > 0 and best[row, place - 1] < value:
                best[row, place] = best[row, place - 1]
                ids[row, place] = ids[row, place - 1]
                place -= 1
            best[row, place] = value
            ids[row, place] = bundle
            filled = min(filled + 1, k)
            if filled == k:
                threshold = best[row, k - 1]
    return True
