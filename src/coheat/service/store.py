"""What was written since training, kept so that nothing acknowledged is ever lost: what the service needs.

`Store` is the small interface; `sqlite_store.py` keeps it in one SQLite file. A store holds the net state,
not a log: for each bundle what it is made of or that it is gone, for each user and bundle that they met. So
it grows with bundles and interactions, never with how often they are rewritten. The order is a counter of
its own; the clock is written down for people and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from coheat.errors import CoheatError

NOT_NOW = "the disk does not take it now; nothing was changed"


class StoreError(CoheatError):
    """What was written since training cannot be read or written.

    The message names files and is for those who run the service; `reason` is for those who ask it. Where
    it `is_uncertain`, what was to be written may be there all the same; otherwise it is not.
    """

    def __init__(self, message: str, reason: str = NOT_NOW):
        super().__init__(message)
        self.reason = reason
        self.is_uncertain = False


@dataclass(frozen=True)
class BundleChange:
    """A bundle as last written: its items, or None where it was removed.

    `created_on` is the fingerprint of the model that served when it was made from nothing, and `born` the
    sequence number of that write, which later writes of other items leave as it is. A bundle of the model
    that was given other items has neither: None and 0. `request` names the request that made it, where that
    one wanted to be repeatable.
    """

    sequence: int
    bundle_id: str
    item_ids: tuple[str, ...] | None
    created_on: str | None
    born: int
    request: str | None = None


@dataclass(frozen=True)
class Interaction:
    """A user took a bundle."""

    sequence: int
    user_id: str
    bundle_id: str


class Store(Protocol):
    """Every write returns when its effect is durable.

    Writes may come from any thread, one at a time. Reads may run beside them, and must not make them wait.
    """

    def put_bundle(
        self, bundle_id: str, item_ids: Sequence[str], created_on: str | None, request: str | None = None
    ) -> int:
        """Write a bundle, whether or not it is there already; its sequence number.

        `created_on` and `request` count only for a bundle that the store does not hold (see `BundleChange`).
        """
        ...

    def remove_bundle(self, bundle_id: str) -> int:
        """Remember that a bundle is gone, and forget who took it."""
        ...

    def add_interaction(self, user_id: str, bundle_id: str) -> int:
        """Remember that a user took a bundle; doing so again changes nothing."""
        ...

    def bundles(self, after: int = 0, until: int | None = None) -> Iterator[BundleChange]:
        """Bundles written after one sequence number and until another, in the order of writing."""
        ...

    def interactions(self, after: int = 0, until: int | None = None) -> Iterator[Interaction]:
        """Interactions written after one sequence number and until another, in the order of writing."""
        ...

    def pairs(self, after: int = 0, until: int | None = None) -> Iterator[list[tuple[str, str]]]:
        """The same as pairs of user and bundle, many at a time: there may be millions."""
        ...

    def bundle(self, bundle_id: str) -> BundleChange | None:
        """A bundle as last written, also where it was removed; None where it was never written."""
        ...

    def takers(self, bundle_id: str) -> list[str]:
        """Who took a bundle since training, in the order of writing."""
        ...

    def last_sequence(self) -> int:
        """The number of the latest write; 0 before the first."""
        ...

    def check(self) -> None:
        """Raise `StoreError` where the next write would fail for a reason that can be known now."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...
