"""Which HTTP servers let go of clients that keep a connection and ask nothing?

Tried as they are, without a proxy and with their defaults, but for our own service, which is uvicorn with
the limits of `coheat.service.connections`. What is not installed is left out: pip install hypercorn granian

    python benchmarks/http_servers.py
    python benchmarks/http_servers.py --clients 100 --seconds 5
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import write_json
from rich.console import Console
from rich.table import Table
from service_common import SMALL, serving, write_random_artifact

SERVERS = {
    "uvicorn": ["--port", "{port}", "--log-level", "error"],
    "hypercorn": ["--bind", "127.0.0.1:{port}"],
    "granian": ["--interface", "asgi", "--port", "{port}", "--log-level", "error"],
}
APPLICATION = """
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
"""
KINDS = {
    "idle": b"",
    "half head": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
    "half body": b"POST /v1/previews HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\na",
}
QUESTIONS = 20
PATIENCE = 5.0


async def answer_seconds(port: int) -> float:
    """One question on a connection of its own; raises where it is not answered with 200."""
    started = time.perf_counter()
    reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), PATIENCE)
    writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    said = await asyncio.wait_for(reader.read(200), PATIENCE)
    writer.close()
    if not said.startswith(b"HTTP/1.1 200"):
        raise OSError(said)
    return time.perf_counter() - started


async def was_let_go(reader: asyncio.StreamReader, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(1000):
                pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


async def crowd(port: int, first: bytes, clients: int, seconds: float) -> dict[str, Any]:
    """Clients who send this and no more: what others notice, and how many are let go of in that time."""
    silent = []
    for _ in range(clients):
        with suppress(OSError, TimeoutError):
            silent.append(await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), PATIENCE))
            silent[-1][1].write(first)
    taken, errors = [], 0
    for _ in range(QUESTIONS):
        try:
            taken.append(await answer_seconds(port))
        except (OSError, TimeoutError):
            errors += 1
    gone = sum(await asyncio.gather(*(was_let_go(reader, seconds) for reader, _ in silent)))
    for _, writer in silent:
        writer.transport.abort()
    median = 1000 * statistics.median(taken) if taken else None
    return {"clients": len(silent), "let_go": gone, "others_errors": errors, "others_median_ms": median}


@contextmanager
def other(name: str, directory: Path) -> Iterator[int]:
    """A server with the small application; its port."""
    (directory / "small_application.py").write_text(APPLICATION)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = [option.format(port=port) for option in SERVERS[name]]
    process = subprocess.Popen(
        [sys.executable, "-m", name, "small_application:app", *options],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), *sys.path])},
        start_new_session=True,
    )
    try:
        for _ in range(100):
            with suppress(OSError, TimeoutError):
                asyncio.run(answer_seconds(port))
                break
            time.sleep(0.1)
        yield port
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--clients", type=int, default=1000, help="silent clients (default: 1000)")
    options.add_argument(
        "--seconds", type=float, default=20.0, help="how long they stay, if they may (default: 20)"
    )
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    given = options.parse_args()
    found: dict[str, dict[str, Any]] = {}
    table = Table("server", "clients", "connected", "let go", "others: errors", "median ms")

    def measure(name: str, port: int) -> None:
        for kind, first in KINDS.items():
            row = asyncio.run(crowd(port, first, given.clients, given.seconds))
            found.setdefault(name, {})[kind] = row
            median = "-" if row["others_median_ms"] is None else f"{row['others_median_ms']:.1f}"
            table.add_row(
                name, kind, str(row["clients"]), str(row["let_go"]), str(row["others_errors"]), median
            )

    with tempfile.TemporaryDirectory(prefix="coheat-servers-") as place:
        directory = Path(place)
        for name in filter(find_spec, SERVERS):
            with other(name, directory) as port:
                measure(name, port)
        write_random_artifact(directory / "model", SMALL)
        with serving(directory / "model") as server:
            measure("coheat serve", server.port)
    Console().print(table)
    write_json(given.json, "http_servers", found)


if __name__ == "__main__":
    main()
