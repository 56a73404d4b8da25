"""What goes in and out over HTTP: shapes, limits and examples. Ids are text of 1 to 1,000 characters."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from coheat.recommender import BundleInfo, Recorded, SimilarBundle
from coheat.service import store, times
from coheat.service.online import SideOutcome

MAX_ID = 1_000
MAX_LIST = 1_000
MAX_K = 1_000
MAX_CANDIDATES = 1_000_000
MAX_COLUMN = 100
"""Characters of a column's name."""
MAX_TEXT = 10_000
"""Characters of a value."""
MAX_ROWS = 10_000
"""Interactions in one request, or on one page."""
MAX_SECONDS = 366 * 86_400.0
MAX_BODY = 4 << 20
"""Bytes of a request's body."""


def a_column(name: str) -> str:
    """What may be said of a bundle or an item."""
    if name in ("bundle_id", "item_id", "item_ids"):
        raise ValueError("this is not a column; PUT gives a bundle other items")
    return name


def a_value(value: object) -> object:
    """What a column may hold, in one sentence instead of one for each type that it is not."""
    if isinstance(value, bool | int | float | None) or (isinstance(value, str) and len(value) <= MAX_TEXT):
        return value
    raise ValueError(f"a value is a text of at most {MAX_TEXT:,} characters, a number, true, false or null")


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
ItemIds = Annotated[list[Id], Field(min_length=1, max_length=MAX_LIST)]
Ids = Annotated[list[Id], Field(max_length=MAX_LIST)]
K = Annotated[int, Field(ge=1, le=MAX_K)]
Names = Annotated[list[Annotated[str, Field(min_length=1, max_length=MAX_COLUMN)]], Field(max_length=100)]
ColumnValue = Annotated[
    Annotated[str, Field(max_length=MAX_TEXT)] | bool | float | None, BeforeValidator(a_value)
]
ColumnName = Annotated[str, Field(min_length=1, max_length=MAX_COLUMN), AfterValidator(a_column)]
ColumnValues = Annotated[dict[ColumnName, ColumnValue], Field(max_length=100)]
Candidates = Annotated[list[Id], Field(max_length=MAX_CANDIDATES)]
Time = Annotated[
    float | str,
    AfterValidator(times.seconds_of),
    Field(description="ISO 8601 (UTC if no zone is given), or Unix seconds."),
]

PastTime = Annotated[
    float | str,
    AfterValidator(times.past_seconds_of),
    Field(description="ISO 8601 (UTC if no zone is given), or Unix seconds; not in the future."),
]


