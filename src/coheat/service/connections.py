"""Who is connected: nobody keeps others out by being connected and asking nothing.

A connection that sends no head, sends its body drop by drop, or does not take its answer costs little, and
costs nobody a place among those who are answered. It is let go of when its time is over, and before that as
soon as the room is needed: the peer with the most connections gives way first.

This is uvicorn's protocol with limits around it. Its parser (httptools) is compiled, and its class is open to
be extended, which is what making room for others takes.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coheat.service.limits import Limits
from coheat.service.metrics import Metrics

AT_ONCE = 8
"""Connections that are let go of together: to find them, all are looked at."""
PATIENCE = 0.25
"""Seconds after which somebody who sends or reads slowly may have to give way."""
IDLE = 3
"""The rank of those who wait between two requests: the last to give way, one at a time."""
HEAD_BYTES = 1 << 16
"""An id of 1,000 emoji takes 12,000 characters in an address."""
READ_AT_ONCE = 2048
"""Bytes: to read on, request after request, for somebody who waits for no answer keeps the others waiting."""
PIPELINED_SECONDS = 0.25
"""Between two requests that were sent together: nobody who does so may ask faster than those who wait."""
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: 101\r\n\r\n"
    b'{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"too many are connected"}\r\n'
)


@dataclass
class Peer:
    """The connections of one address; `silent` are those without a whole head yet, in the order of coming."""

    open: set[Connection] = field(default_factory=set)
    silent: dict[Connection, None] = field(default_factory=dict)


class Connections:
    """All connections of one listener."""

    def __init__(self, most: int, most_per_peer: int, limits: Limits, metrics: Metrics):
        self.most, self.most_per_peer, self.limits, self.metrics = most, most_per_peer, limits, metrics
        self.peers: dict[str, Peer] = {}
        self.count = 0

    def add(self, new: Connection) -> bool:
        """Whether there is room, or room could be made, for one more."""
        peer = self.peers.setdefault(new.peer, Peer())
        if len(peer.open) >= self.most_per_peer:
            self._make_room([peer])
        elif self.count >= self.most:
            self._make_room(sorted(self.peers.values(), key=lambda one: len(one.open), reverse=True))
        fits = len(peer.open) < self.most_per_peer and self.count < self.most
        if fits:
            self.peers[new.peer] = peer  # making room may have ended its last connection
            peer.open.add(new)
            peer.silent[new] = None
            self.count += 1
            self.metrics.connections.set(self.count)
        elif not peer.open:
            self.peers.pop(new.peer, None)
        return fits

    def has_asked(self, one: Connection) -> None:
        """A whole head has come."""
        self.peers[one.peer].silent.pop(one, None)

    def remove(self, gone: Connection) -> None:
        peer = self.peers.get(gone.peer)
        if peer is None or gone not in peer.open:
            return
        peer.open.remove(gone)
        peer.silent.pop(gone, None)
        if not peer.open:
            del self.peers[gone.peer]
        self.count -= 1
        self.metrics.connections.set(self.count)

    def _make_room(self, peers: list[Peer]) -> None:
        """Let go of the first who came and asked nothing; where nobody did, of some who are slow or idle."""
        now = time.monotonic()
        for peer in peers:
            if peer.silent:
                self.let_go(next(iter(peer.silent)), "room")
                return
            ranked = [
                (rank, one.since, id(one), one) for one in peer.open if (rank := one.rank(now)) is not None
            ]
            if ranked:
                ranked.sort()
                first = ranked[0][0]
                alike = [one for rank, _, _, one in ranked if rank == first]
                for one in alike[: 1 if first == IDLE else AT_ONCE]:
                    self.let_go(one, "room")
                return

    def let_go(self, one: Connection, reason: str) -> None:
        self.metrics.connections_ended.labels(reason).inc()
        self.remove(one)
        one.transport.abort()  # not close: that would wait until all is read

    def end_overdue(self) -> None:
        """Let go of those whose time is over."""
        now = time.monotonic()
        for peer in list(self.peers.values()):
            for one in list(peer.open):
                reason = one.overdue(now)
                if reason is not None:
                    self.let_go(one, reason)


class Gathering:
    """A transport that sends the head of an answer together with what is written next: to send it alone takes
    a call to the system more, for us and for the client."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self._transport, self._loop, self._head = transport, loop, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._head and data.startswith(b"HTTP/"):
            self._head = data
            self._loop.call_soon(self._send_head)  # where nothing follows at once
        else:
            data, self._head = self._head + data, b""
            self._transport.write(data)

    def _send_head(self) -> None:
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self._send_head()
        self._transport.close()


