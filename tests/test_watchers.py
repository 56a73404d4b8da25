"""What watchers write down is what the history says, whoever else watches; resumed runs go on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coheat.data.split import Split
from coheat.errors import ConfigError
from coheat.models.base import Model
from coheat.presets import model_class, resolve_settings
from coheat.rng import Randomness
from coheat.training import Record, Standing, TrainingSettings, Watcher, fit
from coheat.watchers import MLflow, Several, TensorBoard, numbers_of

SMALL = {"embedding_size": 8, "epochs": 4, "evaluate_every": 2, "batch_size": 64}


def model_of(split: Split, **settings: object) -> tuple[Model, TrainingSettings]:
    config, training = resolve_settings("mfbpr", "default", {**SMALL, **settings})
    return model_class("mfbpr")(split.train, config, Randomness(0)), training


class Notes(Watcher):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.batches = self.ended = 0

    def batch(self) -> None:
        self.batches += 1

    def epoch(self, record: Record, standing: Standing) -> None:
        self.records.append(record)

    def end(self) -> None:
        self.ended += 1


def scalars(directory: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory))
    found.Reload()
    return {tag: {event.step: event.value for event in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def test_tensorboard_has_the_history_also_when_others_watch(planted: Split, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    one, other = Notes(), Notes()
    model, settings = model_of(planted)
    result = fit(model, planted, settings, watcher=Several(one, TensorBoard(tmp_path / "logs"), other))
    assert one.records == other.records == result.history
    assert one.batches == other.batches > 0
    assert one.ended == other.ended == 1
    found = scalars(tmp_path / "logs")
    assert set(found) == {name for record in result.history for name in numbers_of(record)}
    for record in result.history:
        for name, value in numbers_of(record).items():
            assert found[name][record["epoch"]] == pytest.approx(value, rel=1e-5)
    assert sorted(found["validation/recall@20"]) == [2, 4]


def test_a_resumed_run_goes_on_in_the_same_log(planted: Split, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for epochs in (2, 4):
        model, settings = model_of(planted, epochs=epochs, checkpoint_every=1)
        logs = TensorBoard(tmp_path / "logs")
        fit(model, planted, settings, tmp_path / "run", resume=epochs == 4, watcher=logs)
    assert sorted(scalars(tmp_path / "logs")["seconds"]) == [1, 2, 3, 4]


def test_mlflow_has_metrics_settings_and_an_end(
    planted: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the small package has no database
    uri = f"file://{tmp_path}/mlruns"
    model, settings = model_of(planted)
    result = fit(model, planted, settings, watcher=MLflow("shop", uri))
    client = mlflow.tracking.MlflowClient(uri)
    run = client.search_runs([client.get_experiment_by_name("shop").experiment_id])[0]
    assert run.info.status == "FINISHED"
    assert run.data.params["embedding_size"] == "8"
    kept = client.get_metric_history(run.info.run_id, "validation/recall_at_20")
    assert [(point.step, point.value) for point in kept] == [
        (record["epoch"], record["validation"]["recall@20"])
        for record in result.history
        if "validation" in record
    ]


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("torch.utils.tensorboard", lambda: TensorBoard("logs")),
        ("mlflow.tracking", lambda: MLflow("shop")),
    ],
)
def test_what_is_not_installed_is_named(
    module: str, make: Callable[[], Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install 'coheat\[(tensorboard|mlflow)\]'"):
        make()
