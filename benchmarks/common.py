"""What the benchmarks share: worlds to measure on, one process per side, tables and JSON.

Every benchmark compares two sides, `ours` and `plain` (see `plain.py`), within one run. Each side is
measured in a process of its own, so that its peak memory is its own, and the processes run one after
the other, in turns, so that a machine that is busy for a while disturbs both alike. What is reported
is the median over the turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import coheat

SIDES = ("ours", "plain")
SIZES = ("youshu", "netease", "ifashion")

Measured = dict[str, Any]


def parser(description: str, example: str, compares: bool = True) -> argparse.ArgumentParser:
    """The options of every benchmark; `example` closes the help.

    One that `compares` the two sides on a world also takes `--data`, and calls itself with `--side`.
    """
    options = argparse.ArgumentParser(
        description=description,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "--like", choices=SIZES, default="youshu", help="size of the world (default: youshu)"
    )
    options.add_argument("--rounds", type=int, default=3, metavar="N", help="turns to take (default: 3)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    if compares:
        options.add_argument(
            "--data", type=Path, metavar="DIR", help="measure on this split instead (research text layout)"
        )
        options.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    return options


@contextmanager
def world_directory(options: argparse.Namespace) -> Iterator[Path]:
    """The directory to measure on: the one given, or a generated one that is removed afterwards."""
    if options.data is not None:
        yield options.data
        return
    with tempfile.TemporaryDirectory(prefix="coheat-benchmark-") as name:
        directory = Path(name) / options.like
        write_world(directory, options.like)
        yield directory


CONTENTS = ("n_items", "n_user_item", "n_bundle_item")
"""Counts of a world that say what is in it, besides who took which bundle."""


def write_world(directory: Path, like: str, scale: float = 1.0, seed: int = 0, contents: float = 1.0) -> None:
    """Make up a world of this size, all counts times `scale`, and write it as research text.

    Items, and who has which and which bundle holds which, are `contents` times as many besides.
    Its interactions are divided 7:1:2 at random, so that training edges grow exactly with `scale`.
    Ids are plain numbers, as in the published data; other ids would need tables beside the text.
    """
    from coheat.data import LIKE, Vocabulary, realistic_world, write_research
    from coheat.data.split import split

    counts: dict[str, Any] = dict(LIKE[like])
    counts = {
        name: round(count * scale * (contents if name in CONTENTS else 1)) for name, count in counts.items()
    }
    data = realistic_world(**counts, seed=seed, with_timestamps=False)
    data = replace(
        data,
        users=Vocabulary(map(str, range(data.n_users)), "user"),
        bundles=Vocabulary(map(str, range(data.n_bundles)), "bundle"),
        items=Vocabulary(map(str, range(data.n_items)), "item"),
    )
    write_research(split(data, "warm", seed), directory, like)


def run_side(script: Path, side: str, arguments: Sequence[object]) -> Measured:
    """Measure one side in a process of its own: what its last line of output says, as JSON."""
    command = [sys.executable, str(script), "--side", side, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"measuring {side} failed: {' '.join(command)}")
    measured: Measured = json.loads(done.stdout.splitlines()[-1])
    return measured


def take_turns(script: Path, rounds: int, arguments: Sequence[object]) -> dict[str, Measured]:
    """Both sides `rounds` times in turns; per side the medians of all numbers."""
    found: dict[str, list[Measured]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side in SIDES:
            found[side].append(run_side(script, side, arguments))
    return {side: {**medians(turns), "turns": turns} for side, turns in found.items()}


def medians(turns: Sequence[Measured]) -> Measured:
    """The median of every number over the turns; of anything else the first."""
    return {
        key: statistics.median(turn[key] for turn in turns) if isinstance(value, float) else value
        for key, value in turns[0].items()
    }


def time_calls(call: Callable[[], Any], times: int) -> tuple[float, Any]:
    """Median seconds of some calls, and the result of the last."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), result


def peak_megabytes() -> float:
    """Most memory this process has held at once.

    Linux's VmHWM where there is one: unlike `ru_maxrss` it is not inherited from the parent process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def machine() -> dict[str, Any]:
    """What the numbers were measured with; `load` tells whether the machine had other work."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "coheat": coheat.__version__,
        **{package: version(package) for package in ("torch", "numba", "numpy", "scipy")},
    }


def ratio(sides: dict[str, Measured], key: str) -> float:
    """How many times more the plain side needs than ours."""
    return float(sides["plain"][key] / sides["ours"][key])


def compare(
    title: str,
    sides: dict[str, Measured],
    quantities: Sequence[tuple[str, str, str]],
    notes: Sequence[str] = (),
) -> None:
    """A table for people: both sides and their ratio for each quantity (label, key, format of a number)."""
    console = Console()
    table = Table("", title=title, title_justify="left")
    for column in (*SIDES, "ratio"):
        table.add_column(column, justify="right")
    for label, key, form in quantities:
        numbers = [format(sides[side][key], form) for side in SIDES]
        table.add_row(label, *numbers, f"{ratio(sides, key):.1f}x")
    console.print(table)
    for note in notes:
        console.print(note)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, to be pasted into a page; the first column is words, the others numbers."""
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def world_name(options: argparse.Namespace) -> str:
    """Which data a result is of: the last two folders say the scenario and the data set."""
    return "/".join(options.data.parts[-2:]) if options.data else f"generated, like {options.like}"


def write_json(path: Path | None, name: str, measured: Measured) -> None:
    """All measurements with the machine they come from, where a file was asked for."""
    if path is not None:
        payload = {"benchmark": name, "machine": machine(), **measured}
        path.write_text(json.dumps(payload, indent=2) + "\n", encoding="utf-8")