class Input(BaseModel):
    """A request body; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


def example(**fields: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [fields]})


SUMMER = {"bundle_id": "summer", "item_ids": ["tent", "lamp", "stove"]}


class NewBundle(Input):
    """A bundle to publish, with its columns: title, price, ends or any other."""

    bundle_id: Id
    item_ids: ItemIds
    columns: ColumnValues = {}
    model_config = example(**SUMMER)


class BundleItems(Input):
    """What a bundle is made of."""

    item_ids: ItemIds
    model_config = example(item_ids=["tent", "lamp"])


class NewInteraction(Input):
    """A user was shown a bundle, clicked on it, or took it; now, if no time is given."""

    user_id: Id
    bundle_id: Id
    kind: store.Kind = "took"
    timestamp: PastTime | None = None
    recommendation_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    model_config = example(user_id="ann", bundle_id="summer", kind="took", timestamp="2024-05-01T12:00:00Z")

    def stored(self) -> store.NewInteraction:
        """As the store takes it."""
        at = None if self.timestamp is None else float(self.timestamp)
        return store.NewInteraction(self.user_id, self.bundle_id, self.kind, at, self.recommendation_id or "")


class NewInteractions(Input):
    """Many interactions; all are recorded, or none."""

    interactions: Annotated[list[NewInteraction], Field(min_length=1, max_length=MAX_ROWS)]
    model_config = example(interactions=[{"user_id": "ann", "bundle_id": "summer", "kind": "shown"}])


@dataclass(frozen=True)
class RecordedInteraction(Recorded):
    """The result of recording one interaction."""

    kind: store.Kind


class RecordedInteractions(BaseModel):
    """The result of recording many: `recorded` were not known before, `counted` were positive and new to the
    model."""

    received: int
    recorded: int
    counted: int
    model_config = example(received=1000, recorded=998, counted=120)


class WithdrawnInteractions(BaseModel):
    """How many interactions were taken back."""

    withdrawn: int
    model_config = example(withdrawn=1)


class Interaction(BaseModel):
    """What happened between a user and a bundle; `sequence` is its place in the order of writing."""

    sequence: int
    user_id: str
    bundle_id: str
    kind: store.Kind
    timestamp: str
    recommendation_id: str | None


class InteractionPage(BaseModel):
    """Some of the interactions, oldest first; `next` is the `after` of the next page, or null."""

    interactions: list[Interaction]
    next: int | None
    model_config = example(
        interactions=[
            {
                "sequence": 17, "user_id": "ann", "bundle_id": "summer", "kind": "took",
                "timestamp": "2024-05-01T12:00:00Z", "recommendation_id": None,
            }
        ],
        next=None,
    )  # fmt: skip


class Preview(Input):
    """A bundle that is not published yet."""

    item_ids: ItemIds
    k: K = 10
    fields: Annotated[Names | None, Field(description="Columns to return with similar bundles.")] = None
    model_config = example(item_ids=["tent", "lamp"], k=5)


class Question(Input):
    """Whom to recommend to: a known user, or anybody by the items and bundles they have."""

    user_id: Id | None = None
    item_ids: Ids = []
    bundle_ids: Ids = []
    k: K = 20
    candidates: Literal["all", "new"] | Candidates = "all"
    exclude_seen: bool = True
    exclude: Candidates = []
    where: Annotated[
        dict[str, Any] | None,
        Field(description='Conditions by column: {"price": {"at_most": 30}}.'),
    ] = None
    fields: Annotated[Names | None, Field(description="Columns to return with each bundle.")] = None
    only_on_offer: bool = True
    now: Annotated[Time | None, Field(description="The moment that decides what is on offer.")] = None
    rules: Annotated[
        dict[str, Any] | None,
        Field(description="pin, boost, at_most_per_category, at_most_young, diverse (docs/catalogue.md)."),
    ] = None
    not_shown_for: Annotated[
        float | None,
        Field(
            gt=0,
            le=MAX_SECONDS,
            description="Leave out what was shown to the user in the last this many seconds.",
        ),
    ] = None
    model_config = example(
        item_ids=["tent"], bundle_ids=["winter"], k=5, where={"price": {"at_most": 30}}, fields=["title"]
    )


class Recommended(BaseModel):
    """One place in a list; `is_new`: nobody had taken it when the model was trained, or it came later."""

    bundle_id: str
    score: float
    rank: int
    is_new: bool
    fields: dict[str, ColumnValue] | None = None
    """What was asked for of the bundle's columns; left out where nothing was."""


class Recommendations(BaseModel):
    """A user's list, best first. `source` says where it comes from; `note` why it is shorter than asked.

    Interactions that result from it may name its `recommendation_id`; `model` is the model's fingerprint.
    """

    user_id: str | None
    source: str
    recommendations: list[Recommended]
    note: str | None
    recommendation_id: str
    model: str
    model_config = example(
        user_id="ann",
        source="model",
        recommendations=[{"bundle_id": "summer", "score": 3.25, "rank": 1, "is_new": True}],
        note=None,
        recommendation_id="main-9b2d1f0c-Qb1kz0vYx2TtqW3e",
        model="9b2d1f0c",
    )


