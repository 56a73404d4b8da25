"""Lists that are asked for together: nobody who joins the others at the last moment is left behind."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from service_client import linked_run
from service_common import SMALL

from coheat.service.lists import Asker, Wanted
from coheat.service.metrics import Metrics
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
        return await asyncio.wait_for(asyncio.gather(*map(ask, range(ASKING))), 30)

    try:
        assert asyncio.run(all_ask()) == [TIMES] * ASKING
    finally:
        state.close()
