"""What was written since training, kept so that nothing acknowledged is ever lost: what the service needs.

`Store` is the small interface; `sqlite_store.py` keeps it in one SQLite file, `postgres_store.py` in a
database that several services (replicas) share. A store holds the net state, not a log: for each bundle what
it is made of or that it is gone, for each user and bundle how they met. So it grows with bundles and
interactions, never with how often they are rewritten. The order is a counter of its own; the clock is written
down for people and for training, and decides nothing.

Beside the net state it has the latest changes, in their order (`changes`): models that are up to date follow
them, whoever made them. They are not kept for ever; who has missed too many replays the net state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, get_args

from coheat.attributes import Value
from coheat.errors import CoheatError
from coheat.service.online import Outcome

NOT_NOW = "the disk does not take it now; nothing was changed"
NOT_FOLLOWED = "it is written, but the store went away while the service ran, before that could be shown"
CONTESTED = "others write to the same bundle all the time; nothing was changed, try again"
Kind: TypeAlias = Literal["shown", "clicked", "took"]
"""What happened between a user and a bundle."""
KINDS: tuple[Kind, ...] = get_args(Kind)
TOOK: frozenset[Kind] = frozenset({"took"})
"""What counts as positive where nothing else is said."""
Subject: TypeAlias = Literal["bundle", "item", "knob", "model"]
"""Of what something is said: of bundles and items their columns; of a knob how it was turned (`value`); of a
model (by its fingerprint) that it was loaded."""


class StoreError(CoheatError):
    """What was written since training cannot be read or written.

    The message names files and is for those who run the service; `reason` is for those who ask it. Where
    it `is_uncertain`, what was to be written may be there all the same; otherwise it is not.
    """

    def __init__(self, message: str, reason: str = NOT_NOW):
        super().__init__(message)
        self.reason = reason
        self.is_uncertain = False


class Overtaken(CoheatError):
    """Of what is to be changed something was written that the one who asks had not seen."""


class Missed(CoheatError):
    """Changes that were asked for are not kept any more; the net state has to be replayed."""


@dataclass(frozen=True)
class Origin:
    """Where a write comes from.

    `seen` is the number of the latest change that the one who asks knew when checking it; where something
    newer was written of the same bundle, the write is refused (`Overtaken`). Without it nothing is compared.
    `key` names the key that was used.
    """

    seen: int | None = None
    key: str | None = None


UNKNOWN = Origin()


@dataclass(frozen=True)
class BundleChange:
    """A bundle as last written: its items, or None where it was removed.

    `created_on` names the models (fingerprints, with blanks between) that served when it was made from
    nothing, and `born` is the sequence number of that write, `born_at` its time (Unix seconds); later writes
    of other items leave them as they are. A bundle of the model that was given other items has neither: None
    and 0. Of a removed one they are the number and the time of its removal. `request` names the request that
    made it, where that one wanted to be repeatable.
    """

    sequence: int
    bundle_id: str
    item_ids: tuple[str, ...] | None
    created_on: str | None
    born: int
    born_at: float
    request: str | None = None


@dataclass(frozen=True)
class NewInteraction:
    """What is to be written of a user and a bundle; without a time, at the store's."""

    user_id: str
    bundle_id: str
    kind: Kind = "took"
    timestamp: float | None = None
    """Unix seconds; thousandths are kept."""
    recommendation_id: str = ""
    """The list that it came from, where that is known."""


@dataclass(frozen=True)
class Interaction:
    """What happened between a user and a bundle, and when (Unix seconds)."""

    sequence: int
    user_id: str
    bundle_id: str
    kind: Kind
    timestamp: float
    recommendation_id: str


@dataclass(frozen=True)
class Withdrawal:
    """Which interactions of a user and a bundle are taken back: of one kind or all, of one list or all."""

    user_id: str
    bundle_id: str
    kind: Kind | None = None
    recommendation_id: str | None = None


@dataclass(frozen=True)
class Appended:
    """The number of the latest write, and for each interaction whether it was not there before."""

    sequence: int
    is_new: list[bool]


@dataclass(frozen=True)
class Recorded:
    """Interactions that were not there before, in their order; the number is that of the last."""

    sequence: int
    interactions: tuple[NewInteraction, ...]


@dataclass(frozen=True)
class Withdrawn:
    """The number of the latest write, what is gone, and how the same users and bundles still met."""

    sequence: int
    interactions: list[Interaction]
    remaining: frozenset[tuple[str, str, Kind]] = frozenset()


