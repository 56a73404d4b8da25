"""Who took which bundle: in training (fixed, by row) and recorded since (growing, by id)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coheat.ids import Vocabulary, text_id
from coheat.recommender.catalogue import Catalogue
from coheat.served import Csr
from coheat.served.overlap import Belongings
from coheat.served.ranking import Positions
from coheat.served.relations import NOTHING, stable_order


@dataclass(frozen=True)
class Pairs:
    """Users and bundles, pair by pair, as places in lists of their distinct ids."""

    user_ids: Sequence[str]
    bundle_ids: Sequence[str]
    users: Positions
    bundles: Positions

    def __len__(self) -> int:
        return len(self.users)

    @staticmethod
    def of(pairs: Iterable[tuple[str, str]]) -> Pairs:
        users, bundles = Codes(), Codes()
        codes = [(users[text_id(user, "user")], bundles[text_id(bundle, "bundle")]) for user, bundle in pairs]
        columns = np.array(codes, dtype=np.int64).reshape(-1, 2)
        return Pairs(list(users), list(bundles), columns[:, 0], columns[:, 1])


class Codes(dict[str, int]):
    """Numbers for texts, in the order of their first appearance."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return len(self) - 1


class Taken:
    """What is read of it is copied at once (`tuple`), so readers need no lock."""

    def __init__(self, trained: Csr, users: Vocabulary):
        self.trained, self.users = trained, users
        self.by_user: dict[str, dict[str, None]] = {}
        """By user: the bundles, in the order of recording (a dictionary is a set that has an order)."""
        self.by_bundle: dict[str, list[str]] = {}

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

    def in_training(self, people: Positions, rows: Positions, catalogue: Catalogue) -> npt.NDArray[np.bool_]:
        """For each pair of a user's row (-1: not in training) and a bundle's: whether the one took the other
        in training."""
        known = np.flatnonzero((people >= 0) & (rows < catalogue.n_trained))
        found = np.zeros(len(rows), dtype=np.bool_)
        distinct, place = np.unique(people[known], return_inverse=True)
        bundles, owners = self.trained.entries(distinct)
        taken = owners * catalogue.n_trained + bundles  # in order, as users and their bundles are
        if len(taken):
            asked = place * catalogue.n_trained + rows[known]
            order = asked.argsort()  # who looks in order finds what follows at hand
            asked = asked[order]
            is_there = taken[np.minimum(np.searchsorted(taken, asked), len(taken) - 1)] == asked
            found[known[order]] = is_there
        return found

    def add(self, pairs: Pairs, rows: Positions, catalogue: Catalogue) -> npt.NDArray[np.bool_]:
        """Remember who took what; which of the pairs were known neither from training nor from before.

        `rows` are those of the bundles, pair by pair. One sorted pass for each side: there may be millions.
        """
        users, bundles = pairs.users, pairs.bundles
        new = _are_first(users, bundles, len(pairs.user_ids), len(pairs.bundle_ids))
        new &= ~self.in_training(self.known_rows(pairs.user_ids)[users], rows, catalogue)
        before = {
            code: self.by_user[name] for code, name in enumerate(pairs.user_ids) if name in self.by_user
        }
        if before:
            asked = np.flatnonzero(new & np.isin(users, list(before)))
            here = zip(users[asked].tolist(), bundles[asked].tolist(), strict=True)
            new[asked] = [pairs.bundle_ids[bundle] not in before[user] for user, bundle in here]
        for user, taken in _grouped(users[new], bundles[new], len(pairs.user_ids), pairs.bundle_ids):
            if user in before:
                before[user].update(dict.fromkeys(taken))
            else:
                self.by_user[pairs.user_ids[user]] = dict.fromkeys(taken)
        for bundle, takers in _grouped(bundles[new], users[new], len(pairs.bundle_ids), pairs.user_ids):
            self.by_bundle.setdefault(pairs.bundle_ids[bundle], []).extend(takers)
        return new

    def discard(self, user: str, bundle: str) -> bool:
        """Whether it was recorded, and now is no more."""
        if bundle not in self.by_user.get(user, ()):
            return False
        self._drop(user, bundle)
        kept = [name for name in self.by_bundle.pop(bundle) if name != user]
        if kept:
            self.by_bundle[bundle] = kept
        return True

    def _drop(self, user: str, bundle: str) -> None:
        """A new dictionary takes the place of the old: somebody may be reading it."""
        kept = {name: None for name in self.by_user.pop(user) if name != bundle}
        if kept:
            self.by_user[user] = kept

    def forget(self, bundles: Sequence[str]) -> None:
        """Drop what was recorded of bundles that are no more."""
        for bundle in bundles:
            for user in self.by_bundle.pop(bundle, ()):
                self._drop(user, bundle)


def _are_first(users: Positions, bundles: Positions, n_users: int, n_bundles: int) -> npt.NDArray[np.bool_]:
    """Of each pair, whether it comes here for the first time."""
    keys = users * n_bundles + bundles
    order = stable_order(keys, n_users * n_bundles)
    ordered = keys[order]
    are_first = np.ones(len(keys), dtype=np.bool_)
    are_first[order[1:]] = ordered[1:] != ordered[:-1]
    return are_first


def _grouped(
    keys: Positions, values: Positions, n_keys: int, names: Sequence[str]
) -> Iterator[tuple[int, list[str]]]:
    """For each distinct key the names of its values, in their order."""
    texts = list(map(names.__getitem__, values[stable_order(keys, n_keys)].tolist()))
    counts = np.bincount(keys, minlength=n_keys)
    ends = [0, *np.cumsum(counts).tolist()]
    for key in counts.nonzero()[0].tolist():
        yield key, texts[ends[key] : ends[key + 1]]
