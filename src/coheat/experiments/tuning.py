"""Search for settings on validation only: an Optuna study that can be stopped and goes on.

    STUDY/study.json   what was asked for; the study goes on only with the same
    STUDY/study.db     Optuna's record of the trials
    STUDY/trials/      history and outcome of every setting tried
    STUDY/best.toml    the best settings so far, a preset for `coheat train --preset STUDY/best.toml`

The test part is taken out of the split before anything else, so no choice here can know it. What a trial
draws is a function of the seed and of the finished trials before it: a study that was killed and started
again tries the same settings as one that never stopped.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coheat.checkpoint import Checkpoints
from coheat.config import read_toml
from coheat.data.dataset import relation
from coheat.data.split import Split
from coheat.errors import ConfigError
from coheat.experiments.pool import duration
from coheat.memory import MemoryEstimate
from coheat.models.base import Model
from coheat.presets import load_preset, model_class, resolve_settings
from coheat.rng import Randomness
from coheat.runs import fingerprint, open_split
from coheat.storage import read_json, replacing_file, write_json
from coheat.training import LossNotFinite, Record, Standing, TrainingSettings, Watcher, fit

if TYPE_CHECKING:
    import optuna

SPACES = Path(__file__).parent / "spaces"
RECORD, BEST, DATABASE = "study.json", "best.toml", "study.db"
PATIENT_TRIALS = 4
"""Finished trials before any may be cut short and before the sampler learns from them."""


@dataclass(frozen=True)
class Trial:
    """A setting that was tried: its validation metric at its best epoch; cut short where it fell behind."""

    number: int
    state: str
    settings: dict[str, Any]
    value: float | None
    epoch: int | None


@dataclass(frozen=True)
class Study:
    """All trials so far, the best of them, and the preset that was written of it."""

    model: str
    metric: str
    trials: list[Trial]
    best: Trial | None
    preset: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def load_space(name: str, model: str) -> dict[str, Any]:
    """The settings to search, each a list of values or a range; `name` is `paper` or a .toml file."""
    path = Path(name) if name.endswith(".toml") else SPACES / f"{name}.toml"
    if not name.endswith(".toml") and not path.exists():
        known = ", ".join(sorted(space.stem for space in SPACES.glob("*.toml")))
        raise ConfigError(f"there is no space {name!r}; choose one of {known}, or name a .toml file")
    tables = read_toml(path)
    space = tables.get(model, tables.get("default"))
    if not isinstance(space, dict) or not space:
        raise ConfigError(f"{path}: it has no table [{model}] and no [default] with settings to search")
    for key, values in space.items():
        is_range = isinstance(values, dict) and {"low", "high"} <= set(values) <= {"low", "high", "log"}
        if not is_range and not (isinstance(values, list) and values):
            raise ConfigError(
                f"{path}: {key} must be a list of values, or a range such as "
                "{ low = 1e-5, high = 1e-2, log = true }"
            )
    return space


def without_test(split: Split) -> Split:
    """The same split with an empty test part."""
    nothing = relation([], [], split.test.shape)
    return Split(split.train, split.validation, nothing, split.scenario, split.seed)


def tune(
    data: Path,
    out: Path,
    model: str = "coheat",
    space: str = "paper",
    trials: int = 30,
    preset: str = "default",
    metric: str = "recall",
    seed: int = 0,
    scenario: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> Study:
    """Try settings of `space` until there are `trials` of them, and write the best as a preset.

    Settings outside the space are those of `preset` and `overrides`. A study in `out` goes on.
    """
    split = without_test(open_split(data, scenario, seed)[0])
    if not split.validation.nnz:
        raise ConfigError(f"{data}: its validation part is empty, so there is nothing to choose settings by")
    if metric not in ("recall", "ndcg"):
        raise ConfigError(f"metric {metric!r}: choose recall or ndcg")
    searched = load_space(space, model)
    search = _Search(out, split, model, preset, dict(overrides or {}), searched, metric, seed)
    search.begin()
    search.run(trials, console or Console(stderr=True))
    return search.summary()


class _Search:
    """A study with what its trials need."""

    def __init__(
        self,
        out: Path,
        split: Split,
        model: str,
        preset: str,
        overrides: dict[str, Any],
        space: dict[str, Any],
        metric: str,
        seed: int,
    ):
        self.out, self.split, self.model, self.preset = out, split, model, preset
        self.overrides, self.space, self.seed = overrides, space, seed
        firsts = {k: v["low"] if isinstance(v, dict) else v[0] for k, v in space.items()}
        _, training = resolve_settings(model, preset, {**overrides, **firsts})
        self.metric = f"{metric}@{training.k}"
        self.epochs = training.epochs

    def begin(self) -> None:
        """Open the study, or refuse one that was begun with something else."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        asked = {
            "model": self.model,
            "preset": load_preset(self.model, self.preset),
            "overrides": self.overrides,
            "space": self.space,
            "metric": self.metric,
            "seed": self.seed,
            "data": fingerprint(self.split),
        }
        asked = json.loads(json.dumps(asked))
        path = self.out / RECORD
        if path.exists():
            begun = read_json(path)
            other = [key for key, value in asked.items() if begun.get(key) != value]
            if other:
                raise ConfigError(
                    f"{self.out}: this study was begun with another {' and '.join(other)}; "
                    "continue with the same, or choose another --out"
                )
        elif self.out.exists() and any(self.out.iterdir()):
            raise ConfigError(f"{self.out}: not empty and not a study; choose another --out")
        else:
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(path, asked)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=PATIENT_TRIALS, n_warmup_steps=self.epochs // 5)
        self.study = optuna.create_study(
            storage=f"sqlite:///{self.out.resolve() / DATABASE}",
            study_name="coheat",
            direction="maximize",
            pruner=pruner,
            load_if_exists=True,
        )
        for trial in self.study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
            # Its process was killed. The next trial draws the same settings and goes on from its checkpoint.
            self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    def finished(self) -> list[optuna.trial.FrozenTrial]:
        import optuna

        states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
        return list(self.study.get_trials(states=states))

    def run(self, trials: int, console: Console) -> None:
        import optuna

        started, before = time.monotonic(), len(self.finished())
        columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("", total=trials, completed=before)
            while (done := len(self.finished())) < trials:
                draws = Randomness(self.seed).generator("sampler", done).integers(2**31)
                self.study.sampler = optuna.samplers.TPESampler(
                    n_startup_trials=PATIENT_TRIALS, seed=int(draws)
                )
                self.study.optimize(self.objective, n_trials=1)
                self.write_best()
                ended = len(self.finished())
                each = (time.monotonic() - started) / (ended - before)
                best = f"best {self.metric} {self.study.best_value:.4f}"
                line = f"left {duration(each * (trials - ended))}, {best}"
                bar.update(task, completed=ended, description=line)
                if not console.is_terminal:
                    console.print(f"trial {ended}/{trials}; {line}", highlight=False)

    def objective(self, trial: optuna.Trial) -> float:
        """The validation metric at the best epoch of a training with the settings that `trial` draws."""
        settings = {key: _suggest(trial, key, values) for key, values in self.space.items()}
        name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        directory = self.out / "trials" / name
        outcome = directory / "outcome.json"
        if not outcome.exists():  # the sampler may well draw the same settings again
            directory.mkdir(parents=True, exist_ok=True)
            write_json(outcome, {"settings": settings, **self.train(trial, settings, directory)})
            Checkpoints(directory).remove()
        found = read_json(outcome)
        trial.set_user_attr("epoch", found["epoch"])
        return float(found["value"])

    def train(self, trial: optuna.Trial, settings: Mapping[str, Any], directory: Path) -> dict[str, Any]:
        config, training = resolve_settings(self.model, self.preset, {**self.overrides, **settings})
        model = model_class(self.model)(self.split.train, config, Randomness(self.seed))
        watcher = _Pruning(trial, self.metric, directory)
        try:
            result = fit(model, self.split, training, directory, resume=True, watcher=watcher)
        except LossNotFinite as error:  # settings that end like this are the worst there are
            return {"value": 0.0, "epoch": None, "failed": str(error)}
        return {"value": result.best_metrics[self.metric], "epoch": result.best_epoch}

    def write_best(self) -> None:
        """The best settings so far on top of the preset they were tried with."""
        best = self.study.best_trial
        config, training = resolve_settings(self.model, self.preset, {**self.overrides, **best.params})
        lines = [
            f"# {self.model}, chosen on validation: {self.metric} {best.value:.4f}, the best of "
            f"{len(self.finished())} trials."
        ]
        for part, values in (("model", config), ("training", training)):
            lines += ["", f"[{part}]"]
            chosen = values.model_dump(mode="json", exclude_none=True)
            lines += [f"{key} = {json.dumps(value)}" for key, value in chosen.items()]
        with replacing_file(self.out / BEST) as aside:
            aside.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def summary(self) -> Study:
        trials = [
            Trial(number, t.state.name.lower(), t.params, t.value, t.user_attrs.get("epoch"))
            for number, t in enumerate(self.finished())
        ]
        complete = [trial for trial in trials if trial.state == "complete" and trial.value is not None]
        best = max(complete, key=lambda trial: trial.value or 0.0, default=None)
        return Study(self.model, self.metric, trials, best, str(self.out / BEST))


def _suggest(trial: optuna.Trial, key: str, values: Any) -> Any:
    if isinstance(values, list):
        return trial.suggest_categorical(key, values)
    if isinstance(values["low"], int) and isinstance(values["high"], int):
        return trial.suggest_int(key, values["low"], values["high"], log=values.get("log", False))
    return trial.suggest_float(key, values["low"], values["high"], log=values.get("log", False))


class _Pruning(Watcher):
    """Tells a trial its best validation so far, and breaks off where the trial has fallen behind."""

    def __init__(self, trial: optuna.Trial, metric: str, directory: Path):
        self.trial, self.metric, self.directory = trial, metric, directory
        self.best = 0.0

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
        import optuna

        if self._tell(record) and self.trial.should_prune():
            raise optuna.TrialPruned

    def _tell(self, record: Record) -> bool:
        if "validation" not in record:
            return False
        self.best = max(self.best, record["validation"][self.metric])
        self.trial.report(self.best, record["epoch"])
        return True