@dataclass(frozen=True)
class Bundle(BundleInfo):
    """A bundle; `unknown_item_ids` are those it was given that the model does not know, `columns` what is
    said of it, and `on_offer` whether it is listed, as far as `available`, `launched` and `ends` decide.
    Where the model knows none of its items, `placed_by` says whose average it is placed by."""

    unknown_item_ids: list[str]
    columns: dict[str, ColumnValue]
    on_offer: bool

    @property
    def etag(self) -> str:
        """Names what can be written of a bundle, and not its popularity, which moves by itself."""
        items = sorted({*self.item_ids, *self.unknown_item_ids})
        written = json.dumps([items, self.columns], sort_keys=True)
        return f'"{hashlib.sha256(written.encode()).hexdigest()[:16]}"'


@dataclass(frozen=True)
class Item:
    """An item and its columns."""

    item_id: str
    columns: dict[str, ColumnValue]


class Found(BaseModel):
    """A bundle or an item that a search found, with its title if it has one."""

    id: str
    title: str | None


class SearchPage(BaseModel):
    """What a search found, best first; `complete`: whether everything was searched in the available time."""

    bundles: list[Found]
    items: list[Found]
    complete: bool
    model_config = example(bundles=[{"id": "summer", "title": "Summer picnic"}], items=[], complete=True)


class SaidColumns(BaseModel):
    """Columns of a bundle or an item that were set since training; null where a value was removed."""

    sequence: int
    subject: Literal["bundle", "item"]
    id: str
    columns: dict[str, ColumnValue]


class ColumnPage(BaseModel):
    """Some of the columns that were set, oldest first; `next` as in a page of interactions."""

    columns: list[SaidColumns]
    next: int | None
    model_config = example(
        columns=[{"sequence": 4, "subject": "bundle", "id": "summer", "columns": {"available": False}}],
        next=None,
    )


class BundleRow(BaseModel):
    """A bundle in a list of bundles."""

    bundle_id: str
    size: int
    popularity: int
    is_new: bool


class BundlePage(BaseModel):
    """Some of the bundles; `next_offset` is null on the last page."""

    bundles: list[BundleRow]
    next_offset: int | None
    model_config = example(
        bundles=[{"bundle_id": "summer", "size": 3, "popularity": 0, "is_new": True}], next_offset=None
    )


class PublishedBundle(BaseModel):
    """A bundle as it was last written since training: its items, or null if it was removed.

    `published_at` is null for one that was in training and was given other items, and for one that was
    removed; of that `removed_at` says when.
    """

    sequence: int
    bundle_id: str
    item_ids: list[str] | None
    published_at: str | None
    removed_at: str | None


class PublishedPage(BaseModel):
    """Some of the bundles that were written, oldest first; `next` as in a page of interactions."""

    bundles: list[PublishedBundle]
    next: int | None
    model_config = example(
        bundles=[
            {
                "sequence": 3, "bundle_id": "summer", "item_ids": ["tent", "lamp", "stove"],
                "published_at": "2024-05-01T12:00:00Z", "removed_at": None,
            }
        ],
        next=None,
    )  # fmt: skip


class UserRow(BaseModel):
    user_id: str


class UserPage(BaseModel):
    """Some of the users; `next_offset` is null on the last page."""

    users: list[UserRow]
    next_offset: int | None
    model_config = example(users=[{"user_id": "ann"}], next_offset=1)


class ItemRow(BaseModel):
    item_id: str


class ItemPage(BaseModel):
    """Some of the items; `next_offset` is null on the last page."""

    items: list[ItemRow]
    next_offset: int | None
    model_config = example(items=[{"item_id": "tent"}], next_offset=1)


class User(BaseModel):
    """What a user has. `is_known`: from training; for others there is only what was recorded since."""

    user_id: str
    is_known: bool
    item_ids: list[str]
    bundle_ids: list[str]
    model_config = example(user_id="ann", is_known=True, item_ids=["tent"], bundle_ids=["winter"])


