"""What the explorer asks beyond the interface for shops: names, standings, knobs, what happened."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from coheat.service.schemas import Ids, Input, example

Fields = dict[str, str | float | bool | None]


class Named(Input):
    """Bundles and items whose columns are requested."""

    bundle_ids: Ids = Field(default_factory=list)
    item_ids: Ids = Field(default_factory=list)
    model_config = example(bundle_ids=["summer"], item_ids=["tent"])


class Descriptions(BaseModel):
    """The columns of bundles and items, by id; unknown ones are left out."""

    bundles: dict[str, Fields]
    items: dict[str, Fields]
    model_config = example(
        bundles={"summer": {"title": "Summer picnic", "price": 29.0}}, items={"tent": {"title": "Tent"}}
    )


class Knob(BaseModel):
    """A knob: its value and its range."""

    name: str
    value: float
    least: float
    most: float


class Catalogue(BaseModel):
    """Which columns bundles and items have and what each is taken for, the categories of bundles (the most
    frequent first), and the knobs of the model."""

    bundle_columns: dict[str, str]
    item_columns: dict[str, str]
    categories: list[str]
    knobs: list[Knob]
    model_config = example(
        bundle_columns={"title": "text", "price": "number"},
        item_columns={"title": "text"},
        categories=["GARDEN"],
        knobs=[{"name": "welcome", "value": 1.0, "least": 0.0, "most": 100.0}],
    )


class Step(BaseModel):
    """If taken this often, a bundle would be in this many of the lists."""

    taken: int
    in_lists: int


class Standing(BaseModel):
    """How a bundle stands: who took it (the first hundred), and in how many of the first `list_length` places
    of `sampled_users` users, who did not take it, it stands now; `steps` if it had been taken more or less
    often, all else being as it is. `rises_at`: with so many takers it would stand in more lists than now;
    null where more takers alone do not lift it."""

    bundle_id: str
    popularity: int
    takers: list[str]
    list_length: int
    sampled_users: int
    in_lists: int
    steps: list[Step]
    rises_at: int | None
    on_offer: bool
    fields: Fields
    model_config = example(
        bundle_id="summer", popularity=3, takers=["ann"], list_length=20, sampled_users=200, in_lists=12,
        steps=[{"taken": 0, "in_lists": 10}, {"taken": 3, "in_lists": 12}], rises_at=8, on_offer=True,
        fields={"title": "Summer picnic"},
    )  # fmt: skip


class KnobValue(Input):
    """The value to set a knob to; null: the value it had when the service was started."""

    value: Annotated[float, Field(ge=0, le=1e6)] | None
    model_config = example(value=2.0)


class Turned(BaseModel):
    """What lists would be with a knob turned: the share of places that bundles nobody has taken get, now and
    then, and how many of the lists would hold other bundles."""

    name: str
    value: float
    cold_share: float
    cold_share_now: float
    changed_lists: int
    list_length: int
    sampled_users: int
    model_config = example(
        name="welcome", value=2.0, cold_share=0.2, cold_share_now=0.1, changed_lists=80, list_length=20,
        sampled_users=100,
    )  # fmt: skip


class Part(BaseModel):
    """Of bundles taken at least `least` and at most `most` times: what share of their scores is history,
    items and being new, summed over their places in lists, so that scores near zero count for little."""

    least: int
    most: int
    history: float
    items: float
    youth: float
    places: int


class Parts(BaseModel):
    """What scores are made of, by how often bundles were taken; empty if that is not known."""

    parts: list[Part]
    model_config = example(
        parts=[{"least": 0, "most": 0, "history": 0.0, "items": 0.9, "youth": 0.1, "places": 20}]
    )


class Happened(BaseModel):
    """The latest writes and reloads, the newest first. Of those before the start (`since`) there is what the
    store keeps: of each bundle, pair and knob the last, without a key, some without a time."""

    since: str
    events: list[dict[str, Any]]
    model_config = example(
        since="2024-05-01T12:00:00.000+00:00",
        events=[
            {"time": "2024-05-01T12:01:00.000+00:00", "event": "write", "kind": "interaction", "key": "shop"}
        ],
    )


Value = Annotated[float, Field(ge=0, le=1e6)]
