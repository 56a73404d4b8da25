"""`coheat batch` here and on a Ray cluster of which a node is killed: are the parts the same, to the byte?

The nodes run on this machine and share its cores: the seconds say what a cluster costs, not what it gains.
The model is made up, like that of batch_speed.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from batch_speed import write_model
from common import markdown, write_json
from ray_nodes import Nodes, nodes


def command(model: Path, out: Path, part_size: int, *words: str) -> list[str]:
    program = [sys.executable, "-c", "from coheat.cli import main; main()"]
    asked = ["batch", str(model), "--out", str(out), "--part-size", str(part_size), "--json", *words]
    return [*program, *asked]


def parts_in(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.glob("part-*")}


def kill_half_way(
    cluster: Nodes, model: Path, out: Path, part_size: int, wanted: int
) -> tuple[dict[str, Any], str]:
    """Run the batch on the cluster and kill its last node when a third of the parts are there.

    What the command reported and said, with how many parts there were at the kill.
    """
    process = subprocess.Popen(
        command(model, out, part_size, "--on", cluster.address),
        env={**os.environ, **cluster.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list(out.glob("part-*"))) < wanted // 3 and process.poll() is None:
        time.sleep(0.01)
    # A part appears when a node has just ended one: wait until the node is in the middle of the next. However
    # long that takes on a busy machine, the others do not end the batch meanwhile.
    *others, last = cluster.processes
    with cluster.halted(others):
        while process.poll() is None and not cluster.halted_in_a_task(last):
            time.sleep(0.01)
        at_kill = len(list(out.glob("part-*")))
        cluster.kill(last)
    printed, said = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"the batch on Ray ended with {process.returncode}:\n{said}")
    return {**json.loads(printed), "at_kill": at_kill}, said


def measure(users: int, bundles: int, part_size: int, n_nodes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="coheat-ray-batch-") as name, nodes() as cluster:
        model, here, there = (Path(name) / part for part in ("model", "here", "there"))
        write_model(model, users, bundles)
        started = time.perf_counter()
        subprocess.run(command(model, here, part_size), stdout=subprocess.DEVNULL, check=True)
        local = time.perf_counter() - started
        cluster.start_head()
        for _ in range(n_nodes - 1):
            cluster.start_node()
        started = time.perf_counter()
        report, said = kill_half_way(cluster, model, there, part_size, -(-users // part_size))
        spent = time.perf_counter() - started
        expected, found = parts_in(here), parts_in(there)
        left = [path.name for path in there.iterdir() if path.name not in found]
        return {
            "users": users,
            "parts": len(expected),
            "nodes": n_nodes,
            "parts_at_the_kill": report["at_kill"],
            "begun_again": said.count("begun again"),
            "equal_parts": sum(found.get(name) == content for name, content in expected.items()),
            "other_files": len(left),
            "seconds_here": local,
            "seconds_on_ray": spent,
        }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python benchmarks/batch_on_ray.py --users 60000 --nodes 3",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--users", type=int, default=60_000, metavar="N")
    options.add_argument("--bundles", type=int, default=27_694, metavar="N")
    options.add_argument("--part-size", type=int, default=2000, metavar="N")
    options.add_argument("--nodes", type=int, default=3, metavar="N", help="one of them is killed")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    chosen = options.parse_args()
    found = measure(chosen.users, chosen.bundles, chosen.part_size, chosen.nodes)
    cells = [f"{value:.1f}" if isinstance(value, float) else f"{value:,}" for value in found.values()]
    print(markdown([name.replace("_", " ") for name in found], [cells]))
    write_json(chosen.json, "batch_on_ray", found)
    if found["equal_parts"] != found["parts"] or found["other_files"]:
        sys.exit("the parts on Ray are not those that were made here")


if __name__ == "__main__":
    main()
