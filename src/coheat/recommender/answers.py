"""What the recommender answers: plain rows with public ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, overload

Source: TypeAlias = Literal["model", "folded-in", "popular-and-new"]
"""Where a list comes from: the user's trained vector, a vector made from what was said of the user, or
(nothing being known of the user) the most popular and the newest bundles by turns."""


class Recommendation(NamedTuple):
    """One row: this bundle stands at this rank (from 1) for this user."""

    user_id: str
    bundle_id: str
    score: float
    rank: int


class Recommendations(Sequence[Recommendation]):
    """Rows, best first, user after user; and what there is to say about them.

    `sources`: for each user, where the list comes from. `short`: for each list with fewer than k rows, how
    many it has. `notes`: sentences for people, about everything short, left out or replaced.

    It reads like a list. The rows are made as they are looked at: for many users, making them all and
    holding them at once takes a good part of the time that finding them takes.
    """

    def __init__(self, make_rows: Callable[[], Iterable[Recommendation]], count: int):
        self._make_rows, self._count = make_rows, count
        self.sources: dict[str, Source] = {}
        self.short: dict[str, int] = {}
        self.notes: list[str] = []

    @cached_property
    def rows(self) -> list[Recommendation]:
        return list(self._make_rows())

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Recommendation]:
        return iter(self._make_rows())

    @overload
    def __getitem__(self, place: int) -> Recommendation: ...
    @overload
    def __getitem__(self, place: slice) -> list[Recommendation]: ...
    def __getitem__(self, place: int | slice) -> Recommendation | list[Recommendation]:
        return self.rows[place]

    def __eq__(self, other: object) -> bool:
        return self.rows == (other.rows if isinstance(other, Recommendations) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.rows)


@dataclass(frozen=True)
class AddedBundles:
    """Bundles made known or replaced; `unknown_items` are those left out, by bundle."""

    bundle_ids: list[str]
    unknown_items: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """What `record` did; `counted` is False where this user was already known to have the bundle."""

    user_id: str
    bundle_id: str
    counted: bool
    popularity: int
    history_weight: float | None


@dataclass(frozen=True)
class BundleInfo:
    """What is known of a bundle now. `origin` says whether the model was trained with it."""

    bundle_id: str
    item_ids: list[str]
    popularity: int
    history_weight: float | None
    is_new: bool
    origin: Literal["training", "added"]


@dataclass(frozen=True)
class UserInfo:
    """What is known of a user: from training, and the bundles recorded since."""

    user_id: str
    known: bool
    item_ids: list[str]
    bundle_ids: list[str]
    recorded_ids: list[str]


@dataclass(frozen=True)
class SimilarBundle:
    """One row of `similar_bundles`: cosine of the two bundles' vectors, and the items both have."""

    bundle_id: str
    similarity: float
    rank: int
    shared_items: list[str]


@dataclass(frozen=True)
class Share:
    """How much of a score an item or a bundle carries."""

    id: str
    share: float


@dataclass(frozen=True)
class ViewShare:
    """How much of a score a view carries, and the weight it has for this bundle."""

    name: str
    weight: float
    share: float


@dataclass(frozen=True)
class Explanation:
    """A score taken apart, in two ways; each adds up to the score.

    By the bundle's side: the `views`. Where the bundle's vector is made of its items, `bundle_items` splits
    the share of the affiliation view (the only view, for a model with one) among them.
    By the user's side: `user_items` + `user_bundles` (what the user has) + `own` (what was learned of the
    user beyond that; 0 for one folded in). Where the model does not say, these lists are empty
    and all is `own`.
    """

    user_id: str
    bundle_id: str
    source: Source
    score: float
    history_weight: float | None
    views: list[ViewShare]
    bundle_items: list[Share]
    user_items: list[Share]
    user_bundles: list[Share]
    own: float
