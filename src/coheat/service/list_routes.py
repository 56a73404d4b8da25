"""The routes of lists: for a user by id, or for anybody by what they have; filtered, arranged, described."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import AfterValidator, BaseModel, Field
from starlette.responses import Response

from coheat.errors import DataError, UnknownIdError
from coheat.service import schemas, times
from coheat.service.asking import (
    PathId,
    answer,
    columns_asked,
    conditions,
    decoded,
    state_of,
)
from coheat.service.lists import Asker, UserList, Wanted
from coheat.service.problems import responses
from coheat.service.sides import new_list_id
from coheat.service.state import State

router = APIRouter()


class ListQuery(BaseModel):
    """What may stand behind the address of a user's list."""

    k: int = Field(20, ge=1, le=schemas.MAX_K)
    candidates: Literal["all", "new"] = "all"
    exclude_seen: bool = True
    where: str | None = Field(
        None, max_length=10_000, description='Conditions by column, as JSON: {"price": {"at_most": 30}}.'
    )
    fields: str | None = Field(
        None, min_length=1, max_length=10_000, description="Columns, with commas between."
    )
    only_on_offer: bool = True
    now: Annotated[str, AfterValidator(times.queried_seconds_of)] | None = Field(
        None, description="The moment that decides what is on offer: ISO 8601, or Unix seconds."
    )


@router.get(
    "/recommendations/{user_id}",
    response_model=schemas.Recommendations,
    responses=responses(),
    tags=["lists"],
    summary="The best bundles for a user",
)
async def recommendations(
    request: Request, user_id: PathId, query: Annotated[ListQuery, Query()]
) -> Response:
    """An unknown user gets popular and new bundles; `source` says so."""
    return await _list_of(state_of(request), user_id, query)


async def listed_at_once(state: State, sent_id: str, sent: Sequence[tuple[str, str]]) -> Response | None:
    """The same without the framework between, which takes longer to read the question than we do to answer
    it; None where the question cannot be read, and the framework has to say why."""
    try:
        user_id, query = decoded(sent_id), ListQuery.model_validate(dict(sent))
    except ValueError:
        return None
    return await _list_of(state, user_id, query) if len(query.model_fields_set) == len(sent) else None


async def _list_of(state: State, user_id: str, query: ListQuery) -> Response:
    wanted = Wanted(
        query.k,
        query.candidates,
        query.exclude_seen,
        where="" if query.where is None else _comparable(conditions(query.where)),
        fields=columns_asked(query.fields),
        only_on_offer=query.only_on_offer,
        now=None if query.now is None else float(query.now),
    )
    return _listed(user_id, await state.recommend(Asker(user_id), wanted))


@router.post(
    "/recommendations",
    response_model=schemas.Recommendations,
    responses=responses(),
    tags=["lists"],
    summary="The best bundles for anybody, by what they have",
)
async def recommendations_by_belongings(request: Request, question: schemas.Question) -> Response:
    """What is given is added to what is known of the user; one who was not in training is folded in from it.
    Ids that are not there are left out, and `note` says so. Changes nothing."""
    candidates = question.candidates
    wanted = Wanted(
        question.k,
        candidates if isinstance(candidates, str) else tuple(candidates),
        question.exclude_seen,
        tuple(question.exclude),
        "" if question.where is None else _comparable(question.where),
        None if question.fields is None else tuple(question.fields),
        question.only_on_offer,
        None if question.now is None else float(question.now),
        "" if question.rules is None else _comparable(question.rules),
    )
    shown = await _shown(request, question)
    asker = Asker(question.user_id or "", tuple(question.item_ids), tuple(question.bundle_ids), shown)
    try:
        found = await state_of(request).recommend(asker, wanted)
    except UnknownIdError as error:  # an id in a body that is not there is not an address that is not there
        raise DataError(str(error)) from None
    return _listed(question.user_id, found)


async def _shown(request: Request, question: schemas.Question) -> tuple[str, ...]:
    """What was shown to the user lately, as far as it was recorded."""
    if question.not_shown_for is None:
        return ()
    if question.user_id is None:
        raise DataError("not_shown_for needs user_id: without it nobody knows what the user was shown")
    user_id, since = question.user_id, time.time() - question.not_shown_for
    return tuple(await state_of(request).read(lambda records: records.shown_since(user_id, since)))


def _comparable(document: dict[str, Any]) -> str:
    """The same text for the same question, so that those who ask it are answered together."""
    return json.dumps(document, sort_keys=True)


def _listed(user_id: str | None, found: UserList) -> Response:
    rows: list[dict[str, Any]] = [
        {"bundle_id": bundle_id, "score": score, "rank": rank, "is_new": is_new}
        for _, bundle_id, score, rank, is_new in found.rows
    ]
    for listed, row in zip(rows, found.rows, strict=True):
        if row.fields is not None:
            listed["fields"] = row.fields
    document = {
        "user_id": user_id,
        "source": found.source,
        "recommendations": rows,
        "note": found.note,
        "recommendation_id": new_list_id(found.side, found.model),
        "model": found.model,
    }
    return answer(document)
