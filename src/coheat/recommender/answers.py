"""What the recommender answers, with public ids: the one definition of each answer.

The service's schemas and the command line's JSON follow from these classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, overload

from coheat.display import html_table
from coheat.served import Term

Source: TypeAlias = Literal["model", "folded-in", "popular-and-new"]
"""Where a list comes from: the user's trained vector, a vector made from what was said of the user, or
(nothing being known of the user) the most popular and the newest bundles by turns."""


class Recommendation(NamedTuple):
    """One row: this bundle stands at this rank (from 1) for this user.

    `is_new`: nobody had taken the bundle when the model was trained, or it came since.
    """

    user_id: str
    bundle_id: str
    score: float
    rank: int
    is_new: bool = False


Columns: TypeAlias = Sequence[Iterable[Any]]
"""The columns of `Recommendation`."""


class Recommendations(Sequence[Recommendation]):
    """Rows, best first, user after user; and what there is to say about them.

    `sources`: for each user, where the list comes from. `short`: for each list with fewer than k rows, how
    many it has. `notes`: sentences for people, about everything short, left out or replaced.

    It reads like a list. The rows are made as they are looked at: for many users, making them all and
    holding them at once takes a good part of the time that finding them takes.
    """

    def __init__(self, columns: Callable[[], Columns], count: int):
        self._columns, self._count = columns, count
        self.sources: dict[str, Source] = {}
        self.short: dict[str, int] = {}
        self.notes: list[str] = []

    @cached_property
    def rows(self) -> list[Recommendation]:
        return list(self)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Recommendation]:
        return map(Recommendation._make, zip(*self._columns(), strict=True))

    @overload
    def __getitem__(self, place: int) -> Recommendation: ...
    @overload
    def __getitem__(self, place: slice) -> list[Recommendation]: ...
    def __getitem__(self, place: int | slice) -> Recommendation | list[Recommendation]:
        return self.rows[place]

    def __eq__(self, other: object) -> bool:
        return self.rows == (other.rows if isinstance(other, Recommendations) else other)

    __hash__ = None  # type: ignore[assignment]

    def to_arrow(self) -> Any:
        """A pyarrow.Table with the columns of `Recommendation`."""
        import pyarrow

        types = pyarrow.string(), pyarrow.string(), pyarrow.float32(), pyarrow.int32(), pyarrow.bool_()
        columns = [pyarrow.array(list(c), t) for c, t in zip(self._columns(), types, strict=True)]
        return pyarrow.table(columns, names=list(Recommendation._fields))

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with the columns of `Recommendation`."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        shown = [f"{user}  {rank:>3}  {score:>9.4f}  {bundle}{'  (new)' if new else ''}"
                 for user, bundle, score, rank, new in self.rows[:20]]  # fmt: skip
        more = [f"... {len(self) - 20} more rows"] if len(self) > 20 else []
        return "\n".join([f"Recommendations of {len(self)} rows", *shown, *more])

    def _repr_html_(self) -> str:
        return html_table(self.rows[:50], Recommendation._fields) + f"<p>{len(self):,} rows</p>"


@dataclass(frozen=True)
class AddedBundles:
    """Bundles made known or replaced; `unknown_items` are those left out, by bundle."""

    bundle_ids: list[str]
    unknown_items: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """What `record` did; `counted` is False where this user was already known to have the bundle.

    `popularity` is how many took the bundle, this user included.
    """

    user_id: str
    bundle_id: str
    counted: bool
    popularity: int
    history_weight: float | None


@dataclass(frozen=True)
class BundleInfo:
    """A bundle: its items, how many took it, and whether it was written after training (`is_added`)."""

    bundle_id: str
    item_ids: list[str]
    popularity: int
    history_weight: float | None
    is_new: bool
    is_added: bool


@dataclass(frozen=True)
class UserInfo:
    """What a user has. `is_known`: from training; of others there is only what was recorded since."""

    user_id: str
    is_known: bool
    item_ids: list[str]
    bundle_ids: list[str]
    recorded_ids: list[str]


@dataclass(frozen=True)
class SimilarBundle:
    """Another bundle and its likeness: the cosine between the two, and the items both have."""

    bundle_id: str
    similarity: float
    rank: int
    is_new: bool
    shared_items: list[str]


@dataclass(frozen=True)
class ItemShare:
    """How much of a score an item carries."""

    item_id: str
    share: float


@dataclass(frozen=True)
class BundleShare:
    """How much of a score a bundle carries."""

    bundle_id: str
    share: float


@dataclass(frozen=True)
class Explanation:
    """Why a bundle has its score for a user: the `terms` of the sum, and what carries them.

    `history`, `items` and `youth` add up the terms by what they are about, and add up to the score; the
    shares of `bundle_items` add up to `items` where the model knows bundles by their items. From the user's
    side, the shares of `user_items` and `user_bundles` and `own`, what was learned of the user beyond them,
    add up to the score. `history_weight` is null where evidence does not decide it.
    """

    user_id: str
    bundle_id: str
    source: Source
    score: float
    history: float
    items: float
    youth: float
    history_weight: float | None
    terms: list[Term]
    bundle_items: list[ItemShare]
    user_items: list[ItemShare]
    user_bundles: list[BundleShare]
    own: float
