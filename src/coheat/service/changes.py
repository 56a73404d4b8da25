"""Changes that are stored already, made in a loaded model: it then is as if it had replayed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress

from coheat.attributes import Value
from coheat.errors import CoheatError
from coheat.service.served import LoadedModel
from coheat.service.store import Appended, Interaction, NewInteraction, Subject


def put_bundle(
    loaded: LoadedModel,
    sequence: int,
    bundle_id: str,
    item_ids: Sequence[str],
    takers: Sequence[str],
    columns: Mapping[str, Value],
) -> None:
    """A bundle that got other items, or is there only now; then `takers` took it while it waited, and all
    `columns` that were said of it are new to the model.

    Where this model knows none of the items, it waits for one that does.
    """
    model, was_here = loaded.recommender, loaded.recommender.has_bundle(bundle_id)
    loaded.reached(sequence)
    try:
        change = model.replace_bundles if was_here else model.add_bundles
        found = change({bundle_id: item_ids})
    except CoheatError:
        loaded.note_unknown(bundle_id, [])
        loaded.waiting_bundles.add(bundle_id)
        return
    loaded.waiting_bundles.discard(bundle_id)
    loaded.note_unknown(bundle_id, found.unknown_items.get(bundle_id, []))
    if not was_here:
        loaded.recall(bundle_id, takers)
        loaded.describe("bundle", {bundle_id: columns})


def describe(
    loaded: LoadedModel, sequence: int, subject: Subject, name: str, columns: Mapping[str, Value]
) -> None:
    """What was said of a bundle or an item."""
    loaded.describe(subject, {name: columns})
    loaded.reached(sequence)


def remove_bundle(loaded: LoadedModel, sequence: int, bundle_id: str) -> None:
    """A bundle that is gone, whether it had a place or waited for one."""
    loaded.forget(bundle_id)
    if loaded.recommender.has_bundle(bundle_id):
        loaded.recommender.remove_bundles([bundle_id])
    loaded.reached(sequence)


def record(loaded: LoadedModel, stored: Appended, interactions: Sequence[NewInteraction]) -> list[bool]:
    """What happened; of each whether it counts, being positive and not known before.

    What this model does not have waits for one that does.
    """
    model = loaded.recommender
    is_here = [one.kind in loaded.positive and model.has_bundle(one.bundle_id) for one in interactions]
    for one, here, new in zip(interactions, is_here, stored.is_new, strict=True):
        if new and one.kind in loaded.positive and not here:
            loaded.waiting_interactions[one.bundle_id] += 1
    pairs = [(one.user_id, one.bundle_id) for one in compress(interactions, is_here)]
    recorded = iter(model.record_many(pairs) if pairs else ())
    loaded.reached(stored.sequence)
    return [here and next(recorded).counted for here in is_here]


def withdraw(
    loaded: LoadedModel,
    sequence: int,
    interactions: Sequence[Interaction],
    remaining: frozenset[tuple[str, str]],
) -> None:
    """Interactions that are gone; pairs that `remaining` ones hold together stay."""
    positive = [one for one in interactions if one.kind in loaded.positive]
    for one in positive:
        if not loaded.recommender.has_bundle(one.bundle_id):
            loaded.waiting_interactions[one.bundle_id] -= 1
    pairs = dict.fromkeys((one.user_id, one.bundle_id) for one in positive)
    loaded.recommender.withdraw_many(pair for pair in pairs if pair not in remaining)
    loaded.reached(sequence)
