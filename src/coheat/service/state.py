"""The served model and its changes: who may ask and change it, in which order, and how it is exchanged.

All questions to the model run on one thread, so that the event loop stays free to take or refuse
requests; lists asked for while it computes are computed together next, which is what keeps it fast under
load. A change is checked, then written to the store, then made in the model, then acknowledged; changes
wait for each other, questions never wait for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from coheat.attributes import Value
from coheat.errors import DataError, UnknownIdError
from coheat.ids import shortened
from coheat.recommender import Recommender
from coheat.service import changes, logs
from coheat.service.lists import Asker, Lists, UserList, Wanted
from coheat.service.metrics import Metrics
from coheat.service.models import Models
from coheat.service.results import (
    Conflict,
    PreconditionFailed,
    Remembered,
    UnknownRow,
    Written,
    unknown_bundle,
)
from coheat.service.served import LoadedModel, Outdated, warm_up
from coheat.service.sides import ONLY, Side, side_of
from coheat.service.store import (
    TOOK,
    Appended,
    Kind,
    NewInteraction,
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
OPTIMISTIC_LOADS = 2
"""How often a model is loaded while writes go on; the next time they wait for it."""
FEW = 100
"""Writes that are caught up with in no time."""


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
        self.changing = asyncio.Lock()
        self.reloading = asyncio.Lock()
        self.caught_up = self.ready = self.is_uncertain = False
        self.failure: Exception | None = None
        self.when_loaded: Callable[[], None] = lambda: None
        """Called when a model has been loaded and answers."""
        self._model = ThreadPoolExecutor(1, "model")
        self._disk = ThreadPoolExecutor(1, "disk")
        self._aside = ThreadPoolExecutor(1, "aside")
        self._records = ThreadPoolExecutor(1, "records")
        self._lists = Lists(lambda side: self.models[side], self._model)

    @property
    def served(self) -> LoadedModel:
        """The model of the first side."""
        return self.models.first

    def catch_up(self) -> None:
        """Bring the models up to date with the store."""
        for loaded in self.models:
            loaded.replay(self.store)
        self.caught_up = True
        self._count()

    async def start(self) -> None:
        """Catch up and warm up, beside the event loop, which answers meanwhile; a fault is kept."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._aside, self.catch_up)
            await self._follow(warm_up)
        except Exception as error:
            self.failure = error
            return
        self.when_loaded()
        self.ready = True
        self.metrics.ready.set(1)

    # --- questions ------------------------------------------------------------------------------

    async def ask(self, question: Callable[[Recommender], T], user_id: str | None = None) -> T:
        """Put a question to the model of the first side, or to the one that answers this user."""
        loop = asyncio.get_running_loop()

        def ask() -> T:
            loaded = self.models.first if user_id is None else self.models.of_user(user_id)
            return question(loaded.recommender)

        return await loop.run_in_executor(self._model, ask)

    async def recommend(self, asker: Asker, wanted: Wanted) -> UserList:
        """One user's list, computed together with those of the same kind that wait at that moment.

        Who gives no name falls on a side by what they have.
        """
        side = side_of(self.sides, asker.user_id or repr((asker.item_ids, asker.bundle_ids))).name
        self.metrics.lists.labels(side).inc()
        return await self._lists.recommend(side, asker, wanted)

    # --- changes --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """One change at a time; before it, what the store may hold from one that was refused is made, too."""
        async with self.changing:
            if self.is_uncertain:
                await self._on_disk(self.store.check)
                try:
                    await self._follow(lambda loaded: loaded.replay(self.store))
                except Outdated:
                    self.models.loaded = await self._loaded(self.served.generation + 1)
                self.is_uncertain = False
                self._count()
            yield

    async def create_bundle(
        self,
        bundle_id: str,
        item_ids: Sequence[str],
        request: str | None = None,
        columns: Mapping[str, Value] | None = None,
    ) -> Written:
        """Publish a bundle that is not there yet; `request` names the one that asks, if it may ask again."""
        async with self._change():
            has_bundle = self.models.has_bundle(bundle_id)
            if has_bundle and request is not None and await self._was_made_by(bundle_id, request):
                return replace(await self._current(bundle_id), created=True)
            if has_bundle or self.models.waits(bundle_id):
                waits = "" if has_bundle else ", which waits for a model that knows its items"
                raise Conflict(f"there is a bundle {shortened(bundle_id)} already{waits}; PUT replaces it")
            return await self._put(bundle_id, item_ids, request, columns)

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
    ) -> Written:
        """Give a bundle other items, or publish it where there is none."""
        async with self._change():
            await self._check_match(bundle_id, matching)
            return await self._put(bundle_id, item_ids)

    async def _put(
        self,
        bundle_id: str,
        item_ids: Sequence[str],
        request: str | None = None,
        columns: Mapping[str, Value] | None = None,
    ) -> Written:
        """Write a bundle, whether or not it is there; a model that has it only now is told all about it."""
        await self.ask(lambda _: self.models.check_bundle(bundle_id, item_ids))
        if columns:
            await self.ask(lambda model: model.check_described("bundle", bundle_id, columns))
        was_here, waited = self.models.has_bundle(bundle_id), self.models.waits(bundle_id)
        made_on = None if was_here else self.models.fingerprints
        sequence = await self._store(
            lambda: self.store.put_bundle(bundle_id, item_ids, made_on, request, columns), "bundle", bundle_id
        )
        takers, said = await self._on_disk(
            lambda: (
                self.store.takers(bundle_id, self.positive),
                self.store.columns_of("bundle", bundle_id),
            )
        )
        await self._follow(
            lambda loaded: changes.put_bundle(loaded, sequence, bundle_id, item_ids, takers, said)
        )
        self.metrics.bundles.inc(int(not was_here))
        return replace(await self._current(bundle_id), created=not (was_here or waited))

    async def describe_bundle(
        self, bundle_id: str, columns: Mapping[str, Value], matching: str | None = None
    ) -> Written:
        """Say something of a bundle: a title, a price, that it is out of stock. What is known of it stays."""
        async with self._change():
            await self._check_match(bundle_id, matching)
            await self._current(bundle_id)
            await self._describe("bundle", bundle_id, columns)
            return await self._current(bundle_id)

    async def describe_item(self, item_id: str, columns: Mapping[str, Value]) -> None:
        """Say something of an item."""
        async with self._change():
            if not self.models.has_item(item_id):
                raise UnknownIdError(f"unknown item id {shortened(item_id)}")
            await self._describe("item", item_id, columns)

    async def _describe(self, subject: Subject, name: str, columns: Mapping[str, Value]) -> None:
        await self.ask(lambda model: model.check_described(subject, name, columns))
        sequence = await self._store(
            lambda: self.store.put_columns(subject, name, columns), f"columns of {subject}", name
        )
        await self._follow(lambda loaded: changes.describe(loaded, sequence, subject, name, columns))

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

    async def _current(self, bundle_id: str) -> Written:
        return await self.ask(lambda _: self.models.described(bundle_id))

    async def remove_bundle(self, bundle_id: str, matching: str | None = None) -> None:
        """Take a bundle from the shelf, whether it was trained or added, or waits for a place there."""
        async with self._change():
            await self._check_match(bundle_id, matching)
            there = self.models.has_bundle(bundle_id)
            if not there and not self.models.waits(bundle_id):
                raise unknown_bundle(bundle_id)
            sequence = await self._store(lambda: self.store.remove_bundle(bundle_id), "removal", bundle_id)
            await self._follow(lambda loaded: changes.remove_bundle(loaded, sequence, bundle_id))
            self.metrics.bundles.dec(int(there))

    async def record(self, interactions: Sequence[NewInteraction]) -> Remembered:
        """What happened between users and bundles, all of it or nothing; the same again changes nothing."""
        async with self._change():
            for place, one in enumerate(interactions):
                if not self.models.has_bundle(one.bundle_id):
                    raise UnknownRow(place, f"unknown bundle id {shortened(one.bundle_id)}")
            stored = await self._store(
                lambda: self.store.add_interactions(interactions), "interaction", **_about(interactions)
            )
            counted = await self._follow(lambda loaded: changes.record(loaded, stored, interactions))
            return Remembered(stored.is_new, counted)

    async def withdraw(self, withdrawals: Sequence[Withdrawal]) -> int:
        """Take interactions back, all of them or none; how many there were."""
        async with self._change():
            gone = await self._store(
                lambda: self.store.remove_interactions(withdrawals), "withdrawal", **_about(withdrawals)
            )
            pairs = {(one.user_id, one.bundle_id) for one in gone.interactions}
            remaining = await self._on_disk(
                lambda: frozenset(pair for pair in pairs if self.store.has_taken(*pair, self.positive))
            )
            await self._follow(
                lambda loaded: changes.withdraw(loaded, gone.sequence, gone.interactions, remaining)
            )
            return len(gone.interactions)

    async def read(self, question: Callable[[Records], T]) -> T:
        """Put a question to the store, beside those who write."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._records, question, self.store)

    async def _follow(self, change: Callable[[LoadedModel], T]) -> T:
        """Make in all models, on their thread, what is stored already; what it came to in the first."""
        return (await self.ask(lambda _: [change(loaded) for loaded in self.models]))[0]

    async def check_store(self) -> None:
        """Raise `StoreError` where the next write would fail."""
        await self._on_disk(self.store.check)

    async def _store(self, write: Callable[[], W], kind: str, bundle_id: str, user_id: str = "") -> W:
        """Write to the disk, and to the log who did it; ids of users only where that is wanted."""
        started = time.perf_counter()
        about: dict[str, object] = {"kind": kind, "bundle_id": bundle_id, "key": logs.key_name.get()}
        if user_id and self.log_ids:
            about["user_id"] = user_id
        try:
            written = await self._on_disk(write)
        except StoreError as error:
            self.is_uncertain = self.is_uncertain or error.is_uncertain
            self.metrics.failed_writes.labels(kind).inc()
            logs.event("write failed", **about, reason=error.reason)
            raise
        sequence = written if isinstance(written, int) else written.sequence
        logs.event("write", **about, sequence=sequence)
        self.metrics.write_seconds.observe(time.perf_counter() - started)
        self.metrics.writes.labels(kind).inc()
        return written

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

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
            self._count()
            self.when_loaded()
            return self.served

    async def _load_aside(self) -> None:
        generation = self.served.generation + 1
        for _ in range(OPTIMISTIC_LOADS):
            with contextlib.suppress(Outdated):
                fresh = await self._loaded(generation)
                async with self.changing:  # the little that came since; then nothing may come in between
                    for loaded in fresh.values():
                        await self._beside(loaded.replay, self.store)
                    self.models.loaded, self.is_uncertain = fresh, False
                return
        async with self.changing:
            self.models.loaded, self.is_uncertain = await self._loaded(generation), False

    async def _loaded(self, generation: int) -> dict[str, LoadedModel]:
        """Loaded and brought up to date, as far as nothing is written meanwhile."""
        fresh = await self._beside(self.models.load, generation)
        while True:
            before = min(loaded.sequence for loaded in fresh.values())
            for loaded in fresh.values():
                await self._beside(loaded.replay, self.store)
            if max(loaded.sequence for loaded in fresh.values()) - before <= FEW:
                return fresh

    async def _beside(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run something long on the thread for it."""
        return await asyncio.get_running_loop().run_in_executor(self._aside, work, *arguments)

    def _count(self) -> None:
        self.metrics.model_loaded(self.served.recommender.n_bundles)

    def close(self) -> None:
        """End the threads, then let go of the store."""
        self.ready = False
        for threads in (self._records, self._aside, self._model, self._disk):
            threads.shutdown(wait=True)
        self.store.close()


def _about(rows: Sequence[NewInteraction] | Sequence[Withdrawal]) -> dict[str, str]:
    """What the log says of them; of many, that they are many."""
    if len(rows) == 1:
        return {"bundle_id": rows[0].bundle_id, "user_id": rows[0].user_id}
    return {"bundle_id": f"{len(rows)} rows"}
