"""What happened lately: the last writes and reloads since the start, for people who look at the page.

They are those of the log, kept in memory; ids of users are among them only where the log has them.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from coheat.service import logs

KEPT = 500
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
