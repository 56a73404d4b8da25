"""The served model and its changes: who may ask and change it, in which order, and how it is exchanged.

Questions to the model run on a thread of their own, so that the event loop stays free to take or refuse
requests, except lists that are quick (`lists.py`); those asked for while it computes are computed together
next, which is what keeps it fast under load. A change is checked, then written to the store, then made in the
model, then acknowledged; changes wait for each other, questions never wait for the disk.

Where others write to the store, too, a write that was checked against a state which they have changed
meanwhile is refused by the store, and checked again once that has been followed (see `following.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coheat.attributes import Value
from coheat.errors import DataError, UnknownIdError
from coheat.ids import shortened
from coheat.recommender import Recommender
from coheat.service import logs
from coheat.service.changes import News
from coheat.service.following import Follower, Threads
from coheat.service.lists import Asker, Lists, UserList, Wanted
from coheat.service.metrics import Metrics
from coheat.service.models import Models
from coheat.service.recording import Waiting, about_bundle, about_item, about_rows
from coheat.service.results import (
    Conflict,
    PreconditionFailed,
    Remembered,
    unknown_bundle,
)
from coheat.service.schemas import Bundle
from coheat.service.served import LoadedModel, Outdated, warm_up
from coheat.service.sides import ONLY, Side, side_of
from coheat.service.store import (
    CONTESTED,
    NOT_FOLLOWED,
    TOOK,
    Appended,
    Kind,
    Missed,
    NewInteraction,
    Origin,
    Overtaken,
    Records,
    Store,
    StoreError,
    Subject,
    Withdrawal,
    Withdrawn,
)

log = logging.getLogger("coheat.service")
T = TypeVar("T")
W = TypeVar("W", int, Appended, Withdrawn)
A = TypeVar("A")
OPTIMISTIC_LOADS = 2
"""How often a model is loaded while writes go on; the next time they wait for it."""
MOST_TRIES = 50
"""How often a write is checked again because others were faster."""


class State:
    """The models that answer now, one for each side, the store, and the threads that work for them.

    All of them get every change. Where one has to speak for all (of bundles, of items), it is that of the
    first side.
    """

    def __init__(
        self,
        run: Path | Sequence[Side],
        store: Store,
        metrics: Metrics,
        knobs: Mapping[str, float] | None = None,
        log_ids: bool = False,
        positive: frozenset[Kind] = TOOK,
    ):
        """The models are loaded here; `catch_up` is to be called before they are asked."""
        self.sides = (Side(ONLY, run),) if isinstance(run, Path) else tuple(run)
        self.store, self.metrics = store, metrics
        self.log_ids, self.positive = log_ids, positive
        self.models = Models(self.sides, knobs, positive)
        self.threads = Threads()
        self.follower = Follower(self.models, store, self.threads, metrics)
        self.reloading = asyncio.Lock()
        self.caught_up = self.ready = self.is_uncertain = False
        self.failure: Exception | None = None
        self.begun = 0
        """The number of the latest write before the start."""
        self.when_loaded: Callable[[], None] = lambda: None
        """Called when a model has been loaded and answers."""
        self._waiting = Waiting()
        self._lists = Lists(lambda side: self.models[side], self.threads.model)

    @property
    def served(self) -> LoadedModel:
        """The model of the first side."""
        return self.models.first

    def catch_up(self) -> None:
        """Bring the models up to date with the store."""
        for loaded in self.models:
            loaded.replay(self.store)
        self.begun = self.served.sequence
        self.caught_up = True
        self._count()

    async def start(self) -> None:
        """Catch up and warm up, beside the event loop, which answers meanwhile; a fault is kept."""
        try:
            await self.threads.run(self.threads.aside, self.catch_up)
            await self.threads.run(self.threads.model, self._warm_up)
        except Exception as error:
            self.failure = error
            return
        self.when_loaded()
        self.follower.start_watching()
        self.ready = True
        self.metrics.ready.set(1)

    def _warm_up(self) -> None:
        for loaded in self.models:
            warm_up(loaded)

    # --- questions ------------------------------------------------------------------------------

    async def ask(self, question: Callable[[Recommender], T], user_id: str | None = None) -> T:
        """Put a question to the model of the first side, or to the one that answers this user."""

        def ask() -> T:
            loaded = self.models.first if user_id is None else self.models.of_user(user_id)
            return question(loaded.recommender)

        return await self.threads.run(self.threads.model, ask)

    async def recommend(self, asker: Asker, wanted: Wanted) -> UserList:
        """One user's list, computed together with those of the same kind that wait at that moment.

        Who gives no name falls on a side by what they have.
        """
        side = side_of(self.sides, asker.user_id or repr((asker.item_ids, asker.bundle_ids))).name
        self.metrics.lists.labels(side).inc()
        return await self._lists.recommend(side, asker, wanted)

    # --- changes --------------------------------------------------------------------------------

    async def _changed(self, change: Callable[[], Coroutine[Any, Any, A]]) -> A:
        """One change at a time. Where others were faster, it is followed what they did, and checked again."""
        self.store.check_reachable()  # rather than to wait with many others, and then be refused
        async with self.follower.changing:
            if self.is_uncertain:  # what the store may hold from one that was refused is made, too
                await self._on_disk(self.store.check)
                await self.follower.follow()
                self.is_uncertain = False
            for _ in range(MOST_TRIES):
                self.store.check_reachable()
                try:
                    return await change()
                except Overtaken:
                    await self.follower.follow()
        raise StoreError(f"overtaken by other writes {MOST_TRIES} times in a row", CONTESTED)

    async def create_bundle(
        self,
        bundle_id: str,
        item_ids: Sequence[str],
        request: str | None = None,
        columns: Mapping[str, Value] | None = None,
    ) -> tuple[Bundle, bool]:
        """Publish a bundle that is not there yet; the bundle, and that it was made. `request` names the one
        that asks, if it may ask again."""

        async def change() -> tuple[Bundle, bool]:
            has_bundle = self.models.has_bundle(bundle_id)
            if has_bundle and request is not None and await self._was_made_by(bundle_id, request):
                return await self._current(bundle_id), True
            if has_bundle or self.models.waits(bundle_id):
                waits = "" if has_bundle else ", which waits for a model that knows its items"
                raise Conflict(f"there is a bundle {shortened(bundle_id)} already{waits}; PUT replaces it")
            return await self._put(bundle_id, item_ids, request, columns)

        return await self._changed(change)

    async def _was_made_by(self, bundle_id: str, request: str) -> bool:
        stored = await self._on_disk(lambda: self.store.bundle(bundle_id))
        if stored is None or stored.request is None:
            return False
        key, body = request.split(":")
        made_by, made_of = stored.request.split(":")
        if key == made_by and body != made_of:
            raise DataError("this Idempotency-Key was used for another body; take a new one for each request")
        return stored.request == request

    async def replace_bundle(
        self, bundle_id: str, item_ids: Sequence[str], matching: str | None = None
    ) -> tuple[Bundle, bool]:
        """Give a bundle other items, or publish it where there is none; it, and whether it was made."""

        async def change() -> tuple[Bundle, bool]:
            await self._check_match(bundle_id, matching)
            return await self._put(bundle_id, item_ids)

        return await self._changed(change)

    async def _put(
        self,
        bundle_id: str,
        item_ids: Sequence[str],
        request: str | None = None,
        columns: Mapping[str, Value] | None = None,
    ) -> tuple[Bundle, bool]:
        """Write a bundle, whether or not it is there; a model that has it only now is told all about it."""
        await self.ask(lambda _: self.models.check_bundle(bundle_id, item_ids))
        if columns:
            await self.ask(lambda model: model.check_described("bundle", bundle_id, columns))
        was_here, waited = self.models.has_bundle(bundle_id), self.models.waits(bundle_id)
        made_on = None if was_here else self.models.fingerprints
        await self._store(
            lambda origin: self.store.put_bundle(bundle_id, item_ids, made_on, request, columns, origin),
            "bundle",
            about_bundle(bundle_id),
        )
        return await self._current(bundle_id), not (was_here or waited)

    async def describe_bundle(
        self, bundle_id: str, columns: Mapping[str, Value], matching: str | None = None
    ) -> Bundle:
        """Say something of a bundle: a title, a price, that it is out of stock. What is known of it stays."""

        async def change() -> Bundle:
            await self._check_match(bundle_id, matching)
            await self._current(bundle_id)
            await self._describe("bundle", bundle_id, columns)
            return await self._current(bundle_id)

        return await self._changed(change)

    async def describe_item(self, item_id: str, columns: Mapping[str, Value]) -> None:
        """Say something of an item."""

        async def change() -> None:
            if not self.models.has_item(item_id):
                raise UnknownIdError(f"unknown item id {shortened(item_id)}")
            await self._describe("item", item_id, columns)

        await self._changed(change)

    async def _describe(self, subject: Subject, name: str, columns: Mapping[str, Value]) -> None:
        await self.ask(lambda model: model.check_described(subject, name, columns))
        await self._store(
            lambda origin: self.store.put_columns(subject, name, columns, origin),
            f"columns of {subject}",
            about_bundle(name) if subject == "bundle" else about_item(name),
        )

    async def turn(self, name: str, value: float | None) -> None:
        """Let a knob stand at this value from now on, also after a restart and for the next model; None: as
        the service was started."""

        async def change() -> None:
            await self.ask(lambda _: self.models.check_knob(name, value))
            await self._remember("knob", name, {"value": value}, {"knob": name, "value": value})

        await self._changed(change)

    async def _remember(
        self,
        subject: Subject,
        name: str,
        columns: Mapping[str, Value],
        about: Mapping[str, object] | None = None,
    ) -> None:
        told = {"key": logs.key_name.get(), **(about or {})}
        await self._store(
            lambda origin: self.store.put_columns(subject, name, columns, origin), subject, told
        )

    async def _check_match(self, bundle_id: str, matching: str | None) -> None:
        """Raise where somebody asks for a change to what is no longer there (the header If-Match)."""
        if matching is None:
            return
        there = self.models.has_bundle(bundle_id)
        tags = {tag.strip() for tag in matching.split(",")}
        if not there or not ("*" in tags or (await self._current(bundle_id)).etag in tags):
            raise PreconditionFailed(
                f"the bundle {shortened(bundle_id)} is no longer as you have seen it; read it again"
            )

    async def _current(self, bundle_id: str) -> Bundle:
        return await self.ask(lambda _: self.models.described(bundle_id))

    async def remove_bundle(self, bundle_id: str, matching: str | None = None) -> None:
        """Take a bundle from the shelf, whether it was trained or added, or waits for a place there."""

        async def change() -> None:
            await self._check_match(bundle_id, matching)
            if not self.models.has_bundle(bundle_id) and not self.models.waits(bundle_id):
                raise unknown_bundle(bundle_id)
            await self._store(
                lambda origin: self.store.remove_bundle(bundle_id, origin), "removal", about_bundle(bundle_id)
            )

        await self._changed(change)

    async def record(self, interactions: Sequence[NewInteraction]) -> Remembered:
        """What happened between users and bundles, all of it or nothing; the same again changes nothing."""

        async def change() -> None:
            if not mine.is_done:
                await self._record_waiting()

        mine = self._waiting.add(interactions)
        try:
            await self._changed(change)
        finally:
            self._waiting.remove(mine)
        return mine.result()

    async def _record_waiting(self) -> None:
        """Write the interactions of all who wait."""
        waiting = self._waiting.together(self.models)
        rows = [row for one in waiting for row in one.interactions]
        if not waiting:
            return
        try:
            stored, counted = await self._store(
                lambda origin: self.store.add_interactions(rows, origin),
                "interaction",
                *(one.about for one in waiting),
            )
        except StoreError as error:
            self._waiting.refuse(waiting, error)
        else:
            self._waiting.settle(waiting, stored, counted)

    async def withdraw(self, withdrawals: Sequence[Withdrawal]) -> int:
        """Take interactions back, all of them or none; how many there were."""

        async def change() -> int:
            gone, _ = await self._store(
                lambda origin: self.store.remove_interactions(withdrawals, origin),
                "withdrawal",
                about_rows(withdrawals),
            )
            return len(gone.interactions)

        return await self._changed(change)

    async def read(self, question: Callable[[Records], T]) -> T:
        """Put a question to the store, beside those who write."""
        return await self.threads.run(self.threads.records, lambda: question(self.store))

    async def check_store(self) -> None:
        """Raise `StoreError` where the next write would fail."""
        self.store.check_reachable()
        await self._on_disk(self.store.check)

    async def _store(
        self, write: Callable[[Origin], W], kind: str, *about: Mapping[str, object]
    ) -> tuple[W, list[bool]]:
        """Write to the store, and to the log who did it (ids of users only where that is wanted); then make
        it in the models, and whatever others did before it. Of interactions, which of the new ones count."""
        started = time.perf_counter()
        origin = Origin(self.models.sequence, logs.key_name.get())
        hidden = () if self.log_ids else ("user_id",)
        told = [{k: v for k, v in one.items() if k not in hidden} for one in about]
        try:
            written, news = await self._on_disk(lambda: self._written(write, origin))
        except StoreError as error:
            self.is_uncertain = self.is_uncertain or error.is_uncertain
            self.metrics.failed_writes.labels(kind).inc(len(told))
            for one in told:
                logs.event("write failed", kind=kind, **one, reason=error.reason)
            raise
        sequence = written if isinstance(written, int) else written.sequence
        for one in told:
            logs.event("write", kind=kind, **one, sequence=sequence)
        logs.written.set(sequence)
        self.metrics.write_seconds.observe(time.perf_counter() - started)
        self.metrics.writes.labels(kind).inc(len(told))
        counted = await self.follower.follow(news)
        return written, counted.get(sequence, [])

    def _written(self, write: Callable[[Origin], W], origin: Origin) -> tuple[W, list[News] | None]:
        """Write, and read what is to be made in the models then; None where changes were missed."""
        written = write(origin)
        try:
            return written, self.follower.news()
        except Missed:
            return written, None
        except StoreError as error:
            error.is_uncertain, error.reason = True, NOT_FOLLOWED
            raise

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await self.threads.run(self.threads.disk, work)

    # --- the model ------------------------------------------------------------------------------

    async def reload(self) -> LoadedModel:
        """Load the runs' models anew, aside; on any fault the old ones stay and the fault is raised."""
        async with self.reloading:
            try:
                await self._load_aside()
            except Exception as error:
                self.metrics.reloads.labels("failed").inc()
                logs.event("reload failed", reason=str(error), key=logs.key_name.get())
                raise
            self.metrics.reloads.labels("succeeded").inc()
            logs.event("reload", generation=self.served.generation, key=logs.key_name.get())
            await self._note_models()
            self._count()
            self.when_loaded()
            return self.served

    async def _note_models(self) -> None:
        """Write down which models were loaded; where that cannot be, they serve all the same."""
        for side, loaded in self.models.loaded.items():
            about: dict[str, Value] = {"side": side, "model": str(loaded.description.get("model"))}
            note = partial(self._remember, "model", loaded.fingerprint, about)
            with contextlib.suppress(StoreError):
                await self._changed(note)

    async def _load_aside(self) -> None:
        generation = self.served.generation + 1
        for _ in range(OPTIMISTIC_LOADS):
            with contextlib.suppress(Outdated):
                fresh = await self.follower.loaded(generation)
                async with self.follower.changing:  # the little that came since; nothing may come in between
                    await self.follower.catch_up(fresh)
                    self.models.loaded, self.is_uncertain = fresh, False
                return
        async with self.follower.changing:
            self.models.loaded, self.is_uncertain = await self.follower.loaded(generation), False

    def _count(self) -> None:
        self.metrics.model_loaded(self.served.recommender.n_bundles)

    def close(self) -> None:
        """End the threads, then let go of the store."""
        self.ready = False
        self.threads.close()
        self.store.close()
