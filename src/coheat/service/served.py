"""One loaded model, brought up to date with what was written since it was trained."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from coheat.attributes import Value
from coheat.errors import ArtifactError, CoheatError
from coheat.recommender import Recommender
from coheat.recommender.taken import Codes, Pairs
from coheat.served.relations import NOTHING
from coheat.service.store import TOOK, BundleChange, Kind, Records, Subject
from coheat.storage import read_json

log = logging.getLogger("coheat.service")
WARMING_USERS = 16


class Outdated(Exception):
    """A model that was brought up to date before, and now can only be so by loading it again."""


@dataclass
class LoadedModel:
    """A model that answers, with all that was written up to `sequence`."""

    recommender: Recommender
    fingerprint: str
    description: dict[str, Any]
    loaded_at: str
    generation: int
    positive: frozenset[Kind] = TOOK
    """Kinds of interactions that hide a bundle from the user and count in its popularity."""
    sequence: int = 0
    unknown_items: dict[str, list[str]] = field(default_factory=dict)
    """By bundle: the items it was written with that this model does not know."""
    waiting_bundles: set[str] = field(default_factory=set)
    """Bundles that were written and have no item that this model knows."""
    waiting_interactions: Counter[str] = field(default_factory=Counter)
    """By bundle: how often one was taken that this model does not have."""
    begun_with: dict[str, float] = field(init=False)
    """How its knobs stood when it was loaded."""
    _withdrawn: set[str] = field(default_factory=set)
    """Bundles of training that were removed in a replay."""

    def __post_init__(self) -> None:
        self.begun_with = dict(self.recommender.knobs)

    @property
    def waiting(self) -> int:
        """How much was written that this model cannot place."""
        return len(self.waiting_bundles) + self.waiting_interactions.total()

    def replay(self, store: Records) -> None:
        """Make all changes that were written after `sequence`.

        In several steps it comes to the same as in one. Where it would not, it raises `Outdated`: since the
        last step, while another model served, a bundle of the model's training was removed and made anew, or
        a bundle got items that this model does not know; or interactions were taken back.
        """
        # The number first: what is written while we read is left for the next step.
        until = store.last_sequence()
        if self.sequence and store.last_withdrawal() > self.sequence:
            raise Outdated
        changes = {change.bundle_id: change for change in store.bundles(self.sequence, until)}
        late = self._replay_bundles(changes)
        self._replay_details(store, until, late)
        with _uncollected():
            self._replay_interactions(store, until)
        for name in late:
            self.recall(name, store.takers(name, self.positive))
        self.sequence = until

    def reached(self, sequence: int) -> None:
        """A change with this number was made, after all before it."""
        self.sequence = max(self.sequence, sequence)

    def recall(self, bundle_id: str, takers: Sequence[str]) -> None:
        """Record who took a bundle before this model could place it."""
        self.waiting_interactions.pop(bundle_id, None)
        if takers:
            self.recommender.record_many((user_id, bundle_id) for user_id in takers)

    def forget(self, bundle_id: str) -> None:
        """What was written of a bundle that is no more."""
        self.waiting_bundles.discard(bundle_id)
        self.waiting_interactions.pop(bundle_id, None)
        self.unknown_items.pop(bundle_id, None)

    def _replay_bundles(self, changes: Mapping[str, BundleChange]) -> list[str]:
        """Bring bundles to the state that is stored, with as few changes as possible.

        Answers those that found their place only now, though they were made before this step.
        """
        removed: list[str] = []
        added: dict[str, tuple[str, ...]] = {}
        replaced: dict[str, tuple[str, ...]] = {}
        for name, change in changes.items():
            known = self.recommender.has_bundle(name)
            if change.item_ids is None:
                self.forget(name)
                removed += [name] if known else []
            elif not known:
                self._check_current(name, change)
                added[name] = change.item_ids
            elif self._is_another(change):
                removed.append(name)
                added[name] = change.item_ids
            else:
                replaced[name] = change.item_ids
        if removed:
            trained = (name for name in removed if not self.recommender.bundle(name).is_added)
            self._withdrawn.update(trained)
            self.recommender.remove_bundles(removed)
        self._place(added, replacing=False)
        self._place(replaced, replacing=True)
        return [
            name
            for name in added
            if changes[name].born <= self.sequence and name not in self.waiting_bundles and self.sequence
        ]

    def _is_another(self, change: BundleChange) -> bool:
        """Whether a bundle that we have is one of the same name that is gone."""
        if self._was_here(change):  # it was removed from this model, then made anew
            return change.born > self.sequence
        if self.sequence == 0 or change.born <= self.sequence:  # trained with it, or gave it a place already
            return False
        if not self.recommender.bundle(change.bundle_id).is_added:
            raise Outdated
        return True

    def was_made_anew(self, change: BundleChange) -> bool:
        """Whether a change makes a bundle from nothing of which we have one of the same name, whose removal
        we have not heard of. One of training that another model did not know is not made anew by it."""
        if change.born != change.sequence or not self.recommender.has_bundle(change.bundle_id):
            return False
        return self._was_here(change) or self.recommender.bundle(change.bundle_id).is_added

    def _check_current(self, name: str, change: BundleChange) -> None:
        if name in self._withdrawn and not self._was_here(change):
            raise Outdated

    def _was_here(self, change: BundleChange) -> bool:
        """Whether this model served when a bundle was made."""
        return self.fingerprint in (change.created_on or "").split()

    def _place(self, bundles: dict[str, tuple[str, ...]], replacing: bool) -> None:
        """Add or replace those that can be placed; the others wait."""
        placed: dict[str, tuple[str, ...]] = {}
        for name, items in bundles.items():
            self.unknown_items.pop(name, None)
            if replacing and set(items) == set(self.recommender.bundle(name).item_ids):
                continue
            try:
                checked = self.recommender.check_bundles({name: items}, replacing)
            except CoheatError:
                if replacing and self.sequence:
                    raise Outdated from None
                self.waiting_bundles.add(name)
                continue
            placed[name] = items
            self.waiting_bundles.discard(name)
            self.note_unknown(name, checked.unknown_items.get(name, []))
        if placed:
            change = self.recommender.replace_bundles if replacing else self.recommender.add_bundles
            change(placed)

    def _replay_details(self, store: Records, until: int, late: Sequence[str]) -> None:
        """What was said of bundles and items, and what was said of those that found their place only now."""
        said: dict[Subject, dict[str, Mapping[str, Value]]] = {"bundle": {}, "item": {}}
        for details in store.details(self.sequence, until):
            said.setdefault(details.subject, {})[details.id] = details.columns
        said["bundle"].update((name, store.columns_of("bundle", name)) for name in late)
        for subject, by_name in said.items():
            self.describe(subject, by_name)

    def describe(self, subject: Subject, columns: Mapping[str, Mapping[str, Value]]) -> None:
        """Say something of those bundles or items that this model has. What does not fit what it knows of a
        column (text where it has numbers) is left out, and told in the log. Knobs are turned."""
        model = self.recommender
        if subject in ("knob", "model"):
            if subject == "knob":
                self._turn({name: values.get("value") for name, values in columns.items()})
            return
        is_here, change = (
            (model.has_bundle, model.describe_bundles)
            if subject == "bundle"
            else (model.has_item, model.describe_items)
        )
        here = {name: values for name, values in columns.items() if is_here(name)}
        try:
            if here:
                change(here)
        except CoheatError as error:
            if len(here) == 1:
                log.warning("columns that this model cannot take: %s", error)
            for name, values in here.items() if len(here) > 1 else ():
                self.describe(subject, {name: values})

    def _turn(self, knobs: Mapping[str, Value]) -> None:
        """Turn those of the knobs that this model has; None: as they stood when it was loaded."""
        begun = self.begun_with
        wanted = {name: begun[name] if value is None else float(value) for name, value in knobs.items()
                  if name in begun}  # fmt: skip
        if wanted:
            self.recommender = self.recommender.turned(**wanted)

    def note_unknown(self, name: str, items: list[str]) -> None:
        self.unknown_items.pop(name, None)
        if items:
            self.unknown_items[name] = items

    def _replay_interactions(self, store: Records, until: int) -> None:
        """In one pass, bundle by bundle: one that was taken a thousand times is weighed once.

        Ids are kept once each, pairs as two columns of numbers: there may be millions of them.
        """
        users, bundles = Codes(), Codes()
        takers, taken = [NOTHING], [NOTHING]
        for pairs in store.pairs(self.sequence, until, self.positive):
            for codes, found, names_of in zip((users, bundles), (takers, taken), pairs, strict=True):
                coded = map(codes.__getitem__, names_of)
                found.append(np.fromiter(coded, dtype=np.int64, count=len(names_of)))
        columns = np.concatenate(takers), np.concatenate(taken)
        names = list(bundles)
        known = np.array([self.recommender.has_bundle(name) for name in names], dtype=np.bool_)
        here = known[columns[1]] if len(names) else known
        for code, count in zip(*np.unique(columns[1][~here], return_counts=True), strict=True):
            self.waiting_interactions[names[code]] += int(count)
        renumbered = np.cumsum(known) - 1
        kept = [name for name, is_here in zip(names, known.tolist(), strict=True) if is_here]
        recorded = Pairs(list(users), kept, columns[0][here], renumbered[columns[1][here]])
        self.recommender.record_pairs(recorded)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's search for garbage, which would look at all that is kept, again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def load(
    run: Path,
    generation: int,
    knobs: Mapping[str, float] | None = None,
    positive: frozenset[Kind] = TOOK,
) -> LoadedModel:
    """Load a run's model and check it; what was written since is not in it yet (see `LoadedModel.replay`).

    `knobs` are turned as they are named (see `Recommender.load`). Whatever reading a strange file
    raises becomes an `ArtifactError`: a service must not end by it.
    """
    try:
        loaded = _load(run, generation, knobs)
        loaded.positive = positive
        return loaded
    except CoheatError:
        raise
    except Exception as error:
        log.warning("%s cannot be loaded", run, exc_info=True)
        said = f"{type(error).__name__}: {str(error)[:200]}" if str(error) else type(error).__name__
        raise ArtifactError(
            f"{run}: cannot be read ({said}); it is damaged, or no artifact; train or copy it again"
        ) from error


def _load(run: Path, generation: int, knobs: Mapping[str, float] | None) -> LoadedModel:
    index = _index(run)
    _check_files(index.parent)
    before = read_json(index) if index.exists() else {}
    recommender = Recommender.load(run, **(knobs or {}))
    if read_json(index) != before:
        raise ArtifactError(f"{run}: replaced while it was being read; load it again")
    loaded = LoadedModel(
        recommender,
        str(before.get("sha256")),
        before["description"],
        datetime.now(UTC).isoformat(timespec="seconds"),
        generation,
    )
    warm_up(loaded)
    return loaded


def warm_up(loaded: LoadedModel) -> None:
    """Ask for some lists, so that the vectors are in memory; scores that are no numbers are refused."""
    recommender = loaded.recommender
    ids = recommender.user_ids
    users = list(ids[:: max(1, len(ids) // WARMING_USERS)][:WARMING_USERS])
    if not recommender.check_scores(users):
        raise ArtifactError("the model gives scores that are not finite numbers; train again")
    recommender.recommend(users, k=10)


def _check_files(directory: Path) -> None:
    """Only plain files are read: a pipe in the place of one would be waited for, for ever."""
    try:
        files = list(directory.iterdir()) if directory.is_dir() else []
        strange = [one.name for one in files if not (one.is_file() or one.is_dir())]
    except OSError as error:
        raise ArtifactError(f"{directory}: cannot be read ({error.strerror})") from None
    if strange:
        raise ArtifactError(
            f"{directory}: {strange[0]} is not a plain file; train or copy the artifact again"
        )


def _index(run: Path) -> Path:
    inside = run / "model" / "artifact.json"
    return inside if inside.exists() else run / "artifact.json"
