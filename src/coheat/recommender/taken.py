"""Who took which bundle: in training (fixed, by row) and recorded since (growing, by id)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coheat.ids import Vocabulary
from coheat.recommender.catalogue import Catalogue
from coheat.served import Csr
from coheat.served.overlap import Belongings
from coheat.served.ranking import Positions
from coheat.served.relations import NOTHING


class Taken:
    """Lists only grow (forgetting puts new lists in place), so readers need no lock."""

    def __init__(self, trained: Csr, users: Vocabulary):
        self.trained, self.users = trained, users
        self.by_user: dict[str, list[str]] = {}
        self.by_bundle: dict[str, list[str]] = {}
        self._pairs: set[tuple[str, str]] = set()

    def rows_of(self, user: str, catalogue: Catalogue) -> Positions:
        """Rows of the bundles that this user took, now or in training."""
        known = self.users.index.get(user)
        trained = self.trained.row(known) if known is not None else NOTHING
        return np.concatenate([trained, self.since(user, catalogue)])

    def since(self, user: str, catalogue: Catalogue) -> Positions:
        """Rows of the bundles that were recorded for this user since training."""
        found = [catalogue.find(name) for name in tuple(self.by_user.get(user, ()))]
        return np.array([row for row in found if row is not None], dtype=np.int64)

    def belongings(self, users: Sequence[str], catalogue: Catalogue) -> dict[int, Belongings]:
        """What those of the users, by place, have from bundles recorded since."""
        if not (self.by_user and catalogue.served.overlaps):
            return {}
        found = {place: self.since(user, catalogue) for place, user in enumerate(users)}
        return {
            place: Belongings.of(NOTHING, [catalogue.items_of(row) for row in rows.tolist()])
            for place, rows in found.items()
            if len(rows)
        }

    def pairs_of(
        self, names: Sequence[str], rows: Positions, catalogue: Catalogue
    ) -> tuple[Positions, Positions]:
        """What users of training took, now or then: bundle rows, and the place in `names` of each taker.

        `rows` are the users' rows in training.
        """
        bundles, takers = self.trained.entries(rows)
        since = [
            (row, place)
            for place, name in enumerate(names if self.by_user else ())
            for row in self.since(name, catalogue).tolist()
        ]
        recorded = np.array(since, dtype=np.int64).reshape(-1, 2)
        return np.concatenate([bundles, recorded[:, 0]]), np.concatenate([takers, recorded[:, 1]])

    def takers(self, bundle: str, row: int, catalogue: Catalogue) -> Positions:
        """Rows of the known users who took this bundle, now or in training."""
        rows = self.known_rows(self.by_bundle.get(bundle, ()))
        rows = rows[rows >= 0]
        return np.concatenate([self.trained.column(row), rows]) if row < catalogue.n_trained else rows

    def known_rows(self, names: Sequence[str]) -> Positions:
        """Rows of users in training, -1 for those who were not."""
        return np.array([self.users.index.get(name, -1) for name in tuple(names)], dtype=np.int64)

    def in_training(
        self, users: Sequence[str], rows: Positions, catalogue: Catalogue
    ) -> npt.NDArray[np.bool_]:
        """For each pair of a user and a bundle's row: whether the one took the other in training."""
        people = self.known_rows(users)
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

    def discard(self, user: str, bundle: str) -> bool:
        """Whether it was recorded, and now is no more."""
        if (user, bundle) not in self._pairs:
            return False
        self._pairs.discard((user, bundle))
        for names, key, gone in ((self.by_user, user, bundle), (self.by_bundle, bundle, user)):
            kept = [name for name in names[key] if name != gone]
            if kept:
                names[key] = kept
            else:
                del names[key]
        return True

    def forget(self, bundles: Sequence[str]) -> None:
        """Drop what was recorded of bundles that are no more."""
        for bundle in bundles:
            for user in self.by_bundle.pop(bundle, ()):
                self._pairs.discard((user, bundle))
                self.by_user[user] = [name for name in self.by_user[user] if name != bundle]
