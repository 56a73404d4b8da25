"""The search for settings: it finds the planted best, goes on exactly, and never knows the test part."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from pydantic import Field
from scipy import sparse

from coheat.cli import main
from coheat.config import Settings
from coheat.data.dataset import BundleData, Indices
from coheat.data.files import read_split
from coheat.data.split import Split
from coheat.data.writing import write_tables
from coheat.errors import ConfigError
from coheat.experiments.trials import without_test
from coheat.experiments.tuning import Study, load_space, tune
from coheat.models import MODELS
from coheat.models.base import FloatArray, Progress
from coheat.models.untrained import Untrained
from coheat.presets import resolve_settings
from coheat.rng import Randomness
from coheat.served import OwnScores, Served
from coheat.tasks import Here, Place, Task
from coheat.tasks.task import from_text, to_text

SPACE = """
[dial]
quality = [0.0, 0.1, 0.2, 0.4, 0.7, 1.0]
[coheat]
learning_rate = { low = 1e-3, high = 1e-1, log = true }
n_layers = { low = 1, high = 2 }
"""


class DialConfig(Settings):
    quality: float = Field(0.5, description="1 knows the answer, 0 guesses")


class PowerCut(Exception):
    pass


class Dial(Untrained):
    """Scores between noise and the items in common, which is the answer of the planted world."""

    Config: ClassVar[type[Settings]] = DialConfig
    config: DialConfig
    cut_at: ClassVar[int | None] = None
    """Epoch (counted over all trials) at which the power fails once."""
    epochs_seen: ClassVar[int] = 0

    def __init__(self, data: BundleData, config: DialConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.answer = (data.user_item @ data.bundle_item.T).toarray()

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        type(self).epochs_seen += 1
        if self.cut_at == self.epochs_seen:
            raise PowerCut

    def served(self) -> Served:
        return OwnScores.create(self.relations, scorer=self.scores)

    def scores(self, users: Indices) -> FloatArray:
        noise = self.rng.generator("noise").random((self.data.n_users, self.data.n_bundles))[users]
        quality = self.config.quality
        scores: FloatArray = (quality * self.answer[users] + (1 - quality) * 5 * noise).astype(np.float32)
        return scores


@pytest.fixture
def dial(monkeypatch: pytest.MonkeyPatch) -> type[Dial]:
    monkeypatch.setitem(MODELS, "dial", Dial)
    monkeypatch.setattr(Dial, "cut_at", None)
    monkeypatch.setattr(Dial, "epochs_seen", 0)
    return Dial


@pytest.fixture
def space(tmp_path: Path) -> str:
    path = tmp_path / "space.toml"
    path.write_text(SPACE, encoding="utf-8")
    return str(path)


SHORT = {"epochs": 3, "evaluate_every": 1, "k": 4, "checkpoint_every": 1}


def trials_of(study: Study) -> list[tuple[Any, ...]]:
    return [(t.state, t.settings, t.value, t.epoch) for t in study.trials]


def test_the_planted_best_is_found_and_the_poor_are_cut_short(
    dial: type[Dial], planted_directory: Path, tmp_path: Path, space: str
) -> None:
    study = tune(planted_directory, tmp_path / "s", "dial", space, trials=10, overrides=SHORT)
    assert study.best is not None
    assert study.best.settings == {"quality": 1.0}
    assert len(study.trials) == 10
    cut = [trial for trial in study.trials if trial.state == "pruned"]
    assert cut, "nothing was cut short"
    assert all(trial.settings["quality"] < 1 for trial in cut)
    config, training = resolve_settings("dial", study.preset, {})
    assert config.model_dump() == {"quality": 1.0}
    assert training.k == 4


def test_a_study_cut_off_goes_on_exactly(
    dial: type[Dial], planted_directory: Path, tmp_path: Path, space: str
) -> None:
    def search(name: str, trials: int) -> Study:
        return tune(planted_directory, tmp_path / name, "dial", space, trials=trials, overrides=SHORT)

    whole = search("whole", 7)
    dial.epochs_seen, dial.cut_at = 0, 8
    with pytest.raises(PowerCut):
        search("cut", 5)
    assert search("cut", 5).trials == whole.trials[:5]
    assert trials_of(search("cut", 7)) == trials_of(whole)
    assert search("cut", 7).trials == whole.trials, "there was nothing left to do"


@pytest.mark.filterwarnings("ignore::coheat.data.DataWarning")
def test_the_test_part_is_never_known(planted_directory: Path, tmp_path: Path, space: str) -> None:
    """With an empty test part, or one that holds all other pairs, not one number of a study changes."""
    split = read_split(planted_directory)
    assert without_test(split).test.nnz == 0
    known = (split.train.user_bundle + split.validation).toarray() > 0
    other = sparse.csr_array((~known).astype(np.float32))
    for name, test in (("empty", without_test(split).test), ("other", other)):
        write_tables(Split(split.train, split.validation, test), tmp_path / name)
    overrides = {**SHORT, "embedding_size": 4}
    studies = [
        tune(data, tmp_path / f"study-{n}", "coheat", space, trials=3, overrides=overrides)
        for n, data in enumerate((planted_directory, tmp_path / "empty", tmp_path / "other"))
    ]
    assert trials_of(studies[0]) == trials_of(studies[1]) == trials_of(studies[2])
    assert len({trial.value for trial in studies[0].trials}) > 1


class Elsewhere(Here):
    """Knows of a task only what travels."""

    @property
    def slots(self) -> int:
        return 2

    def start(self, task: Task) -> None:
        super().start(from_text(to_text(task)))


def test_rounds_are_the_same_wherever_they_are_trained(
    dial: type[Dial], planted_directory: Path, tmp_path: Path, space: str
) -> None:
    """Cut off within a round, by a power cut or by fewer trials, a study goes on as if it was not."""

    def search(name: str, trials: int, on: Place) -> Study:
        return tune(
            planted_directory, tmp_path / name, "dial", space, trials, overrides=SHORT, parallel=3, on=on
        )

    whole = search("whole", 8, Here())
    assert len(whole.trials) == 8
    dial.epochs_seen, dial.cut_at = 0, 13
    with pytest.raises(PowerCut):
        search("cut", 7, Elsewhere())
    assert trials_of(search("cut", 7, Elsewhere())) == trials_of(whole)[:7]
    assert trials_of(search("cut", 8, Here())) == trials_of(whole)
    outcomes = [
        {path.parent.name: path.read_bytes() for path in (tmp_path / name).rglob("outcome.json")}
        for name in ("whole", "cut")
    ]
    assert outcomes[0] == outcomes[1]
    with pytest.raises(ConfigError, match="begun with another jobs"):
        tune(planted_directory, tmp_path / "cut", "dial", space, 8, overrides=SHORT)


def test_without_a_model_it_is_the_one_that_train_takes(planted_directory: Path, tmp_path: Path) -> None:
    """It was CoHeat, while train starts from Ember; and what a preset says for cold splits was not heard."""
    short = {"epochs": 1, "embedding_size": 4, "rehearsal_epochs": 0, "batch_size": 64}
    study = tune(planted_directory, tmp_path / "s", trials=1, overrides=short)
    assert study.model == "ember"
    assert set(study.trials[0].settings) == set(load_space("paper", "ember"))
    resolve_settings("ember", study.preset, {})  # what is searched are settings that it has


def test_a_study_goes_on_only_with_what_it_was_begun_with(
    dial: type[Dial], planted_directory: Path, tmp_path: Path, space: str
) -> None:
    tune(planted_directory, tmp_path / "s", "dial", space, trials=1, overrides=SHORT)
    with pytest.raises(ConfigError, match="begun with another seed"):
        tune(planted_directory, tmp_path / "s", "dial", space, trials=1, overrides=SHORT, seed=1)
    with pytest.raises(ConfigError, match="not a study"):
        tune(planted_directory, planted_directory, "dial", space, trials=1, overrides=SHORT)


def test_the_papers_grid_and_mistakes_in_spaces(tmp_path: Path) -> None:
    paper = load_space("paper", "coheat")
    assert paper["learning_rate"] == [1e-3, 1e-4, 1e-5]
    assert paper["contrast_weight"] == [0.1, 0.2, 0.5, 1.0]
    assert paper["weight_decay"] == [4e-5, 1e-4, 4e-4, 1e-3]
    assert paper["n_layers"] == [1, 2]
    assert paper["max_temperature"] == [10.0**n for n in range(1, 7)]
    with pytest.raises(ConfigError, match="no space 'papper'"):
        load_space("papper", "coheat")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[coheat]\nn_layers = 2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="list of values, or a range"):
        load_space(str(wrong), "coheat")
    with pytest.raises(ConfigError, match="no table \\[counting\\]"):
        load_space(str(wrong), "counting")


def test_the_command_writes_a_preset_that_train_takes(
    planted_directory: Path,
    tmp_path: Path,
    space: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def call(*arguments: object) -> tuple[Any, str]:
        monkeypatch.setattr(sys, "argv", ["coheat", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, capsys.readouterr().out

    settings = ("--set", "epochs=2", "--set", "evaluate_every=1", "--set", "embedding_size=4")
    study = tmp_path / "study"
    words = ("--space", space, "--trials", 2, "--out", study, *settings, "--json")
    code, out = call("tune", planted_directory, "--model", "coheat", *words)
    assert code == 0
    best = json.loads(out)["best"]
    preset, run = study / "best.toml", tmp_path / "run"
    again = ("--model", "coheat", "--preset", preset, "--out", run, "--quiet", "--json")
    code, out = call("train", planted_directory, *again)
    assert code == 0
    assert json.loads(out)["validation"]["recall@20"] == pytest.approx(best["value"])
