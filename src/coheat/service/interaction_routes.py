"""The routes of interactions: record one or many, take them back, page through what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.responses import Response

from coheat.errors import DataError
from coheat.recommender import BundleInfo
from coheat.service import schemas, times
from coheat.service.asking import After, PageLimit, answer, page_of, state_of
from coheat.service.problems import responses
from coheat.service.results import UnknownRow
from coheat.service.schemas import MAX_ID, MAX_ROWS
from coheat.service.store import KINDS, Interaction, Kind, Withdrawal

router = APIRouter()
M = TypeVar("M", bound=schemas.Input)
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
ROW, ROWS = ({"$ref": f"#/components/schemas/{name}"} for name in ("NewInteraction", "NewInteractions"))
BODY = {
    "application/json": {"schema": {"anyOf": [ROW, ROWS]}},
    "application/x-ndjson": {"schema": {"type": "string", "description": "A NewInteraction in each line."}},
}
QueryUser = Annotated[str | None, Query(min_length=1, max_length=MAX_ID)]


@router.post(
    "/interactions",
    status_code=201,
    response_model=schemas.RecordedInteraction | schemas.RecordedInteractions,
    responses={
        200: {
            "model": schemas.RecordedInteraction | schemas.RecordedInteractions,
            "description": "All of it was known already; nothing changed.",
        },
        **responses(404),
    },
    tags=["interactions"],
    summary="Users were shown, clicked or took bundles",
    openapi_extra={"requestBody": {"required": True, "content": BODY}},
)
async def record(request: Request) -> Response:
    """One interaction, many as `{"interactions": [...]}`, or one in each line (`application/x-ndjson`); many
    are recorded all or not at all. What counts as positive (taking, where the service was started without
    other wishes) takes the bundle from this user's lists and adds to its popularity. A user who was not in
    training may be named: what is recorded is what the lists are made from."""
    state = state_of(request)
    rows, is_one = await _rows(request)
    interactions = [row.stored() for row in rows]
    try:
        found = await state.record(interactions)
    except UnknownRow as error:
        if is_one:
            raise
        raise DataError(f"{_place(request, error.place)}: {error}; nothing was recorded") from None
    status = 201 if any(found.is_new) else 200
    if not is_one:
        counts = {"received": len(rows), "recorded": sum(found.is_new), "counted": sum(found.counted)}
        return answer(counts, status)
    [one] = interactions
    bundle: BundleInfo = await state.ask(lambda model: model.bundle(one.bundle_id))
    document = {
        "user_id": one.user_id,
        "bundle_id": one.bundle_id,
        "kind": one.kind,
        "counted": found.counted[0],
        "popularity": bundle.popularity,
        "history_weight": bundle.history_weight,
    }
    return answer(document, status)


@router.delete(
    "/interactions",
    response_model=schemas.WithdrawnInteractions,
    responses=responses(),
    tags=["interactions"],
    summary="Take interactions back",
    openapi_extra={"requestBody": {"required": False, "content": BODY}},
)
async def withdraw(
    request: Request, user_id: QueryUser = None, bundle_id: QueryUser = None, kind: Kind | None = None
) -> Response:
    """Name them by the body that recorded them (times play no part; without a `recommendation_id`, those of
    every list), or by `user_id` and `bundle_id`, of one `kind` or of all. What is not there is passed over.
    What a model was trained with stays in that model."""
    if user_id is not None or bundle_id is not None or kind is not None:
        if user_id is None or bundle_id is None:
            raise DataError("name both user_id and bundle_id, or send the interactions as the body")
        if await request.body():
            raise DataError("name interactions in the address or in the body, not in both")
        withdrawals = [Withdrawal(user_id, bundle_id, kind)]
    else:
        rows, _ = await _rows(request)
        withdrawals = [
            Withdrawal(row.user_id, row.bundle_id, row.kind, row.recommendation_id) for row in rows
        ]
    return answer({"withdrawn": await state_of(request).withdraw(withdrawals)})


@router.get(
    "/interactions",
    response_model=schemas.InteractionPage,
    responses=responses(),
    tags=["interactions"],
    summary="What was recorded, oldest first",
)
async def interactions(
    request: Request, after: After = 0, limit: PageLimit = 1000, kind: Kind | None = None
) -> Response:
    """Pass `next` as `after` for the next page; it is null when there is nothing more."""
    kinds = KINDS if kind is None else (kind,)
    found = await state_of(request).read(
        lambda records: list(records.interactions(after, kinds=kinds, limit=limit + 1))
    )
    rows, following = page_of(found, limit)
    return answer({"interactions": [_described(row) for row in rows], "next": following})


def _described(row: Interaction) -> dict[str, Any]:
    return {
        "sequence": row.sequence,
        "user_id": row.user_id,
        "bundle_id": row.bundle_id,
        "kind": row.kind,
        "timestamp": times.written(row.timestamp),
        "recommendation_id": row.recommendation_id or None,
    }


# --- bodies -------------------------------------------------------------------------------------


async def _rows(request: Request) -> tuple[Sequence[schemas.NewInteraction], bool]:
    """The interactions of a body, and whether it is a single one, not a list of them."""
    body = await request.body()
    if _is_ndjson(request):
        return _lines(body), False
    try:
        document = _parsed(body, "body")
    except DataError as error:
        hint = "one interaction in each line goes with the header Content-Type: application/x-ndjson"
        raise DataError(f"{error}; {hint}") from None
    if isinstance(document, dict) and "interactions" not in document:
        return [_checked(schemas.NewInteraction, document, "body")], True
    return _checked(schemas.NewInteractions, document, "body").interactions, False


def _is_ndjson(request: Request) -> bool:
    return request.headers.get("content-type", "").split(";")[0].strip().lower() in NDJSON


def _lines(body: bytes) -> list[schemas.NewInteraction]:
    lines = [(place, line) for place, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    if not 1 <= len(lines) <= MAX_ROWS:
        raise DataError(f"the body has {len(lines)} lines; send 1 to {MAX_ROWS} interactions at once")
    return [
        _checked(schemas.NewInteraction, _parsed(line, f"line {place}"), f"line {place}")
        for place, line in lines
    ]


def _parsed(text: bytes, place: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise DataError(f"{place}: this is not JSON ({error})") from None


def _checked(shape: type[M], document: Any, place: str) -> M:
    try:
        return shape.model_validate(document)
    except ValidationError as error:
        faults = [{**fault, "loc": (place, *fault["loc"])} for fault in error.errors(include_url=False)]
        raise RequestValidationError(faults) from None


def _place(request: Request, row: int) -> str:
    return f"interaction {row + 1}" if _is_ndjson(request) else f"body.interactions.{row}"
