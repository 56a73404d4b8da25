"""The loop: what it keeps, when it stops, and that stopping in the middle changes nothing."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factorisation import Factorisation, factorisation
from rich.console import Console
from torch import Tensor

from coheat.checkpoint import HISTORY, INDEX, OnDisk, model_state
from coheat.config import Settings
from coheat.data.dataset import BundleData, Indices, Sparse, relation
from coheat.data.sampling import Triples
from coheat.data.split import Split
from coheat.errors import ArtifactError, ConfigError, TrainingError
from coheat.evaluation import evaluate
from coheat.memory import MemoryEstimate, check_memory, estimate_memory
from coheat.memory_limit import available_memory, readable
from coheat.models import MODELS
from coheat.models.base import FloatArray, Model, ModelConfig, Progress
from coheat.models.untrained import Untrained
from coheat.progress import ProgressBar
from coheat.rng import Randomness
from coheat.served import OwnScores, Served
from coheat.training import (
    FitResult,
    LossNotFinite,
    Standing,
    TrainingInterrupted,
    TrainingSettings,
    Watcher,
    _Run,
    choose_device,
    fit,
)

SETTINGS = TrainingSettings(epochs=7, batch_size=50, evaluate_every=2, checkpoint_every=3)


def numbers(result: FitResult) -> list[dict[str, Any]]:
    """A history without the clock."""
    return [{key: value for key, value in record.items() if key != "seconds"} for record in result.history]


def parameters(model: Model) -> dict[str, list[float]]:
    return {name: tensor.flatten().tolist() for name, tensor in model.state_dict().items()}


def coheat(data: BundleData) -> Model:
    config = MODELS["coheat"].Config.create({"embedding_size": 8, "learning_rate": 0.01})
    return MODELS["coheat"](data, config, Randomness(3))


def counting(data: BundleData) -> Model:
    return MODELS["counting"](data, MODELS["counting"].Config.create({}), Randomness(3))


class StopAt(Watcher):
    """Ends training at the n-th batch, the way a crash (or Ctrl-C) would."""

    def __init__(self, batch: int, error: type[BaseException]):
        self.left, self.error = batch, error

    def batch(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


class Crash(Exception):
    pass


class Sequence(Untrained):
    """Ranks the right answer of a share of the users first; epoch t has the t-th share."""

    shares: tuple[float, ...] = ()
    answer: Sparse
    epoch: Tensor

    def __init__(self, data: BundleData, config: Settings, rng: Randomness):
        super().__init__(data, config, rng)
        self.register_buffer("epoch", torch.tensor(0))

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        self.epoch.fill_(progress.epoch)

    def served(self) -> Served:
        return OwnScores.create(self.relations, scorer=self.scores)

    def scores(self, users: Indices) -> FloatArray:
        known = users < self.shares[int(self.epoch) - 1] * self.data.n_users
        found = self.answer[users].toarray() * known[:, None]
        return np.asarray(found, dtype=np.float32)


def sequence(split: Split, *shares: float) -> Sequence:
    model = Sequence(split.train, ModelConfig(), Randomness(0))
    model.shares, model.answer = shares, split.validation
    return model


def test_loss_falls_and_validation_rises(planted: Split) -> None:
    result = fit(factorisation(planted.train), planted, TrainingSettings(epochs=30, batch_size=20))
    losses = [record["terms"]["bpr"] for record in result.history]
    assert losses[-1] < 0.7 * losses[0]
    assert result.best_metrics["recall@20"] > 0.9
    assert result.reason == "all epochs done"


def test_terms_are_means_over_batches(planted: Split) -> None:
    seen: list[float] = []

    class Recording(Factorisation):
        def step(self, batch: Triples, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
            terms = super().step(batch, optimizers)
            seen.append(float(terms["bpr"]))
            return terms

    model = Recording(planted.train, ModelConfig(), Randomness(0))
    result = fit(model, planted, TrainingSettings(epochs=1, batch_size=20))
    assert len(seen) == planted.train.user_bundle.nnz // 20 > 3
    assert result.history[0]["terms"]["bpr"] == pytest.approx(np.mean(seen), rel=1e-6)


def test_validates_every_n_epochs_and_at_the_last(planted: Split) -> None:
    result = fit(factorisation(planted.train), planted, SETTINGS)
    assert [record["epoch"] for record in result.history] == [1, 2, 3, 4, 5, 6, 7]
    assert [record["epoch"] for record in result.history if "validation" in record] == [2, 4, 6, 7]


def test_best_epoch_is_restored_with_its_buffers(planted: Split) -> None:
    model = sequence(planted, 0.2, 0.6, 0.9, 0.5, 0.9)
    settings = TrainingSettings(epochs=5, evaluate_every=1)
    result = fit(model, planted, settings)
    assert result.best_epoch == 3
    assert int(model.epoch) == 3
    found = evaluate(model.served(), planted.train, planted.validation).metrics
    assert found["recall@20"] == result.best_metrics["recall@20"]


def test_restored_parameters_give_the_best_metrics(planted: Split) -> None:
    model = factorisation(planted.train, learning_rate=0.3)
    result = fit(model, planted, TrainingSettings(epochs=9, batch_size=20, evaluate_every=1))
    assert result.best_epoch < 9, "the test needs a best epoch before the last"
    found = evaluate(model.served(), planted.train, planted.validation).metrics
    assert {name: found[name] for name in result.best_metrics} == result.best_metrics


@pytest.mark.parametrize(
    ("selection", "best"), [("both", [1, 1, 1, 4]), ("recall", [1, 2, 2, 4]), ("ndcg", [1, 1, 3, 4])]
)
def test_selection_rules(selection: str, best: list[int]) -> None:
    settings = TrainingSettings.create({"selection": selection})
    standing, found = Standing(), []
    for epoch, (recall, ndcg) in enumerate([(0.2, 0.2), (0.3, 0.1), (0.2, 0.3), (0.5, 0.5)], start=1):
        standing = Standing(epoch, standing.best_epoch, standing.best_metrics)
        standing = standing.judge({"recall@20": recall, "ndcg@20": ndcg}, settings)
        found.append(standing.best_epoch)
    assert found == best


def test_patience_counts_validations_without_improvement(planted: Split) -> None:
    model = sequence(planted, 0.2, 0.6, 0.5, 0.5, 0.7, 0.1, 0.1, 0.1, 1.0, 1.0)
    settings = TrainingSettings(epochs=10, evaluate_every=1, patience=3)
    result = fit(model, planted, settings)
    assert (result.best_epoch, len(result.history)) == (5, 8)
    assert "no improvement in 3 validations" in result.reason


def test_validation_in_time_ranks_what_was_on_offer_and_what_was_taken(planted: Split) -> None:
    """Half of the bundles ended before validation began; of these some were taken all the same."""
    ends = np.where(np.arange(planted.train.n_bundles) % 2 == 0, 5.0, np.nan)
    split = replace(planted, train=replace(planted.train, ends=ends), times=(10.0, 20.0, 30.0))
    taken = np.bincount(split.validation.indices, minlength=split.train.n_bundles) > 0
    offered = split.candidates("validation")
    np.testing.assert_array_equal(offered, taken | np.isnan(ends))
    assert not offered.all()
    model = counting(split.train)
    result = fit(model, split, TrainingSettings(epochs=1, evaluate_every=1))
    expected = evaluate(model.served(), split.train, split.validation, (20,), "offered", offered).metrics
    assert result.history[0]["validation"]["recall@20"] == pytest.approx(expected["recall@20"])


def test_without_validation_the_last_epoch_is_taken(planted: Split) -> None:
    empty = relation([], [], planted.validation.shape)
    split = Split(planted.train, empty, planted.test)
    result = fit(factorisation(planted.train), split, SETTINGS)
    assert (result.best_epoch, result.best_metrics) == (7, {})


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_goes_through_the_same_loop(name: str, planted: Split, tmp_path: Path) -> None:
    model = MODELS[name](planted.train, MODELS[name].Config.create({}), Randomness(0))
    result = fit(model, planted, TrainingSettings(epochs=2, evaluate_every=1), tmp_path)
    assert len(result.history) == 2
    assert set(result.history[0]) == {"epoch", "seconds", "terms", "facts", "validation"}


@pytest.mark.parametrize("build", [factorisation, coheat])
def test_same_seed_same_result(build: Callable[..., Model], planted: Split) -> None:
    one, other = build(planted.train), build(planted.train)
    assert numbers(fit(one, planted, SETTINGS)) == numbers(fit(other, planted, SETTINGS))
    assert parameters(one) == parameters(other)


def test_history_file_has_what_the_result_has(planted: Split, tmp_path: Path) -> None:
    result = fit(coheat(planted.train), planted, SETTINGS, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / HISTORY).read_text().splitlines()]
    assert lines == result.history
    assert lines[-1]["facts"]["temperature"] == pytest.approx(1e4)
    assert sum(line["seconds"] for line in lines) == pytest.approx(result.seconds)


def test_history_is_visible_while_training_goes_on(planted: Split, tmp_path: Path) -> None:
    lengths: list[int] = []

    class Reader(Watcher):
        def batch(self) -> None:
            path = tmp_path / HISTORY
            lengths.append(len(path.read_text().splitlines()) if path.exists() else 0)

    fit(factorisation(planted.train), planted, SETTINGS, tmp_path, watcher=Reader())
    assert sorted(set(lengths)) == [0, 1, 2, 3, 4, 5, 6]
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("build", [factorisation, coheat])
@pytest.mark.parametrize("batch", [1, 5, 8, 10, 13, 14])
def test_crash_and_resume_equals_uninterrupted(
    build: Callable[..., Model], batch: int, planted: Split, tmp_path: Path
) -> None:
    whole = build(planted.train)
    expected = fit(whole, planted, SETTINGS, tmp_path / "whole")
    assert whole.n_batches(SETTINGS.batch_size) == 2, "the crash points below assume two batches per epoch"
    broken = tmp_path / "broken"
    with pytest.raises(Crash):
        fit(build(planted.train), planted, SETTINGS, broken, watcher=StopAt(batch, Crash))
    model = build(planted.train)
    result = fit(model, planted, SETTINGS, broken, resume=True)
    assert numbers(result) == numbers(expected)
    assert parameters(model) == parameters(whole)
    written = [json.loads(line) for line in (broken / HISTORY).read_text().splitlines()]
    assert written == result.history


def test_early_stopping_survives_a_crash(planted: Split, tmp_path: Path) -> None:
    settings = TrainingSettings(epochs=10, evaluate_every=1, patience=3, checkpoint_every=1)
    shares = (0.5, 0.4, 0.4, 0.4, 0.9)

    class CrashInEpoch(Watcher):
        def epoch(self, record: dict[str, Any], standing: Standing) -> None:
            if record["epoch"] == 3:
                raise Crash

    with pytest.raises(Crash):
        fit(sequence(planted, *shares), planted, settings, tmp_path, watcher=CrashInEpoch())
    result = fit(sequence(planted, *shares), planted, settings, tmp_path, resume=True)
    assert (result.best_epoch, len(result.history)) == (1, 4)


def test_failure_while_saving_keeps_the_previous_checkpoint(
    planted: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fit(factorisation(planted.train), planted, SETTINGS, tmp_path / "whole")
    replace = Path.replace
    for failing in range(1, 9):  # three checkpoints of up to four files each
        directory = tmp_path / str(failing)
        calls = 0

        def replace_or_fail(self: Path, target: Path, failing: int = failing) -> Path:
            nonlocal calls
            calls += 1
            if calls == failing:
                raise OSError(28, "No space left on device", str(self))
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", replace_or_fail)
        with pytest.raises(OSError, match="No space"):
            fit(factorisation(planted.train), planted, SETTINGS, directory)
        monkeypatch.setattr(Path, "replace", replace)
        assert not list(directory.glob(".*")), "a half-written file was left behind"
        result = fit(factorisation(planted.train), planted, SETTINGS, directory, resume=True)
        assert numbers(result) == numbers(expected)


@pytest.mark.parametrize(("batch", "epoch"), [(1, 0), (4, 1), (9, 4), (13, 6)])
def test_interrupt_saves_the_last_finished_epoch(
    batch: int, epoch: int, planted: Split, tmp_path: Path
) -> None:
    with pytest.raises(TrainingInterrupted) as caught:
        fit(coheat(planted.train), planted, SETTINGS, tmp_path, watcher=StopAt(batch, KeyboardInterrupt))
    assert caught.value.epoch == epoch
    begun: list[int] = []

    class First(Watcher):
        def begin(
            self, model: Model, standing: Standing, settings: TrainingSettings, memory: MemoryEstimate
        ) -> None:
            begun.append(standing.epoch)

    model, whole = coheat(planted.train), coheat(planted.train)
    result = fit(model, planted, SETTINGS, tmp_path, resume=True, watcher=First())
    assert begun == [epoch]
    assert numbers(result) == numbers(fit(whole, planted, SETTINGS))
    assert parameters(model) == parameters(whole)


def test_a_new_training_does_not_inherit_an_old_history(planted: Split, tmp_path: Path) -> None:
    fit(factorisation(planted.train), planted, SETTINGS, tmp_path)
    result = fit(factorisation(planted.train), planted, SETTINGS, tmp_path)
    assert len((tmp_path / HISTORY).read_text().splitlines()) == len(result.history) == 7


def test_checkpoints_never_pickle_and_do_not_pile_up(planted: Split, tmp_path: Path) -> None:
    fit(factorisation(planted.train), planted, SETTINGS, tmp_path)
    names = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert names == ["best", "checkpoint.json", "history.jsonl", "model", "optimizers"]


@pytest.mark.parametrize("part", ["model", "optimizers", "best"])
def test_an_altered_checkpoint_is_refused_by_name(part: str, planted: Split, tmp_path: Path) -> None:
    fit(factorisation(planted.train), planted, SETTINGS, tmp_path)
    (path,) = tmp_path.glob(f"{part}-*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=f"{part}-.*altered.*--overwrite"):
        fit(factorisation(planted.train), planted, SETTINGS, tmp_path, resume=True)
    path.unlink()
    with pytest.raises(ArtifactError, match=f"{part}-.*missing"):
        fit(factorisation(planted.train), planted, SETTINGS, tmp_path, resume=True)


def test_a_checkpoint_of_another_format_or_a_cut_history_is_refused(planted: Split, tmp_path: Path) -> None:
    fit(factorisation(planted.train), planted, SETTINGS, tmp_path)
    history = (tmp_path / HISTORY).read_text()
    (tmp_path / HISTORY).write_text(history.splitlines()[0] + "\n")
    with pytest.raises(ArtifactError, match="1 epochs, the checkpoint is at epoch 7"):
        fit(factorisation(planted.train), planted, SETTINGS, tmp_path, resume=True)
    index = json.loads((tmp_path / INDEX).read_text())
    (tmp_path / INDEX).write_text(json.dumps({**index, "format": 99}))
    with pytest.raises(ArtifactError, match="format 99"):
        fit(factorisation(planted.train), planted, SETTINGS, tmp_path, resume=True)


def test_resume_needs_a_directory(planted: Split) -> None:
    with pytest.raises(ConfigError, match="directory"):
        fit(factorisation(planted.train), planted, SETTINGS, resume=True)


class Diverging(Factorisation):
    """The second batch of epoch 5 has an infinite term, and everything after it is NaN."""

    steps = 0

    def loss(self, batch: Triples) -> dict[str, Tensor]:
        self.steps += 1
        terms = super().loss(batch)
        return {**terms, "size": terms["size"] / (0.0 if self.steps == 4 * 5 + 2 else 1.0)}


def test_a_loss_that_is_not_finite_stops_and_keeps_the_best(planted: Split, tmp_path: Path) -> None:
    model = Diverging(planted.train, ModelConfig(learning_rate=0.02), Randomness(0))
    settings = SETTINGS.model_copy(update={"batch_size": 25})
    assert model.n_batches(25) == 5
    with pytest.raises(
        LossNotFinite, match=r"epoch 5, batch 2: size = inf \(learning rate 0\.02\).*epoch \d"
    ) as caught:
        fit(model, planted, settings, tmp_path)
    result = caught.value.result
    assert result is not None
    assert result.best_epoch in (2, 4)
    assert all(math.isfinite(v) for values in parameters(model).values() for v in values)
    found = evaluate(model.served(), planted.train, planted.validation).metrics
    assert found["recall@20"] == result.best_metrics["recall@20"]


def test_not_finite_before_any_validation_has_nothing_to_keep(planted: Split) -> None:
    settings = TrainingSettings(epochs=7, batch_size=25, evaluate_every=6)
    with pytest.raises(LossNotFinite, match="No epoch was validated yet") as caught:
        fit(Diverging(planted.train, ModelConfig(), Randomness(0)), planted, settings)
    assert caught.value.result is None


def test_memory_estimate_counts_what_is_known(planted: Split) -> None:
    model = factorisation(planted.train)
    size = sum(p.numel() * 4 for p in model.parameters())
    estimate = estimate_memory(model, planted, batch_size=50)
    assert (estimate.gradients, estimate.moments) == (size, 2 * size)
    assert estimate.copies == size
    assert estimate.total < available_memory()
    untrained = estimate_memory(sequence(planted), planted, batch_size=50)
    assert untrained.gradients == untrained.moments == untrained.graphs == 0


def test_too_little_memory_is_said_with_numbers(planted: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHEAT_MEMORY_LIMIT", "1KB")
    with pytest.raises(TrainingError, match=r"about .* more memory \(gradients .*1 KB is available"):
        check_memory(factorisation(planted.train), planted, 50)


def test_readable_sizes() -> None:
    assert [readable(n) for n in (0, 999, 34_500_000, 2.5e9, 7e12)] == [
        "0 bytes",
        "999 bytes",
        "34.5 MB",
        "2.5 GB",
        "7 TB",
    ]


def test_devices() -> None:
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match="choose cpu, cuda or auto"):
        choose_device("tpu")
    if not torch.cuda.is_available():
        assert choose_device("auto").type == "cpu"
        with pytest.raises(ConfigError, match="no GPU here; use --device cpu"):
            choose_device("cuda")


@pytest.mark.parametrize("values", [{"epochs": 0}, {"selection": "best"}, {"epoch": 3}, {"patience": 0}])
def test_bad_settings_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        TrainingSettings.create(values)


@pytest.mark.parametrize("build", [factorisation, counting])
def test_the_progress_bar_says_where_training_stands(build: Callable[..., Model], planted: Split) -> None:
    shown = io.StringIO()
    bar = ProgressBar(Console(file=shown, force_terminal=True, width=80))
    result = fit(build(planted.train), planted, SETTINGS, watcher=bar)
    text = shown.getvalue()
    assert "memory: about" in text
    assert "epoch 7/7" in text
    assert "left" in text
    assert f"recall@20 {result.best_metrics['recall@20']:.4f}" in text
    assert all(f"{name} {value:.4g}" in text for name, value in result.history[-1]["terms"].items())
    assert bar.bar.finished


def test_nothing_is_drawn_where_nobody_is_looking(planted: Split) -> None:
    shown = io.StringIO()
    fit(factorisation(planted.train), planted, SETTINGS, watcher=ProgressBar(Console(file=shown)))
    assert shown.getvalue() == ""


def test_what_is_set_aside_is_on_the_disk_and_stays_as_it_was(planted: Split, tmp_path: Path) -> None:
    model = factorisation(planted.train)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for directory in (None, tmp_path):
        kept = model_state(model, directory)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert all(torch.equal(kept[name], tensor) for name, tensor in expected.items())
        assert not list(tmp_path.iterdir()), "a file without a name"
        model.load_state_dict(kept)
    assert isinstance(kept, OnDisk)


def test_a_run_with_a_directory_holds_no_second_copy_of_its_model(planted: Split, tmp_path: Path) -> None:
    run = _Run(coheat(planted.train), planted, SETTINGS, tmp_path, Watcher())
    for _ in range(2):
        run.one_epoch()
        run.remember()
    assert run.best_state
    assert run.last is not None
    for state in (run.best_state, run.last.model, run.last.optimizers):
        assert isinstance(state, OnDisk)
    run.standing = replace(run.standing, epoch=SETTINGS.epochs)
    run.train()
    assert not run.optimizers
