"""Lists that are asked for together: nobody who joins the others at the last moment is left behind."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_client import linked_run
from service_common import SMALL

from coheat.service.metrics import Metrics
from coheat.service.state import State, Wanted
from coheat.service.store import SqliteStore

ASKING, TIMES = 16, 150


@pytest.fixture
def threads_that_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_that_change_often")
def test_everybody_who_asks_is_answered(tmp_path: Path) -> None:
    state = State(linked_run(tmp_path), SqliteStore(tmp_path / "store.sqlite"), Metrics())

    async def ask(first: int) -> int:
        for turn in range(TIMES):
            found = await state.recommend(f"user-{(7 * first + turn) % SMALL.n_users}", Wanted(3))
            assert len(found.rows) == 3
        return TIMES

    async def all_ask() -> list[int]:
        return await asyncio.wait_for(asyncio.gather(*map(ask, range(ASKING))), 60)

    try:
        assert asyncio.run(all_ask()) == [TIMES] * ASKING
    finally:
        state.close()
