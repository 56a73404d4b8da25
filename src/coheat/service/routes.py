"""The routes under /v1. Handlers are thin: shapes in, a question or a change to the state, shapes out.

Answers are written as JSON directly; the tests hold them against the documented schemas.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from coheat.errors import CoheatError, DataError
from coheat.recommender import Explanation, Recommender
from coheat.service import bundle_routes, explorer, schemas
from coheat.service.asking import (
    Limit,
    Offset,
    PathId,
    QueryId,
    QueryK,
    Search,
    answer,
    asked,
    known_bundles,
    state_of,
)
from coheat.service.problems import responses
from coheat.service.state import State, Wanted, require_bundle, require_user, shortage

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
    found = await state_of(request).recommend(user_id, Wanted(k, candidates, exclude_seen))
    rows = [
        {"bundle_id": row.bundle_id, "score": row.score, "rank": row.rank, "is_new": new}
        for row, new in found.rows
    ]
    return answer({"user_id": user_id, "source": found.source, "recommendations": rows, "note": found.note})


@router.post(
    "/recommendations",
    response_model=schemas.Recommendations,
    responses=responses(),
    tags=["lists"],
    summary="The best bundles for anybody, by what they have",
)
async def recommendations_by_belongings(request: Request, question: schemas.Question) -> Response:
    """A user who was not in training is folded in from the given items and bundles. Changes nothing."""
    return answer(await asked(request, lambda model: _answer(model, question)))


def _answer(model: Recommender, question: schemas.Question) -> dict[str, Any]:
    # Nobody in training is named so: ids are never empty, and this one has a character no text holds.
    name = question.user_id if question.user_id is not None else "\udcff"
    exclude, _ = known_bundles(model, question.exclude)  # what is not there is left out already
    taken, without = known_bundles(model, question.bundle_ids)
    candidates: Any = question.candidates
    if not isinstance(candidates, str):
        candidates, missing = known_bundles(model, question.candidates)
        without = missing or without
        if question.candidates and not candidates:
            raise DataError(f"none of the candidates is there: {missing}")
    found = model.recommend(
        [name],
        question.k,
        candidates,
        question.exclude_seen,
        exclude,
        items={name: question.item_ids},
        bundles={name: taken},
    )
    rows = [
        {
            "bundle_id": row.bundle_id,
            "score": row.score,
            "rank": row.rank,
            "is_new": model.is_new(row.bundle_id),
        }
        for row in found
    ]
    return {
        "user_id": question.user_id,
        "source": found.sources[name],
        "recommendations": rows,
        "note": "; ".join(filter(None, (without, shortage(found, name, question.k)))) or None,
    }


@router.get(
    "/explanations",
    response_model=schemas.Explanation,
    responses=responses(404),
    tags=["lists"],
    summary="Why a bundle has its score for a user",
)
async def explanation(request: Request, user_id: QueryId, bundle_id: QueryId) -> Response:
    def explain(model: Recommender) -> Explanation:
        require_user(model, user_id)
        return require_bundle(model, bundle_id).explain(user_id, bundle_id)

    found = await state_of(request).ask(explain)
    shares = {view.name: view.share for view in found.views}
    return answer(
        {
            "user_id": found.user_id,
            "bundle_id": found.bundle_id,
            "source": found.source,
            "score": found.score,
            "history": shares.get("history", 0.0),
            "items": sum(share for name, share in shares.items() if name != "history"),
            "history_weight": found.history_weight,
            "views": [{"name": view.name, "share": view.share} for view in found.views],
            "bundle_items": [{"item_id": one.id, "share": one.share} for one in found.bundle_items],
            "user_items": [{"item_id": one.id, "share": one.share} for one in found.user_items],
            "user_bundles": [{"bundle_id": one.id, "share": one.share} for one in found.user_bundles],
            "own": found.own,
        }
    )


router.include_router(bundle_routes.router)


# --- users, items, interactions -----------------------------------------------------------------


@router.get("/users", response_model=schemas.UserPage, responses=responses(), tags=["users and items"])
async def users(request: Request, query: Search = "", offset: Offset = 0, limit: Limit = 20) -> Response:
    """Search users by their id."""
    names, following = await state_of(request).ask(
        lambda model: explorer.search(model.users.rows, query, offset, limit)
    )
    return answer({"users": [{"user_id": name} for name in names], "next_offset": following})


@router.get(
    "/users/{user_id}", response_model=schemas.User, responses=responses(404), tags=["users and items"]
)
async def user(request: Request, user_id: PathId) -> Response:
    """What a user has: items and bundles of training, and the bundles recorded since."""
    found = await state_of(request).ask(lambda model: require_user(model, user_id))
    bundle_ids = list(dict.fromkeys([*found.bundle_ids, *found.recorded_ids]))
    return answer(
        {"user_id": user_id, "is_known": found.known, "item_ids": found.item_ids, "bundle_ids": bundle_ids}
    )


@router.get("/items", response_model=schemas.ItemPage, responses=responses(), tags=["users and items"])
async def items(request: Request, query: Search = "", offset: Offset = 0, limit: Limit = 20) -> Response:
    """Search items by their id."""
    names, following = await state_of(request).ask(
        lambda model: explorer.search(model.items.ids, query, offset, limit)
    )
    return answer({"items": [{"item_id": name} for name in names], "next_offset": following})


@router.post(
    "/interactions",
    status_code=201,
    response_model=schemas.Recorded,
    responses={
        200: {"model": schemas.Recorded, "description": "It was known already; nothing changed."},
        **responses(404),
    },
    tags=["users and items"],
    summary="A user took a bundle",
)
async def record(request: Request, interaction: schemas.NewInteraction) -> Response:
    """The bundle leaves this user's lists, and where popularity decides how far history counts, it counts
    more for everybody. A user who was not in training may be named: what is recorded is what the lists are
    made from."""
    found = await state_of(request).record(interaction.user_id, interaction.bundle_id)
    fields = asdict(found)
    counted = fields.pop("counted")
    return answer(fields, 201 if counted else 200)


# --- the model ----------------------------------------------------------------------------------


@router.get("/models", response_model=schemas.Model, responses=responses(), tags=["model"])
async def model(request: Request) -> Response:
    """The model that answers, and what was written since it was trained."""
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
        "n_users": len(served.recommender.users.ids),
        "n_bundles": len(served.recommender.popularity),
        "n_items": len(served.recommender.items.ids),
        "waiting": served.waiting,
    }


@router.get("/statistics", response_model=schemas.Statistics, responses=responses(), tags=["model"])
async def statistics(request: Request) -> Response:
    """The model at a glance."""
    return answer((await explorer.statistics(state_of(request))).model_dump())
