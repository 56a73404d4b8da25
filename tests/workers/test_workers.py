"""One training by several processes: equal to that of one to the last bit, whatever happens to them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from quick_python import QuickProcess, quick
from three_models import SETTINGS, WARM, train_three

from coheat.checkpoint import Checkpoints
from coheat.data.synthetic import planted_world
from coheat.data.writing import write_tables
from coheat.errors import ConfigError
from coheat.graph.ranks import Ranks
from coheat.runs import train_run
from coheat.together import shared_device
from coheat.training import Record, Standing, TrainingInterrupted, Watcher
from coheat.workers.job import Job
from coheat.workers.launch import parse_address, train_together

HERE = Path(__file__).parent
MANY = {
    "epochs": 100_000,
    "batch_size": 128,
    "embedding_size": 12,
    "checkpoint_every": 1,
    "evaluate_every": 3,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data") / "shop"
    write_tables(planted_world(n_groups=5, users_per_group=25, bundles_per_group=9), place)
    return place


def weights(run: Path) -> tuple[bytes, bytes]:
    """Everything that was learned, and everything that is served."""
    model = run / "model"
    return (model / "parameters.safetensors").read_bytes(), (model / "served.safetensors").read_bytes()


def test_two_and_three_processes_learn_what_one_learns(data: Path, tmp_path: Path) -> None:
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    processes = []
    for rank in range(3):
        words = map(str, [HERE / "three_models.py", data, tmp_path, rank, *ports])
        processes.append(subprocess.Popen([quick("python"), *words], stderr=subprocess.PIPE, text=True))
    train_three(data, tmp_path / "1")
    for process in processes:
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors
    for model in (*SETTINGS, WARM):
        expected = weights(tmp_path / "1" / model)
        for several in (tmp_path / "2", tmp_path / "3"):
            assert weights(several / model) == expected, f"{model}, {several.name} processes"
            assert not list((several / model).glob("*of*")), "checkpoints are cleared away"


def test_whatever_is_killed_or_interrupted_training_goes_on_alike(
    data: Path, tmp_path: Path, ends_here: Callable[[subprocess.Popen[Any]], None]
) -> None:
    """Two ranks, one killed; then who started them killed; then three, interrupted; then a single process."""
    out = tmp_path / "run"
    two = Command(data, out, 2)
    ends_here(two.process)
    wait_until(lambda: two.epoch() >= 1, two)
    two.ranks()[1].kill()
    before = two.epoch()
    wait_until(lambda: len(two.ranks()) == 2 and two.epoch() > before + 3, two)
    orphans = two.ranks()
    two.process.kill()
    assert "rank 1 was killed by signal 9; all start again from epoch" in two.errors()
    psutil.wait_procs(orphans, timeout=240)
    assert not any(rank.is_running() for rank in orphans), "no rank outlives who started it"
    parts = [path.name.split("-")[0] for path in out.glob("*-??????.safetensors")]
    assert sorted(parts) == [f"{part}.{n}of2" for part in ("best", "model", "optimizers") for n in (1, 2)]

    before = two.epoch()
    three = Command(data, out, 3, "--resume")
    ends_here(three.process)
    wait_until(lambda: three.epoch() > before, three)
    ranks = three.ranks()
    three.process.send_signal(signal.SIGINT)
    errors = three.errors()
    assert three.process.returncode == 130, errors
    assert f"everything up to epoch {three.epoch()} is saved" in errors
    assert "--resume --workers 3" in errors
    assert not any(rank.is_running() for rank in ranks)
    assert len(list(out.glob("model.?of3-*"))) == 3

    last = three.epoch() + 2
    for path in (out, tmp_path / "whole"):
        with pytest.raises(TrainingInterrupted, match=f"up to epoch {last} is saved"):
            train_run(data, path, "coheat", overrides=MANY, resume=True, watcher=StopAfter(last))
    (found, document), (expected, other) = (Checkpoints(path).load() for path in (out, tmp_path / "whole"))
    assert document["optimizers"] == other["optimizers"]
    assert {part: set(state) for part, state in found.items()} == {
        part: set(state) for part, state in expected.items()
    }
    for part, state in expected.items():
        for name, tensor in state.items():
            assert torch.equal(found[part][name], tensor), f"{part}, {name}"


def test_a_rank_that_is_lost_while_all_stop_is_not_started_again(
    data: Path, tmp_path: Path, ends_here: Callable[[subprocess.Popen[Any]], None]
) -> None:
    command = Command(data, tmp_path / "run", 2)
    ends_here(command.process)
    wait_until(lambda: command.epoch() >= 1, command)
    ranks = command.ranks()
    for rank in ranks:
        rank.suspend()
    command.process.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping after this batch" in command.log.read_text(), command)
    ranks[1].kill()
    ranks[0].resume()
    errors = command.errors()
    assert command.process.returncode == 130, errors
    assert f"everything up to epoch {command.epoch()} is saved" in errors
    assert "start again" not in errors


class StopAfter(Watcher):
    """Presses Ctrl-C in the epoch after this one."""

    def __init__(self, epoch: int):
        self.last = epoch

    def epoch(self, record: Record, standing: Standing) -> None:
        if standing.epoch > self.last:
            raise KeyboardInterrupt


class Command:
    """`coheat train --workers N` in a process of its own."""

    def __init__(self, data: Path, out: Path, size: int, *more: str):
        words = [
            "train",
            str(data),
            "--model",
            "coheat",
            "--out",
            str(out),
            "--workers",
            str(size),
            "--quiet",
        ]
        for name, value in MANY.items():
            words += ["--set", f"{name}={value}"]
        self.checkpoint, self.log = out / "checkpoint.json", out.with_name(f"{size}.log")
        with self.log.open("w") as log:
            self.process = QuickProcess(
                [sys.executable, "-c", "from coheat.cli import main; main()", *words, *more],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "COLUMNS": "500"},
            )

    def ranks(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children())

    def epoch(self) -> int:
        if not self.checkpoint.exists():
            return 0
        return int(json.loads(self.checkpoint.read_text())["standing"]["epoch"])

    def errors(self) -> str:
        self.process.wait(timeout=240)
        return self.log.read_text()


def wait_until(true: Callable[[], bool], command: Command) -> None:
    deadline = time.monotonic() + 240
    while not true():
        assert command.process.poll() is None, command.errors()
        assert time.monotonic() < deadline, command.log.read_text()
        time.sleep(0.005)


def test_models_and_devices_that_cannot_be_shared_say_so() -> None:
    several = Ranks(1, 3)
    assert shared_device("auto", "ember", several) == "cpu"
    assert shared_device("auto", "lightgcn", Ranks()) == "auto"
    with pytest.raises(
        ConfigError, match=r"lightgcn cannot be trained by several processes, .*crosscbr.* can"
    ):
        shared_device("auto", "lightgcn", several)
    with pytest.raises(ConfigError, match="on the CPU only"):
        shared_device("cuda", "coheat", several)


def test_addresses_and_ranks_that_make_no_sense_are_refused(data: Path, tmp_path: Path) -> None:
    job = Job(str(data), str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="belong together"):
        train_together(job, 2, rank=1)
    with pytest.raises(ConfigError, match="2 workers have the ranks 0 to 1"):
        train_together(job, 2, "127.0.0.1:29500", 2)
    for wrong in ("29500", ":29500", "host:", "host:70000", "host:x"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            parse_address(wrong)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="cannot listen"):
        train_together(job, 2, f"127.0.0.1:{taken.getsockname()[1]}", 0)
