"""Everything that may go wrong, one after the other, while the service is written to and read from.

Each fault is injected again and again; writers and readers remember what they were told (see
`service_history.py`). Nothing that was acknowledged may be missing afterwards, nothing may be read that was
not written, and a restart must change nothing.

    python benchmarks/service_chaos.py                             # every fault, 20 rounds each
    python benchmarks/service_chaos.py --fault "killed" --rounds 3
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import write_json
from rich.console import Console
from rich.table import Table
from service_common import SMALL, START, Server, write_random_artifact
from service_door import attacked
from service_history import History, Reader, Writer

WRITERS, READERS = 3, 2
SLOW_DISK = """
import time
from coheat.service.sqlite_store import SqliteStore
before = SqliteStore._sum_up
SqliteStore._sum_up = lambda self: (time.sleep(0.05), before(self))
"""
CLOCK_BACK = """
import time
true = time.time
time.time = lambda: 2e9 - 1000 * true() % 1e6
"""


@dataclass
class Scene:
    """A service under fire: the place of its files, the process, what its clients know."""

    run: Path
    rng: random.Random
    history: History = field(default_factory=History)
    prelude: str = ""
    server: Server = field(init=False)
    seen: list[str] = field(default_factory=list)
    """What was observed of the fault itself, in a few words."""

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.server = Server(self.run, prelude=self.prelude)

    @property
    def state(self) -> Path:
        return self.run.with_name("run.service")

    @property
    def store(self) -> Path:
        return self.state / "store.sqlite"

    def restart(self, how: int = signal.SIGKILL) -> None:
        self.server.process.send_signal(how)
        self.server.process.communicate(timeout=240)
        self.start()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", START, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def must(self, holds: bool, what: str) -> None:
        if not holds:
            self.history.faults.append(what)

    def write_one(self, name: str) -> int:
        return self.server.ask("PUT", f"/v1/bundles/{name}", {"item_ids": ["item-1"]})[0]


def killed(scene: Scene, _: Traffic) -> None:
    scene.restart(signal.SIGKILL)


def ended(scene: Scene, _: Traffic) -> None:
    scene.restart(signal.SIGTERM)


def stopped(scene: Scene, _: Traffic) -> None:
    scene.server.process.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    scene.server.process.send_signal(signal.SIGCONT)


def disk_full(scene: Scene, _: Traffic) -> None:
    """No file of the process can grow any more."""
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(scene.server.process.pid, resource.RLIMIT_FSIZE, (1000, unlimited))
    time.sleep(0.3)
    scene.must(scene.server.ask("GET", "/v1/recommendations/user-1")[0] == 200, "no lists on a full disk")
    scene.must(scene.write_one("probe") == 503, "a write on a full disk was not refused")
    time.sleep(0.3)
    status, checks = scene.server.ask("GET", "/health/ready")
    scene.must(status == 503, f"ready on a full disk: {checks}")
    resource.prlimit(scene.server.process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
    time.sleep(0.6)
    scene.must(scene.write_one("probe") in (200, 201), "no write after the disk had room again")
    scene.must(scene.server.ask("GET", "/health/ready")[0] == 200, "not ready after the disk had room again")


def _taken_away(ending: str, exchange: bool) -> Callable[[Scene, Traffic], None]:
    """A file of the store is removed, or another put in its place; and put back after a while."""

    def fault(scene: Scene, _: Traffic) -> None:
        file = scene.store.with_name(scene.store.name + ending)
        kept = file.with_name("kept")
        os.link(file, kept)
        if exchange:
            other = file.with_name("other")
            shutil.copy(file, other)
            other.replace(file)
        else:
            file.unlink()
        time.sleep(0.2)
        status, found = scene.server.ask("PUT", "/v1/bundles/probe", {"item_ids": ["item-1"]})
        scene.must(status == 503 and "while the service ran" in str(found), f"not noticed: {status} {found}")
        scene.must(scene.server.ask("GET", "/health/ready")[0] == 503, "ready without its store")
        kept.replace(file)
        time.sleep(0.1)
        scene.must(scene.write_one("probe") in (200, 201), "no write after the file was back")

    return fault


def _cut_off(ending: str) -> Callable[[Scene, Traffic], None]:
    """A file of the store loses its end: a backup has to help."""

    def fault(scene: Scene, traffic: Traffic) -> None:
        traffic.stop_writing()
        backup = scene.run.with_name("backup.sqlite")
        backup.unlink(missing_ok=True)
        done = scene.command("state", "backup", str(scene.state), str(backup))
        scene.must(done.returncode == 0, f"no backup: {done.stderr}")
        file = scene.store.with_name(scene.store.name + ending)
        scene.must(scene.write_one("probe") in (200, 201), "no write before the cut")
        os.truncate(file, 100)
        status, found = scene.server.ask("PUT", "/v1/bundles/probe", {"item_ids": ["item-2"]})
        scene.must(status == 503 and "cut off" in str(found), f"not noticed: {status} {found}")
        scene.must(scene.server.ask("GET", "/v1/recommendations/user-1")[0] == 200, "no lists")
        scene.server.kill()
        done = scene.command("state", "restore", str(scene.state), str(backup))
        scene.must(done.returncode == 0, f"not restored: {done.stderr}")
        scene.start()

    return fault


def clock_back(scene: Scene, _: Traffic) -> None:
    time.sleep(0.3)
    scene.restart(signal.SIGKILL)


def slow_disk(scene: Scene, _: Traffic) -> None:
    took = []
    for _number in range(5):
        started = time.monotonic()
        scene.must(scene.server.ask("GET", "/v1/recommendations/user-1")[0] == 200, "no list on a slow disk")
        took.append(time.monotonic() - started)
    scene.seen.append(f"lists in {1000 * sorted(took)[2]:.0f} ms")
    scene.restart(signal.SIGKILL)


def _bad_clients(kind: str, count: int) -> Callable[[Scene, Traffic], None]:
    def fault(scene: Scene, _: Traffic) -> None:
        with attacked(kind, count, scene.server.port, 4):
            time.sleep(1)

    return fault


def reload_storm(scene: Scene, _: Traffic) -> None:
    """Several at once ask for a reload, of an artifact that is being exchanged."""

    def reload() -> None:
        status, found = scene.server.ask("POST", "/v1/models/reload")
        scene.must(status in (200, 422), f"reload: {status} {found}")

    threads = [threading.Thread(target=reload) for _ in range(4)]
    for thread in threads:
        thread.start()
        write_random_artifact(scene.run, SMALL, seed=scene.rng.randrange(3))
    for thread in threads:
        thread.join()


def bad_artifact(scene: Scene, _: Traffic) -> None:
    """What is to be loaded is damaged; the old model goes on."""
    whole = scene.run.with_name("whole")
    shutil.copytree(scene.run, whole)
    victim = scene.rng.choice(sorted(scene.run.iterdir()))
    content = bytearray(victim.read_bytes())
    victim.unlink()  # what is mapped into memory is never written to
    for _number in range(20):
        content[scene.rng.randrange(len(content))] = scene.rng.randrange(256)
    victim.write_bytes(content[: scene.rng.randrange(1, len(content) + 1)])
    status, found = scene.server.ask("POST", "/v1/models/reload")
    scene.must(status == 422 and "the old model goes on" in str(found), f"reload: {status} {found}")
    shutil.rmtree(scene.run)
    whole.rename(scene.run)
    scene.must(scene.server.ask("POST", "/v1/models/reload")[0] == 200, "no reload of the whole artifact")


def backup_meanwhile(scene: Scene, _: Traffic) -> None:
    backup = scene.run.with_name("backup.sqlite")
    backup.unlink(missing_ok=True)
    before = scene.history.acknowledged
    done = scene.command("state", "backup", str(scene.state), str(backup))
    scene.must(done.returncode == 0, f"no backup: {done.stderr}")
    checked = scene.command("state", "check", str(backup))
    scene.must(checked.returncode == 0, f"a bad backup: {checked.stderr}")
    scene.seen.append(f"{scene.history.acknowledged - before} writes meanwhile")


def second_service(scene: Scene, _: Traffic) -> None:
    """The lock file is removed, and somebody starts a second service on the same files."""
    (scene.state / "lock").unlink(missing_ok=True)
    done = scene.command("serve", str(scene.run), "--port", "0")
    refused = done.returncode == 2 and "another service works on it" in done.stderr
    scene.must(refused, f"a second service: {done.returncode} {done.stderr}")


FAULTS: dict[str, Callable[[Scene, Any], None]] = {
    "killed (SIGKILL)": killed,
    "ended (SIGTERM)": ended,
    "stopped and continued": stopped,
    "disk full": disk_full,
    "slow disk": slow_disk,
    "store removed": _taken_away("", exchange=False),
    "store exchanged": _taken_away("", exchange=True),
    "log removed": _taken_away("-wal", exchange=False),
    "store cut off": _cut_off(""),
    "log cut off": _cut_off("-wal"),
    "clock runs back": clock_back,
    "1,000 idle clients": _bad_clients("idle", 1000),
    "1,000 half heads": _bad_clients("half head", 1000),
    "64 non-readers": _bad_clients("non-reader", 64),
    "1,000 drippers": _bad_clients("dripper", 1000),
    "reload storm": reload_storm,
    "bad artifact": bad_artifact,
    "backup meanwhile": backup_meanwhile,
    "second service": second_service,
}
PRELUDES = {"slow disk": SLOW_DISK, "clock runs back": CLOCK_BACK}


class Traffic:
    """Writers and readers, from the beginning of a round to its end."""

    def __init__(self, scene: Scene):
        self.writing, self.reading = threading.Event(), threading.Event()
        port, seed = scene.server.port, scene.rng.randrange(1 << 30)
        self.writers = [Writer(n, scene.history, port, seed + n, self.writing) for n in range(WRITERS)]
        self.readers = [Reader(scene.history, port, seed - n, self.reading) for n in range(1, READERS + 1)]
        for worker in (*self.writers, *self.readers):
            worker.start()

    def stop_writing(self) -> None:
        self.writing.set()
        for worker in self.writers:
            worker.join()

    def stop(self) -> None:
        self.stop_writing()
        self.reading.set()
        for worker in self.readers:
            worker.join()


def rounds(place: Path, name: str, count: int, seed: int = 0) -> dict[str, Any]:
    """One kind of fault, so many times; what was told, what was seen, and what was not true."""
    write_random_artifact(place / "run", SMALL)
    scene = Scene(place / "run", random.Random(seed), prelude=PRELUDES.get(name, ""))
    history = scene.history
    try:
        for number in range(count):
            traffic = Traffic(scene)
            time.sleep(scene.rng.uniform(0.05, 0.3))
            try:
                FAULTS[name](scene, traffic)
                time.sleep(0.1)
            except Exception as error:
                history.faults.append(f"round {number}: {error!r}")
            traffic.stop()
            if scene.server.process.poll() is not None:
                history.faults.append(f"round {number}: the service ended: {scene.server.said()[-2000:]}")
                scene.start()
            history.compare(scene.server, f"round {number}, running")
            if number % 4 == 3 or number == count - 1:
                scene.restart()
                history.compare(scene.server, f"round {number}, started again")
    finally:
        with suppress(ProcessLookupError):
            scene.server.kill()
    return {
        "fault": name,
        "rounds": count,
        "acknowledged": history.acknowledged,
        "reads": history.reads,
        "answers": dict(sorted(history.answers.items())),
        "seen": scene.seen[:3],
        "faults": history.faults,
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--fault", choices=FAULTS, help="only this one")
    options.add_argument("--rounds", type=int, default=20, help="of each (default: 20)")
    options.add_argument("--seed", type=int, default=0, help="of the random moments (default: 0)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write what was found to this file")
    given = options.parse_args()
    table = Table("injected", "rounds", "acknowledged", "reads checked", "answers", "untrue or lost")
    found = []
    for name in [given.fault] if given.fault else FAULTS:
        with tempfile.TemporaryDirectory(prefix="coheat-chaos-") as place:
            one = rounds(Path(place), name, given.rounds, given.seed)
        found.append(one)
        told = ", ".join(f"{status}: {count}" for status, count in one["answers"].items())
        numbers = (str(one[key]) for key in ("rounds", "acknowledged", "reads"))
        table.add_row(name, *numbers, told, str(len(one["faults"])))
        print(f"{name}: {one['acknowledged']} acknowledged, {len(one['faults'])} faults", flush=True)
        for fault in one["faults"][:5]:
            print(f"  {fault}", flush=True)
    Console(width=140).print(table)
    write_json(given.json, "service_chaos", {"faults": found})
    raise SystemExit(1 if any(one["faults"] for one in found) else 0)


if __name__ == "__main__":
    main()
