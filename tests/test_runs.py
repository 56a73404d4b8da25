"""Runs: they remember, they resume exactly even after SIGKILL, and they never overwrite by accident."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from quick_python import QuickProcess, quick

from coheat.data.dataset import pairs, relation
from coheat.data.files import read_data, read_split
from coheat.data.split import Split
from coheat.data.synthetic import planted_world
from coheat.data.writing import write_tables
from coheat.errors import ArtifactError, ConfigError, DataError, TrainingError
from coheat.models import MODELS
from coheat.presets import PRESETS, load_preset, preset_names, resolve_settings
from coheat.recommender import Recommender
from coheat.runs import Run, open_run, train_run
from coheat.training import LossNotFinite, Standing, TrainingInterrupted, TrainingSettings, Watcher

YOUSHU = Path(__file__).parents[2] / "shared" / "data"
SMALL = {"embedding_size": 8, "epochs": 4, "batch_size": 50, "evaluate_every": 2}


def history(path: Path) -> list[dict[str, Any]]:
    """A run's history without the clock."""
    lines = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def parameters(path: Path) -> bytes:
    return (path / "model" / "parameters.safetensors").read_bytes()


@pytest.fixture
def run(planted_directory: Path, tmp_path: Path) -> Run:
    return train_run(planted_directory, tmp_path / "run", "coheat", overrides=SMALL)


def test_a_run_remembers_what_it_was(run: Run, planted_directory: Path) -> None:
    again = open_run(run.path)
    assert again == run
    assert again.record.data_resolved == str(planted_directory.resolve())
    assert again.record.training["epochs"] == 4
    assert again.record.config["embedding_size"] == 8
    assert len(history(run.path)) == 4
    assert sorted(p.name for p in run.path.iterdir()) == ["history.jsonl", "model", "rivals.json", "run.json"]


def test_evaluation_of_a_run_is_what_training_saw(run: Run) -> None:
    report = run.evaluate(ks=(5, 20), by_popularity=True)
    about = run.artifact.description
    assert {name: report["validation"][name] for name in about.metrics} == about.metrics
    assert (report["model"], report["epoch"], report["seconds"]) == (
        "coheat",
        about.best_epoch,
        about.seconds,
    )
    assert {"recall@5", "ndcg@5", "recall@20", "ndcg@20"} <= set(report["test"])
    assert report["test"]["by_popularity"]
    assert report["warnings"] == []
    json.dumps(report, allow_nan=False)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_makes_a_run(name: str, planted_directory: Path, tmp_path: Path) -> None:
    run = train_run(planted_directory, tmp_path / name, name, overrides={"epochs": 2})
    assert run.evaluate()["test"]["recall@20"] >= 0


def test_cold_candidates(run: Run) -> None:
    report = run.evaluate(candidates="cold")
    assert report["test"]["cold_share@20"] == 1


def test_moved_data_is_asked_for_and_accepted(run: Run, planted_directory: Path, tmp_path: Path) -> None:
    expected = run.evaluate()
    shutil.move(planted_directory, tmp_path / "elsewhere")
    with pytest.raises(DataError, match="--data DIR"):
        run.evaluate()
    assert run.evaluate(tmp_path / "elsewhere")["test"] == expected["test"]


def test_changed_data_is_said(run: Run, planted_directory: Path) -> None:
    split = read_split(planted_directory)
    rows, columns = pairs(split.test)
    fewer = relation(rows[1:], columns[1:], split.test.shape)
    write_tables(Split(split.train, split.validation, fewer), planted_directory, overwrite=True)
    (warning,) = run.evaluate()["warnings"]
    assert "changed since" in warning
    with pytest.raises(DataError, match="cannot be resumed"):
        train_run(planted_directory, _unfinished(run), "coheat", overrides=SMALL, resume=True)


def _unfinished(run: Run) -> Path:
    shutil.rmtree(run.path / "model")
    return run.path


def test_data_of_another_world_cannot_judge(run: Run, tmp_path: Path) -> None:
    write_tables(planted_world(n_groups=5), tmp_path / "other")
    with pytest.raises(DataError, match="not those the model was trained on"):
        run.evaluate(tmp_path / "other")


