"""Search for settings on validation only: an Optuna study that can be stopped and goes on.

    STUDY/study.json   what was asked for; the study goes on only with the same
    STUDY/study.db     Optuna's record of the trials
    STUDY/trials/      history and outcome of every setting tried
    STUDY/best.toml    the best settings so far, a preset for `coheat train --preset STUDY/best.toml`

The test part is taken out of the split before anything else, so no choice here can know it.

Trials are made in rounds of so many as are trained at a time. What a round draws, and what its trials are
compared with, is a function of the seed and of the rounds before it: a study that was killed and started
again tries the same settings as one that never stopped, and one on a cluster the same as one here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coheat.config import read_toml
from coheat.errors import ConfigError
from coheat.experiments.trials import PATIENT_TRIALS, TrialTask, prepared
from coheat.presets import load_preset, resolve_settings
from coheat.rng import Randomness
from coheat.runs import fingerprint
from coheat.storage import read_json, replacing_file, write_json
from coheat.tasks import Follower, Place, Task, duration, place_for, run_tasks
from coheat.tasks.choosing import HERE

if TYPE_CHECKING:
    import optuna

SPACES = Path(__file__).parent / "spaces"
RECORD, BEST, DATABASE = "study.json", "best.toml", "study.db"


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


def tune(
    data: Path,
    out: Path,
    model: str = "ember",
    space: str = "paper",
    trials: int = 30,
    preset: str = "default",
    metric: str = "recall",
    seed: int = 0,
    scenario: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    console: Console | None = None,
    *,
    parallel: int = 1,
    on: str | Place = HERE,
) -> Study:
    """Try settings of `space` until there are `trials` of them, and write the best as a preset.

    Settings outside the space are those of `preset` and `overrides`. A study in `out` goes on. A
    round is `parallel` trials, drawn together and trained side by side, here or on the machines of a Ray
    cluster (`on`; see `coheat.tasks.place_for`).
    """
    split = prepared(data, scenario, seed)
    if not split.validation.nnz:
        raise ConfigError(f"{data}: its validation part is empty, so there is nothing to choose settings by")
    if metric not in ("recall", "ndcg"):
        raise ConfigError(f"metric {metric!r}: choose recall or ndcg")
    searched, changed = load_space(space, model), dict(overrides or {})
    firsts = {key: value["low"] if isinstance(value, dict) else value[0] for key, value in searched.items()}
    # Where validation is about new bundles alone, presets may say so: [preset.cold].
    cold = split.validates_new_bundles_only
    _, training = resolve_settings(model, preset, {**changed, **firsts}, cold)
    given = Path(preset).absolute() if preset.endswith(".toml") else preset
    template = TrialTask(
        study=str(out.absolute()),
        data=str(data.absolute()),
        scenario=scenario,
        seed=seed,
        fingerprint=fingerprint(split),
        model=model,
        preset=str(given),
        overrides=changed,
        metric=f"{metric}@{training.k}",
        epochs=training.epochs,
        cold=cold,
        settings={},
        earlier=[],
        _split=split,
    )
    search = _Search(out, template, searched, parallel)
    search.begin()
    if len(search.finished()) < trials:
        with place_for(on, parallel, out=out, reads=[data]) as place:
            search.run(trials, place, console or Console(stderr=True))
    return search.summary()


class _Search:
    """A study, and rounds of trials like `template` with the settings that it draws."""

    def __init__(self, out: Path, template: TrialTask, space: dict[str, Any], parallel: int):
        self.out, self.template, self.space, self.parallel = out, template, space, parallel
        self.metric = template.metric

    def begin(self) -> None:
        """Open the study, or refuse one that was begun with something else."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        asked = {
            "model": self.template.model,
            "preset": load_preset(self.template.model, self.template.preset, self.template.cold),
            "overrides": self.template.overrides,
            "space": self.space,
            "metric": self.metric,
            "seed": self.template.seed,
            "data": self.template.fingerprint,
            "jobs": self.parallel,
        }
        asked = json.loads(json.dumps(asked))
        path = self.out / RECORD
        if path.exists():
            begun = {"jobs": 1, **read_json(path)}
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
        self.study = optuna.create_study(
            storage=f"sqlite:///{self.out.resolve() / DATABASE}",
            study_name="coheat",
            direction="maximize",
            load_if_exists=True,
        )

    def finished(self) -> list[optuna.trial.FrozenTrial]:
        import optuna

        states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
        return list(self.study.get_trials(states=states))

    def run(self, trials: int, place: Place, console: Console) -> None:
        columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            told = _Told(bar, console, place, len(self.finished()), trials)
            while (done := len(self.finished())) < trials:
                # A study that was stopped within a round, by fewer --trials, ends that round first.
                begun = self.finished()[: done - done % self.parallel]
                settings = self.draw(begun, min(len(begun) + self.parallel, trials))
                tasks = [self.task(begun, chosen) for chosen in settings]
                run_tasks({task.name: task for task in tasks}.values(), place, told)
                for task in tasks[done - len(begun) :]:
                    self.study.add_trial(self.outcome(task))
                self.write_best()
                told.round(len(self.finished()), f"best {self.metric} {self.study.best_value:.4f}")

    def draw(self, finished: Sequence[optuna.trial.FrozenTrial], until: int) -> list[dict[str, Any]]:
        """The settings of the trials after these, which are all that is known, up to number `until`."""
        import optuna

        known = optuna.create_study(direction="maximize")
        known.add_trials(finished)
        drawn = []
        for number in range(len(finished), until):
            seed = Randomness(self.template.seed).generator("sampler", number).integers(2**31)
            known.sampler = optuna.samplers.TPESampler(n_startup_trials=PATIENT_TRIALS, seed=int(seed))
            drawn.append(known.ask(self.distributions()).params)
        return drawn

    def distributions(self) -> dict[str, optuna.distributions.BaseDistribution]:
        return {key: _distribution(values) for key, values in self.space.items()}

    def task(self, finished: Sequence[optuna.trial.FrozenTrial], settings: dict[str, Any]) -> TrialTask:
        """A training with these settings, to be cut short where it falls behind the finished ones."""
        earlier = [[trial.state.name, sorted(trial.intermediate_values.items())] for trial in finished]
        return replace(self.template, settings=settings, earlier=earlier)

    def outcome(self, task: TrialTask) -> optuna.trial.FrozenTrial:
        """What became of a trial, as the study keeps it."""
        import optuna

        found = read_json(task.outcome)
        return optuna.trial.create_trial(
            state=optuna.trial.TrialState[found.get("state", "COMPLETE")],
            value=found["value"],
            params=task.settings,
            distributions=self.distributions(),
            intermediate_values={int(epoch): value for epoch, value in found.get("reported", [])},
            user_attrs={"epoch": found["epoch"]},
        )

    def write_best(self) -> None:
        """The best settings so far on top of the preset they were tried with."""
        best, template = self.study.best_trial, self.template
        overrides = {**template.overrides, **best.params}
        config, training = resolve_settings(template.model, template.preset, overrides, template.cold)
        lines = [
            f"# {template.model}, chosen on validation: {self.metric} {best.value:.4f}, the best of "
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
        return Study(self.template.model, self.metric, trials, best, str(self.out / BEST))


class _Told(Follower):
    """Shows how far a study is: a bar where somebody is looking, else a line for every round."""

    def __init__(self, bar: Progress, console: Console, place: Place, before: int, trials: int):
        self.bar, self.console, self.place, self.trials = bar, console, place, trials
        self.before = self.ended = before
        self.best, self.started = "", time.monotonic()
        self.task = bar.add_task("", total=trials, completed=before)

    def again(self, task: Task, why: str) -> None:
        self.console.print(f"trial {task.name}: {why}; it is begun again", highlight=False, markup=False)

    def end(self, task: Task, failed: str | None) -> None:  # noqa: ARG002
        self.ended += 1
        self.bar.update(self.task, completed=self.ended, description=self.line())

    def round(self, ended: int, best: str) -> None:
        self.ended, self.best = ended, best
        self.bar.update(self.task, completed=ended, description=self.line())
        if not self.console.is_terminal:
            self.console.print(f"trial {ended}/{self.trials}; {self.line()}", highlight=False)

    def line(self) -> str:
        each = (time.monotonic() - self.started) / max(self.ended - self.before, 1)
        left = f"left {duration(each * (self.trials - self.ended))}"
        return ", ".join(filter(None, (left, self.best, self.place.describe())))


def _distribution(values: Any) -> optuna.distributions.BaseDistribution:
    """What a setting is drawn from: a list of values, or a range."""
    import optuna

    kinds = optuna.distributions
    if isinstance(values, list):
        return kinds.CategoricalDistribution(values)
    whole = isinstance(values["low"], int) and isinstance(values["high"], int)
    kind = kinds.IntDistribution if whole else kinds.FloatDistribution
    return kind(values["low"], values["high"], log=values.get("log", False))
