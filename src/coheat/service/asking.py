"""What all handlers share: ids and limits of a request, the state behind it, an answer as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

from fastapi import Path, Query, Request
from pydantic import AfterValidator
from starlette.responses import Response

from coheat.errors import DataError, UnknownIdError
from coheat.recommender import Recommender
from coheat.service.schemas import MAX_ID, MAX_K, MAX_ROWS
from coheat.service.state import State

T = TypeVar("T")
MAX_SEARCH = 100
LAST = (1 << 63) - 1
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def decoded(sent: str) -> str:
    """An id from a path: percent-encoded UTF-8, any character allowed (see `middleware.py`)."""
    try:
        name = unquote_to_bytes(sent).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("an id in a path is percent-encoded UTF-8") from None
    if not 1 <= len(name) <= MAX_ID:
        raise ValueError(f"an id has 1 to {MAX_ID} characters")
    return name


PathId = Annotated[str, Path(description="Percent-encoded; a slash as %2F."), AfterValidator(decoded)]
QueryId = Annotated[str, Query(min_length=1, max_length=MAX_ID)]
QueryK = Annotated[int, Query(ge=1, le=MAX_K)]
Search = Annotated[str, Query(max_length=MAX_ID, description="Part of the id; upper or lower case.")]
SearchText = Annotated[str, Query(min_length=1, max_length=MAX_ID, description="Part of an id or a title.")]
Offset = Annotated[int, Query(ge=0, le=1_000_000_000)]
Limit = Annotated[int, Query(ge=1, le=MAX_SEARCH)]
After = Annotated[int, Query(ge=0, le=LAST, description="The `next` of the page before.")]
PageLimit = Annotated[int, Query(ge=1, le=MAX_ROWS)]
QueryWhere = Annotated[
    str | None,
    Query(max_length=10_000, description='Conditions by column, as JSON: {"price": {"at_most": 30}}.'),
]
QueryFields = Annotated[
    str | None, Query(min_length=1, max_length=10_000, description="Columns, with commas between.")
]


def state_of(request: Request) -> State:
    state: State = request.app.state.coheat
    return state


def answer(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    headers = {"Cache-Control": "no-store", **(headers or {})}
    return Response(ENCODER.encode(document).encode(), status, headers, "application/json")


def columns_asked(fields: str | None) -> tuple[str, ...] | None:
    """The columns that are named with commas between."""
    return None if fields is None else tuple(fields.split(","))


def conditions(text: str) -> dict[str, Any]:
    """A filter from an address."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DataError('query.where: write conditions as JSON: {"price": {"at_most": 30}}')
    return found


def check_not_empty(columns: Mapping[str, object]) -> None:
    """A change says something."""
    if not columns:
        raise DataError("name at least one column, such as title, price or available")


class Numbered(Protocol):
    """What was written has a place in the order of writing."""

    @property
    def sequence(self) -> int: ...


N = TypeVar("N", bound=Numbered)


def page_of(found: list[N], limit: int) -> tuple[list[N], int | None]:
    """One page of rows of which one more was asked for, and after which number the next page begins."""
    return found[:limit], found[limit - 1].sequence if len(found) > limit else None


async def asked(request: Request, question: Callable[[Recommender], T]) -> T:
    """For ids that come in a body: an unknown one is not an address that is not there, so 422."""
    try:
        return await state_of(request).ask(question)
    except UnknownIdError as error:
        raise DataError(str(error)) from None
