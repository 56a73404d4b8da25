"""The routes under /v1. Handlers are thin: shapes in, a question or a change to the state, shapes out.

Answers are written as JSON directly; the tests hold them against the documented schemas.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any, Literal
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, HTTPException, Path, Query, Request
from pydantic import AfterValidator
from starlette.responses import Response

from coheat.errors import CoheatError, DataError, UnknownIdError
from coheat.recommender import Explanation, Recommender, SimilarBundle
from coheat.service import explorer, schemas
from coheat.service.problems import responses
from coheat.service.schemas import MAX_ID, MAX_K
from coheat.service.state import Conflict, State, Wanted, Written, require_bundle, require_user, shortage

router = APIRouter(prefix="/v1")


def _decoded(sent: str) -> str:
    """An id from a path: percent-encoded UTF-8, any character allowed (see `gate.py`)."""
    try:
        name = unquote_to_bytes(sent).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("an id in a path is percent-encoded UTF-8") from None
    if not 1 <= len(name) <= MAX_ID:
        raise ValueError(f"an id has 1 to {MAX_ID} characters")
    return name


PathId = Annotated[str, Path(description="Percent-encoded; a slash as %2F."), AfterValidator(_decoded)]
QueryId = Annotated[str, Query(min_length=1, max_length=MAX_ID)]
QueryK = Annotated[int, Query(ge=1, le=MAX_K)]
Search = Annotated[str, Query(max_length=MAX_ID, description="Part of the id; upper or lower case.")]
Offset = Annotated[int, Query(ge=0, le=1_000_000_000)]
Limit = Annotated[int, Query(ge=1, le=100)]


def _state(request: Request) -> State:
    state: State = request.app.state.coheat
    return state


def _json(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    headers = {"Cache-Control": "no-store", **(headers or {})}
    return Response(text.encode(), status, headers, "application/json")


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
    found = await _state(request).recommend(user_id, Wanted(k, candidates, exclude_seen))
    rows = [
        {"bundle_id": row.bundle_id, "score": row.score, "rank": row.rank, "is_new": new}
        for row, new in found.rows
    ]
    return _json({"user_id": user_id, "source": found.source, "recommendations": rows, "note": found.note})


@router.post(
    "/recommendations",
    response_model=schemas.Recommendations,
    responses=responses(),
    tags=["lists"],
    summary="The best bundles for anybody, by what they have",
)
async def recommendations_by_belongings(request: Request, question: schemas.Question) -> Response:
    """A user who was not in training is folded in from the given items and bundles. Changes nothing."""
    return _json(await _asked(request, lambda model: _answer(model, question)))


def _answer(model: Recommender, question: schemas.Question) -> dict[str, Any]:
    # Nobody in training is named so: ids are never empty, and this one has a character no text holds.
    name = question.user_id if question.user_id is not None else "\udcff"
    found = model.recommend(
        [name],
        question.k,
        question.candidates,
        question.exclude_seen,
        question.exclude,
        items={name: question.item_ids},
        bundles={name: question.bundle_ids},
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
        "note": shortage(found, name, question.k),
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

    found = await _state(request).ask(explain)
    shares = {view.name: view.share for view in found.views}
    return _json(
        {
            "user_id": found.user_id,
            "bundle_id": found.bundle_id,
            "source": found.source,
            "score": found.score,
            "history": shares.get("history", 0.0),
            "items": shares.get("affiliation", shares.get("score", 0.0)),
            "history_weight": found.history_weight,
            "bundle_items": [{"item_id": one.id, "share": one.share} for one in found.bundle_items],
            "user_items": [{"item_id": one.id, "share": one.share} for one in found.user_items],
            "user_bundles": [{"bundle_id": one.id, "share": one.share} for one in found.user_bundles],
            "own": found.own,
        }
    )


# --- bundles ------------------------------------------------------------------------------------


@router.get("/bundles", response_model=schemas.BundlePage, responses=responses(), tags=["bundles"])
async def bundles(request: Request, query: Search = "", offset: Offset = 0, limit: Limit = 20) -> Response:
    """Search bundles by their id."""

    def page(model: Recommender) -> dict[str, Any]:
        names, following = explorer.search(model.bundle_ids, query, offset, limit)
        rows = [_row(model, name) for name in names]
        return {"bundles": rows, "next_offset": following}

    return _json(await _state(request).ask(page))


def _row(model: Recommender, name: str) -> dict[str, Any]:
    found = model.bundle(name)
    return {
        "bundle_id": name,
        "size": len(found.item_ids),
        "popularity": found.popularity,
        "is_new": found.is_new,
    }


@router.post(
    "/bundles",
    status_code=201,
    response_model=schemas.Bundle,
    responses=responses(409),
    tags=["bundles"],
    summary="Publish a bundle",
)
async def create_bundle(request: Request, bundle: schemas.NewBundle) -> Response:
    """It can be recommended as soon as this is answered. Items the model does not know are reported and
    left out; one it knows is enough. An id that is there already is refused: use PUT to replace it."""
    try:
        written = await _state(request).create_bundle(bundle.bundle_id, bundle.item_ids)
    except Conflict as error:
        raise HTTPException(409, str(error)) from None
    return _json(_written(written), 201)


@router.get("/bundles/{bundle_id}", response_model=schemas.Bundle, responses=responses(404), tags=["bundles"])
async def bundle(request: Request, bundle_id: PathId) -> Response:
    """What a bundle is made of, and how it stands."""
    found = await _state(request).ask(lambda model: require_bundle(model, bundle_id).bundle(bundle_id))
    return _json(_written(Written(found, [], created=False)))


@router.put(
    "/bundles/{bundle_id}",
    response_model=schemas.Bundle,
    responses={201: {"model": schemas.Bundle, "description": "Published."}, **responses()},
    tags=["bundles"],
    summary="Give a bundle other items, or publish it",
)
async def replace_bundle(request: Request, bundle_id: PathId, items: schemas.BundleItems) -> Response:
    """What is known of the bundle by its history stays. The same again changes nothing."""
    written = await _state(request).replace_bundle(bundle_id, items.item_ids)
    return _json(_written(written), 201 if written.created else 200)


@router.delete(
    "/bundles/{bundle_id}",
    status_code=204,
    responses=responses(404),
    response_class=Response,
    tags=["bundles"],
    summary="Take a bundle from the shelf",
)
async def remove_bundle(request: Request, bundle_id: PathId) -> Response:
    """It is never recommended again, and who took it since training is forgotten."""
    await _state(request).remove_bundle(bundle_id)
    return Response(status_code=204)


@router.get(
    "/bundles/{bundle_id}/audience",
    response_model=schemas.Audience,
    responses=responses(404),
    tags=["bundles"],
    summary="The users whom a bundle suits best",
)
async def audience(request: Request, bundle_id: PathId, k: QueryK = 20) -> Response:
    found = await _state(request).ask(lambda model: require_bundle(model, bundle_id).audience(bundle_id, k))
    return _json({"bundle_id": bundle_id, "audience": _listeners(found)})


@router.get(
    "/bundles/{bundle_id}/similar",
    response_model=schemas.Similar,
    responses=responses(404),
    tags=["bundles"],
    summary="The bundles most like one",
)
async def similar(request: Request, bundle_id: PathId, k: QueryK = 20) -> Response:
    rows = await _state(request).ask(
        lambda model: _similar(model, require_bundle(model, bundle_id).similar_bundles(bundle_id, k))
    )
    return _json({"bundle_id": bundle_id, "similar": rows})


@router.post(
    "/previews",
    response_model=schemas.Previewed,
    responses=responses(),
    tags=["bundles"],
    summary="What a bundle would reach if it were published",
)
async def preview(request: Request, wanted: schemas.Preview) -> Response:
    """Nothing is stored or changed."""

    def look(model: Recommender) -> dict[str, Any]:
        return {
            "audience": _listeners(model.audience(k=wanted.k, items=wanted.item_ids)),
            "similar": _similar(model, model.similar_bundles(k=wanted.k, items=wanted.item_ids)),
            "unknown_item_ids": [
                item for item in dict.fromkeys(wanted.item_ids) if item not in model.items.rows
            ],
        }

    return _json(await _asked(request, look))


def _written(written: Written) -> dict[str, Any]:
    fields = asdict(written.bundle)
    fields["is_added"] = fields.pop("origin") == "added"
    return {**fields, "unknown_item_ids": written.unknown_item_ids}


def _listeners(found: Any) -> list[dict[str, Any]]:
    return [{"user_id": row.user_id, "score": row.score, "rank": row.rank} for row in found]


def _similar(model: Recommender, found: list[SimilarBundle]) -> list[dict[str, Any]]:
    return [
        {
            "bundle_id": row.bundle_id,
            "similarity": row.similarity,
            "rank": row.rank,
            "is_new": model.is_new(row.bundle_id),
        }
        for row in found
    ]


async def _asked(request: Request, question: Any) -> Any:
    """For ids that come in a body: an unknown one is not an address that is not there, so 422."""
    try:
        return await _state(request).ask(question)
    except UnknownIdError as error:
        raise DataError(str(error)) from None


# --- users, items, interactions -----------------------------------------------------------------


@router.get("/users", response_model=schemas.UserPage, responses=responses(), tags=["users and items"])
async def users(request: Request, query: Search = "", offset: Offset = 0, limit: Limit = 20) -> Response:
    """Search users by their id."""
    names, following = await _state(request).ask(
        lambda model: explorer.search(model.users.ids, query, offset, limit)
    )
    return _json({"users": [{"user_id": name} for name in names], "next_offset": following})


@router.get(
    "/users/{user_id}", response_model=schemas.User, responses=responses(404), tags=["users and items"]
)
async def user(request: Request, user_id: PathId) -> Response:
    """What a user has: items and bundles of training, and the bundles recorded since."""
    found = await _state(request).ask(lambda model: require_user(model, user_id))
    bundle_ids = list(dict.fromkeys([*found.bundle_ids, *found.recorded_ids]))
    return _json(
        {"user_id": user_id, "is_known": found.known, "item_ids": found.item_ids, "bundle_ids": bundle_ids}
    )


@router.get("/items", response_model=schemas.ItemPage, responses=responses(), tags=["users and items"])
async def items(request: Request, query: Search = "", offset: Offset = 0, limit: Limit = 20) -> Response:
    """Search items by their id."""
    names, following = await _state(request).ask(
        lambda model: explorer.search(model.items.ids, query, offset, limit)
    )
    return _json({"items": [{"item_id": name} for name in names], "next_offset": following})


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
    """The bundle leaves this user's lists, and its history weighs more for everybody. A user who was not
    in training may be named: what is recorded is what the lists are made from."""
    found = await _state(request).record(interaction.user_id, interaction.bundle_id)
    fields = asdict(found)
    counted = fields.pop("counted")
    return _json(fields, 201 if counted else 200)


# --- the model ----------------------------------------------------------------------------------


@router.get("/models", response_model=schemas.Model, responses=responses(), tags=["model"])
async def model(request: Request) -> Response:
    """The model that answers, and what was written since it was trained."""
    return _json(_described(_state(request)))


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
        await _state(request).reload()
    except CoheatError as error:
        raise HTTPException(422, f"the old model goes on: {error}") from None
    return _json(_described(_state(request)))


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
        "n_bundles": len(served.recommender.bundle_ids),
        "n_items": len(served.recommender.items.ids),
        "waiting": served.waiting,
    }


@router.get("/statistics", response_model=schemas.Statistics, responses=responses(), tags=["model"])
async def statistics(request: Request) -> Response:
    """The model at a glance."""
    return _json((await explorer.statistics(_state(request))).model_dump())
