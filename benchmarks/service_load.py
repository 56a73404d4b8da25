"""How the service bears load: requests that arrive when they arrive, whether or not it keeps up.

A model of iFashion's size and of the default model's form (its vectors are random) is served by one process;
this one sends requests at random moments of the given mean rate, as many users at once would, and measures
each from the moment it was due, so that a service that falls behind cannot hide it. Then the rate is raised,
by a quarter each time, until it saturates; requests that are not answered some seconds after the last was due
count as errors. "CPU ms" is the service's own time on a processor for each request.

    python benchmarks/service_load.py                        # 200 requests/s for 60 s, then saturation
    python benchmarks/service_load.py --runs 3               # the same three times, each with a new process
    python benchmarks/service_load.py --seconds 10 --stage 0
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import write_json
from rich.console import Console
from rich.table import Table
from service_common import IFASHION, RandomEmber, RandomVectors, Server, Size, serving, write_random_artifact

from coheat.models.base import Model

GOAL_P99_MS = 25.0
MODELS: dict[str, type[Model]] = {"ember": RandomEmber, "two views": RandomVectors}
CONNECTIONS = 64
HEAD_OF_OK = b"HTTP/1.1 200"
STEP = 1.25
PATIENCE = 5.0
"""Seconds that are waited for the last answers: an overloaded service must not hold up the measurement."""


class Connections:
    """Keep-alive connections to the service; each carries one request at a time."""

    def __init__(self, port: int):
        self.port = port
        self.free: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()
        self.opened = asyncio.Semaphore(CONNECTIONS)

    async def get(self, path: str) -> bool:
        """Whether one GET was answered with 200 and a whole body."""
        async with self.opened:
            reader, writer = (
                self.free.pop() if self.free else await asyncio.open_connection("127.0.0.1", self.port)
            )
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            self.free.append((reader, writer))
            return head.startswith(HEAD_OF_OK) and len(body) == length

    def close(self) -> None:
        for _, writer in self.free:
            writer.close()


async def open_loop(port: int, rate: float, seconds: float, n_users: int, seed: int) -> dict[str, Any]:
    """Send requests at random moments (a Poisson process); latencies count from the moment each was due."""
    rng = random.Random(seed)
    connections = Connections(port)
    latencies: list[float] = []
    errors = 0
    started = time.perf_counter()

    async def one(due: float) -> None:
        nonlocal errors
        path = f"/v1/recommendations/user-{rng.randrange(n_users)}?k=20&candidates=all"
        try:
            fine = await connections.get(path)
        except (OSError, asyncio.IncompleteReadError):
            fine = False
        errors += not fine
        latencies.append(time.perf_counter() - started - due)

    tasks: dict[asyncio.Task[None], float] = {}
    due = rng.expovariate(rate)
    while due < seconds:
        await asyncio.sleep(max(0.0, due - (time.perf_counter() - started)))
        tasks[asyncio.create_task(one(due))] = due
        due += rng.expovariate(rate)
    answered, unanswered = await asyncio.wait(tasks, timeout=PATIENCE)
    took = time.perf_counter() - started
    for task in unanswered:
        task.cancel()
    await asyncio.gather(*unanswered, return_exceptions=True)
    for task in answered:
        task.result()  # a mistake of ours would otherwise be lost
    connections.close()
    errors += len(unanswered)
    latencies += [took - tasks[task] for task in unanswered]
    p50, p95, p99, worst = np.percentile(latencies, [50, 95, 99, 100]) * 1000
    return {
        "rate": rate,
        "requests": len(latencies),
        "errors": errors,
        "answered_per_second": (len(latencies) - errors) / took,
        "p50_ms": float(p50),
        "p95_ms": float(p95),
        "p99_ms": float(p99),
        "worst_ms": float(worst),
    }


def measure(port: int, rate: float, seconds: float, n_users: int, seed: int = 0) -> dict[str, Any]:
    return asyncio.run(open_loop(port, rate, seconds, n_users, seed))


def load(server: Server, rate: float, seconds: float, n_users: int, seed: int) -> dict[str, Any]:
    """`measure`, and how much of a processor's time the service took for each request."""
    before = server.cpu_seconds()
    found = measure(server.port, rate, seconds, n_users, seed)
    return {**found, "cpu_ms": 1000 * (server.cpu_seconds() - before) / found["requests"]}


def saturation(server: Server, n_users: int, seconds: float) -> list[dict[str, Any]]:
    """Ever higher rates until answers fail or no longer come within the goal."""
    found: list[dict[str, Any]] = []
    rate = 300.0
    while not found or not (found[-1]["errors"] or found[-1]["p99_ms"] > 10 * GOAL_P99_MS):
        found.append(load(server, round(rate), seconds, n_users, seed=round(rate)))
        rate *= STEP
    return found


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table("requests/s", "requests", "errors", "p50 ms", "p95 ms", "p99 ms", "worst ms", "CPU ms")
    for row in rows:
        numbers = (f"{row[name]:.1f}" for name in ("p50_ms", "p95_ms", "p99_ms", "worst_ms"))
        counts = str(row["requests"]), str(row["errors"])
        table.add_row(f"{row['rate']:.0f}", *counts, *numbers, f"{row['cpu_ms']:.2f}")
    Console().print(table)


def run(
    size: Size,
    rate: float,
    seconds: float,
    stage: float = 0.0,
    model_class: type[Model] = RandomEmber,
    runs: int = 1,
) -> list[dict[str, Any]]:
    """Make the model; so many times serve it, warm it up, measure; in the end raise the rate in stages of so
    many seconds until it saturates."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="coheat-load-") as place:
        directory = Path(place) / "model"
        write_random_artifact(directory, size, model_class=model_class)
        for number in range(runs):
            with serving(directory) as server:
                measure(server.port, rate, min(seconds, 3), size.n_users, seed=1)
                rows.append(load(server, rate, seconds, size.n_users, seed=number))
                if stage and number == runs - 1:
                    rows += saturation(server, size.n_users, stage)
    return rows


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rate", type=float, default=200, help="requests per second (default: 200)")
    options.add_argument("--seconds", type=float, default=60, help="how long (default: 60)")
    options.add_argument(
        "--stage", type=float, default=10, help="seconds at each higher rate; 0 raises it not (default: 10)"
    )
    options.add_argument("--runs", type=int, default=1, help="times to measure that rate (default: 1)")
    options.add_argument("--model", choices=MODELS, default="ember", help="its form (default: ember)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    given = options.parse_args()
    rows = run(IFASHION, given.rate, given.seconds, given.stage, MODELS[given.model], given.runs)
    show(rows)
    within = [row["rate"] for row in rows if not row["errors"] and row["p99_ms"] <= GOAL_P99_MS]
    print(f"highest rate with p99 <= {GOAL_P99_MS:.0f} ms and no error: {max(within, default=0):.0f}/s")
    write_json(given.json, "service_load", {"rows": rows})


if __name__ == "__main__":
    main()