@dataclass(frozen=True)
class Details:
    """What was said since training of a bundle or an item: columns and their values, None where one was
    taken away. So it is with knobs and models."""

    sequence: int
    subject: Subject
    id: str
    columns: Mapping[str, Value]
    written_at: float | None = None
    """When something was said last (Unix seconds), where that is known."""


Change: TypeAlias = BundleChange | Details | Recorded | Withdrawn
"""One write, as models follow it. `Details` are then what was said by this write alone."""


class Records(Protocol):
    """Reading what was written. Reads may run beside writes, and must not make them wait."""

    def bundles(
        self, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> Iterator[BundleChange]:
        """Bundles written after one sequence number and until another, in the order of writing."""
        ...

    def interactions(
        self,
        after: int = 0,
        until: int | None = None,
        kinds: Collection[Kind] = KINDS,
        limit: int | None = None,
    ) -> Iterator[Interaction]:
        """Interactions written after one sequence number and until another, in the order of writing."""
        ...

    def pairs(
        self, after: int = 0, until: int | None = None, kinds: Collection[Kind] = TOOK
    ) -> Iterator[tuple[list[str], list[str]]]:
        """The same as users and, pair by pair, their bundles, many at a time: there may be millions. A pair
        that met in several ways comes as often."""
        ...

    def bundle(self, bundle_id: str) -> BundleChange | None:
        """A bundle as last written, also where it was removed; None where it was never written."""
        ...

    def takers(self, bundle_id: str, kinds: Collection[Kind] = TOOK) -> list[str]:
        """Who took a bundle since training, each once, in the order of writing."""
        ...

    def has_taken(self, user_id: str, bundle_id: str, kinds: Collection[Kind] = TOOK) -> bool:
        """Whether an interaction of these kinds is there."""
        ...

    def details(
        self, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> Iterator[Details]:
        """What was said of bundles and items, in the order of writing."""
        ...

    def columns_of(self, subject: Subject, name: str) -> dict[str, Value]:
        """What was said of one since training."""
        ...

    def shown_since(self, user_id: str, moment: float) -> list[str]:
        """The bundles that were shown to a user at this moment (Unix seconds) or later."""
        ...

    def outcomes(self) -> list[Outcome]:
        """What was recorded of lists that say which side and which model made them."""
        ...

    def last_sequence(self) -> int:
        """The number of the latest write; 0 before the first."""
        ...

    def last_withdrawal(self) -> int:
        """The number of the latest write that took interactions back; 0 before the first."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class Store(Records, Protocol):
    """Every write returns when its effect is durable, and comes from any thread, one at a time."""

    @property
    def is_shared(self) -> bool:
        """Whether others may write to it, too."""
        ...

    def changes(self, after: int) -> list[Change]:
        """The changes after a sequence number, oldest first: all of them, or the first thousand.

        Raises `Missed` where not all of them are kept any more.
        """
        ...

    def wait(self, after: int, seconds: float) -> int:
        """The number of the latest write, as soon as it is above `after`, or else after so many seconds."""
        ...

    def check_reachable(self) -> None:
        """Raise `StoreError` where it is known already that the next write would fail; this asks nobody."""
        ...

    def put_bundle(
        self,
        bundle_id: str,
        item_ids: Sequence[str],
        created_on: str | None,
        request: str | None = None,
        columns: Mapping[str, Value] | None = None,
        origin: Origin = UNKNOWN,
    ) -> int:
        """Write a bundle, whether or not it is there already, and what is said of it; its sequence number.

        `created_on` and `request` count only for a bundle that the store does not hold (see `BundleChange`).
        """
        ...

    def remove_bundle(self, bundle_id: str, origin: Origin = UNKNOWN) -> int:
        """Remember that a bundle is gone, and forget who took it and what was said of it."""
        ...

    def put_columns(
        self, subject: Subject, name: str, columns: Mapping[str, Value], origin: Origin = UNKNOWN
    ) -> int:
        """Say something of a bundle or an item, besides what was said of other columns before."""
        ...

    def add_interactions(self, interactions: Sequence[NewInteraction], origin: Origin = UNKNOWN) -> Appended:
        """Remember what happened, all of it or nothing. A bundle that was removed or made anew since it was
        seen overtakes it; one that got other items does not.

        One of the same user, bundle, kind and list is kept once, in the place where it was first written.
        Again it changes nothing, but that showing and clicking take the later time.
        """
        ...

    def remove_interactions(self, withdrawals: Sequence[Withdrawal], origin: Origin = UNKNOWN) -> Withdrawn:
        """Forget interactions, all of them or none; those that are not there are passed over."""
        ...

    def check(self) -> None:
        """Raise `StoreError` where the next write would fail for a reason that can be known now."""
        ...
