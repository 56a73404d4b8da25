"""The best k bundles of many users, in memory that does not grow with the number of users."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from coheat.data.dataset import Indices, Sparse
from coheat.errors import ConfigError
from coheat.served import Csr, Served
from coheat.served.ranking import ROWS, Floats, Ration, Scored, ahead

Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


class Scorer(Protocol):
    """Scores of all bundles for some users: what a `Served` gives, and all that evaluation asks of it."""

    def scores(self, users: Indices) -> Floats:
        """A fresh float32 array (len(users), n_bundles); the caller may overwrite it."""
        ...


def ration_of(scorer: Scorer) -> Ration | None:
    """What the scorer says of how many young bundles a list may hold."""
    return scorer.ration(scorer.bundles) if isinstance(scorer, Served) else None


def top_bundles(
    scorer: Scorer, users: Indices, seen: Sparse, k: int, candidates: Mask | None = None
) -> tuple[Ids, Floats]:
    """The k best bundles of each user, best first: positions int32 (n, k) and scores float32 (n, k).

    A bundle in the user's row of `seen` (n_users, n_bundles), outside the mask `candidates` (n_bundles,)
    or with a score of -inf is never listed; where too few are left, a list ends in -1 with score -inf.
    Lists hold no more young bundles than a `Served` lets them. Equal scores stand in order of position,
    which is the order of ids.

    Users are scored in tiles of `ROWS`, the last one filled up by repetition: a matrix product may round
    differently for another number of rows, and a list must not depend on who else is asked for.
    """
    if k < 1:
        raise ConfigError(f"k = {k}: a list has at least one place; choose k from 1 up")
    n_bundles = seen.shape[1]
    hidden = np.zeros(n_bundles, dtype=np.bool_) if candidates is None else ~candidates
    if hidden.shape != (n_bundles,):
        raise ValueError(f"candidates has shape {hidden.shape}, but there are {n_bundles} bundles")
    users, taken = np.ascontiguousarray(users, dtype=np.int64), Csr(seen.indptr, seen.indices, n_bundles)
    ids = np.full((len(users), k), -1, dtype=np.int32)
    best = np.full((len(users), k), -np.inf, dtype=np.float32)
    ration = ration_of(scorer)

    def scored(start: int) -> tuple[int, Scored]:
        tile = users[start : start + ROWS]
        scores = scorer.scores(np.pad(tile, (0, ROWS - len(tile)), mode="edge"))
        if scores.shape != (ROWS, n_bundles):
            raise ValueError(f"the scorer returned shape {scores.shape} instead of {(ROWS, n_bundles)}")
        return start, Scored(scores[: len(tile)], None, taken.entries(tile), hidden, ration)

    for start, block in ahead(partial(scored, start) for start in range(0, len(users), ROWS)):
        found = block.ranked(k)
        rows = start + np.repeat(np.arange(len(found.counts)), found.counts)
        places = np.arange(len(rows)) - np.repeat(np.cumsum(found.counts) - found.counts, found.counts)
        ids[rows, places], best[rows, places] = found.bundles, found.scores
        del block  # its scores, before the next but one is scored
    return ids, best


def top_shifted(
    scorer: Scorer,
    users: Indices,
    seen: Sparse,
    k: int,
    shifts: Floats,
    rations: Sequence[Ration | None],
    candidates: Mask | None = None,
) -> npt.NDArray[np.int32]:
    """`top_bundles` with each row of `shifts` (m, n_bundles) added to the scores, and lists rationed as the
    same one of `rations` says: positions (m, n, k)."""
    taken = Csr(seen.indptr, seen.indices, seen.shape[1])
    hidden = np.zeros(seen.shape[1], dtype=np.bool_) if candidates is None else ~candidates
    ids = np.full((len(shifts), len(users), k), -1, dtype=np.int32)
    for start in range(0, len(users), ROWS):
        tile = users[start : start + ROWS]
        scores = scorer.scores(tile)
        for place, (shift, ration) in enumerate(zip(shifts, rations, strict=True)):
            found = Scored(scores + shift, None, taken.entries(tile), hidden, ration).ranked(k)
            rows = start + np.repeat(np.arange(len(found.counts)), found.counts)
            places = np.arange(len(rows)) - np.repeat(np.cumsum(found.counts) - found.counts, found.counts)
            ids[place, rows, places] = found.bundles
    return ids
