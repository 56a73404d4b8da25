"""What the recommender answers, with public ids: the one definition of each answer.

The service's schemas and the command line's JSON follow from these classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, overload

from coheat.attributes import Attributes, Value
from coheat.display import html_table
from coheat.served import Term

PlacedBy: TypeAlias = Literal["category", "catalogue"]
Source: TypeAlias = Literal["model", "folded-in", "popular-and-new"]
"""Where a list comes from: the user's trained vector, a vector made from what was said of the user, or
(nothing being known of the user) the most popular and the newest bundles by turns."""


class _Row(NamedTuple):
    user_id: str
    bundle_id: str
    score: float
    rank: int
    is_new: bool = False


class Recommendation(_Row):
    """One row: this bundle has this rank (from 1) for this user.

    `is_new`: nobody had taken the bundle when the model was trained, or it was added since. `fields`: the
    requested columns of the bundle, by name; None if none were requested.
    """

    fields: dict[str, Value] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; with `fields` if some were requested."""
        found = self._asdict()
        return found if self.fields is None else {**found, "fields": self.fields}


COLUMNS = Recommendation._fields
Columns: TypeAlias = Sequence[Iterable[Any]]
"""The columns of `Recommendation`."""


class Recommendations(Sequence[Recommendation]):
    """Rows, best first, user after user, with remarks about them.

    `sources`: for each user, where the list comes from. `short`: for each list with fewer than k rows, how
    many it has. `notes`: sentences for people about everything short, left out or replaced; those about a
    single bundle in the lists are in `about_bundles`, by its id.

    It can be used like a list. Rows are created when they are accessed, because creating and keeping them all
    for many users would take a good part of the time that finding them takes.
    """

    def __init__(
        self, columns: Callable[[], Columns], count: int, fields: Callable[[], Attributes] | None = None
    ):
        """`fields` gives the columns of bundles that were asked for, a row for each row here."""
        self._columns, self._count, self._fields = columns, count, fields
        self.sources: dict[str, Source] = {}
        self.short: dict[str, int] = {}
        self.notes: list[str] = []
        self.about_bundles: dict[str, str] = {}

    @cached_property
    def rows(self) -> list[Recommendation]:
        return list(self)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Recommendation]:
        rows = map(Recommendation._make, zip(*self._columns(), strict=True))
        return rows if self._fields is None else self._with_fields(rows, self._fields())

    def _with_fields(self, rows: Iterable[Recommendation], table: Attributes) -> Iterator[Recommendation]:
        for place, row in enumerate(rows):
            row.fields = table.values(place)
            yield row

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
        """A pyarrow.Table with the columns of `Recommendation` and one for each requested field."""
        import pyarrow

        types = pyarrow.string(), pyarrow.string(), pyarrow.float32(), pyarrow.int32(), pyarrow.bool_()
        columns = [pyarrow.array(list(c), t) for c, t in zip(self._columns(), types, strict=True)]
        fields = {} if self._fields is None else field_arrays(self._fields(), self._count)
        return pyarrow.table([*columns, *fields.values()], names=[*COLUMNS, *fields])

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with the columns of `Recommendation`."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        shown = [f"{user}  {rank:>3}  {score:>9.4f}  {bundle}{'  (new)' if new else ''}{_said(row.fields)}"
                 for row in self.rows[:20] for user, bundle, score, rank, new in [row]]  # fmt: skip
        more = [f"... {len(self) - 20} more rows"] if len(self) > 20 else []
        return "\n".join([f"Recommendations of {len(self)} rows", *shown, *more])

    def _repr_html_(self) -> str:
        names = [] if self._fields is None else list(self._fields())
        rows = [[*row, *(row.fields or {}).values()] for row in self.rows[:50]]
        return html_table(rows, [*COLUMNS, *names]) + f"<p>{len(self):,} rows</p>"


def _said(fields: dict[str, Value] | None) -> str:
    return "".join(f"  {value}" for value in (fields or {}).values() if value is not None)


def field_arrays(table: Attributes, n: int) -> dict[str, Any]:
    """n rows of columns as pyarrow arrays, by name; one that a list has itself gets `bundle_` before it."""
    from coheat.attributes.arrow import to_arrow

    return {
        f"bundle_{name}" if name in COLUMNS else name: to_arrow(column, n)
        for name, column in table.columns.items()
    }


@dataclass(frozen=True)
class AddedBundles:
    """Bundles that were added or replaced; `unknown_items` are those left out, by bundle.

    `placed_by`: for bundles none of whose items is known, whether they are placed by the average of their
    category or of the whole catalogue.
    """

    bundle_ids: list[str]
    unknown_items: dict[str, list[str]] = field(default_factory=dict)
    placed_by: dict[str, PlacedBy] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """What `record` did; `counted` is False if this user was already known to have the bundle.

    `popularity` is how many users took the bundle, this one included.
    """

    user_id: str
    bundle_id: str
    counted: bool
    popularity: int
    history_weight: float | None


@dataclass(frozen=True)
class BundleInfo:
    """A bundle: its items, how many users took it, and whether it was written after training (`is_added`).

    `placed_by`: if the model knows none of its items, whose average it is placed by; else None.
    """

    bundle_id: str
    item_ids: list[str]
    popularity: int
    history_weight: float | None
    is_new: bool
    is_added: bool
    placed_by: PlacedBy | None


@dataclass(frozen=True)
class UserInfo:
    """What a user has. `is_known`: from training; for others there is only what was recorded since."""

    user_id: str
    is_known: bool
    item_ids: list[str]
    bundle_ids: list[str]
    recorded_ids: list[str]


@dataclass(frozen=True)
class SimilarBundle:
    """Another bundle and how similar it is: the cosine between the two, and the items they share."""

    bundle_id: str
    similarity: float
    rank: int
    is_new: bool
    shared_items: list[str]
    fields: dict[str, Value] | None = None
    """What was asked for of the bundle's columns; None where nothing was."""


@dataclass(frozen=True)
class FoundId:
    """A bundle or an item that a search found, with its title if it has one."""

    id: str
    title: str | None


@dataclass(frozen=True)
class SearchResult:
    """What a search found, best first. `complete`: whether everything was searched in the available time."""

    found: list[FoundId]
    complete: bool


@dataclass(frozen=True)
class ItemShare:
    """How much an item contributes to a score."""

    item_id: str
    share: float


@dataclass(frozen=True)
class BundleShare:
    """How much a bundle contributes to a score; `fields`: its requested columns."""

    bundle_id: str
    share: float
    fields: dict[str, Value] | None = None


@dataclass(frozen=True)
class Explanation:
    """Why a bundle has its score for a user: the `terms` of the sum, and what contributes to them.

    `history`, `items` and `youth` group the terms by what they are about, and add up to the score; the shares
    of `bundle_items` add up to `items` if the model knows bundles by their items. From the user's side, the
    shares of `user_items` and `user_bundles` and `own`, which is everything else, add up to the score.
    `history_weight` is null if it does not depend on evidence. `fields`: the requested columns of the bundle.
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
    fields: dict[str, Value] | None = None
