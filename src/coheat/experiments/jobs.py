"""One training and its measurements, kept in a place that is named by everything that decides the numbers.

    OUT/runs/<place>            an ordinary run, as `coheat train` makes it
    OUT/measured/<place>.json   what is kept of it: metrics, chosen epoch, speed; or why it failed
    OUT/measured/<place>.npz    test metrics of each user, for tests of significance

Experiments that ask for the same training get the same place, so it is done once. A job is done when both
the run is finished and its measurements are there; anything else goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.checkpoint import HISTORY
from coheat.data.dataset import BundleData, Sparse
from coheat.data.files import read_split
from coheat.errors import CoheatError, DataError, Interrupted
from coheat.evaluation import Candidates, Evaluation, evaluate
from coheat.experiments.plan import Row, preset_for
from coheat.experiments.published import METRICS
from coheat.experiments.sources import Source
from coheat.judging import judge
from coheat.presets import resolve_settings
from coheat.runs import Run, train_run
from coheat.served import Served
from coheat.storage import read_json, replacing_file, write_json
from coheat.tasks import Task

K = 20
NOT_FINITE = "the loss was not finite"
"""How an artifact says that its training broke off; its best epoch until then is not a fair result."""


@dataclass(frozen=True)
class Job(Task):
    """A training to do. `place` is where it is kept, below OUT/runs and OUT/measured."""

    out: str
    place: str
    data: str
    model: str
    preset: str
    overrides: dict[str, Any]
    seed: int
    epochs: int
    candidates: Candidates = "all"

    @property
    def name(self) -> str:
        return self.place

    @property
    def kind(self) -> str:
        """Data set and model: jobs of one kind take about equally long per epoch."""
        return f"{self.place.split('/')[0]} {self.model}"

    @property
    def steps(self) -> int:
        return self.epochs

    @property
    def directory(self) -> Path:
        return Path(self.out) / "runs" / self.place

    def run(self) -> None:
        """Train, or go on training, measure, and keep the measurements; a failure is kept as such.

        Being interrupted is no failure and is passed on.
        """
        try:
            run = train_run(
                self.data,
                self.directory,
                model_name=self.model,
                preset=self.preset,
                overrides=self.overrides,
                seed=self.seed,
                resume=True,
            )
            document, per_user = measure(run, self.candidates)
            _keep(measured_path(self.out, self.place, ".npz"), per_user)
        except Interrupted:
            raise
        except CoheatError as error:
            document = {"failed": str(error)}
        except Exception as error:  # one broken model must not end a night of trainings
            document = {"failed": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        self._write_down(document)

    def is_done(self) -> bool:
        """Whether nothing is left to do; what failed is tried again."""
        measured = measured_path(self.out, self.place)
        return (self.directory / "model").is_dir() and measured.exists() and self.failure() is None

    def failure(self) -> str | None:
        measured = measured_path(self.out, self.place)
        return read_json(measured).get("failed") if measured.exists() else None

    def give_up(self, why: str) -> None:
        self._write_down({"failed": why})

    def standing(self) -> tuple[int, float | None]:
        """How many epochs it has behind it, and the seconds of the last, as its history says."""
        path = self.directory / HISTORY
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        try:
            return len(lines), float(json.loads(lines[-1])["seconds"]) if lines else None
        except ValueError:  # the last line is being written
            return max(len(lines) - 1, 0), None

    def _write_down(self, document: Mapping[str, Any]) -> None:
        """Keep what became of it."""
        path = measured_path(self.out, self.place)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"seed": self.seed, **document})


@dataclass(frozen=True)
class Group:
    """The jobs of one row in one table: the same settings with several seeds.

    `directory` holds one place per seed, also of seeds that are not asked for this time.
    """

    directory: str
    preset: str
    settings: dict[str, Any]
    digest: str


def group_for(row: Row, dataset: str, division: str, source: Source, candidates: Candidates = "all") -> Group:
    """Where the runs of a row are kept, and the settings they have."""
    preset = preset_for(row, dataset)
    cold = source.validates_new_bundles_only
    config, training = resolve_settings(row.model, preset, row.settings, cold)
    settings = {**config.model_dump(mode="json"), **training.model_dump(mode="json")}
    judged = [] if candidates == "all" else [candidates]
    text = json.dumps([source.identity, row.model, settings, *judged], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return Group(f"{dataset}/{division}/{row.model}-{digest}", preset, settings, digest)


def job_for(
    out: Path, row: Row, group: Group, source: Source, seed: int, candidates: Candidates = "all"
) -> Job:
    return Job(
        out=str(out.absolute()),
        place=f"{group.directory}/seed-{seed}",
        data=str(source.directory.absolute()),
        model=row.model,
        preset=group.preset,
        overrides=row.settings,
        seed=seed,
        epochs=group.settings["epochs"],
        candidates=candidates,
    )


def measured_path(out: str | Path, place: str, suffix: str = ".json") -> Path:
    return Path(out) / "measured" / f"{place}{suffix}"


def measure(run: Run, candidates: Candidates = "all") -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """What is kept of a finished run, and the test metrics of each user."""
    about = run.artifact.description
    if about.reason == NOT_FINITE:
        raise CoheatError(f"{NOT_FINITE} in the end; epoch {about.best_epoch} was the best until then")
    split = read_split(run.record.data_resolved)
    scorer = run.artifact.served()
    test = judge(scorer, split, "test", (K,), candidates)
    if test is None:
        raise DataError(
            f"{run.record.data}: nobody has a bundle in the test part, so there is nothing to measure"
        )
    validation = judge(scorer, split, "validation", (K,), candidates)
    shelf = _shelf(scorer, split.train, split.test)
    history = run.history
    plain = [record["seconds"] for record in history if "validation" not in record]
    document = {
        "epoch": about.best_epoch,
        "epochs_done": len(history),
        "reason": about.reason,
        "seconds": about.seconds,
        "seconds_per_epoch": statistics.median(plain or [record["seconds"] for record in history]),
        "fingerprint": run.record.fingerprint,
        "test": _metrics(test),
        "validation": None if validation is None else _metrics(validation),
        "shelf": None if shelf is None else _metrics(shelf),
        "warm_up": test.warm_up,
        "exposure": test.exposure,
    }
    per_user = {name: test.per_user[name] for name in METRICS}
    return document, {"split": np.array(run.record.fingerprint), "users": test.users, **per_user}


def _shelf(scorer: Served, train: BundleData, test: Sparse) -> Evaluation | None:
    """The same when only cold bundles are candidates; None where there is none of them in the test."""
    try:
        return evaluate(scorer, train, test, (K,), "cold")
    except DataError:
        return None


def _metrics(found: Evaluation) -> dict[str, float]:
    return {**found.metrics, "users": found.n_users}


def _keep(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_measured(out: Path, directory: str) -> list[dict[str, Any]]:
    """The measurements of every seed there is of a group, failures included, by seed."""
    found = [read_json(path) for path in measured_path(out, directory, "").glob("seed-*.json")]
    return sorted(found, key=lambda document: int(document["seed"]))


def read_per_user(out: Path, directory: str, seed: int) -> dict[str, npt.NDArray[Any]]:
    """Test metrics of each user of one run, with the `users` and the fingerprint of the `split`."""
    with np.load(measured_path(out, f"{directory}/seed-{seed}", ".npz"), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
