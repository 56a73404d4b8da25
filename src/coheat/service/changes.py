"""Changes that are stored already, made in a loaded model: it then is as if it had replayed them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from coheat.attributes import Value
from coheat.errors import CoheatError
from coheat.recommender.taken import Pairs
from coheat.service.served import LoadedModel
from coheat.service.store import BundleChange, Change, Details, Kind, Recorded, Records, Withdrawn


@dataclass(frozen=True)
class News:
    """A change, and what the store knows of a bundle that a model may be told of only now: who took it while
    it waited there, and all that was said of it."""

    change: Change
    takers: Sequence[str] = ()
    columns: Mapping[str, Value] = field(default_factory=dict)


def prepared(
    change: Change, models: Collection[LoadedModel], store: Records, positive: Collection[Kind]
) -> News:
    """With what is needed to make it in these models."""
    if not isinstance(change, BundleChange) or change.item_ids is None:
        return News(change)
    name = change.bundle_id
    if change.born != change.sequence and all(one.recommender.has_bundle(name) for one in models):
        return News(change)
    return News(change, store.takers(name, positive), store.columns_of("bundle", name))


def make(loaded: LoadedModel, news: News) -> list[bool]:
    """Make a change; of interactions whether each counts, being positive and not known before."""
    change = news.change
    counted: list[bool] = []
    if change.sequence <= loaded.sequence:
        return counted
    if isinstance(change, Recorded):
        counted = _record(loaded, change)
    elif isinstance(change, Withdrawn):
        _withdraw(loaded, change)
    elif isinstance(change, Details):
        loaded.describe(change.subject, {change.id: change.columns})
    elif change.item_ids is None:
        _remove_bundle(loaded, change.bundle_id)
    else:
        _put_bundle(loaded, change, change.item_ids, news)
    loaded.reached(change.sequence)
    return counted


def _put_bundle(loaded: LoadedModel, change: BundleChange, item_ids: Sequence[str], news: News) -> None:
    """A bundle that got other items, or is there only now.

    Where this model knows none of the items, it waits for one that does.
    """
    name = change.bundle_id
    if loaded.was_made_anew(change):
        _remove_bundle(loaded, name)
    model, was_here = loaded.recommender, loaded.recommender.has_bundle(name)
    try:
        put = model.replace_bundles if was_here else model.add_bundles
        found = put({name: item_ids})
    except CoheatError:
        loaded.note_unknown(name, [])
        loaded.waiting_bundles.add(name)
        return
    loaded.waiting_bundles.discard(name)
    loaded.note_unknown(name, found.unknown_items.get(name, []))
    if not was_here:
        loaded.recall(name, news.takers)
        loaded.describe("bundle", {name: news.columns})


def _remove_bundle(loaded: LoadedModel, bundle_id: str) -> None:
    """A bundle that is gone, whether it had a place or waited for one."""
    loaded.forget(bundle_id)
    if loaded.recommender.has_bundle(bundle_id):
        loaded.recommender.remove_bundles([bundle_id])


def _record(loaded: LoadedModel, change: Recorded) -> list[bool]:
    """What happened. What this model does not have waits for one that does."""
    model = loaded.recommender
    is_positive = [one.kind in loaded.positive for one in change.interactions]
    is_here = [model.has_bundle(one.bundle_id) for one in change.interactions]
    pairs = []
    for one, positive, here in zip(change.interactions, is_positive, is_here, strict=True):
        if positive and here:
            pairs.append((one.user_id, one.bundle_id))
        elif positive:
            loaded.waiting_interactions[one.bundle_id] += 1
    counted = iter(model.record_pairs(Pairs.of(pairs))[0].tolist())
    return [positive and here and next(counted) for positive, here in zip(is_positive, is_here, strict=True)]


def _withdraw(loaded: LoadedModel, change: Withdrawn) -> None:
    """Interactions that are gone; pairs that remaining ones hold together stay."""
    positive = [one for one in change.interactions if one.kind in loaded.positive]
    for one in positive:
        if not loaded.recommender.has_bundle(one.bundle_id):
            loaded.waiting_interactions[one.bundle_id] -= 1
    remaining = {(user, bundle) for user, bundle, kind in change.remaining if kind in loaded.positive}
    pairs = dict.fromkeys((one.user_id, one.bundle_id) for one in positive)
    loaded.recommender.withdraw_many(pair for pair in pairs if pair not in remaining)
