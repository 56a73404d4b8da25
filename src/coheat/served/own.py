"""A model whose score is no sum of terms: it is asked itself, and can do less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coheat.served.bundles import Bundles
from coheat.served.form import People, Served
from coheat.served.ranking import ROWS, Floats, Positions


@dataclass(frozen=True)
class OwnScores(Served):
    """`scorer` gives the scores (n, n_bundles) of users of training; of others nothing is known."""

    scorer: Callable[[Positions], Floats] | None = None
    refusal: ClassVar[str | None] = "this model scores in a way of its own, without vectors"

    def score(
        self,
        people: People,
        bundles: Bundles,  # noqa: ARG002
        columns: Positions | None = None,
        scratch: Floats | None = None,  # noqa: ARG002
    ) -> Floats:
        assert self.scorer is not None
        found = self.scorer(people.rows)
        return found if columns is None else found[:, columns]

    def scores_of_bundle(
        self,
        bundles: Bundles,  # noqa: ARG002
        row: int | None,
        items: Positions,  # noqa: ARG002
        since: Sequence[tuple[Positions, Positions]] = (),  # noqa: ARG002
    ) -> Floats:
        """As much work as a list for everybody: all bundles of a user are scored at once."""
        if row is None:
            self.check_places()
        n_users = len(self.users)
        blocks = (np.arange(start, min(start + ROWS, n_users)) for start in range(0, n_users, ROWS))
        return np.concatenate([self.scores(rows)[:, row] for rows in blocks])
