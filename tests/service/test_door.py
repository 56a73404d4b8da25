"""Real sockets: nobody keeps others out by connecting and asking nothing, slowly, or without listening."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
from service_client import linked_run
from service_common import SMALL, serving
from service_door import withstand

from coheat.errors import ConfigError
from coheat.service import connections
from coheat.service.app import create_app
from coheat.service.connections import Connection, Gathering
from coheat.service.limits import Limits, usable_connections
from coheat.service.logs import event, logging_to
from coheat.service.server import Address, Server, listen, make_server

HASTY = Limits(
    requests=4, connections=40, connections_per_peer=30, head_seconds=0.6, body_seconds=0.6,
    answer_seconds=0.6, idle_seconds=1.5,
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return linked_run(tmp_path)


@asynccontextmanager
async def listening(
    run: Path, limits: Limits, drain: float = 0.0, with_health: bool = False
) -> AsyncIterator[tuple[list[int], Server]]:
    """A server in this process: its ports, and itself."""
    sockets = [listen(Address("127.0.0.1", 0)) for _ in range(1 + with_health)]
    ports = [one.getsockname()[1] for one in sockets]
    health_port = ports[1] if with_health else None
    app = create_app(run, run.parent / "state", limits=limits, health_port=health_port)
    server = make_server(app, sockets, limits, drain)
    serving_ = asyncio.create_task(server._serve(sockets))
    try:
        for _ in range(1000):
            if server.started and app.state.coheat.ready:
                break
            await asyncio.sleep(0.01)
        yield ports, server
    finally:
        server.should_exit = True
        await serving_


async def connect(port: int, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    return reader, writer


async def get(port: int, path: str = "/v1/recommendations/user-1") -> int:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"http://127.0.0.1:{port}{path}", timeout=20)).status_code


@pytest.mark.parametrize(
    "sent", [b"", b"GET /v1/models HTTP/1.1\r\nHost: loc",
             b"POST /v1/previews HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"],
    ids=["idle", "half a head", "half a body"],
)  # fmt: skip
def test_who_asks_nothing_gives_way(run: Path, sent: bytes) -> None:
    async def check() -> None:
        patient = Limits(requests=4, connections=40, connections_per_peer=30)
        async with listening(run, patient) as ([port], _):
            bad = [await connect(port, sent) for _ in range(80)]
            await asyncio.sleep(0.3)
            assert [await get(port) for _ in range(5)] == [200] * 5
            assert await get(port, "/health/live") == 200
            for _, writer in bad:
                writer.close()

    asyncio.run(check())


def test_each_part_of_a_request_has_its_time(run: Path) -> None:
    async def ended(reader: asyncio.StreamReader) -> tuple[float, bytes]:
        started, answer = time.monotonic(), b""
        with suppress(ConnectionResetError):
            while some := await asyncio.wait_for(reader.read(100), 10):
                answer += some
        return time.monotonic() - started, answer

    async def drip(writer: asyncio.StreamWriter) -> None:
        for _ in range(100):
            writer.write(b" ")
            await asyncio.sleep(0.1)

    async def check() -> None:
        async with listening(run, HASTY) as ([port], _):
            first, _first = await connect(port, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await first.read(1)  # before it is answered, all addresses are read, which takes its time
            silent, _silent = await connect(port)
            head, head_writer = await connect(port, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-A: ")
            body, body_writer = await connect(
                port,
                b"POST /v1/previews HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 1000\r\n\r\n",
            )
            kept, _kept = await connect(port, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            drips = [asyncio.create_task(drip(writer)) for writer in (head_writer, body_writer)]
            found = await asyncio.gather(*(ended(one) for one in (silent, head, body, kept)))
            for task in drips:
                task.cancel()
            seconds, answers = zip(*found, strict=True)
            # Much later is as good where many others work on the machine; never is what would be wrong.
            assert all(0.5 < one < 10 for one in seconds[:3])
            assert answers[0] == answers[1] == b""
            assert answers[2].startswith(b"HTTP/1.1 408 ")
            assert answers[3].startswith(b"HTTP/1.1 200 ")
            assert 1.4 < seconds[3] < 10

    asyncio.run(check())


def test_who_does_not_read_keeps_nobody_out_and_is_let_go_of(run: Path) -> None:
    async def check() -> None:
        async with listening(run, HASTY) as ([port], server):
            deaf = []
            for _ in range(12):
                one = socket.socket()
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.setblocking(False)
                await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", port))
                one.send(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
                deaf.append(one)
            [connections] = server.listeners.values()
            stalled = 0
            for _ in range(100):
                await asyncio.sleep(0.05)
                now = time.monotonic()
                everyone = [one for peer in connections.peers.values() for one in peer.open]
                stalled = max(stalled, sum(one.rank(now) == 1 for one in everyone))
                assert await get(port) == 200
                if stalled and not everyone:
                    break
            assert stalled
            assert connections.count <= 1
            for one in deaf:
                one.close()

    asyncio.run(check())


def test_all_bodies_together_have_a_limit(run: Path) -> None:
    async def check() -> None:
        limits = Limits(all_bodies_bytes=300_000, body_seconds=20)
        async with listening(run, limits) as ([port], _):
            head = b"POST /v1/previews HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"
            # Writers are kept: without them the connections would end.
            first, first_writer = await connect(port, head + b" " * 160_000)
            second, second_writer = await connect(port, head + b" " * 150_000)
            done, _ = await asyncio.wait(
                [asyncio.create_task(one.read(12)) for one in (first, second)],
                timeout=10,
                return_when=asyncio.FIRST_COMPLETED,
            )
            assert [task.result() for task in done] == [b"HTTP/1.1 408"]
            assert await get(port) == 200
            for writer in (first_writer, second_writer):
                writer.close()  # the server does not end before it has the rest of the other body

    asyncio.run(check())


def test_probes_have_a_port_of_their_own(run: Path) -> None:
    async def check() -> None:
        async with listening(run, HASTY, with_health=True) as ([port, health], _):
            for path, status in (
                ("/health/live", 200),
                ("/health/ready", 200),
                ("/v1/models", 404),
                ("/", 404),
            ):
                assert await get(health, path) == status
            assert await get(port, "/v1/models") == 200
            bad = [await connect(health) for _ in range(100)]
            assert await get(health, "/health/live") == 200
            for _, writer in bad:
                writer.close()

    asyncio.run(check())


def test_asked_to_end_it_tells_before_it_closes(run: Path) -> None:
    with serving(run, "--drain", "600") as server:
        server.process.send_signal(signal.SIGTERM)
        while (answer := server.ask("GET", "/health/ready"))[0] == 200:
            time.sleep(0.02)
        assert (answer[0], answer[1]["service"]) == (503, "ending")
        assert server.ask("POST", "/v1/bundles", {"bundle_id": "late", "item_ids": ["item-1"]})[0] == 201
        server.process.send_signal(signal.SIGTERM)  # the second is meant seriously
        assert server.process.wait(timeout=60) in (0, -signal.SIGTERM)
    with serving(run, "--drain", "1.5") as server:
        assert server.ask("GET", "/v1/bundles/late")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        assert server.process.wait(timeout=60) in (0, -signal.SIGTERM)
        assert time.monotonic() - asked > 1.4


def test_a_log_that_nobody_reads_stops_nothing() -> None:
    read, write = os.pipe()
    logger = logging.getLogger("coheat.service.test")
    with os.fdopen(write, "w") as stream, logging_to(stream) as handler:
        started = time.monotonic()
        for number in range(15_000):
            logger.info("line %d%s", number, "x" * 100, exc_info=number % 2 == 0)
            event("request", number=number)
        assert time.monotonic() - started < 20
        assert handler.dropped > 1000

        def read_all() -> None:
            while os.read(read, 1 << 20):
                pass

        reader = threading.Thread(target=read_all, daemon=True)  # somebody reads again
        reader.start()
    reader.join(20)
    os.close(read)
    assert not reader.is_alive()


def test_file_descriptors_decide_how_many_may_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    for soft, expected in ((20_000, 1000), (1024, 576)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert usable_connections(1000) == expected
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    with pytest.raises(ConfigError, match="ulimit -n"):
        usable_connections(1000)


def test_a_crowd_of_bad_clients_in_short(run: Path) -> None:
    """The whole of it: benchmarks/service_door.py."""
    few = ("--max-requests", "16", "--max-connections", "150", "--max-connections-per-peer", "120")
    with serving(run, *few) as server:
        for kind, count in (("idle", 200), ("dripper", 40)):
            found = withstand(server, kind, count, 3, SMALL.n_users)
            assert found["errors"] == 0
            assert set(found["health"]) == {200}


class Sent:
    """A transport that keeps what is sent."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.parts.append(data)

    def close(self) -> None:
        self.is_closed = True


