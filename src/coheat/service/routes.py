"""The routes under /v1. Handlers are thin: shapes in, a question or a change to the state, shapes out.

Answers are written as JSON directly; the tests hold them against the documented schemas.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from coheat.errors import CoheatError, UnknownIdError
from coheat.ids import shortened
from coheat.recommender import Explanation, Recommender
from coheat.service import bundle_routes, explorer, explorer_routes, interaction_routes, list_routes, schemas
from coheat.service.asking import (
    After,
    Limit,
    Offset,
    PageLimit,
    PathId,
    QueryFields,
    QueryId,
    Search,
    SearchText,
    answer,
    check_not_empty,
    columns_asked,
    page_of,
    state_of,
)
from coheat.service.online import report
from coheat.service.problems import responses
from coheat.service.results import known_values, require_bundle, require_user
from coheat.service.state import State

router = APIRouter(prefix="/v1")


# --- lists and searches -------------------------------------------------------------------------


router.include_router(list_routes.router)


@router.get(
    "/explanations",
    response_model=Explanation,
    responses=responses(404),
    tags=["lists"],
    summary="Why a bundle has its score for a user",
)
async def explanation(
    request: Request, user_id: QueryId, bundle_id: QueryId, fields: QueryFields = None
) -> Response:
    """With `fields`, these columns of the bundle and of those that the user took."""
    named = columns_asked(fields)

    def explain(model: Recommender) -> Explanation:
        require_user(model, user_id)
        return require_bundle(model, bundle_id).explain(user_id, bundle_id, fields=named)

    return answer(asdict(await state_of(request).ask(explain, user_id)))


router.include_router(bundle_routes.router)
router.include_router(explorer_routes.router)
router.include_router(interaction_routes.router)


# --- users and items ----------------------------------------------------------------------------


@router.get("/users", response_model=schemas.UserPage, responses=responses(), tags=["users and items"])
async def users(request: Request, query: Search = "", offset: Offset = 0, limit: Limit = 20) -> Response:
    """Search users by their id."""
    names, following = await state_of(request).ask(
        lambda model: explorer.search(model.user_ids, query, offset, limit)
    )
    return answer({"users": [{"user_id": name} for name in names], "next_offset": following})


@router.get(
    "/users/{user_id}", response_model=schemas.User, responses=responses(404), tags=["users and items"]
)
async def user(request: Request, user_id: PathId) -> Response:
    """What a user has: items and bundles of training, and the bundles recorded since."""
    found = await state_of(request).ask(lambda model: require_user(model, user_id), user_id)
    bundle_ids = list(dict.fromkeys([*found.bundle_ids, *found.recorded_ids]))
    return answer(
        {"user_id": user_id, "is_known": found.is_known, "item_ids": found.item_ids, "bundle_ids": bundle_ids}
    )


@router.get(
    "/items/{item_id}", response_model=schemas.Item, responses=responses(404), tags=["users and items"]
)
async def item(request: Request, item_id: PathId) -> Response:
    """What is said of an item."""
    return answer(await _described_item(state_of(request), item_id))


@router.patch(
    "/items/{item_id}",
    response_model=schemas.Item,
    responses=responses(404),
    tags=["users and items"],
    summary="Say something of an item: its title, its category",
)
async def describe_item(request: Request, item_id: PathId, columns: schemas.ColumnValues) -> Response:
    """Columns and their values; null takes one away, columns that are not named stay. Bundles without a
    title or category of their own follow their items."""
    check_not_empty(columns)
    await state_of(request).describe_item(item_id, columns)
    return answer(await _described_item(state_of(request), item_id))


async def _described_item(state: State, item_id: str) -> dict[str, Any]:
    def look(model: Recommender) -> dict[str, Any]:
        if not model.has_item(item_id):
            raise UnknownIdError(f"unknown item id {shortened(item_id)}")
        return {"item_id": item_id, "columns": known_values(model.item_fields(item_id))}

    return await state.ask(look)


@router.get(
    "/columns",
    response_model=schemas.ColumnPage,
    responses=responses(),
    tags=["users and items"],
    summary="What was said of bundles and items since training, oldest first",
)
async def columns(request: Request, after: After = 0, limit: PageLimit = 1000) -> Response:
    """Pass `next` as `after` for the next page; it is null when there is nothing more."""
    found = await state_of(request).read(lambda records: list(records.details(after, limit=limit + 1)))
    rows, following = page_of(found, limit)
    said = [
        {"sequence": row.sequence, "subject": row.subject, "id": row.id, "columns": row.columns}
        for row in rows
        if row.subject in ("bundle", "item")
    ]
    return answer({"columns": said, "next": following})


@router.get(
    "/search",
    response_model=schemas.SearchPage,
    responses=responses(),
    tags=["users and items"],
    summary="Bundles and items by id or title",
)
async def search(request: Request, q: SearchText, limit: Limit = 20) -> Response:
    """Those whose id or title holds this text, upper or lower case; what is not on offer, too."""

    def look(model: Recommender) -> dict[str, Any]:
        bundles, items = model.search_bundles(q, limit), model.search_items(q, limit)
        return {
            "bundles": [asdict(one) for one in bundles.found],
            "items": [asdict(one) for one in items.found],
            "complete": bundles.complete and items.complete,
        }

    return answer(await state_of(request).ask(look))


@router.get("/items", response_model=schemas.ItemPage, responses=responses(), tags=["users and items"])
async def items(request: Request, query: Search = "", offset: Offset = 0, limit: Limit = 20) -> Response:
    """Search items by their id and title."""
    names, following = await state_of(request).ask(
        lambda model: explorer.search_named(model.search_items, model.item_ids, query, offset, limit)
    )
    return answer({"items": [{"item_id": name} for name in names], "next_offset": following})


# --- the model ----------------------------------------------------------------------------------


@router.get("/models", response_model=schemas.Model, responses=responses(), tags=["model"])
async def model(request: Request) -> Response:
    """The model that answers (of several, that of the first side), and what was written since it was
    trained."""
    return answer(_described(state_of(request)))


@router.post(
    "/models/reload",
    response_model=schemas.Model,
    responses=responses(),
    tags=["model"],
    summary="Load the run's model anew",
)
async def reload_model(request: Request) -> Response:
    """It is loaded and checked aside, takes over at one moment, and knows all that was written. On any
    fault the old one goes on, and the answer (422) says why."""
    try:
        await state_of(request).reload()
    except CoheatError as error:
        raise HTTPException(422, f"the old model goes on: {error}") from None
    return answer(_described(state_of(request)))


def _described(state: State) -> dict[str, Any]:
    served, description = state.served, state.served.description
    return {
        "model": description["model"],
        "fingerprint": served.fingerprint,
        "loaded_at": served.loaded_at,
        "generation": served.generation,
        "best_epoch": description["best_epoch"],
        "metrics": description["metrics"],
        "n_users": len(served.recommender.user_ids),
        "n_bundles": served.recommender.n_bundles,
        "n_items": len(served.recommender.item_ids),
        "waiting": served.waiting,
        "sides": [
            {
                "side": side.name,
                "share": side.share,
                "model": state.models[side.name].description["model"],
                "fingerprint": state.models[side.name].fingerprint,
                "waiting": state.models[side.name].waiting,
            }
            for side in state.sides
        ],
    }


@router.get("/statistics", response_model=schemas.Statistics, responses=responses(), tags=["model"])
async def statistics(request: Request) -> Response:
    """The model at a glance, and what came of the lists of each side."""
    state = state_of(request)
    outcomes = await state.read(lambda records: records.outcomes())
    found = await explorer.statistics(state)
    return answer({**found.model_dump(), "sides": [asdict(side) for side in report(outcomes)]})
