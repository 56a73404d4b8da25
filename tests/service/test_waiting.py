"""Lists that are asked for together: nobody who joins the others at the last moment is left behind."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_client import linked_run, with_client
from service_common import SMALL

from coheat.service.lists import QUICK_K, QUICK_SECONDS, Asker, Wanted
from coheat.service.metrics import Metrics
from coheat.service.sides import ONLY
from coheat.service.sqlite_store import SqliteStore
from coheat.service.state import State

ASKING, TIMES = 8, 20


class SlowToFind(dict[Any, Any]):
    """Time enough, between finding those who wait and joining them, for the model to take them away."""

    def setdefault(self, key: Any, default: Any = None) -> Any:
        found = super().setdefault(key, default)
        time.sleep(0.002)
        return found


def test_everybody_who_asks_is_answered(tmp_path: Path) -> None:
    state = State(linked_run(tmp_path), SqliteStore(tmp_path / "store.sqlite"), Metrics())
    state._lists._waiting = SlowToFind()

    async def ask(first: int) -> int:
        for turn in range(TIMES):
            found = await state.recommend(Asker(f"user-{(7 * first + turn) % SMALL.n_users}"), Wanted(3))
            assert len(found.rows) == 3
        return TIMES

    async def all_ask() -> list[int]:
        return await asyncio.wait_for(asyncio.gather(*map(ask, range(ASKING))), 240)

    try:
        assert asyncio.run(all_ask()) == [TIMES] * ASKING
    finally:
        state.close()


def test_the_same_question_is_answered_together_however_it_is_asked(tmp_path: Path) -> None:
    """By address and by document, while the model has something else to do."""
    goes_on, questions = threading.Event(), [f"user-{number}" for number in range(6)]

    async def check(client: httpx.AsyncClient) -> None:
        state: State = client._transport.app.state.coheat  # type: ignore[attr-defined]
        state._lists.seconds[ONLY] = QUICK_SECONDS  # too long for the event loop
        state.threads.model.submit(goes_on.wait, 240)
        sent = [client.get(f"/v1/recommendations/{user}?k=3") for user in questions[::2]]
        sent += [client.post("/v1/recommendations", json={"user_id": u, "k": 3}) for u in questions[1::2]]
        asked = asyncio.gather(*sent)
        try:
            while sum(map(len, state._lists._waiting.values())) < len(questions):
                assert not asked.done()
                await asyncio.sleep(0.01)
            assert len(state._lists._waiting) == 1
        finally:
            goes_on.set()
        found = [answer.json() for answer in await asked]
        assert {one["user_id"]: len(one["recommendations"]) for one in found} == dict.fromkeys(questions, 3)

    with_client(linked_run(tmp_path), check)


@pytest.mark.parametrize(
    ("seconds", "asker", "wanted", "waits"),
    [
        (0.0, Asker("user-1"), Wanted(3), False),
        (QUICK_SECONDS, Asker("user-1"), Wanted(3), True),
        (0.0, Asker("user-1", item_ids=("item-1",)), Wanted(3), True),
        (0.0, Asker("user-1"), Wanted(3, exclude=("bundle-1",)), True),
        (0.0, Asker("user-1"), Wanted(QUICK_K + 1), True),
    ],
)
def test_only_what_may_take_long_waits_for_the_thread_of_the_model(
    tmp_path: Path, seconds: float, asker: Asker, wanted: Wanted, waits: bool
) -> None:
    state = State(linked_run(tmp_path), SqliteStore(tmp_path / "store.sqlite"), Metrics())
    state._lists.seconds[ONLY] = seconds
    goes_on = threading.Event()

    async def ask() -> bool:
        state.threads.model.submit(goes_on.wait, 240)
        asked = asyncio.create_task(state.recommend(asker, wanted))
        await asyncio.wait([asked], timeout=0.2 if waits else 200)
        has_waited = not asked.done()
        goes_on.set()
        assert (await asked).source == "model"
        return has_waited

    try:
        assert asyncio.run(ask()) is waits
    finally:
        state.close()


def test_how_long_a_list_takes_is_learned(tmp_path: Path) -> None:
    state = State(linked_run(tmp_path), SqliteStore(tmp_path / "store.sqlite"), Metrics())

    async def ask() -> None:
        for _ in range(60):
            await state.recommend(Asker("user-1"), Wanted(3))

    try:
        state._lists.seconds[ONLY] = 0.05
        asyncio.run(ask())
        assert 0 < state._lists.seconds[ONLY] < QUICK_SECONDS
    finally:
        state.close()
