"""Many jobs, one after the other or several at a time, with a bar and the time left for all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coheat.checkpoint import HISTORY
from coheat.errors import TrainingError
from coheat.experiments.jobs import Job, is_done, keep_document, measured_path, run_job
from coheat.memory import MemoryEstimate
from coheat.models.base import Model
from coheat.storage import read_json
from coheat.training import Record, Standing, TrainingInterrupted, TrainingSettings, Watcher

LOOK_EVERY = 0.5
"""Seconds between looks at the processes."""


class Interrupted(TrainingError):
    """Ctrl-C: everything finished is kept, everything begun goes on from its last epochs."""


class Estimate:
    """How long the rest will take: each job's epochs left times what an epoch of its kind took so far.

    A kind never seen is taken to be like the average of the others.
    """

    def __init__(self, jobs: Sequence[Job], parallel: int):
        self.left = {job.place: job.epochs for job in jobs}
        self.kinds = {job.place: job.kind for job in jobs}
        self.parallel = parallel
        self.seconds: dict[tuple[str, str], float] = {}

    def epoch(self, job: Job, epoch: int, seconds: float) -> None:
        self.left[job.place] = max(job.epochs - epoch, 0)
        self.seconds[job.kind] = seconds

    def done(self, job: Job) -> None:
        self.left[job.place] = 0

    @property
    def remaining(self) -> float | None:
        """Seconds; None while nothing is known."""
        if not any(self.left.values()):
            return 0.0
        if not self.seconds:
            return None
        average = sum(self.seconds.values()) / len(self.seconds)
        work = sum(n * self.seconds.get(self.kinds[place], average) for place, n in self.left.items())
        return work / max(min(self.parallel, sum(n > 0 for n in self.left.values())), 1)


def duration(seconds: float | None) -> str:
    """A rough time for people: 45 s, 12 min, 3 h 20 min.

    >>> duration(44.6), duration(725), duration(12000), duration(None)
    ('45 s', '12 min', '3 h 20 min', '?')
    """
    if seconds is None:
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Display:
    """A bar where somebody is looking, else a line for every finished job; on standard error."""

    def __init__(self, jobs: Sequence[Job], parallel: int, console: Console | None = None):
        self.console = console or Console(stderr=True)
        self.estimate = Estimate(jobs, parallel)
        self.finished, self.total = 0, len(jobs)
        self.running: dict[str, str] = {}
        self.bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}"),
            TextColumn("{task.description}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=len(jobs), left="?")

    def epoch(self, job: Job, epoch: int, seconds: float) -> None:
        self.estimate.epoch(job, epoch, seconds)
        self.running[job.place] = f"{job.place} {epoch}/{job.epochs}"
        self._draw()

    def end(self, job: Job, failed: str | None) -> None:
        self.estimate.done(job)
        self.running.pop(job.place, None)
        self.finished += 1
        self._draw()
        if failed or not self.console.is_terminal:
            left = duration(self.estimate.remaining)
            outcome = f"failed: {failed}" if failed else "done"
            line = f"{self.finished}/{self.total} {job.place}: {outcome}; left {left}"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> None:
        self.bar.update(
            self.task,
            completed=self.finished,
            left=duration(self.estimate.remaining),
            description="  ".join(self.running.values()),
        )


class _Reporting(Watcher):
    """Tells the display of each epoch of a job that is trained in this process."""

    def __init__(self, display: Display, job: Job):
        self.display, self.job = display, job

    def begin(
        self,
        model: Model,  # noqa: ARG002
        standing: Standing,
        settings: TrainingSettings,  # noqa: ARG002
        memory: MemoryEstimate,  # noqa: ARG002
    ) -> None:
        self.display.running[self.job.place] = f"{self.job.place} {standing.epoch}/{self.job.epochs}"

    def epoch(self, record: Record, standing: Standing) -> None:
        self.display.epoch(self.job, standing.epoch, record["seconds"])


def run_jobs(out: Path, jobs: Sequence[Job], parallel: int = 1, console: Console | None = None) -> None:
    """Do all jobs that are not done yet; `parallel` > 1 runs so many processes with one core each.

    Ctrl-C ends as `Interrupted` when everything is saved. A job that fails is told and the others go on.
    """
    waiting = [job for job in jobs if not is_done(out, job)]
    if not waiting:
        return
    display = Display(waiting, parallel, console)
    try:
        with display.bar:
            if parallel == 1:
                for job in waiting:
                    display.end(job, run_job(out, job, _Reporting(display, job)).get("failed"))
            else:
                _Processes(out, display, parallel).run(waiting)
    except (KeyboardInterrupt, TrainingInterrupted):
        raise Interrupted(
            f"interrupted after {display.finished} of {display.total} trainings; everything is saved. "
            "The same command goes on from here"
        ) from None


class _Processes:
    """Jobs side by side, each in a process with one thread on a core of its own."""

    def __init__(self, out: Path, display: Display, parallel: int):
        self.out, self.display = out, display
        affinity = getattr(os, "sched_getaffinity", None)
        cores = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
        self.slots: list[tuple[int, Job, subprocess.Popen[str]] | None] = [None] * parallel
        self.cores = [cores[slot % len(cores)] for slot in range(parallel)]

    def run(self, jobs: Sequence[Job]) -> None:
        waiting = list(jobs)
        try:
            while waiting or any(self.slots):
                for slot, held in enumerate(self.slots):
                    if held is None and waiting:
                        job = waiting.pop(0)
                        self.slots[slot] = (self._epochs(job)[0], job, self._start(job, self.cores[slot]))
                    elif held is not None:
                        self._look(slot, *held)
                time.sleep(LOOK_EVERY)
        except BaseException:
            self._stop()
            raise

    def _start(self, job: Job, core: int) -> subprocess.Popen[str]:
        # In a session of its own, so that Ctrl-C reaches it once, from us, and not twice.
        process = subprocess.Popen(
            [sys.executable, "-m", "coheat.experiments.worker", str(self.out), str(core)],
            stdin=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
            start_new_session=True,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(job)) + "\n")
        process.stdin.flush()
        return process

    def _look(self, slot: int, before: int, job: Job, process: subprocess.Popen[str]) -> None:
        """Tell the display where a job stands, and free its slot when it has ended."""
        epoch, seconds = self._epochs(job)
        if epoch != before and seconds is not None:
            self.display.epoch(job, epoch, seconds)
            self.slots[slot] = (epoch, job, process)
        status = process.poll()
        if status is None:
            return
        self.slots[slot] = None
        if status:  # what fails within a job is written down by itself; this is a kill, or want of memory
            keep_document(self.out, job, {"failed": f"its process ended with status {status}"})
        self.display.end(job, read_json(measured_path(self.out, job.place)).get("failed"))

    def _epochs(self, job: Job) -> tuple[int, float | None]:
        """How many epochs a job has behind it, and the seconds of the last, as its history says."""
        path = self.out / "runs" / job.place / HISTORY
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        try:
            return len(lines), float(json.loads(lines[-1])["seconds"]) if lines else None
        except ValueError:  # the last line is being written
            return max(len(lines) - 1, 0), None

    def _stop(self) -> None:
        running = [held[2] for held in self.slots if held is not None]
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            process.wait()
