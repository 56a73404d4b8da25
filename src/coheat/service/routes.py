"""The routes under /v1. Handlers are thin: shapes in, a question or a change to the state, shapes out.

Answers are written as JSON directly; the tests hold them against the documented schemas.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from coheat.errors import CoheatError, DataError, UnknownIdError
from coheat.recommender import Explanation, Recommender
from coheat.service import bundle_routes, explorer, explorer_routes, interaction_routes, schemas
from coheat.service.asking import (
    Limit,
    Offset,
    PathId,
    QueryId,
    QueryK,
    Search,
    answer,
    known_bundles,
    state_of,
)
from coheat.service.lists import Asker, UserList, Wanted
from coheat.service.online import report
from coheat.service.problems import responses
from coheat.service.results import require_bundle, require_user
from coheat.service.sides import new_list_id
from coheat.service.state import State

router = APIRouter(prefix="/v1")


# --- lists --------------------------------------------------------------------------------------


@router.get(
    "/recommendations/{user_id}",
    response_model=schemas.Recommendations,
    responses=responses(),
    tags=["lists"],
    summary="The best bundles for a user",
)
async def recommendations(
    request: Request,
    user_id: PathId,
    k: QueryK = 20,
    candidates: Literal["all", "new"] = "all",
    exclude_seen: bool = True,
) -> Response:
    """An unknown user gets popular and new bundles; `source` says so."""
    found = await state_of(request).recommend(Asker(user_id), Wanted(k, candidates, exclude_seen))
    return _listed(user_id, found)


@router.post(
    "/recommendations",
    response_model=schemas.Recommendations,
    responses=responses(),
    tags=["lists"],
    summary="The best bundles for anybody, by what they have",
)
async def recommendations_by_belongings(request: Request, question: schemas.Question) -> Response:
    """A user who was not in training is folded in from the given items and bundles. Changes nothing."""
    model = state_of(request).served.recommender
    exclude, _ = known_bundles(model, question.exclude)  # what is not there is left out already
    taken, without = known_bundles(model, question.bundle_ids)
    candidates: Any = question.candidates
    if not isinstance(candidates, str):
        candidates, missing = known_bundles(model, question.candidates)
        without = missing or without
        if question.candidates and not candidates:
            raise DataError(f"none of the candidates is there: {missing}")
        candidates = tuple(candidates)
    wanted = Wanted(question.k, candidates, question.exclude_seen, tuple(exclude))
    asker = Asker(question.user_id or "", tuple(question.item_ids), tuple(taken))
    try:
        found = await state_of(request).recommend(asker, wanted)
    except UnknownIdError as error:  # an id in a body that is not there is not an address that is not there
        raise DataError(str(error)) from None
    return _listed(question.user_id, found, without)


def _listed(user_id: str | None, found: UserList, without: str | None = None) -> Response:
    rows = [
        {"bundle_id": row.bundle_id, "score": row.score, "rank": row.rank, "is_new": row.is_new}
        for row in found.rows
    ]
    note = "; ".join(filter(None, (without, found.note))) or None
    document = {
        "user_id": user_id,
        "source": found.source,
        "recommendations": rows,
        "note": note,
        "recommendation_id": new_list_id(found.side, found.model),
        "model": found.model,
    }
    return answer(document)


@router.get(
    "/explanations",
    response_model=Explanation,
    responses=responses(404),
    tags=["lists"],
    summary="Why a bundle has its score for a user",
)
async def explanation(request: Request, user_id: QueryId, bundle_id: QueryId) -> Response:
    def explain(model: Recommender) -> Explanation:
        require_user(model, user_id)
        return require_bundle(model, bundle_id).explain(user_id, bundle_id)

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
        "n_bundles": len(served.recommender.popularity),
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
