"""Interactions of several requests, written together.

Until a write is on the disk nobody else can write, so those that come meanwhile are written next, as one: the
first whose turn it is takes all that wait. Each request is still all or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from coheat.ids import shortened
from coheat.service import logs
from coheat.service.models import Models
from coheat.service.results import Remembered, UnknownRow
from coheat.service.store import Appended, NewInteraction, Withdrawal

About: TypeAlias = dict[str, str | int | None]
"""What the log says of a write."""
MOST_ROWS = 10_000
"""Of one write, unless a single request has more."""


@dataclass(eq=False)
class Pending:
    """What a request wants to be recorded, and how it ended."""

    interactions: Sequence[NewInteraction]
    about: About
    """What the log says of it."""
    remembered: Remembered | None = None
    sequence: int | None = None
    error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.remembered is not None or self.error is not None

    def result(self) -> Remembered:
        """What came of it; an error is raised."""
        if self.error is not None:
            raise self.error
        assert self.remembered is not None
        logs.written.set(self.sequence)
        return self.remembered


class Waiting:
    """The requests whose interactions are not written yet, in the order in which they came."""

    def __init__(self) -> None:
        self._pending: dict[Pending, None] = {}

    def add(self, interactions: Sequence[NewInteraction]) -> Pending:
        one = Pending(interactions, {**about_rows(interactions), "request_id": logs.request_id.get()})
        self._pending[one] = None
        return one

    def remove(self, one: Pending) -> None:
        self._pending.pop(one, None)

    def together(self, models: Models) -> list[Pending]:
        """Those that can be written now; whoever names an unknown bundle is refused."""
        found: list[Pending] = []
        n_rows = 0
        for one in list(self._pending):
            n_rows += len(one.interactions)
            if found and n_rows > MOST_ROWS:
                break
            place = _unknown(one.interactions, models)
            if place is None:
                found.append(one)
            else:
                name = shortened(one.interactions[place].bundle_id)
                one.error = UnknownRow(place, f"unknown bundle id {name}")
                self.remove(one)
        return found

    def settle(self, written: Sequence[Pending], stored: Appended, counted: Sequence[bool]) -> None:
        """They are written; of the new ones in their order, which count."""
        is_new, counts = iter(stored.is_new), iter(counted)
        for one in written:
            new = list(islice(is_new, len(one.interactions)))
            one.remembered = Remembered(new, [is_one and next(counts, False) for is_one in new])
            one.sequence = stored.sequence
            self.remove(one)

    def refuse(self, refused: Sequence[Pending], error: Exception) -> None:
        """They could not be written, for a reason that holds for all."""
        for one in refused:
            one.error = error
            self.remove(one)


def _unknown(interactions: Sequence[NewInteraction], models: Models) -> int | None:
    return next(
        (place for place, one in enumerate(interactions) if not models.has_bundle(one.bundle_id)), None
    )


def about_bundle(bundle_id: str) -> About:
    """What the log says of a write to one bundle."""
    return {"bundle_id": bundle_id, "key": logs.key_name.get()}


def about_item(item_id: str) -> About:
    """The same of a write to one item."""
    return {"item_id": item_id, "key": logs.key_name.get()}


def about_rows(rows: Sequence[NewInteraction] | Sequence[Withdrawal]) -> About:
    """What the log says of rows; of many, how many they are."""
    if len(rows) == 1:
        return {**about_bundle(rows[0].bundle_id), "user_id": rows[0].user_id}
    return {"rows": len(rows), "key": logs.key_name.get()}
