"""Where tasks are done: in this process, or in several of this machine. A cluster has a file of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from coheat.tasks.task import Task, to_text

LOOK_EVERY = 0.5
"""Seconds between looks at what is running."""


@dataclass(frozen=True)
class Ended:
    """A task that runs no more. `error` says why it was not done; `lost`: with its machine, so try again."""

    task: Task
    error: str | None = None
    lost: bool = False


class Place(ABC):
    """Does tasks. Used in a `with` block, which lets go of what it holds."""

    elsewhere = False
    """Whether other machines do them, which see only what is on a shared file system."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many tasks it does at a time; of a cluster, as of now."""

    @abstractmethod
    def start(self, task: Task) -> None:
        """Begin with a task."""

    @abstractmethod
    def wait(self) -> list[Ended]:
        """What has ended since; returns after `LOOK_EVERY` seconds even if nothing has."""

    @abstractmethod
    def stop(self) -> None:
        """End all that is running; each task saves where it stands."""

    def describe(self) -> str:
        """A few words for the progress line; none where there is nothing to say."""
        return ""

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Let go of what the place holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Here(Place):
    """This process, one task after the other; what a task raises is raised."""

    def __init__(self) -> None:
        self.ended: list[Ended] = []

    @property
    def slots(self) -> int:
        return 1

    def start(self, task: Task) -> None:
        task.run()
        self.ended.append(Ended(task))

    def wait(self) -> list[Ended]:
        ended, self.ended = self.ended, []
        return ended

    def stop(self) -> None:
        """Whatever interrupted the task has stopped it."""


class Processes(Place):
    """Tasks side by side, each in a process with one thread on a core of its own."""

    def __init__(self, parallel: int):
        affinity = getattr(os, "sched_getaffinity", None)
        cores = sorted(affinity(0)) if affinity else list(range(os.cpu_count() or 1))
        self.cores = [cores[slot % len(cores)] for slot in range(parallel)]
        self.running: dict[int, tuple[Task, subprocess.Popen[str]]] = {}

    @property
    def slots(self) -> int:
        return len(self.cores)

    def start(self, task: Task) -> None:
        slot = next(slot for slot in range(len(self.cores)) if slot not in self.running)
        # In a session of its own, so that Ctrl-C reaches it once, from us, and not twice.
        process = subprocess.Popen(
            [sys.executable, "-m", "coheat.tasks.worker", str(self.cores[slot])],
            stdin=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
            start_new_session=True,
            text=True,
        )
        self.running[slot] = (task, process)
        assert process.stdin is not None
        process.stdin.write(to_text(task) + "\n")
        process.stdin.flush()

    def wait(self) -> list[Ended]:
        ended: list[Ended] = []
        deadline = time.monotonic() + LOOK_EVERY
        while not ended and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY / 10)
            for slot, (task, process) in list(self.running.items()):
                status = process.poll()
                if status is not None:
                    del self.running[slot]
                    # A task may write down itself what fails; this is a kill, or want of memory.
                    why = f"its process ended with status {status}" if status else None
                    ended.append(Ended(task, why))
        return ended

    def stop(self) -> None:
        processes = [process for _, process in self.running.values()]
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            process.wait()
        self.running.clear()
