"""Artifacts and data that are wrong: each must end in a sentence, never in a traceback or a hang.

    python benchmarks/service_mutants.py                    # 500 artifacts and 500 data directories
    python benchmarks/service_mutants.py --count 50 --seed 3

Artifacts go through `coheat recommend` and through a reload of a running service, data directories through
`coheat data check` and `coheat data stats`. Each command is a process of its own (forked from one that has
everything imported) with `--memory-limit`. A mutant that is harmless may also be read.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import write_json
from mutants import mutated
from rich.console import Console
from rich.table import Table
from service_common import SMALL, Server, write_random_artifact

LIMIT_MB = 1000
SLACK_MB = 300
"""Of libraries: what they take when they are first used."""
SECONDS = 60


@dataclass
class Tally:
    """How mutants ended."""

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    largest_mb: float = 0.0
    slowest: float = 0.0

    def take(self, label: str, end: str, fault: str | None, megabytes: float, seconds: float) -> None:
        self.ends[end] += 1
        self.largest_mb, self.slowest = max(self.largest_mb, megabytes), max(self.slowest, seconds)
        if fault is None and megabytes > LIMIT_MB + SLACK_MB:
            fault = f"{megabytes:.0f} MB"
        if fault is None and seconds > SECONDS:
            fault = f"{seconds:.0f} s"
        if fault is not None:
            self.faults.append(f"{label}: {end}: {fault}")


def write_bases(place: Path) -> None:
    """Good artifacts and good data directories."""
    from coheat import fit_recommender
    from coheat.data.split import split
    from coheat.data.synthetic import realistic_world
    from coheat.data.writing import write_research, write_tables

    write_random_artifact(place / "artifacts" / "two views", SMALL)
    world = realistic_world(60, 40, 50, 300, 500, 160, seed=1)
    found = fit_recommender(world, epochs=1, embedding_size=8, companion_size=4)
    found.add_bundles({"new": [world.items[0], world.items[1]]})
    found.record(world.users[0], "new")
    found.save(place / "artifacts" / "ember")
    for name, data in (("all", world), ("split", split(world, "warm-up", seed=0, at_least=4))):
        write_tables(data, place / "data" / f"tables-{name}")
        write_research(data, place / "data" / f"research-{name}", "shop")
    csv = place / "data" / "csv"
    csv.mkdir()
    tables = {"user_bundle": "user_id,bundle_id,timestamp", "user_item": "user_id,item_id",
              "bundle_item": "bundle_id,item_id"}  # fmt: skip
    for name, header in tables.items():
        kinds = [word[0] for word in header.split(",")]
        lines = [",".join(f"{kind}{n * (k + 3) % 17}" if kind != "t" else str(1_700_000_000 + n)
                          for k, kind in enumerate(kinds)) for n in range(60)]  # fmt: skip
        (csv / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")


def bases_of(place: Path) -> tuple[list[Path], list[Path]]:
    """The artifacts and the data directories that `write_bases` wrote."""
    return sorted((place / "artifacts").iterdir()), sorted((place / "data").iterdir())


def run_command(arguments: list[str], place: Path) -> tuple[int, str, float]:
    """`coheat ARGUMENTS` in a fork of this process: exit status (-1: it hung), standard error, megabytes."""
    said = place / "said"
    before = int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]
    child = os.fork()
    if child == 0:
        from coheat.cli import main

        descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["coheat", "--memory-limit", f"{LIMIT_MB}MB", *arguments]
        try:
            main()
            os._exit(0)
        except SystemExit as ended:
            sys.stderr.flush()
            os._exit(ended.code if isinstance(ended.code, int) else 0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(70)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(SECONDS)
    _, status, used = os.wait4(child, 0)
    signal.alarm(0)
    code = os.waitstatus_to_exitcode(status)
    return code, said.read_text(errors="replace"), max(0.0, (used.ru_maxrss - before) / 1024)


def through_commands(tally: Tally, label: str, place: Path, commands: list[list[str]]) -> None:
    for command in commands:
        started = time.monotonic()
        code, said, megabytes = run_command(command, place)
        expected = (0, 1) if "check" in command else (0, 2)
        fault = None
        if code not in expected or "Traceback" in said or (code == 2 and "error: " not in said):
            fault = said[-500:] or "not a word"
        end = f"{' '.join(command[:2]) if command[0] == 'data' else command[0]} exit {code}"
        tally.take(label, end, fault, megabytes, time.monotonic() - started)


def through_reload(tally: Tally, label: str, server: Server, run: Path, mutant: Path) -> None:
    run.unlink()
    run.symlink_to(mutant)
    started, before = time.monotonic(), server.memory_megabytes()
    try:
        status, found = server.ask("POST", "/v1/models/reload")
        listed, _ = server.ask("GET", "/v1/recommendations/user-1")
        fault = None if status in (200, 422) and listed == 200 else f"{found}; a list: {listed}"
        if status == 422 and "cannot be read (" in str(found):
            fault = f"found by accident only: {found}"
    except OSError as error:
        status, fault = 0, repr(error)
    tally.take(
        label, f"reload {status}", fault, server.memory_megabytes() - before, time.monotonic() - started
    )


def artifact_mutants(place: Path, bases: list[Path], count: int, rng: random.Random) -> Tally:
    tally, run = Tally(), place / "run"
    run.symlink_to(bases[0])
    server = Server(run, "--state", str(place / "state"))
    try:
        for _ in range(count):
            mutant = place / "mutant"
            label = mutated("artifact", rng.choice(bases), mutant, rng)
            through_commands(tally, label, place, [["recommend", str(mutant), "--user", "user-1"]])
            through_reload(tally, label, server, run, mutant)
        failed = tally.ends["reload 422"]
        counted = f'coheat_model_reloads_total{{result="failed"}} {failed}.0'
        if failed and counted not in server.ask("GET", "/metrics")[1]:
            tally.faults.append(f"failed reloads are not counted: {counted}")
    finally:
        server.kill()
    return tally


def data_mutants(place: Path, bases: list[Path], count: int, rng: random.Random) -> Tally:
    tally = Tally()
    for _ in range(count):
        base = rng.choice(bases)
        mutant = place / "mutant"
        label = f"{base.name}: {mutated('data', base, mutant, rng)}"
        name = str(mutant)
        through_commands(tally, label, place, [["data", "check", name], ["data", "stats", name]])
    return tally


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--count", type=int, default=500, help="of each kind (default: 500)")
    options.add_argument("--seed", type=int, default=0, help="of the mutations (default: 0)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write what was found to this file")
    given = options.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="coheat-mutants-") as name:
        place = Path(name)
        # In another process: this one is to be forked, and has no threads.
        made = "import sys, pathlib, service_mutants as one; one.write_bases(pathlib.Path(sys.argv[1]))"
        subprocess.run([sys.executable, "-c", made, name], check=True, cwd=Path(__file__).parent)
        artifacts, data = bases_of(place)
        for module in ("cli.data", "cli.recommend", "data.check", "data.stats", "recommender"):
            importlib.import_module(f"coheat.{module}")
        for kind, bases, go in (("artifacts", artifacts, artifact_mutants), ("data", data, data_mutants)):
            tally = go(place, bases, given.count, random.Random(given.seed))
            found[kind] = {**vars(tally), "ends": dict(tally.ends)}
            shutil.rmtree(place / "mutant", ignore_errors=True)
    table = Table("mutants", "ended", "most memory", "slowest", "faults")
    for kind, one in found.items():
        ends = ", ".join(f"{end}: {n}" for end, n in sorted(one["ends"].items()))
        table.add_row(f"{given.count} {kind}", ends, f"{one['largest_mb']:.0f} MB", f"{one['slowest']:.1f} s",
                      str(len(one["faults"])))  # fmt: skip
        for fault in one["faults"][:20]:
            print(f"{kind}: {fault}\n")
    Console(width=140).print(table)
    write_json(given.json, "service_mutants", found)
    raise SystemExit(1 if any(one["faults"] for one in found.values()) else 0)


if __name__ == "__main__":
    main()
