"""Errors on the wire: `application/problem+json` with one sentence, and never a traceback."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import Response

from coheat.errors import CoheatError, UnknownIdError
from coheat.service.results import Conflict, PreconditionFailed
from coheat.service.schemas import Problem
from coheat.service.store import StoreError

log = logging.getLogger("coheat.service")

EXPLAINED = {
    400: "The request cannot be read.",
    401: "No key, or a wrong one, in the header X-API-Key.",
    403: "The key's scope does not allow this, or the request came from a foreign page.",
    404: "There is no such user, bundle, item or address.",
    405: "This address does not know this method.",
    408: "The body did not arrive in time.",
    409: "It is there already.",
    412: "It is no longer as the header If-Match says.",
    413: "The body is too large.",
    422: "The request is well-formed, but not one that can be answered; the detail says why.",
    429: "Too many wrong keys; the header Retry-After says when to try again.",
    500: "A fault of ours; the request id finds it in the log.",
    503: "Too much in progress, or the disk does not take it; nothing was changed.",
}

NOT_AN_OBJECT = ("model_attributes_type", "model_type", "dict_type")
"""What pydantic calls a body that is something else, which one without its header is, too."""
WANTED = {
    "dict_type": "write an object, {...}",
    "list_type": "write a list, [...]",
    "too_short": "the list is empty",
}
"""What pydantic says in the words of Python, in those of JSON."""


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These answers, and those that every route may give, for the OpenAPI document."""
    every = {400, 401, 403, 404, 405, 408, 413, 422, 429, 500, 503, *statuses}
    schema = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": EXPLAINED[status], "content": schema, "model": None}
        for status in sorted(every)
    }


def problem(status: int, detail: str, request_id: str, headers: dict[str, str] | None = None) -> Response:
    document = Problem(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        request_id=request_id,
    )
    return Response(
        # Ids that are not valid Unicode may stand in a detail; escaped, they travel.
        json.dumps(document.model_dump()),
        status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type="application/problem+json",
    )


def status_of(error: CoheatError) -> int:
    """What an error of ours is called on the wire; where nothing else fits, the question was wrong: 422."""
    if isinstance(error, UnknownIdError):
        return 404
    if isinstance(error, Conflict):
        return 409
    if isinstance(error, PreconditionFailed):
        return 412
    return 503 if isinstance(error, StoreError) else 422


def problem_of(error: CoheatError, request_id: str) -> Response:
    """An error of ours as it is answered."""
    if isinstance(error, StoreError):
        log.error("request %s: %s", request_id, error)
        return problem(503, error.reason, request_id)
    return problem(status_of(error), str(error), request_id)


def add_handlers(app: FastAPI) -> None:
    """Turn every error that a handler raises into a problem document."""

    @app.exception_handler(CoheatError)
    async def ours(request: Request, error: CoheatError) -> Response:
        return problem_of(error, request.state.id)

    @app.exception_handler(StarletteHTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, str(error.detail), request.state.id, dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        # What was sent is not repeated: it may be huge, secret, or not even text.
        fields = _fields_of(request)
        said = [_sentence(fault, fields) for fault in error.errors()[:5]]
        return problem(422, "; ".join(said), request.state.id)


def _sentence(fault: dict[str, Any], fields: list[str]) -> str:
    """Where in the request something is wrong, and what; a field that is not known with those that are."""
    # Which of several forms of a value was tried, such as list[str], is no place in the request.
    place = [str(part) for part in fault["loc"] if "[" not in str(part)]
    if fault["type"] == "extra_forbidden" and len(place) == 2 and fields:
        return f"{'.'.join(place)}: there is no such field; there are: {', '.join(fields)}"
    if fault["type"] == "json_invalid":
        return f"body: this is not JSON ({fault['ctx']['error']}, at character {place[-1]})"
    if place == ["body"] and fault["type"] in NOT_AN_OBJECT:
        return "body: send a JSON object, with the header Content-Type: application/json"
    said = WANTED.get(fault["type"]) or fault["msg"].removeprefix("Value error, ")
    return f"{'.'.join(place)}: {said}"


def _fields_of(request: Request) -> list[str]:
    """The fields that the body of this request may have, where that is one kind of object."""
    body = getattr(request.scope.get("route"), "body_field", None)
    described = None if body is None else body.field_info.annotation
    return sorted(described.model_fields) if isinstance(described, type(BaseModel)) else []
