"""How long recording many interactions at once takes, on the disk and in the model.

    python benchmarks/service_bulk.py
    python benchmarks/service_bulk.py --rows 1000 --times 20 --run runs/youshu

Without --run, a random model of iFashion's size is served. Every request records new pairs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from service_common import IFASHION, Server, serving, write_random_artifact

from coheat.recommender import Recommender


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run = given.run
        if run is None:
            run = Path(place) / "model"
            write_random_artifact(run, IFASHION)
        found = measure(run, Path(place) / "state", given.rows, given.times)
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<24}{value:>12,.1f}")


def measure(run: Path, state: Path, rows: int, times: int) -> dict[str, float]:
    """Milliseconds of a request with so many rows, and of as many requests with one."""
    bundles = Recommender.load(run).bundle_ids
    with serving(run, "--state", str(state)) as server:
        many = [_seconds(server, bundles, rows, f"many-{n}") for n in range(times)]
        one = [_seconds(server, bundles, 1, f"one-{n}") for n in range(times)]
    return {
        "rows": float(rows),
        "median ms, in bulk": 1000 * statistics.median(many),
        "slowest ms, in bulk": 1000 * max(many),
        "median ms, one alone": 1000 * statistics.median(one),
    }


def _seconds(server: Server, bundles: list[str], rows: int, name: str) -> float:
    sent = [
        {
            "user_id": f"{name}-{n}",
            "bundle_id": bundles[(7 * n) % len(bundles)],
            "timestamp": 1_700_000_000 + n,
            "kind": "took",
        }
        for n in range(rows)
    ]
    started = time.perf_counter()
    status, document = server.ask("POST", "/v1/interactions", {"interactions": sent})
    assert (status, document["recorded"]) == (201, rows), document
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
