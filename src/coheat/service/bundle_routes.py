"""The routes of bundles: search, publish, read, replace, remove; audience, likeness, previews."""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from coheat.errors import DataError
from coheat.recommender import Recommendations, Recommender, SimilarBundle
from coheat.service import explorer, schemas, times
from coheat.service.asking import (
    MAX_SEARCH,
    After,
    Offset,
    PageLimit,
    PathId,
    QueryFields,
    QueryK,
    QueryWhere,
    Search,
    answer,
    asked,
    check_not_empty,
    columns_asked,
    conditions,
    page_of,
    state_of,
)
from coheat.service.problems import responses
from coheat.service.results import require_bundle

router = APIRouter()
IfMatch = Annotated[
    str | None,
    Header(max_length=1000, description="Only if the bundle still is what this ETag names; else 412."),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="Any text that is new for each bundle. The same request again, when its answer was lost, "
        "is then answered as it was the first time, as long as the bundle is there.",
    ),
]


@router.get(
    "/bundles",
    response_model=schemas.BundlePage | schemas.PublishedPage,
    responses=responses(),
    tags=["bundles"],
    summary="Search bundles, or page through those that were written since training",
)
async def bundles(
    request: Request,
    query: Search = "",
    offset: Offset = 0,
    limit: PageLimit = 20,
    after: After | None = None,
) -> Response:
    """By a part of the id; with `after` (0 at first, then `next` of the page before) instead: those that
    were written to the service, oldest first, with their items."""
    if after is not None:
        if query or offset:
            raise DataError("`after` pages through what was written; it goes with `limit` alone")
        return await _published(request, after, limit)
    if limit > MAX_SEARCH:
        raise DataError(f"query.limit: a page of a search has {MAX_SEARCH} rows at most")

    def page(model: Recommender) -> dict[str, Any]:
        names, following = explorer.search_named(model.search_bundles, model.bundle_ids, query, offset, limit)
        rows = [_row(model, name) for name in names]
        return {"bundles": rows, "next_offset": following}

    return answer(await state_of(request).ask(page))


async def _published(request: Request, after: int, limit: int) -> Response:
    found = await state_of(request).read(lambda records: list(records.bundles(after, limit=limit + 1)))
    rows, following = page_of(found, limit)
    documents = [
        {
            "sequence": row.sequence,
            "bundle_id": row.bundle_id,
            "item_ids": None if row.item_ids is None else list(row.item_ids),
            "published_at": times.written(row.born_at) if row.created_on else None,
            "removed_at": times.written(row.born_at) if row.item_ids is None and row.born_at else None,
        }
        for row in rows
    ]
    return answer({"bundles": documents, "next": following})


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
async def create_bundle(
    request: Request, bundle: schemas.NewBundle, idempotency_key: IdempotencyKey = None
) -> Response:
    """It can be recommended as soon as this is answered. Items the model does not know are reported and
    left out; where it knows none, the bundle is placed like an average one of its category or of the
    catalogue, and `placed_by` says which. An id that is there already is refused: use PUT to replace it."""
    named = None if idempotency_key is None else _named(idempotency_key, bundle.model_dump_json())
    state = state_of(request)
    return _said(*await state.create_bundle(bundle.bundle_id, bundle.item_ids, named, bundle.columns))


@router.get("/bundles/{bundle_id}", response_model=schemas.Bundle, responses=responses(404), tags=["bundles"])
async def bundle(request: Request, bundle_id: PathId) -> Response:
    """What a bundle is made of, and how it stands."""
    state = state_of(request)
    return _said(await state.ask(lambda _: state.models.described(bundle_id)))


@router.put(
    "/bundles/{bundle_id}",
    response_model=schemas.Bundle,
    responses={201: {"model": schemas.Bundle, "description": "Published."}, **responses(412)},
    tags=["bundles"],
    summary="Give a bundle other items, or publish it",
)
async def replace_bundle(
    request: Request, bundle_id: PathId, items: schemas.BundleItems, if_match: IfMatch = None
) -> Response:
    """What is known of the bundle by its history stays. The same again changes nothing."""
    return _said(*await state_of(request).replace_bundle(bundle_id, items.item_ids, if_match))


