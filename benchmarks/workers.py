"""Do 1, 2 and 3 processes learn the same to the last bit, whatever happens to them, and what does it cost?

Trains models on one machine: with 1, 2 and 3 workers, with 2 of which one is killed in the middle,
and with 2 that are interrupted and resumed by 3. For each: a hash of what was learned, seconds per epoch (the
median; the last epoch, with its validation, is left out) and the most memory that one process held. On one
machine the workers share the cores that a single process has for itself, and what they send is copied through
memory: seconds show what the exchange costs, not what several machines would gain (docs/distributed.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
from common import Measured, markdown, parser, world_directory, world_name, write_json

from coheat.config import parse_overrides
from coheat.workers.job import Job
from coheat.workers.launch import Interrupted, train_together

RANK = "coheat.workers.rank"


class Watch(threading.Thread):
    """Looks at the ranks from outside: their memory and, once, what `meddle` does to them at `epoch`."""

    def __init__(self, run: Path, epoch: int, meddle: Callable[[list[psutil.Process]], None] | None):
        super().__init__(daemon=True)
        self.run_path, self.at_epoch, self.meddle = run, epoch, meddle
        self.megabytes, self.done = 0.0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.05):
            with suppress(psutil.Error):  # one that ends just now
                ranks = [one for one in psutil.Process().children() if RANK in " ".join(one.cmdline())]
                self.megabytes = max([self.megabytes, *(one.memory_info().rss / 2**20 for one in ranks)])
                if self.meddle is not None and self._epoch() >= self.at_epoch:
                    self.meddle(ranks)
                    self.meddle = None

    def _epoch(self) -> int:
        path = self.run_path / "checkpoint.json"
        return int(json.loads(path.read_text())["standing"]["epoch"]) if path.exists() else 0


def kill_the_last(ranks: list[psutil.Process]) -> None:
    ranks[-1].kill()


def press_ctrl_c(ranks: list[psutil.Process]) -> None:  # noqa: ARG001
    os.kill(os.getpid(), signal.SIGINT)


def trained(
    job: Job, size: int, epoch: int = 0, meddle: Callable[[list[psutil.Process]], None] | None = None
) -> Measured:
    """Train with so many workers; what was learned, as a hash, and what it took."""
    out, started = Path(job.out), time.perf_counter()
    watch = Watch(out, epoch, meddle)
    watch.start()
    try:
        train_together(job, size, tell=lambda message: print(f"  {message}"))
    finally:
        watch.done.set()
        watch.join()
    seconds = [json.loads(line)["seconds"] for line in (out / "history.jsonl").read_text().splitlines()]
    learned = hashlib.sha256((out / "model" / "parameters.safetensors").read_bytes())
    return {
        "hash": learned.hexdigest()[:16],
        "seconds_per_epoch": statistics.median(seconds[1:-1] or seconds),
        "megabytes": watch.megabytes,
        "seconds": time.perf_counter() - started,
    }


def resumed_by_three(job: Job, epoch: int) -> Measured:
    """Two workers until Ctrl-C, then three."""
    try:
        trained(job, 2, epoch, press_ctrl_c)
    except Interrupted:
        return trained(replace(job, resume=True), 3)
    raise SystemExit("training was done before it could be interrupted; take more --epochs")


def main() -> None:
    options = parser(__doc__ or "", "python benchmarks/workers.py --models coheat ember --epochs 6")
    options.add_argument("--models", nargs="+", default=["coheat", "crosscbr", "ember"])
    options.add_argument("--epochs", type=int, default=6, metavar="N")
    options.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of model and training"
    )
    asked = options.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # also where a shell started it in the background
    measured: dict[str, dict[str, Measured]] = {}
    with world_directory(asked) as data, tempfile.TemporaryDirectory(prefix="coheat-workers-") as place:
        for model in asked.models:
            settings = {"epochs": asked.epochs, "evaluate_every": asked.epochs, "checkpoint_every": 1}
            overrides = settings | parse_overrides(asked.set)
            middle = max(asked.epochs // 2, 1)

            def job(name: str, model: str = model, overrides: dict[str, object] = overrides) -> Job:
                return Job(str(data), f"{place}/{model}-{name}", model, overrides=overrides, quiet=True)

            found = {f"{size} workers": trained(job(str(size)), size) for size in (1, 2, 3)}
            found["2 workers, one killed"] = trained(job("killed"), 2, middle, kill_the_last)
            found["2 workers, then 3"] = resumed_by_three(job("resumed"), middle)
            measured[model] = found
            rows = [
                [name, f"`{one['hash']}`", f"{one['seconds_per_epoch']:.2f}", f"{one['megabytes']:.0f}"]
                for name, one in found.items()
            ]
            print(f"\n{model} on {world_name(asked)}, {asked.epochs} epochs\n")
            print(markdown(["", "learned", "seconds per epoch", "MB of a process"], rows))
            same = len({one["hash"] for one in found.values()}) == 1
            print(f"\n{'all equal, to the last bit' if same else 'NOT ALL EQUAL'}", flush=True)
    write_json(asked.json, "workers", {"data": world_name(asked), "epochs": asked.epochs, "models": measured})
    if any(len({one["hash"] for one in found.values()}) > 1 for found in measured.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
