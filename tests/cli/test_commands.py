"""The commands as a user types them: exact forms, JSON on standard output, and no traceback for a mistake."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from quick_python import QuickProcess, quick

from coheat.cli import main
from coheat.data.synthetic import planted_world
from coheat.data.writing import write_tables

SMALL = ("--epochs", "3", "--set", "embedding_size=8", "--set", "batch_size=50", "--set", "evaluate_every=1")
PROGRAM = [sys.executable, "-c", "from coheat.cli import main; main()"]


def coheat(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as a user would."""
    command = [quick("coheat"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data") / "planted"
    write_tables(planted_world(), directory)
    return directory


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, made by the exact form of the command that the documentation gives."""
    out = tmp_path_factory.mktemp("runs") / "run"
    done = coheat("train", data, "--model", "coheat", "--preset", "youshu", "--seed", 0, "--out", out, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "best epoch" in done.stdout
    assert "coheat evaluate" in done.stdout
    assert done.stderr == "", "nothing is drawn where nobody is looking"
    return out


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run the command within this process, which is faster: its status, output and errors."""

    def run_command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coheat", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int | None)
        return ended.value.code or 0, out, err

    return run_command


Call = Callable[..., tuple[int, str, str]]


def test_evaluate_as_json(run: Path) -> None:
    done = coheat("evaluate", run, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["model"] == "coheat"
    assert 1 <= report["epoch"] <= 3
    assert report["seconds"] > 0
    for part in ("test", "validation"):
        assert 0 <= report[part]["ndcg@20"] <= 1
        assert 0 <= report[part]["recall@20"] <= 1


def test_recommend_as_json(run: Path) -> None:
    done = coheat("recommend", run, "--user", "user-0-3", "-k", 5, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["recommendations"]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5]
    assert set(rows[0]) == {"user_id", "bundle_id", "score", "rank", "is_new"}
    assert {row["user_id"] for row in rows} == {"user-0-3"}
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)


def test_a_new_bundle_finds_its_audience(run: Path, call: Call) -> None:
    status, out, _ = call(
        "recommend", run, "--new-bundle", "n=item-0-0,item-0-1,moon", "--audience", "n", "-k", 4, "--json"
    )
    found = json.loads(out)
    assert status == 0
    assert {row["bundle_id"] for row in found["recommendations"]} == {"n"}
    assert len({row["user_id"] for row in found["recommendations"]}) == 4
    assert found["unknown_items"] == {"n": ["moon"]}


def test_new_candidates_and_several_users(run: Path, call: Call) -> None:
    status, out, _ = call(
        "recommend",
        run,
        "--user",
        "user-0-0",
        "--user",
        "user-1-0",
        "--candidates",
        "new",
        "--new-bundle",
        "n=item-0-0",
        "-k",
        99,
        "--json",
    )
    rows = json.loads(out)["recommendations"]
    assert status == 0
    assert {row["user_id"] for row in rows} == {"user-0-0", "user-1-0"}
    assert "n" in {row["bundle_id"] for row in rows}
    assert len(rows) == 2 * (planted_world().cold_bundles.sum() + 1)


def test_tables_for_people(run: Path, call: Call) -> None:
    status, out, _ = call("evaluate", run, "--k", 5, "--k", 20, "--by-popularity")
    assert status == 0
    assert all(text in out for text in ("recall@5", "ndcg@20", "test", "validation", "positives"))
    status, out, err = call(
        "recommend", run, "--user", "user-0-0", "--new-bundle", "[red]=item-0-0,moon", "-k", 30
    )
    assert status == 0
    assert "[red]" in out, "an id in square brackets is not markup"
    assert "moon" in err


def test_train_as_json_and_resume_of_a_finished_run(
    data: Path, run: Path, call: Call, tmp_path: Path
) -> None:
    out = tmp_path / "counting"
    status, text, _ = call("train", data, "--model", "counting", "--out", out, "--json")
    report = json.loads(text)
    assert (status, report["model"], report["epochs"]) == (0, "counting", 7)
    assert report["validation"]["recall@20"] > 0.5
    again = json.loads(call("train", data, "--model", "counting", "--out", out, "--json", "--resume")[1])
    assert again == report


def test_doctor(call: Call) -> None:
    status, out, _ = call("doctor", "--json")
    report = json.loads(out)
    assert report["ok"] == (status == 0) == all(check["ok"] for check in report["checks"])
    names = {check["name"] for check in report["checks"]}
    assert {"python", "packages", "threads", "kernels", "memory", "kernel cache"} <= names
    assert next(check for check in report["checks"] if check["name"] == "kernels")["ok"]
    status, out, _ = call("doctor")
    assert "torch" in out


def test_a_system_without_file_locks_is_told_by_doctor_and_by_who_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on Windows, where there is no module fcntl and none named resource."""
    for name in ("fcntl", "resource"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "coheat.service.limits", raising=False)  # it is to be imported anew
    monkeypatch.setattr("platform.system", lambda: "Windows")
    for words, status in (
        (("doctor",), 1),
        (("keys", "create", "RUN", "--name", "shop"), 2),
        (("serve", "RUN"), 2),
    ):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["coheat", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == status
        said = capsys.readouterr()
        assert "Windows has no POSIX file locks; use Linux, macOS, WSL 2" in said.out + said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "evaluate", "recommend", "doctor"])
def test_help_has_examples(command: str, call: Call) -> None:
    status, out, _ = call(command, "--help")
    assert status == 0
    assert "Example" in out
    assert f"coheat {command}" in out
    assert "--json" in out


def test_help_shows_the_extra_to_install(call: Call) -> None:
    """Brackets in help are markup unless they are escaped."""
    _, out, _ = call("data", "prepare", "--help")
    assert "pip install 'coheat[prepare]'" in " ".join(out.split())


def mistakes() -> list[tuple[str, tuple[str, ...]]]:
    """What the message must contain, and the mistaken command; {} are places filled in by the test."""
    return [
        ("no such directory", ("train", "{tmp}/nowhere", "--out", "{tmp}/r")),
        ("not a directory", ("train", "{tmp}/file", "--out", "{tmp}/r")),
        ("unknown model 'coheet'", ("train", "{data}", "--model", "coheet", "--out", "{tmp}/r")),
        ("no preset 'amazon'", ("train", "{data}", "--preset", "amazon", "--out", "{tmp}/r")),
        ("write it as key=value", ("train", "{data}", "--set", "n_layers", "--out", "{tmp}/r")),
        ("did you mean 'n_layers'", ("train", "{data}", "--set", "n_layer=2", "--out", "{tmp}/r")),
        ("learning_rate = -1", ("train", "{data}", "--set", "learning_rate=-1", "--out", "{tmp}/r")),
        ("choose cpu, cuda or auto", ("train", "{data}", "--device", "abacus", "--out", "{tmp}/r")),
        ("--resume", ("train", "{data}", "--out", "{run}")),
        ("a file is in the way", ("train", "{data}", "--out", "{tmp}/file")),
        ("leave --scenario cold out", ("train", "{data}", "--scenario", "cold", "--out", "{tmp}/r")),
        ("seed was 0, now 1", ("train", "{data}", "--seed", "1", "--out", "{run}", "--resume", *SMALL)),
        ("no such run", ("evaluate", "{tmp}/nowhere")),
        ("not a run", ("evaluate", "{data}")),
        ("a file, not a run's directory", ("evaluate", "{tmp}/file")),
        ("run.json: not valid JSON", ("evaluate", "{tmp}/broken")),
        ("choose all, cold or offered", ("evaluate", "{run}", "--candidates", "new")),
        ("no such directory", ("evaluate", "{run}", "--data", "{tmp}/nowhere")),
        ("say for whom", ("recommend", "{run}")),
        ("say for whom", ("recommend", "{run}", "--user", "user-0-0", "--audience", "bundle-0-0")),
        ("unknown user id 'nobody'", ("explain", "{run}", "nobody", "bundle-0-0")),
        ("unknown bundle id 'nothing'", ("recommend", "{run}", "--audience", "nothing")),
        ("choose all or new", ("recommend", "{run}", "--user", "user-0-0", "--candidates", "cold")),
        ("id=item,item", ("recommend", "{run}", "--user", "user-0-0", "--new-bundle", "summer")),
        ("does not exist; give a run", ("recommend", "{tmp}/nowhere", "--user", "user-0-0")),
    ]


@pytest.mark.parametrize(("says", "arguments"), mistakes(), ids=lambda value: " ".join(value)[:60])
def test_a_mistake_is_one_sentence(
    says: str, arguments: tuple[str, ...], data: Path, run: Path, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text('{"format": 1, ')
    status, out, err = call(*(text.format(tmp=tmp_path, data=data, run=run) for text in arguments))
    assert status == 2
    assert out == ""
    assert err.startswith("error: ")
    assert says in err.replace("\n", " ")
    assert not (tmp_path / "r").exists(), "a mistaken command leaves nothing behind"


def test_usage_errors_are_short(call: Call, data: Path) -> None:
    for arguments in (
        ("train", data),
        ("train",),
        ("evaluate",),
        ("train", data, "--out", "x", "--seed", "-1"),
    ):
        status, _, err = call(*arguments)
        assert status == 2
        assert "Traceback" not in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_what_may_not_be_read_or_written(data: Path, run: Path, call: Call, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    status, _, err = call("train", data, "--out", locked / "run", *SMALL)
    assert (status, "Permission denied" in err) == (2, True)


def test_a_full_disk_is_a_sentence(data: Path, tmp_path: Path) -> None:
    """No file may grow beyond 1 MB, and the checkpoint is larger."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    wide = ["--epochs", "1", "--set", "embedding_size=4096"]
    command = [*PROGRAM, "train", str(data), "--out", str(tmp_path / "run"), *wide]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, preexec_fn=limit)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert "safetensors" in done.stderr
    assert "disk full" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "run").glob(".*")), "half-written files are removed"


def test_interrupting_says_how_to_go_on(
    data: Path, tmp_path: Path, ends_here: Callable[[subprocess.Popen[Any]], None]
) -> None:
    """SIGINT, which is Ctrl-C, to a process of its own; the command it prints finishes the run."""
    out = tmp_path / "run"
    arguments = ["train", str(data), "--out", str(out), "--epochs", "100000", "--set", "embedding_size=8"]
    process = QuickProcess([*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ends_here(process)
    checkpoint = out / "checkpoint.json"
    deadline = time.monotonic() + 300
    while not checkpoint.exists() or json.loads(checkpoint.read_text())["standing"]["epoch"] < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 130
    assert stdout == ""
    assert "Traceback" not in stderr
    assert f"coheat train {data} --model ember" in stderr
    assert "--resume" in stderr
    saved = json.loads(checkpoint.read_text())["standing"]["epoch"]
    assert f"up to epoch {saved} is saved" in stderr
    assert saved >= 2
