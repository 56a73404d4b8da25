"""A model that was exchanged goes at once, and what was loaded is left out of the search for garbage."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

from service_client import linked_run

from coheat.service.metrics import Metrics
from coheat.service.sqlite_store import SqliteStore
from coheat.service.state import State


def test_an_exchanged_model_goes_without_a_search_for_garbage(tmp_path: Path) -> None:
    """Nothing in it refers to itself in a circle: what is frozen would otherwise never go."""
    loaded: list[int] = []

    async def go() -> None:
        state = State(linked_run(tmp_path), SqliteStore(tmp_path / "store.sqlite"), Metrics())
        state.when_loaded = lambda: loaded.append(state.served.generation)
        gc.disable()
        try:
            await state.start()
            before = weakref.ref(state.served.recommender)
            await state.reload()
            await state.ask(lambda model: model.recommend(["user-1"], k=3))
            assert before() is None
        finally:
            gc.enable()
            state.close()

    asyncio.run(go())
    assert loaded == [1, 2]
