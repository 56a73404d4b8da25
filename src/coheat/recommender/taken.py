"""Who took which bundle: in training (fixed, by row) and recorded since (growing, by id)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coheat.recommender.catalogue import Catalogue
from coheat.recommender.csr import Csr
from coheat.recommender.ids import Ids
from coheat.recommender.ranking import Positions


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
        return np.concatenate([trained, self.recorded_rows(user, catalogue)])

    def recorded_rows(self, user: str, catalogue: Catalogue) -> Positions:
        """Rows of the bundles that were recorded for this user since training."""
        since = [catalogue.find(name) for name in tuple(self.by_user.get(user, ()))]
        return np.array([row for row in since if row is not None], dtype=np.int64)

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
        rows = self.known_rows(self.by_bundle.get(bundle, ()))
        if row < catalogue.n_trained:
            rows = np.concatenate([self.trained.column(row), rows])
        return rows

    def known_rows(self, names: Sequence[str]) -> Positions:
        """Rows of those who were in training."""
        found = [self.users.rows[name] for name in tuple(names) if name in self.users.rows]
        return np.array(found, dtype=np.int64)

    def in_training(
        self, users: Sequence[str], rows: Positions, catalogue: Catalogue
    ) -> npt.NDArray[np.bool_]:
        """For each pair of a user and a bundle's row: whether the one took the other in training."""
        people = np.array([self.users.rows.get(user, -1) for user in users], dtype=np.int64)
        known = np.flatnonzero((people >= 0) & (rows < catalogue.n_trained))
        found = np.zeros(len(rows), dtype=np.bool_)
        distinct, place = np.unique(people[known], return_inverse=True)
        bundles, owners = self.trained.entries(distinct)
        taken = owners * catalogue.n_trained + bundles  # in order, as users and their bundles are
        if len(taken):
            asked = place * catalogue.n_trained + rows[known]
            found[known] = taken[np.minimum(np.searchsorted(taken, asked), len(taken) - 1)] == asked
        return found

    def add(self, user: str, bundle: str) -> bool:
        """Whether it was not recorded before."""
        if (user, bundle) in self._pairs:
            return False
        self._pairs.add((user, bundle))
        self.by_user.setdefault(user, []).append(bundle)
        self.by_bundle.setdefault(bundle, []).append(user)
        return True

    def forget(self, bundles: Sequence[str]) -> None:
        """Drop what was recorded of bundles that are no more."""
        for bundle in bundles:
            for user in self.by_bundle.pop(bundle, ()):
                self._pairs.discard((user, bundle))
                self.by_user[user] = [name for name in self.by_user[user] if name != bundle]
