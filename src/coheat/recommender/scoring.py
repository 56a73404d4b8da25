"""Where a score comes from: the one place that every question goes through.

`InnerProducts` multiplies vectors. `OwnScores` asks the model itself, for those that do not score by vectors
(counting, and networks that look at a user and a bundle together).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from coheat.recommender.catalogue import Catalogue
from coheat.recommender.ranking import Floats, Positions

BLOCK = 256
"""Users scored at once: enough for a matrix product at full speed; memory is BLOCK x n_bundles scores."""


@dataclass(frozen=True)
class People:
    """Users who are scored together: their rows in training (-1: not in it) and vectors (n, width)."""

    rows: Positions
    vectors: Floats

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


class Scoring(Protocol):
    """How people and bundles get their scores."""

    def of_people(
        self, people: People, catalogue: Catalogue, columns: Positions | None, scratch: Floats | None
    ) -> Floats:
        """Scores of these columns (all where None) for each of the people (n, m), the caller's to write on.

        They may be written to the first rows of `scratch` (at least n, all columns): fresh memory is slow.
        """
        ...

    def of_bundle(self, subject: Subject) -> Floats:
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

    def of_bundle(self, subject: Subject) -> Floats:
        product: Floats = self.users @ subject.served
        return product


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

    def of_bundle(self, subject: Subject) -> Floats:
        """The scorer gives all bundles of a user; so this is as much work as a list for everybody."""
        assert subject.row is not None
        found = np.empty(self.n_users, dtype=np.float32)
        for start in range(0, self.n_users, BLOCK):
            rows = np.arange(start, min(start + BLOCK, self.n_users))
            found[rows] = self.scorer.scores(rows)[:, subject.row]
        return found
