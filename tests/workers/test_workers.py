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

import psutil
import pytest
from three_models import SETTINGS, train_three

from coheat.data.synthetic import planted_world
from coheat.data.writing import write_tables
from coheat.errors import ConfigError
from coheat.graph.ranks import Ranks
from coheat.runs import train_run
from coheat.together import shared_device
from coheat.training import Watcher
from coheat.workers.job import Job
from coheat.workers.launch import parse_address, train_together

HERE = Path(__file__).parent
MANY = {"epochs": 80, "batch_size": 128, "embedding_size": 12, "checkpoint_every": 1, "evaluate_every": 20}


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
    processes = []
    for size in (2, 3):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank in range(size):
            words = [data, tmp_path / str(size), rank, size, port]
            command = [sys.executable, str(HERE / "three_models.py"), *map(str, words)]
            processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    train_three(data, tmp_path / "1")
    for process in processes:
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors
    for model in SETTINGS:
        expected = weights(tmp_path / "1" / model)
        for several in (tmp_path / "2", tmp_path / "3"):
            assert weights(several / model) == expected, f"{model}, {several.name} processes"
            assert not list((several / model).glob("*of*")), "checkpoints are cleared away"


def test_whatever_is_killed_or_interrupted_the_end_is_the_same(data: Path, tmp_path: Path) -> None:
    """Two ranks, one killed; then who started them killed; then three, interrupted; then a single process."""
    out = tmp_path / "run"
    started = Command(data, out, 2)
    wait_until(lambda: started.epoch() >= 1, started)
    started.ranks()[1].kill()
    before = started.epoch()
    wait_until(lambda: len(started.ranks()) == 2 and started.epoch() > before + 1, started)
    orphans = started.ranks()
    started.process.kill()
    assert "rank 1 was killed by signal 9; all start again from epoch" in started.errors()
    psutil.wait_procs(orphans, timeout=60)
    assert not any(rank.is_running() for rank in orphans), "no rank outlives who started it"

    before = started.epoch()
    assert (
        sorted(path.name.split("-")[0] for path in out.glob("*of*"))
        == sorted(f"{part}.{rank}of2" for part in ("best", "model", "optimizers") for rank in (1, 2))
        or before < 20
    ), "each rank writes its own rows"
    three = Command(data, out, 3, "--resume")
    wait_until(lambda: three.epoch() > before, three)
    ranks = three.ranks()
    three.process.send_signal(signal.SIGINT)
    errors = three.errors()
    assert three.process.returncode == 130, errors
    assert f"everything up to epoch {three.epoch()} is saved" in errors
    assert "--resume --workers 3" in errors
    assert not any(rank.is_running() for rank in ranks)
    assert len(list(out.glob("model.*of3-*"))) == 3

    train_run(data, out, "coheat", overrides=MANY, resume=True, watcher=Watcher())
    whole = train_run(data, tmp_path / "whole", "coheat", overrides=MANY, watcher=Watcher())
    assert weights(out) == weights(whole.path)


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
            self.process = subprocess.Popen(
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
        self.process.wait(timeout=120)
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
