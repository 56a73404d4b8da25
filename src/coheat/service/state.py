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
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from coheat.errors import CoheatError, DataError, UnknownIdError
from coheat.ids import shortened
from coheat.recommender import BundleInfo, Recommendation, Recommendations, Recommender, Recorded, UserInfo
from coheat.service import logs
from coheat.service.metrics import Metrics
from coheat.service.served import LoadedModel, Outdated, load, warm_up
from coheat.service.store import Store, StoreError

log = logging.getLogger("coheat.service")
T = TypeVar("T")
OPTIMISTIC_LOADS = 2
"""How often a model is loaded while writes go on; the next time they wait for it."""
FEW = 100
"""Writes that are caught up with in no time."""


class Conflict(CoheatError):
    """What is to be made is there already."""


class PreconditionFailed(CoheatError):
    """What is to be changed is no longer as the one who asks has seen it."""


@dataclass(frozen=True)
class Wanted:
    """What kind of list is asked for; those of one kind are computed together."""

    k: int
    candidates: Literal["all", "new"] | tuple[str, ...] = "all"
    exclude_seen: bool = True
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asker:
    """For whom: a user's id, or nobody's, and what they have."""

    user_id: str
    item_ids: tuple[str, ...] = ()
    bundle_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class UserList:
    """One user's list, and why it is short, where it is."""

    source: str
    rows: list[Recommendation]
    note: str | None


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


ListOrError = UserList | Exception
Waiting = list[tuple[Asker, "asyncio.Future[UserList]"]]


class State:
    """The model that answers now, the store, and the threads that work for them."""

    def __init__(
        self,
        run: Path,
        store: Store,
        metrics: Metrics,
        knobs: Mapping[str, float] | None = None,
        log_ids: bool = False,
    ):
        """The model is loaded here; `catch_up` is to be called before it is asked."""
        self.run, self.store, self.metrics, self.knobs = run, store, metrics, knobs
        self.log_ids = log_ids
        self.served = load(run, 1, knobs)
        self.changing = asyncio.Lock()
        self.reloading = asyncio.Lock()
        self.caught_up = self.ready = self.is_uncertain = False
        self.failure: Exception | None = None
        self._model = ThreadPoolExecutor(1, "model")
        self._disk = ThreadPoolExecutor(1, "disk")
        self._aside = ThreadPoolExecutor(1, "aside")
        self._waiting: dict[Wanted, Waiting] = {}
        self._queueing = threading.Lock()  # whoever joins a list must not miss its being taken away

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
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[UserList] = loop.create_future()
        with self._queueing:
            waiting = self._waiting.setdefault(wanted, [])
            waiting.append((asker, answer))
            is_first = len(waiting) == 1
        if is_first:
            self._model.submit(self._recommend_waiting, loop, wanted)
        return await answer

    def _recommend_waiting(self, loop: asyncio.AbstractEventLoop, wanted: Wanted) -> None:
        with self._queueing:
            waiting = self._waiting.pop(wanted)
        lists = _lists(self.served.recommender, [asker for asker, _ in waiting], wanted)
        loop.call_soon_threadsafe(_deliver, waiting, lists)

    # --- changes --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """One change at a time; before it, what the store may hold from one that was refused is made, too."""
        async with self.changing:
            if self.is_uncertain:
                await self._on_disk(self.store.check)
                await self.ask(lambda _: self.served.replay(self.store))
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
            unknown = await self._check(bundle_id, item_ids, replacing=True)
            sequence = await self._store(
                lambda: self.store.put_bundle(bundle_id, item_ids, None), "bundle", bundle_id
            )

            def change(model: Recommender) -> BundleInfo:
                model.replace_bundles({bundle_id: item_ids})
                self.served.waiting_bundles.discard(bundle_id)
                self.served.note_unknown(bundle_id, unknown)
                self.served.reached(sequence)
                return model.bundle(bundle_id)

            return Written(await self.ask(change), unknown, created=False)

    async def _add(self, bundle_id: str, item_ids: Sequence[str], request: str | None = None) -> Written:
        """A bundle that the model does not have; it may have been written before, and waited since."""
        unknown = await self._check(bundle_id, item_ids, replacing=False)
        waited = bundle_id in self.served.waiting_bundles
        made_on = self.served.fingerprint
        sequence = await self._store(
            lambda: self.store.put_bundle(bundle_id, item_ids, made_on, request), "bundle", bundle_id
        )
        takers = await self._on_disk(lambda: self.store.takers(bundle_id))

        def change(model: Recommender) -> BundleInfo:
            model.add_bundles({bundle_id: item_ids})
            self.served.waiting_bundles.discard(bundle_id)
            self.served.note_unknown(bundle_id, unknown)
            self.served.recall(bundle_id, takers)
            self.served.reached(sequence)
            return model.bundle(bundle_id)

        added = await self.ask(change)
        self.metrics.bundles.inc()
        return Written(added, unknown, created=not waited)

    async def _check(self, bundle_id: str, item_ids: Sequence[str], replacing: bool) -> list[str]:
        """The items that the model does not know; an error where it can make nothing of the rest."""
        try:
            checked = await self.ask(lambda model: model.check_bundles({bundle_id: item_ids}, replacing))
        except UnknownIdError as error:
            raise DataError(str(error)) from None
        return checked.unknown_items.get(bundle_id, [])

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

            def change(model: Recommender) -> None:
                self.served.forget(bundle_id)
                if there:
                    model.remove_bundles([bundle_id])
                self.served.reached(sequence)

            await self.ask(change)
            self.metrics.bundles.dec(int(there))

    async def record(self, user_id: str, bundle_id: str) -> Recorded:
        """A user took a bundle; again it changes nothing."""
        async with self._change():
            require_bundle(self.served.recommender, bundle_id)
            sequence = await self._store(
                lambda: self.store.add_interaction(user_id, bundle_id), "interaction", bundle_id, user_id
            )

            def change(model: Recommender) -> Recorded:
                recorded = model.record(user_id, bundle_id)
                self.served.reached(sequence)
                return recorded

            return await self.ask(change)

    async def check_store(self) -> None:
        """Raise `StoreError` where the next write would fail."""
        await self._on_disk(self.store.check)

    async def _store(self, write: Callable[[], int], kind: str, bundle_id: str, user_id: str = "") -> int:
        """Write to the disk, and to the log who did it; ids of users only where that is wanted."""
        started = time.perf_counter()
        about = {"kind": kind, "bundle_id": bundle_id, "key": logs.key_name.get()}
        if user_id and self.log_ids:
            about["user_id"] = user_id
        try:
            sequence = await self._on_disk(write)
        except StoreError as error:
            self.is_uncertain = self.is_uncertain or error.is_uncertain
            self.metrics.failed_writes.labels(kind).inc()
            logs.event("write failed", **about, reason=error.reason)
            raise
        logs.event("write", **about, sequence=sequence)
        self.metrics.write_seconds.observe(time.perf_counter() - started)
        self.metrics.writes.labels(kind).inc()
        return sequence

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
        fresh = await self._beside(load, self.run, generation, self.knobs)
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
        for threads in (self._aside, self._model, self._disk):
            threads.shutdown(wait=True)
        self.store.close()


