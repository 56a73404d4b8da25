"""One loaded model, brought up to date with what was written since it was trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coheat.errors import ArtifactError, CoheatError
from coheat.recommender import Recommender
from coheat.service.store import Store
from coheat.storage import read_json

WARMING_USERS = 16


@dataclass(frozen=True)
class Served:
    """A model that answers. `sequence`: it knows all that was written up to this number."""

    recommender: Recommender
    fingerprint: str
    description: dict[str, Any]
    loaded_at: str
    generation: int
    sequence: int = 0
    waiting: int = 0

    def up_to_date(self, store: Store) -> Served:
        """With all that was written after `sequence`; the recommender is changed in place."""
        # The numbers first: what is written while we read is read twice rather than never.
        sequence = store.last_sequence()
        waiting = _replay_bundles(self, store) + _replay_interactions(self, store)
        return replace(self, sequence=sequence, waiting=self.waiting + waiting)


def load(run: Path, store: Store, generation: int, knobs: Mapping[str, float] | None = None) -> Served:
    """Load a run's model, check it, and replay what was written; any fault is a `CoheatError`.

    `knobs` are turned as they are named (see `Recommender.load`).
    """
    index = _index(run)
    before = read_json(index) if index.exists() else {}
    recommender = Recommender.load(run, **(knobs or {}))
    if read_json(index) != before:
        raise ArtifactError(f"{run}: replaced while it was being read; load it again")
    fresh = Served(
        recommender,
        str(before.get("sha256")),
        before["description"],
        datetime.now(UTC).isoformat(timespec="seconds"),
        generation,
    )
    served = fresh.up_to_date(store)
    warm_up(served)
    return served


def warm_up(served: Served) -> None:
    """Ask for some lists, so that the vectors are in memory; scores that are no numbers are refused."""
    recommender = served.recommender
    ids = recommender.user_ids
    users = list(ids[:: max(1, len(ids) // WARMING_USERS)][:WARMING_USERS])
    if not recommender.check_scores(users):
        raise ArtifactError("the model gives scores that are not finite numbers; train again")
    recommender.recommend(users, k=10)


def _index(run: Path) -> Path:
    inside = run / "model" / "artifact.json"
    return inside if inside.exists() else run / "artifact.json"


def _replay_bundles(served: Served, store: Store) -> int:
    """Bring bundles to the state that is stored, as few changes as possible; how many found no place."""
    recommender = served.recommender
    removed: list[str] = []
    added: dict[str, tuple[str, ...]] = {}
    replaced: dict[str, tuple[str, ...]] = {}
    for change in store.bundles(served.sequence):
        name, known = change.bundle_id, recommender.has_bundle(change.bundle_id)
        if change.item_ids is None:
            removed += [name] if known else []
        elif not known:
            added[name] = change.item_ids
        elif change.created_on == served.fingerprint:  # it was removed from this model, then made anew
            removed.append(name)
            added[name] = change.item_ids
        elif set(recommender.bundle(name).item_ids) != set(change.item_ids):
            replaced[name] = change.item_ids
    if removed:
        recommender.remove_bundles(removed)
    return _place(recommender.add_bundles, added) + _place(recommender.replace_bundles, replaced)


def _place(place: Callable[[Mapping[str, tuple[str, ...]]], Any], bundles: dict[str, tuple[str, ...]]) -> int:
    """All at once; where one of them cannot be placed, one by one. How many could not."""
    if not bundles:
        return 0
    try:
        place(bundles)
        return 0
    except CoheatError:
        return sum(_refuses(place, {name: items}) for name, items in bundles.items())


def _replay_interactions(served: Served, store: Store) -> int:
    pairs = [(one.user_id, one.bundle_id) for one in store.interactions(served.sequence)]
    placed = [pair for pair in pairs if served.recommender.has_bundle(pair[1])]
    if placed:
        served.recommender.record_many(placed)
    return len(pairs) - len(placed)


def _refuses(change: Callable[[Any], Any], argument: Any) -> bool:
    try:
        change(argument)
    except CoheatError:
        return True
    return False
