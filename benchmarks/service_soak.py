"""Hours in minutes: everything the service does, all the time, and whether its memory stays flat.

Readers and writers work at a steady pace; bundles come and go, so that what is stored does not grow. Memory
is that of the process alone, without files mapped from the disk. It counts as flat when the median of the
last third exceeds that of the second third by less than 5 %.

    python benchmarks/service_soak.py                   # 10 minutes
    python benchmarks/service_soak.py --minutes 1
"""

from __future__ import annotations

import argparse
import http.client
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import write_json
from service_common import Server, Size, ask, in_path, serving, write_random_artifact

SIZE = Size(5000, 3000, 4000, 128)
WORKERS = 3
FLAT = 1.05


def soak(run: Path, size: Size, seconds: float, every: float) -> dict[str, Any]:
    """Work for so long; memory in megabytes at each moment, answers by status."""
    ended = threading.Event()
    statuses: Counter[str] = Counter()
    memory: list[float] = []
    with serving(run) as server:
        workers = [
            threading.Thread(target=_work, args=(server, size, seed, ended, statuses))
            for seed in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(every)
            memory.append(server.memory_megabytes())
        ended.set()
        for worker in workers:
            worker.join()
    third = max(1, len(memory) // 3)
    middle, last = statistics.median(memory[third : 2 * third]), statistics.median(memory[-third:])
    failed = {status: count for status, count in statuses.items() if not status.startswith("2")}
    return {
        "requests": sum(statuses.values()),
        "failed": failed,
        "memory_mb": memory,
        "middle_mb": middle,
        "last_mb": last,
        "flat": last < FLAT * middle,
    }


def _work(server: Server, size: Size, seed: int, ended: threading.Event, statuses: Counter[str]) -> None:
    rng = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    while not ended.wait(0.01):
        name = f"{seed}/{rng.randrange(20)}"
        place = f"/v1/bundles/{in_path(name)}"
        user = f"user-{rng.randrange(size.n_users)}"
        items = [f"item-{rng.randrange(size.n_items)}" for _ in range(4)]
        for method, path, body in (
            ("GET", f"/v1/recommendations/{user}?k=20", None),
            ("PUT", place, {"item_ids": items}),
            ("GET", f"{place}/audience?k=20", None),
            ("GET", f"/v1/explanations?user_id={user}&bundle_id={in_path(name)}", None),
            ("POST", "/v1/interactions", {"user_id": user, "bundle_id": name}),
            ("POST", "/v1/previews", {"item_ids": items}),
            ("GET", f"{place}/similar?k=5", None),
            ("DELETE", place, None),
        ):
            statuses[str(ask(connection, method, path, body)[0])] += 1
        if rng.random() < 0.01:
            statuses[str(ask(connection, "POST", "/v1/models/reload")[0])] += 1
    connection.close()


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--minutes", type=float, default=10, help="how long (default: 10)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    given = options.parse_args()
    seconds = 60 * given.minutes
    with tempfile.TemporaryDirectory(prefix="coheat-soak-") as place:
        write_random_artifact(Path(place) / "run", SIZE)
        found = soak(Path(place) / "run", SIZE, seconds, every=max(0.2, seconds / 120))
    print(
        f"{found['requests']} requests, failed: {found['failed'] or 'none'}; "
        f"memory {found['middle_mb']:.0f} MB in the middle, {found['last_mb']:.0f} MB at the end: "
        f"{'flat' if found['flat'] else 'GROWING'}"
    )
    write_json(given.json, "service_soak", found)
    raise SystemExit(0 if found["flat"] and not found["failed"] else 1)


if __name__ == "__main__":
    main()
