"""One trial of a search for settings: a training that is cut short where it falls behind those before it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coheat.checkpoint import Checkpoints
from coheat.data.dataset import relation
from coheat.data.split import Split
from coheat.errors import ConfigError
from coheat.memory import MemoryEstimate
from coheat.models.base import Model
from coheat.presets import model_class, resolve_settings
from coheat.rng import Randomness
from coheat.runs import fingerprint, open_split
from coheat.storage import write_json
from coheat.tasks import Task
from coheat.training import LossNotFinite, Record, Standing, TrainingSettings, Watcher, fit

if TYPE_CHECKING:
    import optuna

PATIENT_TRIALS = 4
"""Finished trials before any may be cut short and before the sampler learns from them."""


def without_test(split: Split) -> Split:
    """The same split with an empty test part."""
    nothing = relation([], [], split.test.shape)
    return Split(split.train, split.validation, nothing, split.scenario, split.seed)


def prepared(data: Path, scenario: str | None, seed: int) -> Split:
    """The split that settings are chosen on."""
    return without_test(open_split(data, scenario, seed)[0])


class _FallenBehind(Exception):
    """Not worth going on with."""


@dataclass(frozen=True)
class TrialTask(Task):
    """A training with these settings on top of a preset, which leaves its outcome in STUDY/trials."""

    study: str
    data: str
    scenario: str | None
    seed: int
    fingerprint: str
    model: str
    preset: str
    overrides: dict[str, Any]
    metric: str
    epochs: int
    cold: bool
    """Whether validation is about new bundles alone."""
    settings: dict[str, Any]
    earlier: list[Any]
    """Finished trials that it is compared with: state, and pairs of epoch and best validation until then."""
    _split: Split | None = None

    @property
    def name(self) -> str:
        """A digest of the settings: where the sampler draws the same again, nothing has to be trained."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def directory(self) -> Path:
        return Path(self.study) / "trials" / self.name

    @property
    def outcome(self) -> Path:
        return self.directory / "outcome.json"

    def is_done(self) -> bool:
        return self.outcome.exists()

    def run(self) -> None:
        split = self._split or prepared(Path(self.data), self.scenario, self.seed)
        if fingerprint(split) != self.fingerprint:
            raise ConfigError(
                f"{self.data}: its data differ from those where the command runs; all machines must share "
                "them"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        write_json(self.outcome, {"settings": self.settings, **self._train(split)})
        Checkpoints(self.directory).remove()

    def _train(self, split: Split) -> dict[str, Any]:
        changed = {**self.overrides, **self.settings}
        config, training = resolve_settings(self.model, self.preset, changed, self.cold)
        model = model_class(self.model)(split.train, config, Randomness(self.seed))
        watcher = _Pruning(self._trial(), self.metric, self.directory)
        try:
            result = fit(model, split, training, self.directory, resume=True, watcher=watcher)
        except LossNotFinite as error:  # settings that end like this are the worst there are
            return {"value": 0.0, "epoch": None, "state": "COMPLETE", "reported": [], "failed": str(error)}
        except _FallenBehind:
            found = {"value": watcher.best, "epoch": None, "state": "PRUNED"}
        else:
            best = result.best_metrics[self.metric]
            found = {"value": best, "epoch": result.best_epoch, "state": "COMPLETE"}
        return {**found, "reported": watcher.reported}

    def _trial(self) -> optuna.Trial:
        """A trial of a study in memory that knows the earlier ones."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=PATIENT_TRIALS, n_warmup_steps=self.epochs // 5)
        study = optuna.create_study(direction="maximize", pruner=pruner)
        for state, reported in self.earlier:
            values = {int(epoch): value for epoch, value in reported}
            last = max(values.values(), default=0.0)
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState[state], value=last, intermediate_values=values
                )
            )
        return study.ask()


class _Pruning(Watcher):
    """Tells a trial its best validation so far, and breaks off where the trial has fallen behind."""

    def __init__(self, trial: optuna.Trial, metric: str, directory: Path):
        self.trial, self.metric, self.directory = trial, metric, directory
        self.best = 0.0
        self.reported: list[tuple[int, float]] = []

    def begin(
        self,
        model: Model,  # noqa: ARG002
        standing: Standing,
        settings: TrainingSettings,  # noqa: ARG002
        memory: MemoryEstimate,  # noqa: ARG002
    ) -> None:
        """Going on after a kill, the trial has to hear again what the first part of it was like."""
        for record in Checkpoints(self.directory).cut_history(standing.epoch):
            self._tell(record)

    def epoch(self, record: Record, standing: Standing) -> None:  # noqa: ARG002
        if self._tell(record) and self.trial.should_prune():
            raise _FallenBehind

    def _tell(self, record: Record) -> bool:
        if "validation" not in record:
            return False
        self.best = max(self.best, record["validation"][self.metric])
        self.reported.append((record["epoch"], self.best))
        self.trial.report(self.best, record["epoch"])
        return True
