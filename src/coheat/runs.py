"""A run: one training, remembered with its data, split and settings in a directory of its own.

run.json        what was asked for: data, split, model, settings, seed
history.jsonl   one line per epoch
checkpoint.json, *.safetensors   while training, to resume from
model/          the artifact, when training is done
rivals.json     how it stands beside counting and popularity on validation
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from coheat import __version__
from coheat.artifact import Artifact, Contents, Description, load_artifact, open_artifact, save_artifact
from coheat.checkpoint import HISTORY, Checkpoints, model_state
from coheat.data.databases import holds_tables
from coheat.data.dataset import BundleData, relation
from coheat.data.files import has_split, read_data, read_split
from coheat.data.leaks import REMEDY, leakage, without_leaks
from coheat.data.problems import DataWarning
from coheat.data.split import Split
from coheat.data.split import split as make_split
from coheat.data.tables import from_frames
from coheat.display import html_facts
from coheat.errors import ArtifactError, ConfigError, DataError
from coheat.evaluation import Candidates, Evaluation
from coheat.graph.ranks import ALONE, Ranks
from coheat.judging import beside_rivals, judge, judge_on_file
from coheat.memory import explaining_allocation
from coheat.models.base import Model
from coheat.presets import model_class, resolve_settings
from coheat.recommender import Recommender
from coheat.rng import Randomness
from coheat.storage import alone_in, read_json, write_json
from coheat.together import check_alike, shared_device
from coheat.training import (
    FitResult,
    LossNotFinite,
    TrainingInterrupted,
    Watcher,
    choose_device,
    fit,
    shortened,
)
from coheat.warm_start import check_start, start_from

RECORD = "run.json"
RIVALS = "rivals.json"
FORMAT = 1
DATA, STEPS = "data", "retrain"
"""Directories of a run that `coheat retrain` makes before it trains: data of its own, and its steps."""
DEFAULT_SCENARIO = "all"
IN_MEMORY = "(in memory)"
Source: TypeAlias = str | Path | BundleData | Mapping[str, Any]
"""Where data comes from: a directory, a `BundleData`, or frames by the name of their table."""


@dataclass(frozen=True)
class RunRecord:
    """What a run was asked to do; two runs with equal records give equal numbers.

    `makes_split` says that the data had no split and one was made for `scenario` with `seed`. `start`
    is the run or artifact whose vectors it started from, `start_fingerprint` says which one lay there.
    """

    data: str
    data_resolved: str
    scenario: str
    makes_split: bool
    fingerprint: str
    model: str
    preset: str
    overrides: dict[str, Any]
    config: dict[str, Any]
    training: dict[str, Any]
    seed: int
    without_leaks: bool = False
    start: str | None = None
    start_fingerprint: str | None = None


@dataclass(frozen=True)
class Run:
    """A run's directory and its record."""

    path: Path
    record: RunRecord

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not finished"
        return f"Run of {self.record.model} on {self.record.data} in {self.path} ({state})"

    def _repr_html_(self) -> str:
        facts = {"model": self.record.model, "data": self.record.data, "scenario": self.record.scenario}
        metrics = self.artifact.description.metrics if self.finished else {}
        return html_facts({**facts, **{f"validation {name}": value for name, value in metrics.items()}})

    @property
    def finished(self) -> bool:
        return (self.path / "model").is_dir()

    @property
    def artifact(self) -> Artifact:
        """The trained model; if training is not finished, an ArtifactError that says how to go on."""
        if not self.finished:
            raise ArtifactError(
                f"{self.path}: training is not finished; continue it with: {self.resume_command}"
            )
        return load_artifact(self.path / "model")

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per epoch: its seconds, loss terms, the model's facts and, if validated, metrics."""
        lines = (self.path / HISTORY).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def resume_command(self) -> str:
        """The exact command that resumes this run."""
        record = self.record
        words = ["coheat", "train", record.data, "--model", record.model, "--preset", record.preset]
        words += ["--seed", str(record.seed)]
        if record.makes_split:
            words += ["--scenario", record.scenario]
        words += ["--without-leaks"] if record.without_leaks else []
        words += ["--start", record.start] if record.start else []
        for key, value in record.overrides.items():
            words += ["--set", f"{key}={_toml(value)}"]
        return shlex.join([*words, "--out", str(self.path), "--resume"])

    def evaluate(
        self,
        data_dir: str | Path | None = None,
        ks: Sequence[int] = (20,),
        candidates: Candidates = "all",
        by_popularity: bool = False,
        on: str | Path | None = None,
        knobs: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Metrics of the trained model on validation and test, ready for JSON.

        The data are the run's own unless `data_dir` is given; `warnings` says how they differ from what the
        model was trained with. A part with nothing to measure is None. With `on`, a file of later
        interactions, the metrics are on these. `knobs` are set first.
        """
        artifact = self.artifact
        about = artifact.description
        report: dict[str, Any] = {
            "model": about.model,
            "epoch": about.best_epoch,
            "seconds": about.seconds,
            "seed": about.seed,
        }
        if on is not None:
            later, notes = judge_on_file(artifact, Path(on), ks, knobs)
            scope = {"scenario": "later interactions", "candidates": "all", "warnings": notes}
            return {**report, **scope, "later": _judged(later, by_popularity)}
        split, warnings = self.split(data_dir)
        report |= {"scenario": split.scenario, "candidates": candidates}
        served = artifact.served().turned(**(knobs or {}))
        for part in ("test", "validation"):
            found = judge(served, split, part, ks, candidates)
            report[part] = None if found is None else _judged(found, by_popularity)
        if report["test"] is None and report["validation"] is None:
            raise DataError(
                f"{self.path}: nothing was held out that could be measured with candidates {candidates!r}; "
                "evaluate it on a file of later interactions with --on FILE"
            )
        return {**report, "warnings": warnings}

    @property
    def rivals(self) -> dict[str, Any]:
        """How the model compared with simple rivals when it was trained; {} if nothing was validated."""
        path = self.path / RIVALS
        return read_json(path) if path.exists() else {}

    def split(self, data_dir: str | Path | None = None) -> tuple[Split, list[str]]:
        """The split to evaluate on, and how it differs from the one the model was trained with."""
        record, artifact = self.record, self.artifact
        places = [data_dir] if data_dir else [record.data_resolved, record.data]
        data_dir = next((place for place in map(Path, places) if holds_tables(place)), None)
        if data_dir is None:
            raise DataError(
                f"{places[0]}: there is no such directory of data; say where it is with --data DIR"
            )
        # What learned from everything must not be judged by a part of it, whatever parts the data come in.
        made = record.makes_split and (record.scenario == "everything" or not has_split(data_dir))
        split = open_split(data_dir, record.scenario if made else None, record.seed)[0]
        split = without_leaks(split) if record.without_leaks else split
        if fingerprint(split) == record.fingerprint:
            return split, []
        trained = artifact.training_data()
        if (trained.users, trained.bundles) != (split.train.users, split.train.bundles):
            raise DataError(
                f"{data_dir}: its users or bundles are not those the model was trained on "
                f"({trained.n_users} users, {trained.n_bundles} bundles), so the model cannot be evaluated "
                "on it; train again on this data"
            )
        return split, [f"{data_dir}: not the data this model was trained with, or changed since"]


def _judged(found: Evaluation, by_popularity: bool) -> dict[str, Any]:
    """An evaluation, ready for JSON."""
    extra = {"by_popularity": found.by_popularity} if by_popularity else {}
    warm_up = {"warm_up": found.warm_up} if found.warm_up else {}
    return {**found.metrics, "users": found.n_users, "exposure": found.exposure, **extra, **warm_up}


def open_split(source: Source, scenario: str | None, seed: int) -> tuple[Split, bool]:
    """The published split of a directory, or, where it has none, one made for `scenario` with `seed`; and
    whether it was made."""
    if isinstance(source, BundleData):
        return make_split(source, scenario or DEFAULT_SCENARIO, seed), True
    if isinstance(source, Mapping):
        return open_split(from_frames(**source), scenario, seed)
    directory = Path(source)
    if not holds_tables(directory):
        kind = "a file, not a directory or a database" if directory.exists() else "there is no such directory"
        raise DataError(f"{directory}: {kind}; give the directory or the database that holds the tables")
    if scenario == "everything" or not has_split(directory):
        return open_split(read_data(directory), scenario, seed)
    if scenario is not None:
        raise ConfigError(f"{directory}: comes with its own split, so leave --scenario {scenario} out")
    return read_split(directory), False


def fingerprint(split: Split) -> str:
    """A digest of a split: all ids and relations, and which interaction is in which part."""
    digest = hashlib.sha256(split.train.fingerprint.encode())
    for part in (split.validation, split.test):
        digest.update(part.indptr.tobytes() + part.indices.tobytes())
    return digest.hexdigest()


def open_run(path: str | Path) -> Run:
    """The run in a directory; raises ArtifactError if there is none."""
    path = Path(path)
    if not path.is_dir():
        kind = "a file, not a run's directory" if path.exists() else "there is no such run"
        raise ArtifactError(f"{path}: {kind}; make one with: coheat train DIR --out {shlex.quote(str(path))}")
    if not (path / RECORD).exists():
        raise ArtifactError(
            f"{path}: not a run (it has no {RECORD}); a run is what coheat train --out writes"
        )
    document = read_json(path / RECORD)
    if document.get("format") != FORMAT:
        raise ArtifactError(
            f"{path / RECORD}: format {document.get('format')!r}, this version reads {FORMAT}"
        )
    try:
        return Run(path, RunRecord(**document["run"]))
    except (KeyError, TypeError):
        raise ArtifactError(f"{path / RECORD}: incomplete; train again with --overwrite") from None


def train_run(
    data: Source,
    out: str | Path,
    model_name: str = "ember",
    preset: str = "default",
    overrides: Mapping[str, Any] | None = None,
    seed: int = 0,
    scenario: str | None = None,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    remove_leaks: bool = False,
    start: str | Path | None = None,
    ranks: Ranks = ALONE,
) -> Run:
    """Train a model on `data` (a directory, a `BundleData`, or frames by table) and write the run to `out`.

    With `resume` an unfinished run goes on where it stopped, a finished one is left as it is, and one that
    was never started starts. Its settings must be those it was started with. Progress is shown in a terminal
    or notebook, unless you pass a `watcher`. With `start`, a run or an artifact of the same model, training
    starts from its vectors and needs only a share of the epochs (`warm_share`). With several `ranks`, each
    makes the same call; `coheat.workers` starts them.
    """
    out = Path(out)
    chosen_device = choose_device(shared_device(device, model_name, ranks))
    config, _ = resolve_settings(model_name, preset, overrides or {})  # mistakes are told before data is read
    before = None if start is None else open_artifact(Path(start))
    if before is not None:
        check_start(before, model_name, model_class(model_name), config.model_dump(mode="json"))
    ranks.agree(lambda: _check_free(out, resume, overwrite))
    split, makes_split = open_split(data, scenario, seed)
    split = without_leaks(split) if remove_leaks else split
    if (leaks := leakage(split)).is_suspicious:
        warnings.warn(f"{leaks}; {REMEDY}", DataWarning, stacklevel=2)
    config, training = resolve_settings(model_name, preset, overrides or {}, split.validates_new_bundles_only)
    training = training if before is None else shortened(training)
    place = Path(data) if isinstance(data, str | Path) else None
    record = RunRecord(
        data=str(place or IN_MEMORY),
        data_resolved=str(place.resolve() if place else IN_MEMORY),
        scenario=split.scenario,
        makes_split=makes_split,
        fingerprint=fingerprint(split),
        model=model_name,
        preset=preset,
        overrides=dict(overrides or {}),
        config=config.model_dump(mode="json"),
        training=training.model_dump(mode="json"),
        seed=seed,
        without_leaks=remove_leaks,
        start=None if start is None else str(start),
        start_fingerprint=None if before is None else before.fingerprint,
    )
    asked = [model_name, record.config, record.training, seed, record.start_fingerprint]
    check_alike({"data": record.fingerprint, "settings": asked}, ranks)
    run = Run(out, record)
    resuming = ranks.agree(lambda: resume and (out / RECORD).exists())
    if resuming:
        ranks.agree(lambda: _check_same(open_run(out).record, record, out))
        if ranks.agree(lambda: run.finished):
            return run
    with alone_in(out) if ranks.leads else nullcontext(), explaining_allocation():
        model = model_class(model_name)(split.train, config, Randomness(seed)).to(chosen_device)
        if before is not None:
            start_from(model, before)
        if not resuming and ranks.leads:
            _begin(run)
        _train(run, lambda: fit(model, split, training, out, resuming, watcher, ranks), model, ranks)
        if ranks.leads and split.validation.nnz:
            found = beside_rivals(run.artifact.served(), split, model_name, training.k, seed)
            if found:
                write_json(out / RIVALS, found)
        ranks.wait()  # whoever starts the ranks again has to know that all is written
        return run


def fit_recommender(
    user_bundle: Any,
    user_item: Any = None,
    bundle_item: Any = None,
    *,
    bundles: Any = None,
    items: Any = None,
    model: str = "ember",
    preset: str = "default",
    seed: int = 0,
    device: str = "auto",
    watcher: Watcher | None = None,
    **settings: Any,
) -> Recommender:
    """Train a model on all interactions, in memory, and return a recommender.

    The data are three frames (pandas, polars or pyarrow) or a single `BundleData`; `bundles` and `items` are
    frames that describe them in columns such as title, category or ends. `settings` are those of the model
    and of training, such as `epochs=20`. Nothing is held out, so nothing is validated: the last epoch is
    used.
    """
    data = user_bundle
    if not isinstance(data, BundleData):
        data = from_frames(user_bundle, user_item, bundle_item, bundles, items=items)
    config, training = resolve_settings(model, preset, settings)
    nothing = relation([], [], data.user_bundle.shape)
    split = Split(data, nothing, nothing.copy(), "everything", seed)
    trained = model_class(model)(data, config, Randomness(seed)).to(choose_device(device))
    result = fit(trained, split, training, watcher=watcher)
    about = model, config.model_dump(mode="json"), training.model_dump(mode="json"), seed, split.scenario
    description = Description(*about, IN_MEMORY, data.fingerprint, **outcome_of(result))
    state = {**model_state(trained), **trained.handed_on()}
    return Recommender(replace(contents_of(trained, description), parameters=state))


def _train(run: Run, training: Callable[[], FitResult], model: Model, ranks: Ranks) -> None:
    """Train and save the artifact; also that of the best epoch when the loss stops being finite."""
    try:
        result = training()
    except TrainingInterrupted as error:
        raise TrainingInterrupted(error.epoch, run.resume_command) from None
    except LossNotFinite as error:
        if error.result and ranks.leads:
            _finish(run, model, error.result)
        raise
    if ranks.leads:
        _finish(run, model, result)


def _finish(run: Run, model: Model, result: FitResult) -> None:
    record = run.record
    description = Description(
        model=record.model,
        config=record.config,
        training=record.training,
        seed=record.seed,
        scenario=record.scenario,
        data_source=record.data,
        data_fingerprint=record.fingerprint,
        **outcome_of(result),
    )
    state = {**model.state_dict(), **model.handed_on()}
    save_artifact(run.path / "model", contents_of(model, description), state)
    Checkpoints(run.path).remove()


def outcome_of(result: FitResult) -> dict[str, Any]:
    """What an artifact says of its training."""
    return {
        "best_epoch": result.best_epoch,
        "metrics": result.best_metrics,
        "seconds": result.seconds,
        "reason": result.reason,
    }


def contents_of(model: Model, description: Description) -> Contents:
    data = model.data
    until = None if np.isnan(data.now) else data.now
    return Contents(
        model.served(),
        data.users,
        data.bundles,
        data.items,
        replace(description, data_until=until),
        bundle_attributes=data.described_bundles(),
        item_attributes=data.item_attributes,
    )


def _begin(run: Run) -> None:
    """Write the new run's record, after clearing what an earlier run left, and only that.

    The record is replaced last: whatever happens in between, the directory stays a run.
    """
    shutil.rmtree(run.path / "model", ignore_errors=True)
    (run.path / RIVALS).unlink(missing_ok=True)
    Checkpoints(run.path).clear()
    write_json(run.path / RECORD, {"format": FORMAT, "coheat": __version__, "run": asdict(run.record)})


def _check_free(out: Path, resume: bool, overwrite: bool) -> None:
    """Refuse to write where something is that the user did not ask to continue or to replace."""
    if resume and overwrite:
        raise ConfigError("--resume continues a run and --overwrite replaces it; choose one of them")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: a file is in the way; choose another --out")
    if (out / RECORD).exists():
        if not (resume or overwrite):
            raise ConfigError(
                f"{out}: there is already a run; continue it (--resume) or replace it (--overwrite)"
            )
    elif out.exists() and any(map(_is_foreign, out.iterdir())):
        raise ConfigError(f"{out}: not empty and not a run; choose another --out, so that nothing is lost")


def _is_foreign(path: Path) -> bool:
    """Whether it is none of ours: neither made by retraining, nor left half-written by a killed process."""
    return path.name not in (DATA, STEPS) and not (path.name.startswith(".") and path.name.endswith(".part"))


def _check_same(begun: RunRecord, asked: RunRecord, out: Path) -> None:
    """To resume, everything that decides the numbers must be as it was."""
    if begun.fingerprint != asked.fingerprint:
        raise DataError(
            f"{asked.data}: the data has changed since the run in {out} began, so it cannot be resumed; "
            "train again with --overwrite"
        )
    differences = [
        f"{name} was {mine!r}, now {other!r}"
        for part in ("config", "training")
        for name, mine in getattr(begun, part).items()
        if mine != (other := getattr(asked, part).get(name))
    ]
    differences += [
        f"{name} was {getattr(begun, name)!r}, now {getattr(asked, name)!r}"
        for name in ("model", "seed", "start_fingerprint")
        if getattr(begun, name) != getattr(asked, name)
    ]
    if differences:
        raise ConfigError(
            f"{out}: this run was begun with other settings ({'; '.join(differences)}); "
            "resume with the same ones, or train again with --overwrite"
        )


def _toml(value: Any) -> str:
    """A setting as --set reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