def test_the_head_of_an_answer_is_sent_with_what_follows_and_never_kept() -> None:
    sent = Sent()

    async def write() -> None:
        transport = Gathering(sent, asyncio.get_running_loop())  # type: ignore[arg-type]
        for part in (b"HTTP/1.1 200\r\n\r\n", b"body", b"", b"more"):
            transport.write(part)
        transport.write(b"HTTP/1.1 100\r\n\r\n")
        await asyncio.sleep(0)
        assert sent.parts[-1] == b"HTTP/1.1 100\r\n\r\n"
        transport.write(b"HTTP/1.1 400\r\n\r\n")
        transport.close()

    asyncio.run(write())
    expected = [b"HTTP/1.1 200\r\n\r\nbody", b"", b"more", b"HTTP/1.1 100\r\n\r\n", b"HTTP/1.1 400\r\n\r\n"]
    assert (sent.parts, sent.is_closed) == (expected, True)


HOST = b"HTTP/1.1\r\nHost: localhost\r\n"
LIVE, POST = b"GET /health/live " + HOST, b"POST /v1/previews " + HOST


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([LIVE + b"\r\n" + LIVE + b"\r\n" + LIVE + b"Connection: close\r\n\r\n"], [200, 200, 200]),
        ([LIVE[:20], LIVE[20:] + b"Connection: close\r\n\r\n"], [200]),
        ([b"GET /health/live HTTP/1.0\r\nHost: localhost\r\n\r\n"], [200]),
        ([LIVE + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"], [200]),
        ([b"GET /health/live HTTP/1.1\r\nConnection: close\r\n\r\n"], [400]),
        ([b"nonsense\r\n\r\n"], [400]),
        ([LIVE + b"X-Long: ", *[b"x" * 5_000] * 14], [400]),
        ([b"GET /" + b"x" * 100_000], [400]),
        ([b"\r\n" * 50_000], [400]),
        ([POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}"], [400]),
        (
            [POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"]
            + [b"X-Trailer: " + b"x" * 5_000 + b"\r\n"] * 14,
            [400],
        ),
    ],
    ids=[
        "three together", "in two pieces", "HTTP/1.0", "an upgrade", "no host", "nonsense",
        "a long head", "a long address", "nothing but line ends", "two lengths", "endless trailers",
    ],
)  # fmt: skip
def test_what_is_sent_is_answered_in_turn_and_has_an_end(
    run: Path, sent: list[bytes], expected: list[int]
) -> None:
    async def check() -> None:
        async with listening(run, Limits()) as (ports, _):
            reader, writer = await connect(ports[0])
            for part in sent:
                with suppress(OSError):
                    writer.write(part)
                    await writer.drain()
                await asyncio.sleep(0.01)
            answered = b""
            with suppress(OSError):
                answered = await asyncio.wait_for(reader.read(), 10)
            assert [int(code) for code in re.findall(rb"HTTP/1.1 (\d+) ", answered)] == expected
            assert await get(ports[0]) == 200

    asyncio.run(check())


def test_who_sends_on_without_waiting_is_not_read_ahead_of_the_answers(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request asks for more of its body, even if it has all of it: this must read none behind it."""
    monkeypatch.setattr(connections, "PIPELINED_SECONDS", 0.02)
    body = b'{"item_ids": ["item-0-0"]}'
    one = POST + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def check() -> None:
        async with listening(run, Limits()) as (ports, server):
            reader, writer = await connect(ports[0])
            writer.write(one * 100_000)
            answered = b""
            while answered.count(b"HTTP/1.1 ") < 20:
                answered += await asyncio.wait_for(reader.read(1 << 16), 10)
            (one_connection,) = server.server_state.connections
            assert isinstance(one_connection, Connection)
            held = len(one_connection._held)
            writer.transport.abort()
            assert 0 < held <= 1 << 19, "about what one look at the socket gives"

    asyncio.run(check())