@router.patch(
    "/bundles/{bundle_id}",
    response_model=schemas.Bundle,
    responses=responses(404, 412),
    tags=["bundles"],
    summary="Say something of a bundle: its title, its price, that it is out of stock",
)
async def describe_bundle(
    request: Request, bundle_id: PathId, columns: schemas.ColumnValues, if_match: IfMatch = None
) -> Response:
    """Columns and their values; null takes one away, columns that are not named stay. With
    `{"available": false}` it leaves the lists, and with true it comes back, and nothing that is known of it
    is lost."""
    check_not_empty(columns)
    return _said(await state_of(request).describe_bundle(bundle_id, columns, if_match))


@router.delete(
    "/bundles/{bundle_id}",
    status_code=204,
    responses=responses(404, 412),
    response_class=Response,
    tags=["bundles"],
    summary="Take a bundle from the shelf",
)
async def remove_bundle(request: Request, bundle_id: PathId, if_match: IfMatch = None) -> Response:
    """It is never recommended again, and who took it since training is forgotten. For one that comes back,
    PATCH with `{"available": false}` instead."""
    await state_of(request).remove_bundle(bundle_id, if_match)
    return Response(status_code=204)


@router.get(
    "/bundles/{bundle_id}/audience",
    response_model=schemas.Audience,
    responses=responses(404),
    tags=["bundles"],
    summary="The users whom a bundle suits best",
)
async def audience(request: Request, bundle_id: PathId, k: QueryK = 20) -> Response:
    found = await state_of(request).ask(lambda model: require_bundle(model, bundle_id).audience(bundle_id, k))
    return answer({"bundle_id": bundle_id, "audience": _listeners(found), "note": _note(found)})


@router.get(
    "/bundles/{bundle_id}/similar",
    response_model=schemas.Similar,
    responses=responses(404),
    tags=["bundles"],
    summary="The bundles most like one",
)
async def similar(
    request: Request,
    bundle_id: PathId,
    k: QueryK = 20,
    where: QueryWhere = None,
    fields: QueryFields = None,
    only_on_offer: bool = True,
) -> Response:
    """Filtered and described as lists are."""
    filtered, named = None if where is None else conditions(where), columns_asked(fields)

    def look(model: Recommender) -> list[SimilarBundle]:
        found = require_bundle(model, bundle_id)
        return found.similar_bundles(bundle_id, k, where=filtered, fields=named, only_on_offer=only_on_offer)

    return answer({"bundle_id": bundle_id, "similar": _similar(await state_of(request).ask(look))})


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
        found = model.audience(k=wanted.k, items=wanted.item_ids)
        return {
            "audience": _listeners(found),
            "similar": _similar(
                model.similar_bundles(k=wanted.k, items=wanted.item_ids, fields=wanted.fields)
            ),
            "unknown_item_ids": [item for item in dict.fromkeys(wanted.item_ids) if not model.has_item(item)],
            "note": _note(found),
        }

    return answer(await asked(request, look))


def _said(bundle: schemas.Bundle, created: bool = False) -> Response:
    """A bundle as an answer: with the ETag that names it, and where it is, if it was made."""
    headers = {"ETag": bundle.etag}
    if created:
        headers["Location"] = f"/v1/bundles/{quote(bundle.bundle_id, safe='')}"
    return answer(asdict(bundle), 201 if created else 200, headers)


def _named(key: str, body: str) -> str:
    """A request that may come again: what it calls itself, and what it asks for."""
    return f"{sha256(key.encode()).hexdigest()[:32]}:{sha256(body.encode()).hexdigest()[:32]}"


def _note(found: Recommendations) -> str | None:
    return "; ".join(found.notes) or None


def _listeners(found: Any) -> list[dict[str, Any]]:
    return [{"user_id": row.user_id, "score": row.score, "rank": row.rank} for row in found]


def _similar(found: list[SimilarBundle]) -> list[dict[str, Any]]:
    """`fields` only where some were asked for."""
    return [
        {name: value for name, value in asdict(row).items() if name != "fields" or value is not None}
        for row in found
    ]
