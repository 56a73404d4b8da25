"""A run: one training, remembered with its data, split and settings in a directory of its own.

run.json        what was asked for: data, split, model, settings, seed
history.jsonl   one line per epoch
checkpoint.json, *.safetensors   while training, to resume from
model/          the artifact, when training is done
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy import sparse

from coheat import __version__
from coheat.artifact import (
    OVERLAP_NUMBERS,
    Artifact,
    Description,
    ServingOverlap,
    load_artifact,
    save_artifact,
)
from coheat.checkpoint import HISTORY, Checkpoints
from coheat.data.dataset import BundleData
from coheat.data.files import has_split, read_data, read_split
from coheat.data.split import Split
from coheat.data.split import split as make_split
from coheat.errors import ArtifactError, ConfigError, DataError, TrainingError
from coheat.evaluation import Candidates, evaluate
from coheat.memory import explaining_allocation
from coheat.models.base import Model, Overlap, Scorer, Vectors, VectorScorer
from coheat.presets import model_class, resolve_settings
from coheat.rng import Randomness
from coheat.storage import read_json, write_json
from coheat.training import FitResult, LossNotFinite, TrainingInterrupted, Watcher, choose_device, fit

RECORD = "run.json"
FORMAT = 1
DEFAULT_SCENARIO = "all"


@dataclass(frozen=True)
class RunRecord:
    """What a run was asked to do; two runs with equal records give equal numbers.

    `makes_split` says that the data had no split and one was made for `scenario` with `seed`.
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


@dataclass(frozen=True)
class Run:
    """A run's directory and what it says of itself."""

    path: Path
    record: RunRecord

    @property
    def finished(self) -> bool:
        return (self.path / "model").is_dir()

    @property
    def artifact(self) -> Artifact:
        """The trained model; an ArtifactError that says how to go on where training is not done."""
        if not self.finished:
            raise ArtifactError(f"{self.path}: training is not finished; go on with: {self.resume_command}")
        return load_artifact(self.path / "model")

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per epoch: its seconds, loss terms, the model's facts and, where validated, metrics."""
        lines = (self.path / HISTORY).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def resume_command(self) -> str:
        """The exact command that goes on with this run."""
        record = self.record
        words = ["coheat", "train", record.data, "--model", record.model, "--preset", record.preset]
        words += ["--seed", str(record.seed)]
        if record.makes_split:
            words += ["--scenario", record.scenario]
        for key, value in record.overrides.items():
            words += ["--set", f"{key}={_toml(value)}"]
        return shlex.join([*words, "--out", str(self.path), "--resume"])

    def evaluate(
        self,
        data_dir: str | Path | None = None,
        ks: Sequence[int] = (20,),
        candidates: Candidates = "all",
        by_popularity: bool = False,
    ) -> dict[str, Any]:
        """Metrics of the trained model on validation and test, ready for JSON.

        The data is the run's own unless `data_dir` is given; `warnings` says where it differs from what
        the model was trained with. A part with nothing to measure is None.
        """
        artifact = self.artifact
        about = artifact.description
        split, warnings = self._split(data_dir, artifact)
        report: dict[str, Any] = {
            "model": about.model,
            "epoch": about.best_epoch,
            "seconds": about.seconds,
            "seed": about.seed,
            "scenario": split.scenario,
            "candidates": candidates,
        }
        scorer = artifact_scorer(artifact)
        nothing: DataError | None = None
        for part, held_out in (("test", split.test), ("validation", split.validation)):
            try:
                found = evaluate(scorer, split.train, held_out, ks, candidates)
            except DataError as error:
                report[part], nothing = None, error
                continue
            report[part] = {**found.metrics, "users": found.n_users}
            if by_popularity:
                report[part]["by_popularity"] = found.by_popularity
        if nothing and report["test"] is None and report["validation"] is None:
            raise nothing
        return {**report, "warnings": warnings}

    def _split(self, data_dir: str | Path | None, artifact: Artifact) -> tuple[Split, list[str]]:
        """The split to judge on, and in which ways it is not the one the model was trained with."""
        record = self.record
        places = [data_dir] if data_dir else [record.data_resolved, record.data]
        data_dir = next((place for place in map(Path, places) if place.is_dir()), None)
        if data_dir is None:
            raise DataError(
                f"{places[0]}: there is no such directory of data; say where it is with --data DIR"
            )
        if record.makes_split and not has_split(data_dir):
            split = open_split(data_dir, record.scenario, record.seed)
        else:
            split = read_split(data_dir)
        if fingerprint(split) == record.fingerprint:
            return split, []
        trained = artifact.training_data()
        if (trained.users, trained.bundles) != (split.train.users, split.train.bundles):
            raise DataError(
                f"{data_dir}: its users or bundles are not those the model was trained on "
                f"({trained.n_users} users, {trained.n_bundles} bundles), so it cannot judge this model; "
                "train again on this data"
            )
        return split, [f"{data_dir}: not the data this model was trained with, or changed since"]


