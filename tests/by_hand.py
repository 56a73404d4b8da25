"""Recommenders made of tables, without a model behind them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coheat.artifact import Contents, Description
from coheat.ids import Vocabulary
from coheat.recommender import Recommender
from coheat.served import Csr, Relations, Served

NOWHERE = Description(
    model="by hand",
    config={},
    training={},
    seed=0,
    scenario="none",
    data_source="nowhere",
    data_fingerprint="",
    best_epoch=0,
    metrics={},
    seconds=0.0,
    reason="",
)


def csr(matrix: npt.ArrayLike) -> Csr:
    """The relation that holds where a dense matrix is not 0."""
    dense = np.asarray(matrix)
    rows, columns = np.nonzero(dense)
    return Csr(np.searchsorted(rows, np.arange(len(dense) + 1)), columns, dense.shape[1])


def relations(user_bundle: npt.ArrayLike, user_item: npt.ArrayLike, bundle_item: npt.ArrayLike) -> Relations:
    """From three dense matrices."""
    return Relations(csr(user_bundle), csr(user_item), csr(bundle_item))


def names(kind: str, n: int) -> list[str]:
    return [f"{kind[0]}{place}" for place in range(n)]


def recommender_of(served: Served, users: Sequence[str] | None = None) -> Recommender:
    """With ids u0, u1, ..., b0, ..., i0, ..., unless other users are given."""
    people = Vocabulary(users or names("user", len(served.users)), "user")
    bundles = Vocabulary(names("bundle", len(served.bundles)), "bundle")
    items = Vocabulary(names("item", served.relations.bundle_item.n_columns), "item")
    return Recommender(Contents(served, people, bundles, items, NOWHERE))
