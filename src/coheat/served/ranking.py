"""The one top-k: the k largest of each row of scores, without sorting the rows; lists made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from coheat.errors import TrainingError

T = TypeVar("T")

Floats: TypeAlias = npt.NDArray[np.float32]
Doubles: TypeAlias = npt.NDArray[np.float64]
Positions: TypeAlias = npt.NDArray[np.int64]

GROUPS = 32
"""For a list of k, a row is cut into about GROUPS x k groups."""
ROWS = 256
"""Rows that can be ranked together: as many as 8 bits tell apart."""

ROWS_TOGETHER = 4
"""Rows from which on it is quicker to rank them together than one by one."""


def rank_rows(scores: Floats, k: int) -> tuple[Positions, Positions]:
    """The positions of the k largest of each row of `scores` (n, m), best first, equal ones in order.

    Row after row in one array, and how many each row has (n,): a score of -inf is never listed.

    The k-th largest of the maxima of disjoint groups cannot exceed the k-th largest score. So only groups
    whose maximum reaches it are looked into, and only the few scores that reach it are sorted.
    """
    n_rows, width = scores.shape
    n_groups = GROUPS * k
    size = width // n_groups
    # Too little to save, or beyond a key.
    if n_rows < ROWS_TOGETHER or size < 4 or width >= 1 << 24 or n_rows > ROWS:
        return _one_by_one(scores, k)
    # Group g holds the columns g, g + n_groups, ...: maxima of whole stretches at once.
    whole = size * n_groups
    grouped = scores[:, :whole].reshape(n_rows, size, n_groups)
    maxima = grouped.max(axis=1)
    least = np.partition(maxima, n_groups - k, axis=1)[:, n_groups - k, None]
    rows, groups = _where(maxima >= least)
    if len(rows) > 2 * n_rows * k:  # so many are equal that nearly all would be sorted
        return _one_by_one(scores, k)
    hit, place = _where(grouped[rows, :, groups] >= least[rows])
    rest_rows, rest = _where(scores[:, whole:] >= least)
    all_rows = np.concatenate([rows[hit], rest_rows])
    columns = np.concatenate([place * n_groups + groups[hit], rest + whole])
    return _sorted(all_rows, columns, scores[all_rows, columns], n_rows, k)


def _one_by_one(scores: Floats, k: int) -> tuple[Positions, Positions]:
    lists = [best(row, k) for row in scores]
    counts = np.array([len(one) for one in lists], dtype=np.int64)
    return np.concatenate([*lists, np.zeros(0, np.int64)]), counts


def best_of_rows(scores: Floats, k: int) -> list[Positions]:
    """`rank_rows`, a list for each row."""
    positions, counts = rank_rows(scores, k)
    return np.split(positions, np.cumsum(counts)[:-1])


def _where(mask: npt.NDArray[np.bool_]) -> tuple[Positions, Positions]:
    """Rows and columns of what is true; several times as fast as np.nonzero with two dimensions."""
    rows, columns = np.divmod(np.flatnonzero(mask), max(mask.shape[1], 1))
    return rows, columns


def _sorted(
    rows: Positions, columns: Positions, scores: Floats, n_rows: int, k: int
) -> tuple[Positions, Positions]:
    """The k best of each row's candidates.

    8 bits of row, 32 of score, 24 of column: sorting these whole numbers is many times faster than by three
    keys. The bits of positive floats sort as the floats do and those of negative ones the other way round.
    """
    real = scores > -np.inf
    if not real.all():
        rows, columns, scores = rows[real], columns[real], scores[real]
    bits = (scores + np.float32(0)).view(np.uint32)  # + 0 makes -0 an ordinary 0
    falling = np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF)).astype(np.uint64)
    keys = (rows.astype(np.uint64) << np.uint64(56)) | (falling << np.uint64(24)) | columns.astype(np.uint64)
    keys.sort()
    found = np.bincount(rows, minlength=n_rows)
    kept = np.minimum(found, k)
    # From the start of each row's candidates, so many as are kept.
    gaps = np.cumsum(found) - found - (np.cumsum(kept) - kept)
    chosen = keys[np.arange(kept.sum()) + np.repeat(gaps, kept)] & np.uint64((1 << 24) - 1)
    return chosen.astype(np.int64), kept


def best(scores: Floats, k: int) -> Positions:
    """The positions of the k largest of one row (m,), best first."""
    if k >= len(scores):
        return _ordered(scores, np.arange(len(scores)), k)
    n_groups = GROUPS * k
    size = len(scores) // n_groups
    # See `rank_rows`; of few groups the maxima tell too little.
    bounds = scores[: size * n_groups].reshape(size, n_groups).max(axis=0) if size >= 4 else scores
    least = np.partition(bounds, len(bounds) - k)[len(bounds) - k]
    return _ordered(scores, np.flatnonzero(scores >= least), k)


def _ordered(scores: Floats, chosen: Positions, k: int) -> Positions:
    """The k best of the chosen positions, which are in order."""
    found = scores[chosen]
    real = found > -np.inf
    if not real.all():
        chosen, found = chosen[real], found[real]
    ordered: Positions = chosen[np.argsort(-found, kind="stable")[:k]]
    return ordered


@dataclass(frozen=True)
class Ranked:
    """Lists of several users, one after the other: bundle rows, scores, and the length of each list."""

    bundles: Positions
    scores: Floats
    counts: Positions

    @staticmethod
    def joined(parts: Sequence[Ranked]) -> Ranked:
        """The lists of all parts, one after the other."""
        return Ranked(
            np.concatenate([np.zeros(0, np.int64), *(part.bundles for part in parts)]),
            np.concatenate([np.zeros(0, np.float32), *(part.scores for part in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(part.counts for part in parts)]),
        )

    def split(self) -> list[tuple[Positions, Floats]]:
        """Bundle rows and scores of each list."""
        ends = np.cumsum(self.counts)[:-1]
        return list(zip(np.split(self.bundles, ends), np.split(self.scores, ends), strict=True))


@dataclass(frozen=True)
class Ration:
    """Of these bundles (a mask over all) one list holds at most this share, as long as there are others."""

    bundles: npt.NDArray[np.bool_]
    share: float


@dataclass(frozen=True)
class Scored:
    """A block of people, scored: (n, columns), or (n, all bundles) where `columns` is None."""

    scores: Floats
    columns: Positions | None
    seen: tuple[Positions, Positions]
    """Bundle rows that are not to be listed, and for whom (row of `scores`)."""
    hidden: npt.NDArray[np.bool_]
    """Bundles that are not to be listed for anybody."""
    ration: Ration | None = None

    def of_rows(self, bundles: Positions) -> Floats:
        """Scores of these bundles (n, m), once they are ranked; -inf where one is not to be listed."""
        if self.columns is None:
            return self.scores[:, bundles]
        found = np.full((len(self.scores), len(bundles)), -np.inf, dtype=np.float32)
        places = np.searchsorted(self.columns, bundles)
        inside = places < len(self.columns)
        inside[inside] = self.columns[places[inside]] == bundles[inside]
        found[:, inside] = self.scores[:, places[inside]]
        return found

    def ranked(self, k: int) -> Ranked:
        """The k best of each. Writes on the scores."""
        if np.isnan(self.scores.min(initial=0.0)):
            raise TrainingError(
                "the model scores some bundles as NaN (not a number), so they cannot be ranked; "
                "its training has most likely diverged: train again with a lower learning_rate"
            )
        bundles, people = self.seen
        if self.columns is None:
            if self.hidden.any():
                # -inf where hidden, else inf: several times as fast as to choose or to write by a mask.
                ceiling = (1 - 2 * self.hidden.view(np.int8)) * np.float32(np.inf)
                np.minimum(self.scores, ceiling, out=self.scores)
            self.scores[people, bundles] = -np.inf
        else:
            places = np.searchsorted(self.columns, bundles)
            inside = places < len(self.columns)
            inside[inside] = self.columns[places[inside]] == bundles[inside]
            self.scores[people[inside], places[inside]] = -np.inf
        places, counts = rank_rows(self.scores, k)
        if self.ration is not None:
            places, counts = self._rationed(places, counts, k, self.ration)
        found = self.scores[np.repeat(np.arange(len(counts)), counts), places]
        return Ranked(places if self.columns is None else self.columns[places], found, counts)

    def _rationed(
        self, places: Positions, counts: Positions, k: int, ration: Ration
    ) -> tuple[Positions, Positions]:
        """These lists, in each no more of the rationed bundles than they may have."""
        is_rationed = ration.bundles if self.columns is None else ration.bundles[self.columns]
        most = round(ration.share * k)
        owners = np.repeat(np.arange(len(counts)), counts)
        over = np.flatnonzero(np.bincount(owners, is_rationed[places], len(counts)) > most)
        if not len(over):
            return places, counts
        lists = np.split(places, np.cumsum(counts)[:-1])
        others = best_of_rows(np.where(is_rationed, -np.inf, self.scores[over]), k)
        for row, other in zip(over.tolist(), others, strict=True):
            rationed = lists[row][is_rationed[lists[row]]][: max(most, k - len(other))]
            chosen = np.sort(np.concatenate([rationed, other[: k - len(rationed)]]))
            lists[row] = _ordered(self.scores[row], chosen, k)
        return np.concatenate(lists), np.array([len(one) for one in lists], dtype=np.int64)


def ahead(jobs: Iterable[Callable[[], T]]) -> Iterator[T]:
    """What each job returns; while that is used, the next one runs in a second thread.

    The next block is multiplied while this one is ranked: neither can use all cores alone. Jobs are drawn in
    the caller's thread, so that the second one hardly ever needs Python's lock.
    """
    with ThreadPoolExecutor(1, "coheat-ahead") as thread:
        running: Future[T] | None = None
        for job in jobs:
            before, running = running, thread.submit(job)
            if before is not None:
                yield before.result()
                before = None  # lets go of what was used before the next but one is made
        if running is not None:
            yield running.result()