def test_data_without_a_split_is_split_with_the_seed(planted_directory: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    write_tables(read_data(planted_directory), directory)
    run = train_run(directory, tmp_path / "run", "coheat", overrides=SMALL, scenario="cold", seed=5)
    assert (run.record.scenario, run.record.makes_split) == ("cold", True)
    report = run.evaluate()
    assert report["warnings"] == []
    assert {n: report["validation"][n] for n in ("recall@20", "ndcg@20")} == run.artifact.description.metrics
    assert "--scenario cold" in run.resume_command
    other = train_run(directory, tmp_path / "other", "coheat", overrides=SMALL, scenario="cold", seed=6)
    assert other.record.fingerprint != run.record.fingerprint


def test_a_published_split_has_no_scenario(planted_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="own split, so leave --scenario warm out"):
        train_run(planted_directory, tmp_path / "run", "coheat", scenario="warm")


def test_an_existing_run_is_not_touched(run: Run, planted_directory: Path) -> None:
    before = parameters(run.path)
    with pytest.raises(ConfigError, match=r"--resume\).*--overwrite"):
        train_run(planted_directory, run.path, "coheat", overrides=SMALL, seed=1)
    assert parameters(run.path) == before
    resumed = train_run(planted_directory, run.path, "coheat", overrides=SMALL, resume=True)
    assert resumed == run
    assert parameters(run.path) == before
    train_run(planted_directory, run.path, "coheat", overrides=SMALL, seed=1, overwrite=True)
    assert parameters(run.path) != before
    assert len(history(run.path)) == 4


def test_what_is_not_a_run_is_not_overwritten(planted_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="not empty and not a run"):
            train_run(planted_directory, tmp_path / "thesis", "coheat", overwrite=overwrite)
    with pytest.raises(ConfigError, match="a file is in the way"):
        train_run(planted_directory, tmp_path / "thesis" / "chapter", "coheat", overwrite=True)
    with pytest.raises(ConfigError, match="choose one"):
        train_run(planted_directory, tmp_path / "run", "coheat", resume=True, overwrite=True)
    assert (tmp_path / "thesis" / "chapter").read_text() == "years of work"


def test_resume_with_other_settings_says_which(run: Run, planted_directory: Path) -> None:
    path = _unfinished(run)
    with pytest.raises(ConfigError, match="epochs was 4, now 9"):
        train_run(planted_directory, path, "coheat", overrides={**SMALL, "epochs": 9}, resume=True)
    with pytest.raises(ConfigError, match="seed was 0, now 1"):
        train_run(planted_directory, path, "coheat", overrides=SMALL, seed=1, resume=True)


def test_an_interrupted_run_says_the_exact_command(planted_directory: Path, tmp_path: Path) -> None:
    class Interrupt(Watcher):
        def epoch(self, record: dict[str, Any], standing: Standing) -> None:
            if record["epoch"] == 3:
                raise KeyboardInterrupt

    place = tmp_path / "a run"
    overrides = {**SMALL, "coalescence": "constant", "share_users": False}
    with pytest.raises(TrainingInterrupted, match="up to epoch 2 is saved") as caught:
        train_run(planted_directory, place, "coheat", overrides=overrides, watcher=Interrupt())
    with pytest.raises(ArtifactError, match="not finished"):
        open_run(place).evaluate()
    command = shlex.split(str(caught.value).splitlines()[-1])
    assert command[0] == "coheat"
    subprocess.run([quick("coheat"), *command[1:]], check=True, timeout=240)
    whole = train_run(planted_directory, tmp_path / "whole", "coheat", overrides=overrides)
    assert history(place) == history(whole.path)
    assert parameters(place) == parameters(whole.path)


CLI = "from coheat.cli import main; main()"


@pytest.mark.slow
def test_killed_in_the_middle_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    """SIGKILL before the first checkpoint and again after it; CoHeat with its published dropout.

    The batch is large enough for torch to use all its threads, whose order must not matter either.
    """
    write_tables(planted_world(n_groups=8, users_per_group=40, bundles_per_group=16), tmp_path / "data")
    words = ["train", str(tmp_path / "data"), "--seed", "3", "--epochs", "10"]
    for setting in ("checkpoint_every=3", "evaluate_every=2", "batch_size=1024", "learning_rate=0.01"):
        words += ["--set", setting]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for epochs_done in (1, 4):
        kill_after(epochs_done, [sys.executable, "-c", CLI, *words, "--out", str(killed), "--resume"], killed)
    for path in (killed, whole):
        command = [quick("coheat"), *words, "--out", str(path), "--resume"]
        subprocess.run(command, check=True, timeout=300, capture_output=True)
    assert history(killed) == history(whole)
    assert len(history(whole)) == 10
    assert parameters(killed) == parameters(whole)
    assert sorted(p.name for p in killed.iterdir()) == ["history.jsonl", "model", "rivals.json", "run.json"]


def kill_after(epochs_done: int, command: list[str], path: Path) -> None:
    """Start training in a process of its own and kill it in the epoch after this one."""
    written = path / "history.jsonl"
    deadline = time.monotonic() + 300
    process = QuickProcess(command, stdout=subprocess.DEVNULL)
    while not written.exists() or len(written.read_text().splitlines()) < epochs_done:
        assert process.poll() is None, "training ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (path / "model").exists(), "training was done before it was killed"


def test_two_processes_cannot_train_one_run(planted_directory: Path, tmp_path: Path) -> None:
    class Second(Watcher):
        def epoch(self, record: dict[str, Any], standing: Standing) -> None:
            train_run(planted_directory, tmp_path / "run", "coheat", overrides=SMALL, resume=True)

    with pytest.raises(TrainingError, match="another process is training"):
        train_run(planted_directory, tmp_path / "run", "coheat", overrides=SMALL, watcher=Second())


def test_a_run_whose_loss_diverged_keeps_its_best_epoch(
    planted_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_training import Diverging

    monkeypatch.setitem(MODELS, "diverging", Diverging)
    overrides = {"epochs": 7, "batch_size": 25, "evaluate_every": 2}
    with pytest.raises(LossNotFinite):
        train_run(planted_directory, tmp_path / "run", "diverging", overrides=overrides)
    run = open_run(tmp_path / "run")
    report = run.evaluate()
    assert report["epoch"] in (2, 4)
    assert run.artifact.description.reason == "the loss was not finite"


def test_a_model_too_large_for_the_machine_is_a_sentence(planted_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="memory"):
        train_run(planted_directory, tmp_path / "run", "coheat", overrides={"embedding_size": 10**12})
    train_run(planted_directory, tmp_path / "run", "coheat", overrides=SMALL)


def test_the_recommender_takes_a_run(run: Run) -> None:
    found = Recommender.load(run.path).recommend(["user-0-0"], k=2)
    assert [row.rank for row in found] == [1, 2]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not valid JSON"),
        ("{}", "format None"),
        ('{"format": 1, "run": {}}', "incomplete"),
        ("[1]", "object"),
    ],
)
def test_broken_records_are_refused_by_name(content: str, says: str, run: Run) -> None:
    (run.path / "run.json").write_text(content)
    with pytest.raises(ArtifactError, match=rf"run\.json: .*{says}"):
        open_run(run.path)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such run; make one with: coheat train"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match=r"not a run \(it has no run.json\)"):
        open_run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="a file, not a run's directory"):
        open_run(tmp_path / "file")


