"""Why a bundle has its score for a user, with public ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.ids import unknown
from coheat.recommender.answers import BundleShare, Explanation, ItemShare
from coheat.recommender.known import Moment, known_of
from coheat.served.relations import NOTHING


def explanation(
    moment: Moment,
    user: str,
    bundle: str,
    items: Sequence[str],
    bundles: Sequence[str],
    fields: Sequence[str] | None = None,
) -> Explanation:
    """See `Recommender.explain`."""
    catalogue, served = moment.catalogue, moment.served
    table = catalogue.described.bundles
    table.check_names(fields or ())
    relations, row = served.relations, catalogue.row(bundle)
    who = known_of(moment, user, items, bundles)
    if who.vector is None:
        raise unknown(user, "user", moment.taken.users.ids)
    has, took, since = who.items, NOTHING, who.bundles
    if who.row >= 0:
        has = np.concatenate([relations.user_item.row(who.row), who.items])
        took = relations.user_bundle.row(who.row)
    # Bundles of training by their items then, which is what the user's vector and profile know of them.
    taken = [(one, relations.bundle_item.row(one)) for one in took.tolist()]
    taken += [(one if one < catalogue.n_trained else -1, catalogue.items_of(one)) for one in since.tolist()]
    contents = catalogue.placing_items(row)
    found = served.explain(who.vector, has, taken, catalogue.bundles, row, contents)
    about = {
        aspect: sum(term.share for term in found.terms if term.about == aspect)
        for aspect in ("history", "items", "youth")
    }
    own_items, its_items = ([moment.items.ids[one] for one in rows.tolist()] for rows in (has, contents))
    rows = np.concatenate([took, since])
    order = np.argsort(-np.abs(found.user_bundles), kind="stable")
    by_bundle = [
        BundleShare(
            catalogue.ids[one],
            float(share),
            None if fields is None else table.values(one, fields),
        )
        for one, share in zip(rows[order].tolist(), found.user_bundles[order].tolist(), strict=True)
    ]
    return Explanation(
        user_id=user,
        bundle_id=bundle,
        source=who.source,
        score=sum(term.share for term in found.terms),
        **about,
        history_weight=catalogue.history_weight(row),
        terms=found.terms,
        bundle_items=_shares(its_items, found.bundle_items),
        user_items=_shares(own_items, found.user_items),
        user_bundles=by_bundle,
        own=found.own,
        fields=None if fields is None else table.values(row, fields),
    )


def _shares(names: list[str], shares: npt.NDArray[Any]) -> list[ItemShare]:
    """Largest first."""
    order = np.argsort(-np.abs(shares), kind="stable")
    return [ItemShare(names[place], float(shares[place])) for place in order.tolist()]
