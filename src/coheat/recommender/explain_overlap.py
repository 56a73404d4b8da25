"""A score taken apart for a model with an overlap: what was learned, what items have in common, a welcome."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coheat.recommender.answers import Explanation, ViewShare
from coheat.recommender.csr import Csr
from coheat.recommender.explain import shares_of
from coheat.recommender.holders import Profile
from coheat.recommender.lists import Known, Moment
from coheat.recommender.profiles import Profiles
from coheat.recommender.ranking import Doubles, Positions


def explain_overlap(
    moment: Moment, profiles: Profiles, who: Known, row: int, contents: Positions, bundle_item: Csr
) -> Explanation:
    """`contents` are the bundle's items now, `bundle_item` is that of training.

    The overlap counts by its logarithm, as a whole; it is split in proportion to what each item brings.
    """
    assert who.vector is not None
    catalogue, affiliation = moment.catalogue, moment.model.affiliation
    is_new = bool(catalogue.is_new[row])
    user = who.vector.astype(np.float64)
    served = catalogue.served.take(np.array([row]))[0].astype(np.float64)
    user_row = moment.taken.users.rows.get(who.user_id, -1)
    worth = profiles.whole(user_row, who.since).dense(len(profiles.item_weights))
    overlap = np.array(worth[contents].sum())
    common = float(profiles.part(overlap, is_new))
    per_worth = common / float(overlap) if overlap > 0 else 0.0
    by_items = float(user[affiliation] @ served[affiliation])
    learned = float(user @ served) - by_items
    views = [ViewShare("history", 1.0, learned), ViewShare("affiliation", 1.0, by_items + common)]
    if is_new:
        views.append(ViewShare("welcome", 1.0, profiles.offset(is_new)))
    score = sum(view.share for view in views)

    names = moment.items.ids
    item_shares = worth[contents] * per_worth + moment.model.item_shares(who.vector, contents, 1.0)
    inside = np.zeros(len(worth), dtype=np.bool_)
    inside[contents] = True
    own_items = _brought([profiles.of_items(np.array([item])) for item in who.item_rows], inside) * per_worth
    taken, said = _taken(moment, profiles, who, bundle_item)
    own_bundles = _brought(said, inside) * per_worth
    return Explanation(
        who.user_id,
        catalogue.ids[row],
        who.source,
        score,
        None,
        views,
        shares_of([names[item] for item in contents], item_shares),
        shares_of([names[item] for item in who.item_rows], own_items),
        shares_of([catalogue.ids[bundle] for bundle in taken], own_bundles),
        score - float(own_items.sum()) - float(own_bundles.sum()),
    )


def _brought(profiles: list[Profile], inside: npt.NDArray[np.bool_]) -> Doubles:
    """What each of the profiles brings to the overlap with a bundle of the items `inside`."""
    found = [profile.weights[inside[profile.items]].sum(dtype=np.float64) for profile in profiles]
    return np.array(found, dtype=np.float64)


def _taken(
    moment: Moment, profiles: Profiles, who: Known, bundle_item: Csr
) -> tuple[Positions, list[Profile]]:
    """The user's bundles and what each says: those of training by their items then, others by those now."""
    if who.source != "model":
        return who.bundle_rows, profiles.of_bundles(who.bundle_rows, moment.catalogue)
    since = moment.taken.recorded_rows(who.user_id, moment.catalogue)
    said = [profiles.of_bundle(bundle_item.row(row)) for row in who.bundle_rows.tolist()]
    return np.concatenate([who.bundle_rows, since]), said + profiles.of_bundles(since, moment.catalogue)
