"""Where a score comes from: the one place that every question goes through.

`InnerProducts` multiplies vectors, `ProductsAndOverlap` also looks at what the user's items and the bundle's
have in common. `OwnScores` asks the model itself, for those that do not score by vectors (counting, and
networks that look at a user and a bundle together).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from coheat.recommender.catalogue import Catalogue
from coheat.recommender.holders import Profile
from coheat.recommender.profiles import Profiles
from coheat.recommender.ranking import Floats, Positions

BLOCK = 256
"""Users scored at once: enough for a matrix product at full speed; memory is BLOCK x n_bundles scores."""


@dataclass(frozen=True)
class People:
    """Users who are scored together: their rows in training (-1: not in it) and vectors (n, width).

    `since`: what speaks to one of them (by place) beyond the profile of training, or instead of one.
    """

    rows: Positions
    vectors: Floats
    since: Mapping[int, Profile] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Subject:
    """A bundle that is asked about; `row` is None for one that these items would make.

    `plain` and `served` are its vectors (width,), before and after the views are weighed.
    """

    name: str
    row: int | None
    items: Positions
    plain: Floats
    served: Floats
    is_new: bool


class Scoring(Protocol):
    """How people and bundles get their scores."""

    def of_people(
        self, people: People, catalogue: Catalogue, columns: Positions | None, scratch: Floats | None
    ) -> Floats:
        """Scores of these columns (all where None) for each of the people (n, m), the caller's to write on.

        They may be written to the first rows of `scratch` (at least n, all columns): fresh memory is slow.
        """
        ...

    def of_bundle(self, subject: Subject, catalogue: Catalogue) -> Floats:
        """Scores of one bundle for all users of training (n_users,)."""
        ...


class InnerProducts:
    """score(u, b) = the inner product of their vectors."""

    def __init__(self, users: Floats):
        self.users = users

    def of_people(
        self, people: People, catalogue: Catalogue, columns: Positions | None, scratch: Floats | None
    ) -> Floats:
        if columns is None:
            return catalogue.served.product(people.vectors, scratch)
        product: Floats = people.vectors @ catalogue.served.take(columns).T
        return product

    def of_bundle(self, subject: Subject, catalogue: Catalogue) -> Floats:  # noqa: ARG002
        product: Floats = self.users @ subject.served
        return product


class ProductsAndOverlap:
    """score(u, b) = the inner product of their vectors, plus what their items have in common.

    See `coheat.models.base.Overlap`. It is exact for bundles and people of any day: overlaps are summed over
    the bundles that hold an item of the user's now.
    """

    def __init__(self, users: Floats, profiles: Profiles):
        self.products, self.profiles = InnerProducts(users), profiles

    def of_people(
        self, people: People, catalogue: Catalogue, columns: Positions | None, scratch: Floats | None
    ) -> Floats:
        assert catalogue.holders is not None
        scores = self.products.of_people(people, catalogue, columns, scratch)
        numbers = self.profiles.stored
        is_new = catalogue.is_new if columns is None else catalogue.is_new[columns]
        weights = np.where(is_new, np.float32(numbers.new_weight), np.float32(numbers.weight))
        offsets = np.where(is_new, np.float32(numbers.new_offset), np.float32(0))
        # User by user, so that a row is still at hand from one step to the next.
        for place, row in enumerate(people.rows.tolist()):
            profile = self.profiles.whole(row, people.since.get(place))
            shared = catalogue.holders.overlaps(profile, len(catalogue))
            part = (shared if columns is None else shared[columns]).astype(np.float32)
            part /= np.float32(numbers.scale)
            part += 1  # and not log1p, which is many times slower: a score has no use for more digits
            np.log(part, out=part)
            part *= weights
            part += offsets
            scores[place] += part
        return scores

    def of_bundle(self, subject: Subject, catalogue: Catalogue) -> Floats:
        scores = self.products.of_bundle(subject, catalogue)
        shared = self.profiles.overlaps_with(subject.items, catalogue)
        scores += self.profiles.part(shared, subject.is_new) + self.profiles.offset(subject.is_new)
        return scores


class OwnScores:
    """A model's own `scorer()`. It knows the users and bundles of training, and no others."""

    def __init__(self, scorer: Any, n_users: int):
        """`scorer` is a `coheat.models.base.Scorer`."""
        self.scorer, self.n_users = scorer, n_users

    def of_people(
        self,
        people: People,
        catalogue: Catalogue,  # noqa: ARG002
        columns: Positions | None,
        scratch: Floats | None,  # noqa: ARG002
    ) -> Floats:
        scores: Floats = self.scorer.scores(people.rows)
        return scores if columns is None else scores[:, columns]

    def of_bundle(self, subject: Subject, catalogue: Catalogue) -> Floats:  # noqa: ARG002
        """The scorer gives all bundles of a user; so this is as much work as a list for everybody."""
        assert subject.row is not None
        found = np.empty(self.n_users, dtype=np.float32)
        for start in range(0, self.n_users, BLOCK):
            rows = np.arange(start, min(start + BLOCK, self.n_users))
            found[rows] = self.scorer.scores(rows)[:, subject.row]
        return found
