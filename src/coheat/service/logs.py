"""The service's log: one JSON object per line on standard error, for requests, writes and faults.

Lines are handed to a thread. If nobody takes them (a pipe that is not read, a full disk), they are dropped
and counted; the service goes on. No keys are ever written, ids of users only where asked for.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

MOST_WAITING = 10_000
REPEATED_SECONDS = 10.0
GATHERING_SECONDS = 0.05
ENCODER = json.JSONEncoder(default=str)
request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
key_name: contextvars.ContextVar[str | None] = contextvars.ContextVar("key_name", default=None)
written: contextvars.ContextVar[int | None] = contextvars.ContextVar("written", default=None)
"""The sequence number of what the request has written."""

events = logging.getLogger("coheat.service.events")
"""Requests and writes; others' messages go to loggers of their own."""


def event(what: str, /, **fields: Any) -> None:
    """Write down that something happened."""
    if events.isEnabledFor(logging.INFO):
        events.info(what, extra={"fields": fields})


class JsonLines(logging.Formatter):
    """A record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        document: dict[str, Any] = {"time": moment, "level": record.levelname.lower()}
        fields = getattr(record, "fields", None)
        if fields is None:
            document |= {"event": "message", "logger": record.name, "message": record.getMessage()}
        else:
            document |= {"event": record.getMessage(), **fields}
        identity = request_id.get()
        if identity:
            document.setdefault("request_id", identity)
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return ENCODER.encode(document)


class Unrepeated(logging.Filter):
    """The same message at most once in a while: whoever causes it must not be able to fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, float] = {}
        self.left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == events.name or (record.name.startswith("coheat") and record.exc_info):
            return True
        key, now = f"{record.name} {str(record.msg)[:100]}", time.monotonic()
        if now - self.last.get(key, -REPEATED_SECONDS) < REPEATED_SECONDS:
            self.left_out[key] = self.left_out.get(key, 0) + 1
            return False
        if len(self.last) > 1000:
            self.last.clear()
        self.last[key] = now
        left_out = self.left_out.pop(key, 0)
        if left_out:
            record.msg = f"{record.msg} (and {left_out} more like it in between)"
        return True


class Aside(logging.Handler):
    """Keeps lines for a thread that looks every now and then what there is to write: to wake it for each line
    would cost a list more than to make the line."""

    def __init__(self, stream: TextIO):
        super().__init__()
        self.stream = stream
        self.lines: deque[str] = deque()
        self.dropped = 0
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._write, name="log", daemon=True)
        self.thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.lines) >= MOST_WAITING:
            self.dropped += 1
            return
        try:
            self.lines.append(self.format(record) + "\n")
        except Exception:
            self.handleError(record)

    def _write(self) -> None:
        while not self.ending.wait(GATHERING_SECONDS) or self.lines:
            together = "".join(self.lines.popleft() for _ in range(len(self.lines)))
            if together:
                with contextlib.suppress(OSError, ValueError):
                    self.stream.write(together)
                    self.stream.flush()

    def finish(self, seconds: float = 1.0) -> None:
        """Wait a moment until all is written."""
        self.ending.set()
        self.thread.join(seconds)


@contextlib.contextmanager
def logging_to(stream: TextIO = sys.stderr) -> Iterator[Aside]:
    """Everything that is logged goes to `stream`, within the block."""
    handler = Aside(stream)
    handler.setFormatter(JsonLines())
    handler.addFilter(Unrepeated())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        with _without_circumstances():
            yield handler
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        handler.finish()


@contextlib.contextmanager
def _without_circumstances() -> Iterator[None]:
    """Records that do not say by which line, thread and process they were made: our lines do not tell, and to
    find out takes a third of the time of a record."""
    names = "_srcfile", "logThreads", "logProcesses", "logMultiprocessing"
    before = {name: getattr(logging, name) for name in names}
    for name in names:
        setattr(logging, name, None if name == "_srcfile" else False)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(logging, name, value)
