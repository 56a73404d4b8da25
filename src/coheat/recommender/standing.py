"""How a bundle stands in people's lists, and how it would if it had been taken more or less often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coheat.recommender.choosing import Chosen
from coheat.recommender.known import Moment
from coheat.served.relations import NOTHING


@dataclass(frozen=True)
class Standing:
    """In how many of the users' first k places a bundle would stand, had it been taken so often (`taken`).

    Users who took it are not counted. All else stays as it is now: other bundles, and what the model learned.
    """

    users: int
    taken: tuple[int, ...]
    in_lists: tuple[int, ...]

    def __add__(self, other: Standing) -> Standing:
        """The same of more users."""
        counts = tuple(one + two for one, two in zip(self.in_lists, other.in_lists, strict=True))
        return Standing(self.users + other.users, self.taken, counts)


def counts_around(popularity: int, most: int) -> tuple[int, ...]:
    """Numbers of takers to look at: few ones in small steps, many in large ones, to twice the most that any
    bundle has."""
    found, one, other = {0, popularity}, 1, 2
    while one <= 2 * max(most, 20):
        found.add(one)
        one, other = other, one + other
    return tuple(sorted(found))


def standing(
    moment: Moment, bundle: str, users: Sequence[str], k: int, chosen: Chosen, taken: Sequence[int]
) -> Standing:
    """See `Standing`; of these users of training."""
    catalogue, served = moment.catalogue, moment.served
    row = catalogue.row(bundle)
    rows = moment.taken.known_rows(users)
    people = moment.people_of(users, rows)
    scores = served.score(people, catalogue.bundles)
    bundles, owners = moment.taken.pairs_of(users, rows, catalogue)
    strangers = np.ones(len(users), dtype=bool)
    strangers[owners[bundles == row]] = False
    scores[owners, bundles] = -np.inf
    others = chosen.rows[chosen.rows != row]
    bounds = _bounds(scores[:, others], k)
    takers = moment.taken.known_rows(moment.taken.by_bundle.get(bundle, ()))
    found = []
    for count in taken:
        moved = catalogue.bundles
        if count != moved.taken[row] and not served.refusal:
            where, evidence = np.array([row]), np.array([count])
            moved = served.recorded(moved, where, evidence, [takers])
        own = served.score(people, moved, np.array([row]))[:, 0]
        found.append(int((own[strangers] > bounds[strangers]).sum()))
    return Standing(int(strangers.sum()), tuple(taken), tuple(found))


def _bounds(scores: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.float32]:
    """What a bundle has to score to be among the first k beside these others."""
    if scores.shape[1] < k:
        return np.full(len(scores), -np.inf, dtype=np.float32)
    return np.partition(scores, -k, axis=1)[:, -k]


def takers_of(moment: Moment, bundle: str) -> list[str]:
    """Who took a bundle, in training and since."""
    catalogue, taken = moment.catalogue, moment.taken
    row = catalogue.row(bundle)
    trained = taken.trained.column(row) if row < catalogue.n_trained else NOTHING
    known = [taken.users.ids[user] for user in trained.tolist()]
    return list(dict.fromkeys([*known, *taken.by_bundle.get(bundle, ())]))
