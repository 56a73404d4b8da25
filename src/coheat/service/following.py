"""Models that follow the store's stream of changes, whoever made them; and how new ones catch up with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from coheat.service import changes
from coheat.service.metrics import Metrics
from coheat.service.models import Models
from coheat.service.served import LoadedModel, Outdated
from coheat.service.store import Missed, Store, StoreError

log = logging.getLogger("coheat.service")
T = TypeVar("T")
FEW = 100
"""Writes that are caught up with in no time."""
WATCH_SECONDS = 1.0
BREATH_SECONDS = 0.02
"""Between two looks at the stream: what comes meanwhile is followed together."""
RETRY_SECONDS = 0.3
REACH_SECONDS = 2.0
"""How long a request waits for a change that it wants to see."""


class Threads:
    """One for each kind of work that the event loop must not wait for."""

    def __init__(self) -> None:
        self.model, self.disk, self.aside, self.records, self.stream = (
            ThreadPoolExecutor(1, name) for name in ("model", "disk", "aside", "records", "stream")
        )

    @staticmethod
    async def run(thread: Executor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    def close(self) -> None:
        """Wait for what they do."""
        for thread in (self.stream, self.records, self.aside, self.model, self.disk):
            thread.shutdown(wait=True)


class Follower:
    """Brings models along with the store. Whoever calls `follow` holds `changing`."""

    def __init__(self, models: Models, store: Store, threads: Threads, metrics: Metrics):
        self.models, self.store, self.threads, self.metrics = models, store, threads, metrics
        self.changing = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._must_load = False
        """Whether following has failed halfway, so that the models have to be loaded anew."""

    async def follow(self, news: Sequence[changes.News] | None = None) -> dict[int, list[bool]]:
        """Make in the models what was stored after the changes that they have; `news` where it is read.

        By sequence number, which interactions count.
        """
        counted: dict[int, list[bool]] = {}
        try:
            if self._must_load:
                raise Outdated
            if news is None:
                news = await self.threads.run(self.threads.disk, self.news)
            counted = await self._make(news)
        except Missed:
            await self._replay()
        except Outdated:
            await self._load_anew()
        self.metrics.bundles.set(self.models.first.recommender.n_bundles)
        self._moved.set()
        self._moved = asyncio.Event()
        return counted

    def news(self) -> list[changes.News]:
        """The changes that the models do not have yet, with what is needed to make them; this reads."""
        models, news, after = list(self.models), list[changes.News](), self.models.sequence
        while found := self.store.changes(after):
            news += (changes.prepared(one, models, self.store, self.models.positive) for one in found)
            after = found[-1].sequence
            if not self.store.is_shared:
                break
        return news

    async def _make(self, news: Sequence[changes.News]) -> dict[int, list[bool]]:
        """Make changes in all models, on their thread; what it came to in the first."""

        def make() -> dict[int, list[bool]]:
            for loaded in list(self.models)[1:]:
                for one in news:
                    changes.make(loaded, one)
            return {one.change.sequence: changes.make(self.models.first, one) for one in news}

        try:
            return await self.threads.run(self.threads.model, make)
        except Exception:
            self._must_load = True
            raise

    async def _replay(self) -> None:
        """Bring the models up to date with the net state."""

        def replay() -> None:
            for loaded in self.models:
                loaded.replay(self.store)

        try:
            await self.threads.run(self.threads.model, replay)
        except StoreError:
            self._must_load = True
            raise
        except Outdated:
            await self._load_anew()

    async def _load_anew(self) -> None:
        self.models.loaded = await self.loaded(self.models.first.generation + 1)
        self._must_load = False

    async def loaded(self, generation: int) -> dict[str, LoadedModel]:
        """Models loaded and brought up to date, as far as nothing is written meanwhile."""
        fresh = await self.threads.run(self.threads.aside, lambda: self.models.load(generation))
        while True:
            before = min(loaded.sequence for loaded in fresh.values())
            await self.catch_up(fresh)
            if max(loaded.sequence for loaded in fresh.values()) - before <= FEW:
                return fresh

    async def catch_up(self, fresh: dict[str, LoadedModel]) -> None:
        """Models that do not answer yet, with what was written."""
        for loaded in fresh.values():
            await self.threads.run(self.threads.aside, partial(loaded.replay, self.store))

    # --- what others write ----------------------------------------------------------------------

    def start_watching(self) -> None:
        """Follow what others write, where there are others."""
        if self.store.is_shared:
            self._watching = asyncio.create_task(self._watch())

    async def stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(self) -> None:
        while True:
            try:
                seen = self.models.sequence
                wait = partial(self.store.wait, seen, WATCH_SECONDS)
                latest = await self.threads.run(self.threads.stream, wait)
                if latest < seen:
                    log.warning("the store was set back from change %s to %s; loading anew", seen, latest)
                    self._must_load = True
                self.metrics.behind.set(max(0, latest - self.models.sequence))
                if latest > self.models.sequence or self._must_load:
                    async with self.changing:
                        await self.follow()
                    await asyncio.sleep(BREATH_SECONDS)
            except StoreError as error:
                log.warning("changes cannot be followed: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                log.exception("changes cannot be followed")
                await asyncio.sleep(RETRY_SECONDS)

    async def reach(self, sequence: int) -> bool:
        """Wait a while until the models have followed a change; whether they have."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REACH_SECONDS):
                while self.models.sequence < sequence:
                    await self._moved.wait()
        return self.models.sequence >= sequence