@pytest.mark.parametrize("name", sorted(MODELS))
def test_settings_of_model_and_training_never_coincide(name: str) -> None:
    assert not set(MODELS[name].Config.model_fields) & set(TrainingSettings.model_fields)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_preset_is_valid(name: str) -> None:
    assert "default" in preset_names(name)
    for preset in preset_names(name):
        resolve_settings(name, preset, {})
        resolve_settings(name, preset, {}, cold=True)


def test_every_preset_file_belongs_to_a_model() -> None:
    assert {path.stem for path in PRESETS.glob("*.toml")} <= set(MODELS)


def test_the_youshu_settings() -> None:
    config, training = resolve_settings("coheat", "youshu", {"n_layers": 2, "epochs": 7})
    values = config.model_dump()
    assert (values["contrast_weight"], values["weight_decay"], values["n_layers"]) == (0.1, 4e-4, 2)
    assert (training.epochs, training.batch_size, training.evaluate_every) == (7, 2048, 5)
    config, training = resolve_settings("coheat", "youshu", {"weight_decay": 1e-5, "epochs": 7}, cold=True)
    values = config.model_dump()
    assert (values["contrast_weight"], values["weight_decay"], values["n_layers"]) == (0.5, 1e-5, 1)
    assert (training.epochs, training.batch_size, training.evaluate_every) == (7, 2048, 5)


def test_a_run_takes_the_settings_for_new_bundles_where_all_held_out_ones_are_new(tmp_path: Path) -> None:
    world = planted_world()
    users, bundles = pairs(world.validation)
    cold = world.cold_bundles[bundles]
    assert 0 < cold.sum() < len(cold)
    for name, chosen, weight in (("new", cold, 0.5), ("known", ~cold, 0.1), ("both", cold | True, 0.1)):
        validation = relation(users[chosen], bundles[chosen], world.validation.shape)
        write_tables(replace(world, validation=validation), tmp_path / name)
        options = {"epochs": 1, "batch_size": 64}
        run = train_run(tmp_path / name, tmp_path / f"run-{name}", "coheat", "youshu", options)
        assert run.record.config["contrast_weight"] == weight


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ConfigError, match="unknown model 'coheet'; known models: bgcn, bundlegt"):
        load_preset("coheet", "default")
    with pytest.raises(ConfigError, match=r"no preset 'amazon'; it has: default, .*youshu"):
        load_preset("coheat", "amazon")
    with pytest.raises(
        ConfigError, match=r"'epoch'; did you mean 'epochs'\?.*n_layers.*of training: batch_size"
    ):
        resolve_settings("coheat", "default", {"epoch": 3})
    with pytest.raises(ConfigError, match="n_layers = 'two'"):
        resolve_settings("coheat", "default", {"n_layers": "two"})


@pytest.mark.real_data
@pytest.mark.skipif(not YOUSHU.exists(), reason="the published Youshu files are not here")
def test_youshu_by_counting_gives_the_known_figures(tmp_path: Path) -> None:
    run = train_run(YOUSHU / "cold" / "Youshu", tmp_path / "run", "counting", "youshu")
    test = run.evaluate()["test"]
    assert (test["recall@20"], test["ndcg@20"]) == pytest.approx((0.0726, 0.0419), abs=1e-4)
