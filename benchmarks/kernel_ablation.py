"""What each hand-tuned kernel is worth: a whole training step of CoHeat with and without it.

Each variant replaces one kernel by its plain twin (`plain_kernels.py`) in a process of its own. The processes
stay, and take turns of some batches each, so that a machine that is busy for a while disturbs all alike. What
is reported is the median over the turns of a variant's time divided by that of the kernels as they are in the
same turn: wall time, and the CPU time of user and system of all threads, which other work on the machine
disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import Measured, markdown, write_json, write_world
from rich.console import Console

WORLDS = {"youshu": 1.0, "netease": 1.0, "ifashion": 0.25}
"""How large the generated worlds are, in times of the data that they are like."""

BASE = "as it is"
WORTH = 1.15
"""A kernel is kept where a step without it takes longer than this many times a step with it."""


class Worker:
    """A process that trains one variant when it is told to."""

    def __init__(self, variant: str, directory: Path, like: str, batches: int, cache: Path):
        self.variant = variant
        command = [sys.executable, __file__, "--variant", variant, "--data", str(directory), "--like", like]
        # Numba's cache does not notice that a function which a kernel calls was replaced.
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache / variant.replace(" ", "-"))}
        self.process = subprocess.Popen(
            [*command, "--batches", str(batches)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def turn(self) -> Measured:
        """What the next batches cost."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("turn\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"measuring {self.variant!r} failed")
        found: Measured = json.loads(line)
        return found

    def close(self) -> None:
        self.process.communicate()


def work(variant: str, directory: Path, like: str, batches: int) -> None:
    """Replace what the variant replaces; then, for every line on standard input, take a turn."""
    from plain_kernels import VARIANTS, replace
    from training_speed import our_trainer

    replace(VARIANTS[variant][1])
    trainer = our_trainer(directory, "coheat", like)
    n_timed = min(batches, trainer.n_batches - 1)
    for _ in sys.stdin:
        coming = trainer.begin()
        trainer.step(next(coming))  # draws the epoch's negatives, fills the store of prepared batches
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(n_timed):
            trainer.step(next(coming))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        coming.close()  # type: ignore[attr-defined]
        print(json.dumps({"wall": wall / n_timed, "cpu": cpu / n_timed}), flush=True)


def measure(
    like: str, scale: float, variants: Sequence[str], rounds: int, batches: int, cache: Path
) -> dict[str, list[Measured]]:
    """The turns of every variant on a generated world."""
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="coheat-ablation-") as name, console.status("") as status:
        status.update(f"{like}: making up a world")
        directory = Path(name) / like
        write_world(directory, like, scale)
        workers = [Worker(variant, directory, like, batches, cache) for variant in variants]
        try:
            for worker in workers:
                status.update(f"{like}: compiling, {worker.variant}")
                worker.turn()
            turns: dict[str, list[Measured]] = {worker.variant: [] for worker in workers}
            for number in range(rounds):
                # Every variant comes after every other one some time.
                first = number % len(workers)
                for worker in workers[first:] + workers[:first]:
                    status.update(f"{like}: turn {number + 1} of {rounds}, {worker.variant}")
                    turns[worker.variant].append(worker.turn())
        finally:
            for worker in workers:
                worker.close()
    return turns


def summary(turns: dict[str, list[Measured]]) -> dict[str, Measured]:
    """Medians of each variant: milliseconds of a step, and its ratio to the kernels as they are in a turn."""
    found: dict[str, Measured] = {}
    for variant, own in turns.items():
        found[variant] = {"turns": own}
        for clock in ("wall", "cpu"):
            ratios = sorted(turn[clock] / base[clock] for turn, base in zip(own, turns[BASE], strict=True))
            found[variant] |= {
                f"{clock}_milliseconds": 1e3 * statistics.median(turn[clock] for turn in own),
                f"{clock}_ratio": statistics.median(ratios),
                f"{clock}_ratio_quartiles": [ratios[len(ratios) // 4], ratios[(3 * len(ratios) - 1) // 4]],
            }
    return found


def table(found: dict[str, Measured]) -> str:
    """One world as a Markdown table."""
    rows = [
        [
            variant,
            f"{medians['wall_milliseconds']:.1f}",
            f"{medians['cpu_milliseconds']:.1f}",
            *(
                f"{medians[f'{clock}_ratio']:.2f}x ({low:.2f} to {high:.2f})"
                for clock in ("wall", "cpu")
                for low, high in [medians[f"{clock}_ratio_quartiles"]]
            ),
        ]
        for variant, medians in found.items()
    ]
    return markdown(["variant", "wall, ms", "CPU, ms", "wall, ratio", "CPU, ratio"], rows)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python benchmarks/kernel_ablation.py --like youshu --json youshu.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--like", nargs="+", choices=WORLDS, default=list(WORLDS), help="default: all three")
    options.add_argument(
        "--scale", type=float, metavar="X", help="times of --like (default: 1; ifashion 0.25)"
    )
    options.add_argument("--variants", nargs="+", metavar="NAME", help="only these (default: all)")
    options.add_argument("--rounds", type=int, default=15, metavar="N", help="turns to take (default: 15)")
    options.add_argument("--batches", type=int, default=16, metavar="N", help="of a turn (default: 16)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    options.add_argument("--variant", help=argparse.SUPPRESS)
    options.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.variant:
        work(chosen.variant, chosen.data, chosen.like[0], chosen.batches)
        return
    from plain_kernels import VARIANTS

    if unknown := set(chosen.variants or []) - set(VARIANTS):
        raise SystemExit(f"no variant {sorted(unknown)}; there are {sorted(VARIANTS)}")
    variants = [BASE, *(v for v in chosen.variants or VARIANTS if v != BASE)]
    worlds = []
    with tempfile.TemporaryDirectory(prefix="coheat-ablation-cache-") as cache:
        for like in chosen.like:
            scale = WORLDS[like] if chosen.scale is None else chosen.scale
            found = summary(measure(like, scale, variants, chosen.rounds, chosen.batches, Path(cache)))
            worlds.append({"like": like, "scale": scale, "variants": found})
            print(f"\nA step of CoHeat, {scale:g} times {like}, medians of {chosen.rounds} turns\n")
            print(table(found), flush=True)
            options_used = {"rounds": chosen.rounds, "batches": chosen.batches}
            write_json(chosen.json, "kernel_ablation", {**options_used, "worlds": worlds})
    print()
    for variant in variants:
        print(f"{variant}: {VARIANTS[variant][0]}")


if __name__ == "__main__":
    main()
