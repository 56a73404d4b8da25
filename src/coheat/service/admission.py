"""What is not let in: bodies that are too long, too slow or too many, and wrong keys."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from coheat.service.limits import Limits

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Refused(Exception):
    """A request that is not let in."""

    def __init__(self, status: int, detail: str, reason: str, headers: dict[str, str] | None = None):
        super().__init__(detail)
        self.status, self.detail, self.reason, self.headers = status, detail, reason, headers or {}


class Bodies:
    """Bodies that are arriving: each in time, none too long, and not too much of all of them.

    They are read before a request takes one of the places, so that a slow one keeps nobody out.
    """

    def __init__(self, limits: Limits):
        self.limits = limits
        self.arriving: dict[asyncio.Task[Any], int] = {}
        self.given_up: set[asyncio.Task[Any]] = set()

    async def read(self, receive: Receive) -> bytes:
        """The whole body; `receive` gives it part by part."""
        task = asyncio.current_task()
        assert task is not None
        body = bytearray()
        self.arriving[task] = 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the connection ended before the body did", "gone")
                    body += message.get("body", b"")
                    if len(body) > self.limits.body_bytes:
                        detail = f"the body may have {self.limits.body_bytes} bytes at most"
                        raise Refused(413, detail, "body", {"Connection": "close"})
                    if not message.get("more_body", False):
                        return bytes(body)
                    self.arriving[task] = len(body)
                    self._make_room()
        except TimeoutError:
            raise _too_slow() from None
        except asyncio.CancelledError:
            if task not in self.given_up:
                raise
            task.uncancel()
            raise _too_slow() from None
        finally:
            self.arriving.pop(task, None)
            self.given_up.discard(task)

    def _make_room(self) -> None:
        """Give up the largest of those that are not whole yet, where all together are too much."""
        while sum(self.arriving.values()) > self.limits.all_bodies_bytes:
            largest = max(self.arriving, key=lambda task: self.arriving[task])
            self.arriving[largest] = 0
            self.given_up.add(largest)
            largest.cancel()


def _too_slow() -> Refused:
    return Refused(408, "the body did not arrive in time", "slow", {"Connection": "close"})


class WrongKeys:
    """Counts wrong keys by peer, for a minute; who shows too many has to wait."""

    def __init__(self, most: int):
        self.most = most
        self.counts: dict[str, int] = {}
        self.since = time.monotonic()

    def wait(self, peer: str) -> int:
        """Count one more; the seconds to wait, or 0."""
        now = time.monotonic()
        if now - self.since > 60 or len(self.counts) > 100_000:
            self.counts.clear()
            self.since = now
        self.counts[peer] = self.counts.get(peer, 0) + 1
        return 0 if self.counts[peer] <= self.most else max(1, math.ceil(self.since + 60 - now))
