"""How long a service takes to catch up with what was recorded since training, and whether it answers then.

    python benchmarks/service_replay.py                       # a million interactions, iFashion's size
    python benchmarks/service_replay.py --interactions 100000

A store is filled, then a service is started on it. Seconds are those of the clock and, for a machine that
does other things too, of the processor; loading the model is not among them. A reload then repeats it beside
the old model, while writes go on.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import write_json
from service_common import IFASHION, SMALL, Server, Size, write_random_artifact

from coheat.service.served import load
from coheat.service.sqlite_store import SqliteStore
from coheat.service.store import NewInteraction

AT_ONCE = 50_000


def fill(path: Path, size: Size, count: int, seed: int = 0) -> None:
    """A store with this many interactions, of users and bundles of training and some users of later."""
    rng = np.random.default_rng(seed)
    store = SqliteStore(path)
    for start in range(0, count, AT_ONCE):
        n = min(AT_ONCE, count - start)
        users, bundles = rng.integers(int(1.1 * size.n_users), size=n), rng.integers(size.n_bundles, size=n)
        pairs = zip(users.tolist(), bundles.tolist(), strict=True)
        store.add_interactions([NewInteraction(f"user-{u}", f"bundle-{b}") for u, b in pairs])
    store.close()


def measure_alone(run: Path, path: Path) -> dict[str, float]:
    """Replay in this process, without a service around it."""
    model, store = load(run, 1), SqliteStore(path)
    started, processor = time.perf_counter(), time.thread_time()
    model.replay(store)
    found = {"seconds": time.perf_counter() - started, "processor_seconds": time.thread_time() - processor}
    store.close()
    return found


def measure_service(run: Path, state: Path) -> dict[str, Any]:
    """Start a service; what it answers until it is ready, and how long reloading keeps writes waiting."""
    server = Server(run, "--state", str(state), wait=False)
    live: list[float] = []
    statuses: set[int] = set()
    try:
        started = time.perf_counter()
        while True:
            asked = time.perf_counter()
            statuses.add(server.ask("GET", "/health/live")[0])
            live.append(time.perf_counter() - asked)
            if server.ask("GET", "/health/ready")[0] == 200:
                break
            time.sleep(0.02)
        ready = time.perf_counter() - started
        writes: list[float] = []
        reloaded = threading.Event()

        def write() -> None:
            number = 0
            while not reloaded.is_set():
                asked = time.perf_counter()
                new = {"user_id": f"writer-{number}", "bundle_id": "bundle-1"}
                statuses.add(server.ask("POST", "/v1/interactions", new)[0] - 1)
                writes.append(time.perf_counter() - asked)
                number += 1
                time.sleep(0.01)

        writer = threading.Thread(target=write)
        writer.start()
        asked = time.perf_counter()
        status, _ = server.ask("POST", "/v1/models/reload")
        reload_seconds = time.perf_counter() - asked
        reloaded.set()
        writer.join()
    finally:
        server.kill()
    return {
        "listening_to_ready": ready,
        "live_answers": len(live),
        "slowest_live": max(live),
        "statuses": sorted(statuses),
        "reload": reload_seconds,
        "reload_status": status,
        "slowest_write_meanwhile": max(writes),
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--interactions", type=int, default=1_000_000, help="(default: 1,000,000)")
    options.add_argument("--small", action="store_true", help="a small model instead of iFashion's size")
    options.add_argument("--json", type=Path, metavar="FILE", help="write what was found to this file")
    given = options.parse_args()
    size = SMALL if given.small else IFASHION
    with tempfile.TemporaryDirectory(prefix="coheat-replay-") as name:
        place = Path(name)
        write_random_artifact(place / "run", size)
        fill(place / "state" / "store.sqlite", size, given.interactions)
        found = {
            "alone": measure_alone(place / "run", place / "state" / "store.sqlite"),
            "service": measure_service(place / "run", place / "state"),
        }
    alone, service = found["alone"], found["service"]
    print(f"{given.interactions:,} interactions")
    print(f"replay: {alone['seconds']:.1f} s ({alone['processor_seconds']:.1f} s of the processor)")
    print(
        f"service: ready {service['listening_to_ready']:.1f} s after listening; /health/live answered "
        f"{service['live_answers']} times meanwhile, slowest {1000 * service['slowest_live']:.0f} ms"
    )
    print(
        f"reload: {service['reload']:.1f} s ({service['reload_status']}); slowest write meanwhile "
        f"{1000 * service['slowest_write_meanwhile']:.0f} ms"
    )
    write_json(given.json, "service_replay", found)


if __name__ == "__main__":
    main()