class Listener(BaseModel):
    """One of a bundle's audience."""

    user_id: str
    score: float
    rank: int


class Audience(BaseModel):
    """The users whom a bundle suits best, without those who took it; `note` has remarks."""

    bundle_id: str
    audience: list[Listener]
    note: str | None
    model_config = example(
        bundle_id="summer", audience=[{"user_id": "ann", "score": 3.25, "rank": 1}], note=None
    )


class Similar(BaseModel):
    """The bundles most similar to one, best first."""

    bundle_id: str
    similar: list[SimilarBundle]
    model_config = example(
        bundle_id="summer",
        similar=[
            {"bundle_id": "winter", "similarity": 0.93, "rank": 1, "is_new": False, "shared_items": ["lamp"]}
        ],
    )


class Previewed(BaseModel):
    """What publishing a bundle would achieve; `note` has remarks, such as that no item is known."""

    audience: list[Listener]
    similar: list[SimilarBundle]
    unknown_item_ids: list[str]
    note: str | None
    model_config = example(
        audience=[{"user_id": "ann", "score": 3.25, "rank": 1}],
        similar=[
            {"bundle_id": "winter", "similarity": 0.93, "rank": 1, "is_new": False, "shared_items": ["lamp"]}
        ],
        unknown_item_ids=[],
        note=None,
    )


class ModelSide(BaseModel):
    """One of the models in service, and the share of users it answers."""

    side: str
    share: float
    model: str
    fingerprint: str
    waiting: int


class Model(BaseModel):
    """The model that answers, and what was written since it was trained.

    `waiting` counts what was written but cannot be placed by this model (no item or user it knows); it
    is kept and tried again with the next model.
    """

    model: str
    fingerprint: str
    loaded_at: str
    generation: int
    best_epoch: int
    metrics: dict[str, float]
    n_users: int
    n_bundles: int
    n_items: int
    waiting: int
    sides: list[ModelSide]
    model_config = example(
        model="coheat", fingerprint="9b2d1f0c", loaded_at="2024-05-01T12:00:00+00:00", generation=1,
        best_epoch=45, metrics={"recall@20": 0.125}, n_users=8039, n_bundles=4771, n_items=32770,
        waiting=0,
        sides=[
            {"side": "main", "share": 1.0, "model": "coheat", "fingerprint": "9b2d1f0c", "waiting": 0}
        ],
    )  # fmt: skip


class PopularityBin(BaseModel):
    """Bundles taken at least `least` and at most `most` times."""

    least: int
    most: int
    bundles: int
    interactions: int
    mean_history_weight: float | None


class Statistics(BaseModel):
    """The model at a glance: how unevenly bundles are taken, how much history counts, what enters lists.

    `cold_share_of_lists` is the share of bundles nobody has taken among the first `list_length` places
    of `sampled_users` users.
    """

    n_users: int
    n_bundles: int
    n_items: int
    n_interactions: int
    n_cold_bundles: int
    popularity: list[PopularityBin]
    list_length: int
    sampled_users: int
    cold_share_of_lists: float
    cold_share_of_bundles: float
    sides: list[SideOutcome] = []
    model_config = example(
        n_users=8039, n_bundles=4771, n_items=32770, n_interactions=51377, n_cold_bundles=955,
        popularity=[
            {"least": 0, "most": 0, "bundles": 955, "interactions": 0, "mean_history_weight": 0.0}
        ],
        list_length=20, sampled_users=200, cold_share_of_lists=0.14, cold_share_of_bundles=0.2,
    )  # fmt: skip


class Problem(BaseModel):
    """What went wrong (RFC 9457); look up `request_id` in the service's log."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    model_config = example(
        type="about:blank", title="Not Found", status=404, request_id="4f0c2a71",
        detail="unknown bundle id 'sumer'; did you mean 'summer'?",
    )  # fmt: skip
