"""Watchers that write down how training goes: to TensorBoard, to MLflow, to several places at once.

    train_run("shop", "runs/shop", watcher=Several(ProgressBar(), TensorBoard("logs/shop")))

A watcher is whatever has the methods of `coheat.training.Watcher`; these import the packages that they need
when they are made. Every run keeps the same numbers in its own history.jsonl anyway.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coheat.errors import ConfigError
from coheat.memory import MemoryEstimate
from coheat.models.base import Model
from coheat.training import Record, Standing, TrainingSettings, Watcher


class Several(Watcher):
    """Passes everything on to several watchers, in order."""

    def __init__(self, *watchers: Watcher):
        self.watchers = watchers

    def begin(
        self, model: Model, standing: Standing, settings: TrainingSettings, memory: MemoryEstimate
    ) -> None:
        for watcher in self.watchers:
            watcher.begin(model, standing, settings, memory)

    def backbone(self, model: Model) -> Watcher:
        return Several(*(watcher.backbone(model) for watcher in self.watchers))

    def rehearsal(self, model: Model) -> Watcher:
        return Several(*(watcher.rehearsal(model) for watcher in self.watchers))

    def batch(self) -> None:
        for watcher in self.watchers:
            watcher.batch()

    def epoch(self, record: Record, standing: Standing) -> None:
        for watcher in self.watchers:
            watcher.epoch(record, standing)

    def end(self) -> None:
        for watcher in self.watchers:
            watcher.end()


class TensorBoard(Watcher):
    """Losses, facts, validations and seconds of every epoch, for `tensorboard --logdir DIR`.

    A resumed run goes on in the same directory; epochs that are trained again replace what was written about
    them.
    """

    def __init__(self, directory: str | Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _missing("TensorBoard", "tensorboard") from None
        self.directory, self.open = Path(directory), SummaryWriter
        self.writer: Any = None

    def begin(
        self,
        model: Model,
        standing: Standing,
        settings: TrainingSettings,
        memory: MemoryEstimate,  # noqa: ARG002
    ) -> None:
        self.writer = self.open(
            str(self.directory), purge_step=standing.epoch + 1 if standing.epoch else None
        )
        for name, value in _settings(model, settings).items():
            self.writer.add_text(f"settings/{name}", str(value), standing.epoch)

    def epoch(self, record: Record, standing: Standing) -> None:  # noqa: ARG002
        for name, value in numbers_of(record).items():
            self.writer.add_scalar(name, value, record["epoch"])
        self.writer.flush()

    def end(self) -> None:
        if self.writer is not None:
            self.writer.close()


class MLflow(Watcher):
    """The same as a run of an MLflow experiment, with all settings as its parameters.

    It is kept at `uri`, or else at MLFLOW_TRACKING_URI. A resumed training is a new run.
    """

    def __init__(self, experiment: str, uri: str | None = None):
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise _missing("MLflow", "mlflow") from None
        self.client, self.experiment = MlflowClient(uri), experiment
        self.run_id: str | None = None
        self.status = "KILLED"
        self.settings: TrainingSettings | None = None

    def begin(
        self,
        model: Model,
        standing: Standing,  # noqa: ARG002
        settings: TrainingSettings,
        memory: MemoryEstimate,  # noqa: ARG002
    ) -> None:
        found = self.client.get_experiment_by_name(self.experiment)
        place = found.experiment_id if found else self.client.create_experiment(self.experiment)
        self.run_id = self.client.create_run(place, run_name=type(model).__name__.lower()).info.run_id
        self.settings = settings
        for name, value in _settings(model, settings).items():
            self.client.log_param(self.run_id, name, value)

    def epoch(self, record: Record, standing: Standing) -> None:
        assert self.settings is not None
        for name, value in numbers_of(record).items():  # its names may not hold an @
            self.client.log_metric(self.run_id, name.replace("@", "_at_"), value, step=record["epoch"])
        self.status = "FINISHED" if standing.finished(self.settings) else "KILLED"

    def end(self) -> None:
        if self.run_id is not None:
            self.client.set_terminated(self.run_id, self.status)


def numbers_of(record: Record) -> dict[str, float]:
    """What an epoch's line of history says, by names with a slash, as dashboards group them."""
    groups = {"loss": record["terms"], "facts": record["facts"], "validation": record.get("validation", {})}
    found = {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}
    return {**found, "seconds": record["seconds"]}


def _settings(model: Model, settings: TrainingSettings) -> dict[str, Any]:
    return {**settings.model_dump(mode="json"), **model.config.model_dump(mode="json")}


def _missing(name: str, package: str) -> ConfigError:
    return ConfigError(f"writing to {name} needs it; install it with: pip install 'coheat[{package}]'")
