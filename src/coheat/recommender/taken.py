"""Who took which bundle: in training (fixed, by row) and recorded since (growing, by id)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.recommender.catalogue import Catalogue
from coheat.recommender.ids import Ids
from coheat.recommender.mapped import let_go
from coheat.recommender.ranking import Positions

STRETCH = 1 << 20


class Csr:
    """A training relation: the columns of a row, and the rows of a column."""

    def __init__(self, indptr: npt.NDArray[Any], indices: npt.NDArray[Any]):
        self.indptr, self.indices = np.asarray(indptr), np.asarray(indices)

    def row(self, row: int) -> Positions:
        return self.indices[self.indptr[row] : self.indptr[row + 1]].astype(np.int64)

    def entries(self, rows: Positions) -> tuple[Positions, Positions]:
        """All columns of these rows, one after the other; and the place in `rows` that each belongs to."""
        starts, ends = self.indptr[rows], self.indptr[rows + 1]
        counts = (ends - starts).astype(np.int64)
        places = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return self.indices[places].astype(np.int64), np.repeat(np.arange(len(rows)), counts)

    def column(self, column: int) -> Positions:
        entries = np.flatnonzero(self.indices == column)
        return (np.searchsorted(self.indptr, entries, side="right") - 1).astype(np.int64)

    def degrees(self, n_columns: int) -> Positions:
        """How many rows each column has."""
        total = np.zeros(n_columns, dtype=np.int64)
        for start in range(0, len(self.indices), STRETCH):  # in stretches: each is copied to be counted
            total += np.bincount(self.indices[start : start + STRETCH], minlength=n_columns)
            let_go(self.indices)
        return total


class Taken:
    """Lists only grow (removing a bundle puts new lists in place), so readers need no lock."""

    def __init__(self, trained: Csr, users: Ids):
        self.trained, self.users = trained, users
        self.by_user: dict[str, list[str]] = {}
        self.by_bundle: dict[str, list[str]] = {}
        self._pairs: set[tuple[str, str]] = set()

    def rows_of(self, user: str, catalogue: Catalogue) -> Positions:
        """Rows of the bundles that this user took, now or in training."""
        known = self.users.rows.get(user)
        trained = self.trained.row(known) if known is not None else np.zeros(0, dtype=np.int64)
        if user not in self.by_user:
            return trained
        since = [catalogue.find(name) for name in tuple(self.by_user[user])]
        return np.concatenate([trained, np.array([row for row in since if row is not None], dtype=np.int64)])

    def pairs_of(
        self, names: Sequence[str], rows: Positions, catalogue: Catalogue
    ) -> tuple[Positions, Positions]:
        """What users of training took, now or then: bundle rows, and the place in `names` of each taker.

        `rows` are the users' rows in training.
        """
        bundles, takers = self.trained.entries(rows)
        if not self.by_user:
            return bundles, takers
        since = [
            (row, place)
            for place, name in enumerate(names)
            for bundle in tuple(self.by_user.get(name, ()))
            if (row := catalogue.find(bundle)) is not None
        ]
        recorded = np.array(since, dtype=np.int64).reshape(-1, 2)
        return np.concatenate([bundles, recorded[:, 0]]), np.concatenate([takers, recorded[:, 1]])

    def takers(self, bundle: str, row: int, catalogue: Catalogue) -> Positions:
        """Rows of the known users who took this bundle, now or in training."""
        names = tuple(self.by_bundle.get(bundle, ()))
        since = [self.users.rows[name] for name in names if name in self.users.rows]
        rows = np.array(since, dtype=np.int64)
        if row < catalogue.n_trained:
            rows = np.concatenate([self.trained.column(row), rows])
        return rows

    def has(self, user: str, bundle: str, row: int, catalogue: Catalogue) -> bool:
        if (user, bundle) in self._pairs:
            return True
        known = self.users.rows.get(user)
        return row < catalogue.n_trained and known is not None and row in self.trained.row(known)

    def add(self, user: str, bundle: str) -> None:
        self._pairs.add((user, bundle))
        self.by_user.setdefault(user, []).append(bundle)
        self.by_bundle.setdefault(bundle, []).append(user)

    def forget(self, bundles: Sequence[str]) -> None:
        """Drop what was recorded of bundles that are no more."""
        for bundle in bundles:
            for user in self.by_bundle.pop(bundle, ()):
                self._pairs.discard((user, bundle))
                self.by_user[user] = [name for name in self.by_user[user] if name != bundle]
