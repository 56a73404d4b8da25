"""The application, from a factory: nothing is loaded or opened by importing it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from coheat import __version__
from coheat.service import schemas
from coheat.service.addresses import Addresses
from coheat.service.happened import Recent
from coheat.service.health import OK, Readiness
from coheat.service.keys import KeyRing, Keys
from coheat.service.limits import Limits
from coheat.service.list_routes import listed_at_once
from coheat.service.metrics import Metrics
from coheat.service.middleware import Middleware
from coheat.service.opening import KEYS, open_store
from coheat.service.places import Place
from coheat.service.problems import add_handlers
from coheat.service.routes import router
from coheat.service.sides import Side
from coheat.service.state import State
from coheat.service.store import TOOK, Kind, Store

log = logging.getLogger("coheat.service")
WEB = Path(__file__).parent / "web"
DESCRIPTION = """Recommend bundles that nobody has bought yet. Ids are text of up to 1,000 characters; in a
path they are percent-encoded, a slash as `%2F`. Errors are `application/problem+json` (RFC 9457).
Health (`/health/live`, `/health/ready`) is open to everybody; `/metrics` wants a key like all of `/v1`."""


def create_app(
    run: Path | Sequence[Side],
    place: Place,
    store: Store | None = None,
    limits: Limits | None = None,
    knobs: Mapping[str, float] | None = None,
    log_ids: bool = False,
    health_port: int | None = None,
    positive: frozenset[Kind] = TOOK,
    keys: Keys | None = None,
) -> FastAPI:
    """The service of one run, or of several side by side; what is written and the keys are kept at `place`, a
    directory or the address of a database (or what is written in `store`, and the keys in `keys`).

    `knobs` are turned as they are named (see `Recommender.load`); `positive` are the kinds of interactions
    that hide a bundle from the user and count in its popularity.

    Loading and replaying happen here, so that a fault stops the start with a sentence.
    """
    metrics = Metrics()
    if store is None:
        store, keys = open_store(place)
    keys = keys or KeyRing(Path(place) / KEYS)
    try:
        state = State(run, store, metrics, knobs, log_ids, positive)
    except BaseException:
        store.close()
        raise
    app = FastAPI(
        title="coheat",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        openapi_url=None,  # see `_add_operations`
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.coheat = state
    app.state.recent = Recent()
    add_handlers(app)
    app.include_router(router)
    _add_operations(app, metrics)
    _describe_keys(app)
    app.mount("/", StaticFiles(directory=WEB, html=True, check_dir=False), name="explorer")
    app.state.readiness = Readiness(state, keys)
    app.add_middleware(
        Middleware,
        keys=keys,
        metrics=metrics,
        addresses=Addresses(app.openapi),
        limits=limits or Limits(),
        has_started=lambda: state.caught_up,
        reach=state.follower.reach,
        log_ids=log_ids,
        health_port=health_port,
        at_once={"/v1/recommendations/{user_id}": partial(listed_at_once, state)},
    )
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Catch up beside the first requests; at the end finish what is in progress and let go of the store."""
    state: State = app.state.coheat

    starting = asyncio.create_task(state.start())
    try:
        with app.state.recent.listening():
            yield
    finally:
        with suppress(asyncio.CancelledError):
            await starting
        await state.follower.stop_watching()
        state.close()


def _add_operations(app: FastAPI, metrics: Metrics) -> None:
    """What operators and their tools ask; not part of the documented interface."""

    @app.get("/health/live", include_in_schema=False)
    async def live() -> Response:
        return Response('{"status":"live"}', media_type="application/json")

    @app.get("/health/ready", include_in_schema=False)
    async def ready() -> Response:
        readiness: Readiness = app.state.readiness
        checks = await readiness.checks()
        is_ready = set(checks.values()) == {OK}
        document = {"status": "ready" if is_ready else "not ready", **checks}
        return Response(json.dumps(document), 200 if is_ready else 503, media_type="application/json")

    @app.get("/openapi.json", include_in_schema=False)
    async def described() -> Response:
        return Response(_document(app), media_type="application/json")

    @app.get("/metrics", include_in_schema=False)
    async def exposed(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _document(app: FastAPI) -> bytes:
    """The interface's description, written once: it is large, and anybody may ask for it."""
    if not hasattr(app.state, "document"):
        app.state.document = json.dumps(app.openapi()).encode()
    document: bytes = app.state.document
    return document


def _describe_keys(app: FastAPI) -> None:
    """The gate checks keys before any route; the document says so for each."""
    generate = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            parts = document.setdefault("components", {})
            parts["securitySchemes"] = {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}}
            for shape in (schemas.Problem, schemas.NewInteraction, schemas.NewInteractions):
                schema = shape.model_json_schema(ref_template="#/components/schemas/{model}")
                schema.pop("$defs", None)
                parts.setdefault("schemas", {})[shape.__name__] = schema
            parts["schemas"].pop("HTTPValidationError", None)
            parts["schemas"].pop("ValidationError", None)
            document["security"] = [{"key": []}]
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
