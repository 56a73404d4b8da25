"""Many tasks at one place: which are left to do, what becomes of lost ones, and how long it all takes."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coheat.tasks.places import LOOK_EVERY, Ended, Place
from coheat.tasks.task import Task

TRIES = 5
"""How often a task is begun before it is given up: one that fells every machine must not go on for ever."""
SETTLING = 60.0
"""Seconds until a file that another machine wrote must be seen; network file systems keep what they saw."""


class Follower:
    """Is told what happens to tasks; this one says nothing."""

    def begin(self, task: Task) -> None:
        """It was started."""

    def again(self, task: Task, why: str) -> None:
        """It was lost with its machine and waits to be started again."""

    def end(self, task: Task, failed: str | None) -> None:
        """It is done, or has failed for good."""


def run_tasks(tasks: Iterable[Task], place: Place, follower: Follower | None = None) -> None:
    """Have `place` do those tasks whose files are not there yet.

    A task that was lost with its machine is begun again, at most `TRIES` times. One that fails is given up,
    which raises or lets the others go on, as the task will have it.
    """
    follower = follower or Follower()
    waiting = deque(task for task in tasks if not task.is_done())
    begun: Counter[str] = Counter()
    running = 0
    try:
        while waiting or running:
            for _ in range(min(place.slots - running, len(waiting))):
                task = waiting.popleft()
                begun[task.name] += 1
                running += 1
                follower.begin(task)
                place.start(task)
            for ended in place.wait():
                running -= 1
                task = ended.task
                if ended.lost and not task.is_done() and begun[task.name] < TRIES:
                    follower.again(task, ended.error or "")
                    waiting.appendleft(task)
                else:
                    follower.end(task, _outcome(place, ended, begun[task.name]))
    except BaseException:
        place.stop()
        raise


def _outcome(place: Place, ended: Ended, times: int) -> str | None:
    """Why a task was not done; None where it was, which its files say and not the word of who did it."""
    task, why = ended.task, ended.error
    deadline = time.monotonic() + (SETTLING if place.elsewhere else 0)
    while not task.is_done():
        if why is None and (failure := task.failure()) is not None:
            return failure
        if why is not None or time.monotonic() >= deadline:
            why = why or "it ended, and its files are not there"
            why = why if times == 1 else f"{why}; it was begun {times} times"
            task.give_up(why)
            return why
        time.sleep(LOOK_EVERY)
    return None


class Estimate:
    """How long the rest will take: each task's steps left times what a step of its kind took so far.

    A kind never seen is taken to be like the average of the others.
    """

    def __init__(self, tasks: Sequence[Task], parallel: int):
        self.left = {task.name: task.steps for task in tasks}
        self.kinds = {task.name: task.kind for task in tasks}
        self.parallel = parallel
        self.seconds: dict[str, float] = {}

    def step(self, task: Task, done: int, seconds: float) -> None:
        self.left[task.name] = max(task.steps - done, 0)
        self.seconds[task.kind] = seconds

    def done(self, task: Task) -> None:
        self.left[task.name] = 0

    @property
    def remaining(self) -> float | None:
        """Seconds; None while nothing is known."""
        if not any(self.left.values()):
            return 0.0
        if not self.seconds:
            return None
        average = sum(self.seconds.values()) / len(self.seconds)
        work = sum(n * self.seconds.get(self.kinds[name], average) for name, n in self.left.items())
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


class Display(Follower):
    """A bar where somebody is looking, else a line for every finished task; on standard error.

    Where tasks stand is read from their files, whoever does them.
    """

    def __init__(self, tasks: Sequence[Task], place: Place, console: Console | None = None):
        self.console = console or Console(stderr=True)
        self.place = place
        self.estimate = Estimate(tasks, place.slots)
        self.finished, self.total = 0, len(tasks)
        self.running: dict[str, Task] = {}
        self.bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}"),
            TextColumn("{task.description}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=len(tasks), left="?")
        self.closed = threading.Event()

    def __enter__(self) -> Display:
        self.bar.start()
        if self.console.is_terminal:  # a task that runs in this process leaves nobody else to look
            threading.Thread(target=self._keep_looking, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self.bar.stop()

    def begin(self, task: Task) -> None:
        self.estimate.parallel = self.place.slots
        self.running[task.name] = task

    def again(self, task: Task, why: str) -> None:
        self.running.pop(task.name, None)
        self._say(f"{task.name}: {why}; it is begun again")

    def end(self, task: Task, failed: str | None) -> None:
        self._look(task)
        self.running.pop(task.name, None)
        self.estimate.done(task)
        self.finished += 1
        self._draw()
        if failed or not self.console.is_terminal:
            outcome = f"failed: {failed}" if failed else "done"
            where = f"; {about}" if (about := self.place.describe()) else ""
            left = duration(self.estimate.remaining)
            self._say(f"{self.finished}/{self.total} {task.name}: {outcome}; left {left}{where}")

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _keep_looking(self) -> None:
        while not self.closed.wait(LOOK_EVERY):
            for task in list(self.running.values()):
                self._look(task)
            self._draw()

    def _look(self, task: Task) -> None:
        done, seconds = task.standing()
        if seconds is not None:
            self.estimate.step(task, done, seconds)

    def _draw(self) -> None:
        standing = [f"{task.name} {task.standing()[0]}/{task.steps}" for task in list(self.running.values())]
        self.bar.update(
            self.task,
            completed=self.finished,
            left=duration(self.estimate.remaining),
            description="  ".join([self.place.describe(), *standing]),
        )
