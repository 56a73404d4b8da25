"""A small random model, served in this process or in one of its own."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from service_common import SMALL, write_random_artifact

from coheat.service.app import create_app
from coheat.service.limits import Limits
from coheat.service.places import Place
from coheat.service.sides import Side
from coheat.service.store import Store


@cache
def _artifact() -> Path:
    """Made once for all tests of a process; nobody writes to it."""
    place = tempfile.mkdtemp(prefix="coheat-service-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    write_random_artifact(Path(place) / "model", SMALL)
    return Path(place) / "model"


def linked_run(directory: Path) -> Path:
    """The model under a name of one test's own; a link, as a deployment might have it."""
    link = directory / "run"
    link.symlink_to(_artifact())
    return link


@asynccontextmanager
async def started(
    run: Path | Sequence[Side],
    state: Place,
    limits: Limits | None = None,
    store: Store | None = None,
    **options: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application in this process, between its start and its end."""
    app = create_app(run, state, store, limits, **options)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        while (await client.get("/health/ready")).status_code != 200:
            if app.state.coheat.failure is not None:
                raise app.state.coheat.failure
            await asyncio.sleep(0.005)
        yield client


Check = Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]]


def with_client(run: Path, check: Check, limits: Limits | None = None) -> None:
    """Run a check against the application, its state beside the run."""

    async def go() -> None:
        async with started(run, run.parent / "state", limits) as client:
            await check(client)

    asyncio.run(go())


async def publish(client: httpx.AsyncClient, name: str, items: list[str]) -> httpx.Response:
    return await client.post("/v1/bundles", json={"bundle_id": name, "item_ids": items})


def without_id(document: dict[str, Any]) -> dict[str, Any]:
    """A list without its name, which every answer has its own of."""
    return {key: value for key, value in document.items() if key != "recommendation_id"}
