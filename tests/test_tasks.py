"""Tasks here and in processes: done once, counted by their files, given up with a reason."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from factorisation import factorisation
from slow_task import SlowTask
from test_artifact import save

from coheat.cli import main
from coheat.data.synthetic import planted_world
from coheat.errors import ConfigError, DataError
from coheat.tasks import Ended, Follower, Here, Place, Processes, Task, TaskError, place_for, run_tasks
from coheat.tasks.running import TRIES
from coheat.tasks.task import from_text, to_text


class Noting(Follower):
    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str | None]] = []

    def begin(self, task: Task) -> None:
        self.heard.append(("begin", task.name, None))

    def again(self, task: Task, why: str) -> None:
        self.heard.append(("again", task.name, why))

    def end(self, task: Task, failed: str | None) -> None:
        self.heard.append(("end", task.name, failed))


class Unsafe(Place):
    """Loses each task some times before it does it, or loses the word that it was done."""

    def __init__(self, losses: int, after: bool):
        self.losses, self.after = losses, after
        self.waiting: list[Task] = []
        self.stopped = False

    @property
    def slots(self) -> int:
        return 2

    def start(self, task: Task) -> None:
        self.waiting.append(task)

    def wait(self) -> list[Ended]:
        task = self.waiting.pop(0)
        if self.losses:
            self.losses -= 1
            if self.after:
                task.run()
            return [Ended(task, "its machine died", lost=True)]
        task.run()
        return [Ended(task)]

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def found_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes import the tasks of tests from here."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def times_begun(task: SlowTask) -> int:
    path = Path(f"{task.path}.begun")
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def tasks(tmp_path: Path) -> list[SlowTask]:
    return [SlowTask(str(tmp_path / f"task-{number}"), text=str(number)) for number in range(4)]


@pytest.mark.parametrize("parallel", [1, 2])
def test_what_is_there_is_not_done_again(parallel: int, tasks: list[SlowTask], tmp_path: Path) -> None:
    Path(tasks[1].path).write_text("kept")
    with place_for("here", parallel, out=tmp_path) as place:
        run_tasks(tasks, place)
    assert [Path(task.path).read_text() for task in tasks] == ["0", "kept", "2", "3"]
    assert [times_begun(task) for task in tasks] == [1, 0, 1, 1]


def test_a_lost_task_is_begun_again(tasks: list[SlowTask]) -> None:
    heard, place = Noting(), Unsafe(3, after=False)
    run_tasks(tasks, place, heard)
    assert all(task.is_done() for task in tasks)
    again = [event for event in heard.heard if event[0] == "again"]
    assert len(again) == 3
    assert {why for _, _, why in again} == {"its machine died"}
    assert sorted(name for kind, name, _ in heard.heard if kind == "end") == [t.name for t in tasks]


def test_a_lost_word_costs_nothing_where_the_file_is_there(tasks: list[SlowTask]) -> None:
    heard = Noting()
    run_tasks(tasks, Unsafe(4, after=True), heard)
    assert [times_begun(task) for task in tasks] == [1, 1, 1, 1]
    assert not [event for event in heard.heard if event[0] == "again"]
    assert {failed for kind, _, failed in heard.heard if kind == "end"} == {None}


def test_what_fells_every_machine_is_given_up(tasks: list[SlowTask]) -> None:
    place = Unsafe(10**6, after=False)
    with pytest.raises(TaskError, match=f"task-0: its machine died; it was begun {TRIES} times"):
        run_tasks(tasks[:1], place)
    assert place.stopped


def test_failures_in_this_process_and_in_another(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    refusing = SlowTask(str(tmp_path / "refusing"), text="refuse")
    with pytest.raises(DataError, match="not to its liking"):
        run_tasks([refusing], Here())
    with pytest.raises(TaskError, match="refusing: its process ended with status 1"):
        run_tasks([refusing], Processes(1))
    assert "the data is not to its liking" in capfd.readouterr().err
    nothing = SlowTask(str(tmp_path / "nowhere" / "task"))
    with pytest.raises(OSError, match="nowhere"):
        run_tasks([nothing], Here())


class Idle(Processes):
    """Takes its tasks for done without doing them."""

    def start(self, task: Task) -> None:
        self.idle = [Ended(task)]

    def wait(self) -> list[Ended]:
        return self.idle


def test_the_files_count_and_not_the_word(tasks: list[SlowTask]) -> None:
    with pytest.raises(TaskError, match="its files are not there"):
        run_tasks(tasks[:1], Idle(1))


def test_stopped_with_the_one_who_asked(tmp_path: Path) -> None:
    place = Processes(2)
    long = [SlowTask(str(tmp_path / f"long-{n}"), seconds=100.0) for n in range(2)]
    for task in long:
        place.start(task)
    deadline = time.monotonic() + 240
    while not all(map(times_begun, long)) and time.monotonic() < deadline:
        time.sleep(0.02)
    place.stop()
    assert not place.running
    assert not any(task.is_done() for task in long)


def test_a_task_travels_as_text() -> None:
    task = SlowTask("/somewhere/a", 1.5, "ünï")
    assert from_text(to_text(task)) == task
    with pytest.raises(TaskError, match="not a task of coheat"):
        from_text('{"task": "os:system", "values": {"command": "true"}}')


def test_without_ray_it_is_said_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "model", factorisation(planted_world().train))
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["batch", str(tmp_path / "model"), "--out", str(tmp_path / "out"), "--on", "ray"]
    monkeypatch.setattr(sys, "argv", ["coheat", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "needs ray; install it with: pip install 'coheat[ray]'" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["there", "ray:/x", "10.0.0.1", ":6379"])
def test_a_place_that_nobody_knows(place: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="here, ray, or the address"):
        place_for(place, out=tmp_path)