def _lists(recommender: Recommender, askers: Sequence[Asker], wanted: Wanted) -> dict[Asker, ListOrError]:
    """A list for each asker, or the error that stands in its place.

    Those of whom nothing more is said are computed together; so are the others, under names that nobody in
    training has: ids are never empty, and these begin with a character that no text holds. Where one of
    several is refused, each is asked alone.
    """
    distinct = list(dict.fromkeys(askers))
    names = {asker: asker.user_id or f"\udcff{place}" for place, asker in enumerate(distinct)}
    said = [asker for asker in distinct if asker.item_ids or asker.bundle_ids]
    shared = Counter(names.values())
    if any(shared[names[asker]] > 1 for asker in said):
        return {asker: one for part in distinct for asker, one in _lists(recommender, [part], wanted).items()}
    try:
        found = recommender.recommend(
            list(names.values()),
            wanted.k,
            wanted.candidates,
            wanted.exclude_seen,
            wanted.exclude,
            items={names[asker]: asker.item_ids for asker in said},
            bundles={names[asker]: asker.bundle_ids for asker in said},
        )
    except Exception as error:
        if len(distinct) == 1 or not said:
            return dict.fromkeys(distinct, error)
        return {asker: one for part in distinct for asker, one in _lists(recommender, [part], wanted).items()}
    rows: dict[str, list[Recommendation]] = {}
    for row in found:
        rows.setdefault(row.user_id, []).append(row)
    return {
        asker: UserList(found.sources[name], rows.get(name, []), shortage(found, name, wanted.k))
        for asker, name in names.items()
    }


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


def shortage(found: Recommendations, user_id: str, k: int) -> str | None:
    """Why a list is shorter than asked for, where it is."""
    if user_id not in found.short:
        return None
    return f"{found.short[user_id]} instead of {k}: there are no more candidates"


def _deliver(waiting: Waiting, lists: dict[Asker, ListOrError]) -> None:
    for asker, answer in waiting:
        found = lists[asker]
        if answer.done():  # whoever asked has gone
            continue
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)
