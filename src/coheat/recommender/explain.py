"""A score taken apart, by the bundle's views and items and by what the user has."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.recommender.answers import Explanation, Share, ViewShare
from coheat.recommender.catalogue import Catalogue
from coheat.recommender.ids import Ids
from coheat.recommender.lists import Known
from coheat.recommender.ranking import Positions
from coheat.recommender.views import ServedModel


def explain(
    model: ServedModel, catalogue: Catalogue, who: Known, row: int, contents: Positions, items: Ids
) -> Explanation:
    """`contents` are the bundle's items. Sums are made in float64, so shares add up to float32's rounding."""
    assert who.vector is not None
    user = who.vector.astype(np.float64)
    served = catalogue.served.take(np.array([row]))[0].astype(np.float64)
    score = float(user @ served)
    weight = model.weight(catalogue.popularity[row])
    made_of_items = model.views is not None or catalogue.ids[row] in catalogue.contents
    item_shares = model.item_shares(who.vector, contents, 1 - (weight or 0)) if made_of_items else np.zeros(0)
    bundle_items = shares_of([items.ids[item] for item in contents] if made_of_items else [], item_shares)
    if model.views is None or weight is None:
        views = [ViewShare("score", 1.0, score)]
        user_items: list[Share] = []
        user_bundles: list[Share] = []
        own = score
    else:
        history, affiliation = model.history, model.affiliation
        views = [
            ViewShare("history", weight, float(user[history] @ served[history])),
            ViewShare("affiliation", 1 - weight, float(user[affiliation] @ served[affiliation])),
        ]
        from_items = model.from_items(who.item_rows).astype(np.float64)
        trained = np.where(who.bundle_rows < catalogue.n_trained, who.bundle_rows, -1)
        from_bundles = model.from_bundles(trained).astype(np.float64)
        user_items = shares_of([items.ids[item] for item in who.item_rows], from_items @ served[affiliation])
        names = [catalogue.ids[bundle] for bundle in who.bundle_rows]
        user_bundles = shares_of(names, from_bundles @ served[history])
        # What is left of the user's vector is its layer 0: learned of the user, not passed on by neighbours.
        left = user - np.concatenate([from_bundles.sum(axis=0), from_items.sum(axis=0)])
        own = float(left @ served)
    return Explanation(
        who.user_id,
        catalogue.ids[row],
        who.source,
        score,
        weight,
        views,
        bundle_items,
        user_items,
        user_bundles,
        own,
    )


def shares_of(names: list[str], shares: npt.NDArray[Any]) -> list[Share]:
    """Largest first."""
    order = np.argsort(-np.abs(shares), kind="stable")
    return [Share(names[place], float(shares[place])) for place in order]
