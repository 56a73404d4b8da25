"""The routes behind the explorer: names, how a bundle stands, what a knob would change, what happened."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from coheat.recommender import Recommender
from coheat.service import explorer
from coheat.service import explorer_schemas as schemas
from coheat.service.asking import Limit, PathId, answer, state_of
from coheat.service.happened import earlier
from coheat.service.problems import responses
from coheat.service.results import no_knob, require_bundle

router = APIRouter(tags=["explorer"])
SHOWN_TAKERS = 100
MOST_CATEGORIES = 200
MOST = 100.0
"""How far the page turns a knob."""


@router.get("/catalogue", response_model=schemas.Catalogue, responses=responses())
async def catalogue(request: Request) -> Response:
    """Which columns there are, which categories, and which knobs."""

    def look(model: Recommender) -> dict[str, Any]:
        categories: Counter[str] = Counter()
        if "category" in model.bundle_columns:
            found = (model.fields_of(name, ["category"])["category"] for name in model.bundle_ids)
            categories.update(str(value) for value in found if value is not None)
        return {
            "bundle_columns": model.bundle_columns,
            "item_columns": model.item_columns,
            "categories": [name for name, _ in categories.most_common(MOST_CATEGORIES)],
            "knobs": [_knob(name, value) for name, value in model.knobs.items()],
        }

    return answer(await state_of(request).ask(look))


@router.post("/descriptions", response_model=schemas.Descriptions, responses=responses())
async def descriptions(request: Request, wanted: schemas.Named) -> Response:
    """What the columns say of some bundles and items. Changes nothing."""

    def look(model: Recommender) -> dict[str, Any]:
        return {
            "bundles": {
                name: model.fields_of(name)
                for name in dict.fromkeys(wanted.bundle_ids)
                if model.has_bundle(name)
            },
            "items": {
                name: model.item_fields(name)
                for name in dict.fromkeys(wanted.item_ids)
                if model.has_item(name)
            },
        }

    return answer(await state_of(request).ask(look))


@router.get(
    "/bundles/{bundle_id}/standing",
    response_model=schemas.Standing,
    responses=responses(404),
    summary="How a bundle stands, and what would lift it",
)
async def standing(request: Request, bundle_id: PathId) -> Response:
    state = state_of(request)

    def look(model: Recommender) -> dict[str, Any]:
        found = require_bundle(model, bundle_id)
        return {
            "bundle_id": bundle_id,
            "popularity": found.bundle(bundle_id).popularity,
            "takers": found.takers(bundle_id)[:SHOWN_TAKERS],
            "on_offer": found.is_on_offer(bundle_id),
            "fields": found.fields_of(bundle_id),
        }

    about = await state.ask(look)
    return answer({**about, **await explorer.standing(state, bundle_id, about["popularity"])})


@router.get("/knobs/{name}", response_model=schemas.Turned, responses=responses(404))
async def knob(request: Request, name: PathId, value: schemas.Value) -> Response:
    """What lists would be if the knob stood at this value. Changes nothing; PATCH does."""
    state = state_of(request)
    if name not in state.served.recommender.knobs:
        raise no_knob(name)
    return answer(await explorer.turned(state, name, value))


@router.patch("/knobs/{name}", response_model=schemas.Knob, responses=responses(404))
async def turn(request: Request, name: PathId, wanted: schemas.KnobValue) -> Response:
    """Let a knob stand at this value from now on: it is stored, and holds after a restart and for the next
    model, until it is turned again. With null it stands as the service was started, or else as the
    model was trained."""
    state = state_of(request)
    await state.turn(name, wanted.value)
    return answer(_knob(name, await state.ask(lambda model: model.knobs.get(name, 0.0))))


def _knob(name: str, value: float) -> dict[str, Any]:
    return {"name": name, "value": value, "least": 0.0, "most": max(MOST, value)}


@router.get("/parts", response_model=schemas.Parts, responses=responses())
async def parts(request: Request) -> Response:
    """What scores are made of, by how often bundles were taken."""
    return answer({"parts": await explorer.parts(state_of(request))})


@router.get("/happened", response_model=schemas.Happened, responses=responses())
async def happened(request: Request, limit: Limit = 100) -> Response:
    """The latest writes and reloads, the newest first; those before the start as far as they are stored."""
    recent, state = request.app.state.recent, state_of(request)
    events = list(islice(reversed(recent.events), limit))
    before = await state.read(lambda records: earlier(records, state.begun, limit - len(events)))
    return answer({"since": recent.since, "events": [*events, *before]})
