"""What happened lately: the last writes and reloads, for people who look at the page.

Those since the start are those of the log, kept in memory; ids of users are among them only where the log has
them. Of those before there is what the store still knows: its net state, in the order of writing.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from coheat.service import logs
from coheat.service.store import BundleChange, Details, Interaction, Records

KEPT = 500
APART = 60.0
"""Seconds between two interactions after which they are told one by one."""
TOLD = ("write", "write failed", "reload", "reload failed")


class Recent(logging.Handler):
    """Keeps the latest events."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.events: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.since = _now()

    def emit(self, record: logging.LogRecord) -> None:
        what = record.getMessage()
        if what in TOLD:
            moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
            self.events.append({"time": moment, "event": what, **getattr(record, "fields", {})})

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Keep what happens within the block."""
        before = logs.events.level
        logs.events.setLevel(logging.INFO)
        logs.events.addHandler(self)
        try:
            yield
        finally:
            logs.events.removeHandler(self)
            logs.events.setLevel(before)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def earlier(records: Records, until: int, limit: int) -> list[dict[str, Any]]:
    """The latest of what was written up to a number, the newest first, as far as the store keeps it."""
    if limit <= 0 or until <= 0:
        return []
    after = max(until - KEPT, 0)
    bundles = list(records.bundles(after, until))
    written = {one.sequence for one in bundles}
    events = [(one.sequence, _of_bundle(one)) for one in bundles]
    events += [(run[-1].sequence, _of_interactions(run)) for run in _runs(records.interactions(after, until))]
    for one in records.details(after, until):
        if one.sequence not in written:  # what was said of a bundle in the request that made it
            events.append((one.sequence, _of_details(one)))
    events.sort(key=lambda pair: -pair[0])
    return [{"sequence": number, **event} for number, event in events[:limit]]


def _of_bundle(one: BundleChange) -> dict[str, Any]:
    at = one.born_at if one.born == one.sequence else None  # later writes of other items have no time
    return _write("removal" if one.item_ids is None else "bundle", at, bundle_id=one.bundle_id)


def _of_interactions(run: list[Interaction]) -> dict[str, Any]:
    about = {"bundle_id": run[0].bundle_id} if len(run) == 1 else {"rows": len(run)}
    return _write("interaction", run[-1].timestamp, **about)


def _of_details(one: Details) -> dict[str, Any]:
    if one.subject == "model":
        return {"time": _time(one.written_at), "event": "reload", "model": one.id}
    if one.subject == "knob":
        return _write("knob", one.written_at, knob=one.id, value=one.columns.get("value"))
    named = {"bundle_id": one.id} if one.subject == "bundle" else {"item_id": one.id}
    return _write(f"columns of {one.subject}", one.written_at, **named)


def _write(kind: str, at: float | None, **about: Any) -> dict[str, Any]:
    return {"time": _time(at), "event": "write", "kind": kind, **about}


def _runs(interactions: Iterable[Interaction]) -> Iterator[list[Interaction]]:
    """Those that were written one after the other and happened at about the same time."""
    run: list[Interaction] = []
    for one in interactions:
        if run and (one.sequence != run[-1].sequence + 1 or abs(one.timestamp - run[-1].timestamp) > APART):
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _time(at: float | None) -> str | None:
    return None if not at else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
