"""Can anybody close the service? Hundreds of bad clients, in a process of their own, while others ask.

Each kind of bad client comes back whenever it is let go of: those that connect and send nothing, send half a
head, send a body drop by drop, or ask again and again and read no answer. Meanwhile others ask for
lists, 50 times a second, and for the health of the service.

    python benchmarks/service_door.py                       # all kinds, 20 s each
    python benchmarks/service_door.py --kind idle --seconds 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from common import write_json
from rich.console import Console
from rich.table import Table
from service_common import SMALL, Server, serving, write_random_artifact
from service_load import measure

KINDS = {"idle": 1000, "half head": 1000, "non-reader": 64, "dripper": 64}
"""Each kind of bad client, and how many of them."""
ALSO = {"many non-readers": 1000, "many drippers": 1000}
RATE = 50.0
GOAL_P99_MS = 100.0
BODY = (
    b"POST /v1/bundles HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 1000\r\n\r\n"
)


async def be_bad(kind: str, port: int, ends: float) -> None:
    """One bad client, until the time is over."""
    while time.monotonic() < ends:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            try:
                await _misbehave(kind, reader, writer, ends)
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.2)


async def _misbehave(
    kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: float
) -> None:
    if kind == "idle":
        await reader.read(1)
    elif kind == "half head":
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: local")
        await reader.read(1)
    elif kind == "dripper":
        writer.write(BODY)
        while time.monotonic() < ends and not reader.at_eof():
            writer.write(b" ")
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await reader.read(1)
    else:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while time.monotonic() < ends and not writer.transport.is_closing():
            writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
            await asyncio.sleep(0.5)


async def attack(kind: str, count: int, port: int, seconds: float) -> None:
    ends = time.monotonic() + seconds
    await asyncio.gather(*(be_bad(kind, port, ends) for _ in range(count)))


@contextmanager
def attacked(kind: str, count: int, port: int, seconds: float) -> Iterator[None]:
    """Bad clients in a process of their own, within the block."""
    command = [sys.executable, __file__, "--attack", kind, str(count), str(port), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(min(2.0, seconds / 4))
        yield
    finally:
        process.kill()
        process.wait()


def withstand(server: Server, kind: str, count: int, seconds: float, n_users: int) -> dict[str, Any]:
    """What other clients see while there are bad ones; also of the service's health."""
    health: Counter[object] = Counter()
    ended = threading.Event()

    def probe() -> None:
        while not ended.wait(0.25):
            try:
                health[server.ask("GET", "/health/live")[0]] += 1
            except OSError as error:
                health[type(error).__name__] += 1

    thread = threading.Thread(target=probe)
    with attacked(kind.removeprefix("many ").rstrip("s"), count, server.port, seconds + 10):
        thread.start()
        try:
            found = measure(server.port, RATE, seconds, n_users)
        finally:
            ended.set()
            thread.join()
    return {"kind": kind, "bad": count, "health": dict(health), **found}


def main() -> None:
    if sys.argv[1:2] == ["--attack"]:
        kind, count, port, seconds = sys.argv[2:]
        asyncio.run(attack(kind, int(count), int(port), float(seconds)))
        return
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    everything = {**KINDS, **ALSO}
    options.add_argument("--kind", choices=everything, help="only this kind")
    options.add_argument("--seconds", type=float, default=20, help="for each kind (default: 20)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    given = options.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="coheat-door-") as place:
        write_random_artifact(Path(place) / "run", SMALL)
        with serving(Path(place) / "run") as server:
            rows.append({"kind": "none", "bad": 0, "health": {}, **measure(server.port, RATE, 5, 60)})
            for kind in [given.kind] if given.kind else everything:
                rows.append(withstand(server, kind, everything[kind], given.seconds, SMALL.n_users))
            log_bytes = len(server.stop())
    table = Table(
        "bad clients", "of them", "requests", "errors", "p50 ms", "p99 ms", "worst ms", "/health/live"
    )
    for row in rows:
        times = (f"{row[name]:.1f}" for name in ("p50_ms", "p99_ms", "worst_ms"))
        health = json.dumps(row["health"])
        table.add_row(row["kind"], str(row["bad"]), str(row["requests"]), str(row["errors"]), *times, health)
    Console().print(table)
    print(f"log: {log_bytes} bytes")
    write_json(given.json, "service_door", {"rows": rows, "log_bytes": log_bytes})
    failed = [row for row in rows if row["errors"] or set(row["health"]) - {200}]
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