def open_split(data_dir: Path, scenario: str | None, seed: int) -> Split:
    """The published split of a directory, or, where it has none, one made for `scenario` with `seed`."""
    if not data_dir.is_dir():
        kind = "a file, not a directory" if data_dir.exists() else "there is no such directory"
        raise DataError(f"{data_dir}: {kind}; give the directory that holds the data files")
    if not has_split(data_dir):
        return make_split(read_data(data_dir), scenario or DEFAULT_SCENARIO, seed)
    if scenario is not None:
        raise ConfigError(f"{data_dir}: comes with its own split, so leave --scenario {scenario} out")
    return read_split(data_dir)


def fingerprint(split: Split) -> str:
    """A digest of a split: all ids and relations, and which interaction is in which part."""
    digest = hashlib.sha256(split.train.fingerprint.encode())
    for part in (split.validation, split.test):
        digest.update(part.indptr.tobytes() + part.indices.tobytes())
    return digest.hexdigest()


def artifact_scorer(artifact: Artifact) -> Scorer:
    """Scores of all bundles: from the stored vectors, or from the model where it has none."""
    import torch

    vectors = artifact.vectors()
    if vectors is None:
        return artifact.model().scorer()
    overlap = None if vectors.overlap is None else _overlap(vectors.overlap, artifact.training_data())
    return VectorScorer(Vectors(torch.tensor(vectors.users), torch.tensor(vectors.bundles), overlap=overlap))


def _overlap(stored: ServingOverlap, data: BundleData) -> Overlap:
    """The overlap as a model would give it."""
    arrays = stored.weights, stored.items, stored.indptr
    profiles = sparse.csr_array(arrays, shape=(data.n_users, data.n_items))
    numbers = {name: getattr(stored, name) for name in OVERLAP_NUMBERS}
    return Overlap(
        profiles, stored.item_weights, **numbers, bundle_item=data.bundle_item, is_new=stored.is_new
    )


def open_run(path: str | Path) -> Run:
    """The run in a directory; what is not one is an ArtifactError."""
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
    data_dir: str | Path,
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
) -> Run:
    """Train a model on the data in `data_dir` and leave everything about it in `out`.

    With `resume` an unfinished run goes on where it stopped and a finished one is left as it is; one
    that was never begun begins. Its settings must be those it was begun with.
    """
    data_dir, out = Path(data_dir), Path(out)
    chosen_device = choose_device(device)
    resolve_settings(model_name, preset, overrides or {})  # a mistake in these is told before data is read
    _check_free(out, resume, overwrite)
    split = open_split(data_dir, scenario, seed)
    cold = split.validates_new_bundles_only
    config, training = resolve_settings(model_name, preset, overrides or {}, cold)
    record = RunRecord(
        data=str(data_dir),
        data_resolved=str(data_dir.resolve()),
        scenario=split.scenario,
        makes_split=not has_split(data_dir),
        fingerprint=fingerprint(split),
        model=model_name,
        preset=preset,
        overrides=dict(overrides or {}),
        config=config.model_dump(mode="json"),
        training=training.model_dump(mode="json"),
        seed=seed,
    )
    run = Run(out, record)
    resuming = resume and (out / RECORD).exists()
    if resuming:
        _check_same(open_run(out).record, record, out)
        if run.finished:
            return run
    with _alone(out), explaining_allocation():
        model = model_class(model_name)(split.train, config, Randomness(seed)).to(chosen_device)
        if not resuming:
            _begin(run)
        return _train(run, lambda: fit(model, split, training, out, resuming, watcher), model)


def _train(run: Run, training: Callable[[], FitResult], model: Model) -> Run:
    """Train and save the artifact; also that of the best epoch when the loss stops being finite."""
    try:
        result = training()
    except TrainingInterrupted as error:
        raise TrainingInterrupted(error.epoch, run.resume_command) from None
    except LossNotFinite as error:
        if error.result:
            _finish(run, model, error.result)
        raise
    _finish(run, model, result)
    return run


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
        best_epoch=result.best_epoch,
        metrics=result.best_metrics,
        seconds=result.seconds,
        reason=result.reason,
    )
    save_artifact(run.path / "model", model, description)
    Checkpoints(run.path).remove()


def _begin(run: Run) -> None:
    """Write the new run's record, after clearing what an earlier run left, and only that.

    The record is replaced last: whatever happens in between, the directory stays a run.
    """
    shutil.rmtree(run.path / "model", ignore_errors=True)
    Checkpoints(run.path).clear()
    write_json(run.path / RECORD, {"format": FORMAT, "coheat": __version__, "run": asdict(run.record)})


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the run for this process; two that train in one directory would spoil each other's files."""
    out.mkdir(parents=True, exist_ok=True)
    directory = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise TrainingError(f"{out}: another process is training this run; wait for it to end") from None
    finally:
        os.close(directory)


def _check_free(out: Path, resume: bool, overwrite: bool) -> None:
    """Refuse to write where something is that the user did not say to go on with or to replace."""
    if resume and overwrite:
        raise ConfigError("--resume goes on with a run and --overwrite replaces it; choose one of them")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: a file is in the way; choose another --out")
    if (out / RECORD).exists():
        if not (resume or overwrite):
            raise ConfigError(
                f"{out}: there is a run already; go on with it (--resume) or replace it (--overwrite)"
            )
    elif out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out}: not empty and not a run; choose another --out, so that nothing is lost")


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
        for name in ("model", "seed")
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