class Flow(FlowControl):
    """Reads nothing more while something read waits for its turn, whoever asks for it: each request asks."""

    def __init__(self, transport: asyncio.Transport, held: bytearray):
        super().__init__(transport)
        self._held = held

    def resume_reading(self) -> None:
        if not self._held:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, which counts among the connections of its listener and knows what it waits for."""

    def __init__(self, listeners: dict[int, Connections], *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.listeners = listeners
        self.others: Connections | None = None
        self.peer = ""
        self.since = time.monotonic()
        """When it began to wait for what it waits for now."""
        self.answered = 0
        self._head_begun = False
        self._waits_for_body = False
        self._held = bytearray()
        self._unread = 0
        """Bytes that came since the last head, part of a body, or end of a request was whole."""
        self._stalled_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Gathering(transport, self.loop))  # type: ignore[arg-type]
        self.flow = Flow(self.transport, self._held)
        self.peer = str(self.client[0]) if self.client else ""
        others = self.listeners[(self.server[1] if self.server else None) or 0]
        if others.add(self):
            self.others = others
        else:
            others.metrics.connections_ended.labels("refused").inc()
            transport.write(REFUSAL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.others is not None:
            self.others.remove(self)

    def data_received(self, data: bytes) -> None:
        if self.others is None or self.transport.is_closing():
            return
        waited = self._waits_for_head
        if waited and not self._head_begun:
            self._head_begun, self.since = True, time.monotonic()  # its first byte counts, not its latest
        self._held += data
        self._read_on()
        if waited and not self._waits_for_head:
            self._head_begun, self.since = False, time.monotonic()
            if not self.answered:
                self.others.has_asked(self)

    def _read_on(self) -> None:
        """Read what has come, up to a request that has to wait for the answer to the one before it."""
        while self._held and not self.pipeline and not self.transport.is_closing():
            part = bytes(self._held[:READ_AT_ONCE])
            del self._held[:READ_AT_ONCE]
            self._unread += len(part)
            super().data_received(part)
            if self._unread > HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of this request is too long.")
        if self._held:
            self.flow.pause_reading()

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() == "1.1" and [name for name, _ in self.headers].count(b"host") != 1:
            raise ValueError("a request names one host")  # answered with 400
        super().on_headers_complete()
        self._waits_for_body, self._unread = True, 0

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._waits_for_body, self._unread = False, 0
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        self.cycle.keep_alive = False  # the parser reads no further

    def on_response_complete(self) -> None:
        self.answered += 1
        self.since = time.monotonic()
        if self.pipeline:  # the next request was sent without waiting for this answer
            self.loop.call_later(PIPELINED_SECONDS, self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        super().on_response_complete()
        self._read_on()
        self.flow.resume_reading()

    def pause_writing(self) -> None:
        self._stalled_since = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_since = None
        super().resume_writing()

    @property
    def _waits_for_head(self) -> bool:
        """Whether all that was asked is answered: the latest request is the last to be."""
        return not self._waits_for_body and (self.cycle is None or self.cycle.response_complete)

    def rank(self, now: float) -> int | None:
        """Who gives way first, if room is needed; None for those who are being answered."""
        if self._waits_for_head:
            return IDLE
        if self._stalled_since is not None and now - self._stalled_since > PATIENCE:
            return 1
        return 2 if self._waits_for_body and now - self.since > PATIENCE else None

    def overdue(self, now: float) -> str | None:
        """Why it is to be let go of now, if it is."""
        assert self.others is not None
        limits, waited = self.others.limits, now - self.since
        if self._stalled_since is not None and now - self._stalled_since > limits.answer_seconds:
            return "answer"
        if self._waits_for_head:
            if (self._head_begun or not self.answered) and waited > limits.head_seconds:
                return "head"
            if waited > limits.idle_seconds or (
                waited > limits.answer_seconds and self.transport.get_write_buffer_size()
            ):
                return "idle"
        return None
