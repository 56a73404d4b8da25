"""`coheat batch` at scale: seconds per 100,000 users and peak memory, for growing numbers of users.

The model is made up (random vectors of width 128, 27,694 bundles, 20 taken by each user) and lies on the disk
like a trained one. Each size runs in a process of its own, so that its peak memory is its own; it counts
everything the process held at once, files mapped from the disk too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import markdown, peak_megabytes, write_json

WIDTH, TAKEN, BUNDLES, ITEMS = 128, 20, 27_694, 1000


def write_model(directory: Path, n_users: int, n_bundles: int = BUNDLES) -> None:
    """An artifact of a model without parameters."""
    from coheat.artifact import Description, save_artifact
    from coheat.config import Settings
    from coheat.data.dataset import BundleData, relation
    from coheat.ids import Vocabulary
    from coheat.models.untrained import Untrained
    from coheat.rng import Randomness
    from coheat.runs import contents_of
    from coheat.served import Block, Served

    rng = np.random.default_rng(0)

    class Random(Untrained):
        def served(self) -> Served:
            users, bundles = (rng.standard_normal((n, WIDTH), dtype=np.float32) for n in (n_users, n_bundles))
            return Served.create(self.relations, [(Block("score", "history", WIDTH), users, bundles)])

    users = np.repeat(np.arange(n_users), TAKEN)
    data = BundleData(
        Vocabulary(map(str, range(n_users)), "user"),
        Vocabulary(map(str, range(n_bundles)), "bundle"),
        Vocabulary(map(str, range(ITEMS)), "item"),
        relation(users, rng.integers(n_bundles, size=len(users)), (n_users, n_bundles)),
        relation([0], [0], (n_users, ITEMS)),
        relation([0], [0], (n_bundles, ITEMS)),
    )
    description = Description("random", {}, {}, 0, "", "", "", 0, {}, 0.0, "made up")
    save_artifact(directory, contents_of(Random(data, Settings(), Randomness(0)), description))


def run(model: Path, out: Path, limit: int | None) -> dict[str, Any]:
    """What one process measures; with a limit, just the first parts are done."""
    from coheat.batch import PART, recommend_all
    from coheat.recommender import Recommender

    started = time.perf_counter()
    recommender = Recommender.load(model)
    loaded, held = time.perf_counter() - started, peak_megabytes()
    n_users = len(recommender.user_ids)
    shards = 1 if limit is None else max(n_users // limit, 1)
    started = time.perf_counter()
    report = recommend_all(recommender, out, 20, shard=(1, shards), part_size=PART)
    spent = time.perf_counter() - started
    return {
        "users": n_users,
        "users_done": report.users,
        "load_seconds": loaded,
        "seconds_per_100k_users": spent / report.users * 1e5,
        "peak_megabytes": peak_megabytes(),
        "lists_megabytes": peak_megabytes() - held,
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python benchmarks/batch_speed.py --users 100000 1000000",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--users", type=int, nargs="+", default=[100_000, 1_000_000], metavar="N")
    options.add_argument("--limit", type=int, metavar="N", help="do the lists of about N users only")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    options.add_argument("--run", type=Path, nargs=2, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.run:
        model, out = chosen.run
        print(json.dumps(run(model, out, chosen.limit)))
        return
    found = []
    for n_users in chosen.users:
        with tempfile.TemporaryDirectory(prefix="coheat-batch-") as name:
            model, out = Path(name) / "model", Path(name) / "lists"
            write_model(model, n_users)
            command = [sys.executable, __file__, "--run", str(model), str(out)]
            command += ["--limit", str(chosen.limit)] if chosen.limit else []
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
    names = list(found[0])
    rows = [
        [f"{turn[name]:,.1f}" if "." in str(turn[name]) else f"{turn[name]:,}" for name in names]
        for turn in found
    ]
    print(markdown([name.replace("_", " ") for name in names], rows))
    write_json(chosen.json, "batch_speed", {"bundles": BUNDLES, "sizes": found})


if __name__ == "__main__":
    main()
