"""The served model and its changes: who may ask and change it, in which order, and how it is exchanged.

All questions to the model run on one thread, so that the event loop stays free to take or refuse
requests; lists asked for while it computes are computed together next, which is what keeps it fast under
load. A change is checked, then written to the store, then made in the model, then acknowledged; changes
wait for each other, questions never wait for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from coheat.errors import CoheatError, DataError, UnknownIdError
from coheat.ids import shortened
from coheat.recommender import BundleInfo, Recommender, UserInfo
from coheat.service import changes, logs
from coheat.service.lists import Asker, Lists, UserList, Wanted
from coheat.service.metrics import Metrics
from coheat.service.served import LoadedModel, Outdated, load, warm_up
from coheat.service.store import (
    TOOK,
    Appended,
    Kind,
    NewInteraction,
    Records,
    Store,
    StoreError,
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


class Conflict(CoheatError):
    """What is to be made is there already."""


class PreconditionFailed(CoheatError):
    """What is to be changed is no longer as the one who asks has seen it."""


@dataclass(frozen=True)
class Written:
    """A bundle as it stands after a change."""

    bundle: BundleInfo
    unknown_item_ids: list[str]
    created: bool

    @property
    def etag(self) -> str:
        """Names what can be written of a bundle, and not its popularity, which moves by itself."""
        items = sorted({*self.bundle.item_ids, *self.unknown_item_ids})
        return f'"{hashlib.sha256(json.dumps(items).encode()).hexdigest()[:16]}"'


@dataclass(frozen=True)
class Remembered:
    """Of each interaction whether it was not there before, and whether the model counted it."""

    is_new: list[bool]
    counted: list[bool]


class UnknownRow(UnknownIdError):
    """One of several rows names what is not there."""

    def __init__(self, place: int, message: str):
        super().__init__(message)
        self.place = place


class State:
    """The model that answers now, the store, and the threads that work for them."""

    def __init__(
        self,
        run: Path,
        store: Store,
        metrics: Metrics,
        knobs: Mapping[str, float] | None = None,
        log_ids: bool = False,
        positive: frozenset[Kind] = TOOK,
    ):
        """The model is loaded here; `catch_up` is to be called before it is asked."""
        self.run, self.store, self.metrics, self.knobs = run, store, metrics, knobs
        self.log_ids, self.positive = log_ids, positive
        self.served = load(run, 1, knobs, positive)
        self.changing = asyncio.Lock()
        self.reloading = asyncio.Lock()
        self.caught_up = self.ready = self.is_uncertain = False
        self.failure: Exception | None = None
        self._model = ThreadPoolExecutor(1, "model")
        self._disk = ThreadPoolExecutor(1, "disk")
        self._aside = ThreadPoolExecutor(1, "aside")
        self._records = ThreadPoolExecutor(1, "records")
        self._lists = Lists(lambda: self.served.recommender, self._model)

    def catch_up(self) -> None:
        """Bring the model up to date with the store."""
        self.served.replay(self.store)
        self.caught_up = True
        self._count()

    async def start(self) -> None:
        """Catch up and warm up, beside the event loop, which answers meanwhile; a fault is kept."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._aside, self.catch_up)
            await self.ask(lambda _: warm_up(self.served))
        except Exception as error:
            self.failure = error
            return
        self.ready = True
        self.metrics.ready.set(1)

    # --- questions ------------------------------------------------------------------------------

    async def ask(self, question: Callable[[Recommender], T]) -> T:
        """Put a question to the model, on its thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._model, lambda: question(self.served.recommender))

    async def recommend(self, asker: Asker, wanted: Wanted) -> UserList:
        """One user's list, computed together with those of the same kind that wait at that moment."""
        return await self._lists.recommend(asker, wanted)

    # --- changes --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """One change at a time; before it, what the store may hold from one that was refused is made, too."""
        async with self.changing:
            if self.is_uncertain:
                await self._on_disk(self.store.check)
                try:
                    await self.ask(lambda _: self.served.replay(self.store))
                except Outdated:
                    self.served = await self._loaded(self.served.generation + 1)
                self.is_uncertain = False
                self._count()
            yield

    async def create_bundle(
        self, bundle_id: str, item_ids: Sequence[str], request: str | None = None
    ) -> Written:
        """Publish a bundle that is not there yet; `request` names the one that asks, if it may ask again."""
        async with self._change():
            has_bundle = self.served.recommender.has_bundle(bundle_id)
            if has_bundle and request is not None and await self._was_made_by(bundle_id, request):
                return replace(await self._current(bundle_id), created=True)
            if has_bundle or bundle_id in self.served.waiting_bundles:
                waits = "" if has_bundle else ", which waits for a model that knows its items"
                raise Conflict(f"there is a bundle {shortened(bundle_id)} already{waits}; PUT replaces it")
            return await self._add(bundle_id, item_ids, request)

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
            if not self.served.recommender.has_bundle(bundle_id):
                return await self._add(bundle_id, item_ids)
            await self._check(bundle_id, item_ids, replacing=True)
            sequence = await self._store(
                lambda: self.store.put_bundle(bundle_id, item_ids, None), "bundle", bundle_id
            )
            await self._follow(lambda loaded: changes.put_bundle(loaded, sequence, bundle_id, item_ids, ()))
            return await self._current(bundle_id)

    async def _add(self, bundle_id: str, item_ids: Sequence[str], request: str | None = None) -> Written:
        """A bundle that the model does not have; it may have been written before, and waited since."""
        await self._check(bundle_id, item_ids, replacing=False)
        waited = bundle_id in self.served.waiting_bundles
        made_on = self.served.fingerprint
        sequence = await self._store(
            lambda: self.store.put_bundle(bundle_id, item_ids, made_on, request), "bundle", bundle_id
        )
        takers = await self._on_disk(lambda: self.store.takers(bundle_id, self.positive))
        await self._follow(lambda loaded: changes.put_bundle(loaded, sequence, bundle_id, item_ids, takers))
        self.metrics.bundles.inc()
        return replace(await self._current(bundle_id), created=not waited)

    async def _check(self, bundle_id: str, item_ids: Sequence[str], replacing: bool) -> None:
        """Raise where the model can make nothing of these items."""
        try:
            await self.ask(
                lambda model: model.check_bundles({bundle_id: item_ids}, replacing, refuse_unknown=True)
            )
        except UnknownIdError as error:
            raise DataError(str(error)) from None

    async def _check_match(self, bundle_id: str, matching: str | None) -> None:
        """Raise where somebody asks for a change to what is no longer there (the header If-Match)."""
        if matching is None:
            return
        there = self.served.recommender.has_bundle(bundle_id)
        tags = {tag.strip() for tag in matching.split(",")}
        if not there or not ("*" in tags or (await self._current(bundle_id)).etag in tags):
            raise PreconditionFailed(
                f"the bundle {shortened(bundle_id)} is no longer as you have seen it; read it again"
            )

    async def _current(self, bundle_id: str) -> Written:
        return await self.ask(lambda model: self.described(model, bundle_id))

    def described(self, model: Recommender, bundle_id: str) -> Written:
        """A bundle as it stands."""
        if bundle_id in self.served.waiting_bundles and not model.has_bundle(bundle_id):
            raise UnknownIdError(
                f"the bundle {shortened(bundle_id)} waits for a model that knows its items; DELETE withdraws "
                "it"
            )
        info = require_bundle(model, bundle_id).bundle(bundle_id)
        return Written(info, self.served.unknown_items.get(bundle_id, []), created=False)

    async def remove_bundle(self, bundle_id: str, matching: str | None = None) -> None:
        """Take a bundle from the shelf, whether it was trained or added, or waits for a place there."""
        async with self._change():
            await self._check_match(bundle_id, matching)
            there = self.served.recommender.has_bundle(bundle_id)
            if bundle_id not in self.served.waiting_bundles:
                require_bundle(self.served.recommender, bundle_id)
            sequence = await self._store(lambda: self.store.remove_bundle(bundle_id), "removal", bundle_id)
            await self._follow(lambda loaded: changes.remove_bundle(loaded, sequence, bundle_id))
            self.metrics.bundles.dec(int(there))

    async def record(self, interactions: Sequence[NewInteraction]) -> Remembered:
        """What happened between users and bundles, all of it or nothing; the same again changes nothing."""
        async with self._change():
            for place, one in enumerate(interactions):
                if not self.served.recommender.has_bundle(one.bundle_id):
                    raise UnknownRow(place, f"unknown bundle id {shortened(one.bundle_id)}")
            stored = await self._store(
                lambda: self.store.add_interactions(interactions), "interaction", **_about(interactions)
            )
            counted = await self._follow(lambda loaded: changes.record(loaded, stored.sequence, interactions))
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
        """Make in the model, on its thread, what is stored already."""
        return await self.ask(lambda _: change(self.served))

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
        """Load the run's model anew, aside; on any fault the old one stays and the fault is raised."""
        async with self.reloading:
            try:
                served = await self._load_aside()
            except Exception as error:
                self.metrics.reloads.labels("failed").inc()
                logs.event("reload failed", reason=str(error), key=logs.key_name.get())
                raise
            self.metrics.reloads.labels("succeeded").inc()
            logs.event("reload", generation=served.generation, key=logs.key_name.get())
            self._count()
            return served

    async def _load_aside(self) -> LoadedModel:
        generation = self.served.generation + 1
        for _ in range(OPTIMISTIC_LOADS):
            with contextlib.suppress(Outdated):
                fresh = await self._loaded(generation)
                async with self.changing:  # the little that came since; then nothing may come in between
                    await self._beside(fresh.replay, self.store)
                    self.served, self.is_uncertain = fresh, False
                return fresh
        async with self.changing:
            self.served, self.is_uncertain = await self._loaded(generation), False
        return self.served

    async def _loaded(self, generation: int) -> LoadedModel:
        """Loaded and brought up to date, as far as nothing is written meanwhile."""
        fresh = await self._beside(load, self.run, generation, self.knobs, self.positive)
        while True:
            before = fresh.sequence
            await self._beside(fresh.replay, self.store)
            if fresh.sequence - before <= FEW:
                return fresh

    async def _beside(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run something long on the thread for it."""
        return await asyncio.get_running_loop().run_in_executor(self._aside, work, *arguments)

    def _count(self) -> None:
        self.metrics.model_loaded(len(self.served.recommender.popularity))

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


def require_bundle(recommender: Recommender, bundle_id: str) -> Recommender:
    """The recommender, if it has the bundle. The library's own error looks for similar ids, which takes long
    enough for a few wrong requests to hold up the right ones."""
    if not recommender.has_bundle(bundle_id):
        raise UnknownIdError(f"unknown bundle id {shortened(bundle_id)}")
    return recommender


def require_user(recommender: Recommender, user_id: str) -> UserInfo:
    """What is known of a user; an error where that is nothing at all."""
    found = recommender.user(user_id)
    if not found.is_known and not found.recorded_ids:
        raise UnknownIdError(f"unknown user id {shortened(user_id)}")
    return found
