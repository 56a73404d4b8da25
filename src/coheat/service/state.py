"""The served model and its changes: who may ask and change it, in which order, and how it is exchanged.

All questions to the model run on one thread, so that the event loop stays free to take or refuse
requests; lists asked for while it computes are computed together next, which is what keeps it fast under
load. A change is checked, then written to the store, then made in the model, then acknowledged; changes
wait for each other, questions never wait for the disk.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from coheat.errors import CoheatError, DataError, UnknownIdError
from coheat.ids import shortened
from coheat.recommender import BundleInfo, Recommendation, Recommendations, Recommender, Recorded, UserInfo
from coheat.service.metrics import Metrics
from coheat.service.served import Served, load
from coheat.service.store import Store, StoreError

log = logging.getLogger("coheat.service")
T = TypeVar("T")


class Conflict(CoheatError):
    """What is to be made is there already."""


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


ListOrError = UserList | Exception
Waiting = list[tuple[Asker, "asyncio.Future[UserList]"]]


class State:
    """The model that answers now, the store, and the threads that work for them."""

    def __init__(self, run: Path, store: Store, metrics: Metrics, knobs: Mapping[str, float] | None = None):
        self.run, self.store, self.metrics, self.knobs = run, store, metrics, knobs
        self.served = load(run, store, 1, knobs)
        self.changing = asyncio.Lock()
        self.reloading = asyncio.Lock()
        self.ready = False
        self._model = ThreadPoolExecutor(1, "model")
        self._disk = ThreadPoolExecutor(1, "disk")
        self._aside = ThreadPoolExecutor(1, "aside")
        self._waiting: dict[Wanted, Waiting] = {}
        self._queueing = threading.Lock()  # whoever joins a list must not miss its being taken away
        self._count()

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

    async def create_bundle(self, bundle_id: str, item_ids: Sequence[str]) -> Written:
        """Publish a bundle that is not there yet."""
        async with self.changing:
            if self.served.recommender.has_bundle(bundle_id):
                raise Conflict(f"there is a bundle {shortened(bundle_id)} already; PUT replaces it")
            return await self._add(bundle_id, item_ids)

    async def replace_bundle(self, bundle_id: str, item_ids: Sequence[str]) -> Written:
        """Give a bundle other items, or publish it where there is none."""
        async with self.changing:
            if not self.served.recommender.has_bundle(bundle_id):
                return await self._add(bundle_id, item_ids)
            unknown = await self._check(bundle_id, item_ids, replacing=True)

            def write() -> int:
                return self.store.put_bundle(bundle_id, item_ids, self.store.created_on(bundle_id))

            await self._store(write, "bundle")
            await self.ask(lambda model: model.replace_bundles({bundle_id: item_ids}))
            return Written(await self.ask(lambda model: model.bundle(bundle_id)), unknown, created=False)

    async def _add(self, bundle_id: str, item_ids: Sequence[str]) -> Written:
        unknown = await self._check(bundle_id, item_ids, replacing=False)
        made_on = self.served.fingerprint
        await self._store(lambda: self.store.put_bundle(bundle_id, item_ids, made_on), "bundle")
        await self.ask(lambda model: model.add_bundles({bundle_id: item_ids}))
        self.metrics.bundles.inc()
        return Written(await self.ask(lambda model: model.bundle(bundle_id)), unknown, created=True)

    async def _check(self, bundle_id: str, item_ids: Sequence[str], replacing: bool) -> list[str]:
        """The items that the model does not know; an error where it can make nothing of the rest."""
        try:
            checked = await self.ask(lambda model: model.check_bundles({bundle_id: item_ids}, replacing))
        except UnknownIdError as error:
            raise DataError(str(error)) from None
        return checked.unknown_items.get(bundle_id, [])

    async def remove_bundle(self, bundle_id: str) -> None:
        """Take a bundle from the shelf, whether it was trained or added."""
        async with self.changing:
            require_bundle(self.served.recommender, bundle_id)
            await self._store(lambda: self.store.remove_bundle(bundle_id), "removal")
            await self.ask(lambda model: model.remove_bundles([bundle_id]))
            self.metrics.bundles.dec()

    async def record(self, user_id: str, bundle_id: str) -> Recorded:
        """A user took a bundle; again it changes nothing."""
        async with self.changing:
            require_bundle(self.served.recommender, bundle_id)
            await self._store(lambda: self.store.add_interaction(user_id, bundle_id), "interaction")
            return await self.ask(lambda model: model.record(user_id, bundle_id))

    async def _store(self, write: Callable[[], int], kind: str) -> None:
        started = time.perf_counter()
        await asyncio.get_running_loop().run_in_executor(self._disk, write)
        self.metrics.write_seconds.observe(time.perf_counter() - started)
        self.metrics.writes.labels(kind).inc()

    # --- the model ------------------------------------------------------------------------------

    async def reload(self) -> Served:
        """Load the run's model anew, aside; on any fault the old one stays and the fault is raised."""
        async with self.reloading:
            try:
                served = await self._load_aside()
            except CoheatError:
                self.metrics.reloads.labels("failed").inc()
                raise
            self.metrics.reloads.labels("succeeded").inc()
            self._count()
            return served

    async def _load_aside(self) -> Served:
        loop, generation = asyncio.get_running_loop(), self.served.generation + 1
        fresh = await loop.run_in_executor(self._aside, load, self.run, self.store, generation, self.knobs)
        # What was written while it was being loaded; then nothing may come in between.
        fresh = await loop.run_in_executor(self._aside, fresh.up_to_date, self.store)
        async with self.changing:
            self.served = await loop.run_in_executor(self._aside, fresh.up_to_date, self.store)
        log.info("serving generation %d of %s", generation, self.run)
        return self.served

    def _count(self) -> None:
        self.metrics.model_loaded(len(self.served.recommender.bundle_ids))

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


def lock_directory(directory: Path) -> int:
    """Hold a state directory against a second service; the system lets go of it however we end."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreError(
            f"{directory}: cannot be written ({error.strerror}); make it writable, or choose --state"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise StoreError(
            f"{directory}: another service works on it; stop that one, or choose --state"
        ) from None
    return handle
