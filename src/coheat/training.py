"""fit(): the only training loop in the project.

    for every epoch:  the model's own schedule, its batches, its steps
                      every few epochs a validation; the best state is kept
                      one line of history, now and then a checkpoint

The model owns its loss and its step; the loop owns everything around them. A model that learns nothing
from batches (popularity, counting) simply has none and goes through the same loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from coheat import backbone
from coheat.checkpoint import (
    Checkpoints,
    State,
    model_state,
    optimizer_state,
    own_state,
    restore_model,
    restore_optimizers,
    set_aside,
)
from coheat.config import Settings
from coheat.data.dataset import relation
from coheat.data.split import Split
from coheat.errors import ConfigError, Interrupted, TrainingError
from coheat.evaluation import evaluate, evaluate_shifted
from coheat.graph.allocation import keep_freed_memory
from coheat.graph.parallel import one_blas_thread, one_torch_thread
from coheat.graph.ranks import ALONE, Ranks, shared_by
from coheat.memory import MemoryEstimate, check_memory
from coheat.models.base import Model, Progress
from coheat.served import Served

Optimizers = list[torch.optim.Optimizer]
Record = dict[str, Any]


class TrainingSettings(Settings):
    """How long to train and how to choose the best epoch; the same for every model."""

    epochs: int = Field(100, ge=1, description="passes over the training interactions")
    batch_size: int = Field(2048, ge=1, description="interactions per step")
    evaluate_every: int = Field(
        5, ge=1, description="epochs between validations; the last is always validated"
    )
    patience: int | None = Field(
        None, ge=1, description="validations without improvement before stopping; none: train all epochs"
    )
    k: int = Field(20, ge=1, description="length of the validated lists")
    selection: Literal["both", "recall", "ndcg", "last"] = Field(
        "both",
        description="what must improve for an epoch to be the best: both, as published, or one; or the last",
    )
    checkpoint_every: int = Field(5, ge=1, description="epochs between checkpoints on the disk")
    warm_share: float = Field(
        0.0625, gt=0, le=1, description="share of the epochs that a start from a trained run still needs"
    )
    skipped: int = Field(
        0, ge=0, description="epochs that count as done, because training starts from a trained run"
    )


@dataclass(frozen=True)
class Standing:
    """Where a run stands at the end of an epoch."""

    epoch: int = 0
    best_epoch: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    validations_waited: int = 0
    seconds: float = 0.0

    def judge(self, metrics: dict[str, float], settings: TrainingSettings) -> Standing:
        """The standing after this epoch's validation: a new best, or one more validation without one.

        Without validation interactions there is nothing to choose by, and the latest epoch is the best.
        """
        if settings.selection == "last":
            return replace(self, best_epoch=self.epoch, best_metrics=metrics, validations_waited=0)
        names = ["recall", "ndcg"] if settings.selection == "both" else [settings.selection]
        watched = [f"{name}@{settings.k}" for name in names]
        if not self.best_epoch or all(metrics[n] > self.best_metrics[n] for n in watched if n in metrics):
            return replace(self, best_epoch=self.epoch, best_metrics=metrics, validations_waited=0)
        return replace(self, validations_waited=self.validations_waited + 1)

    def finished(self, settings: TrainingSettings) -> str | None:
        """Why training is over, or None while it is not."""
        if self.epoch >= settings.epochs:
            return "all epochs done"
        if settings.patience is not None and self.validations_waited >= settings.patience:
            return f"no improvement in {self.validations_waited} validations"
        return None


@dataclass(frozen=True)
class FitResult:
    """What training gave; the model itself holds the best epoch's state."""

    best_epoch: int
    best_metrics: dict[str, float]
    history: list[Record]
    seconds: float
    reason: str


class TrainingInterrupted(Interrupted, TrainingError):
    """Ctrl-C: `epoch` is the last one that was saved, 0 if none was; `command` goes on from there."""

    def __init__(self, epoch: int, command: str | None = None):
        saved = f"everything up to epoch {epoch} is saved" if epoch else "no epoch was finished yet"
        super().__init__(f"interrupted; {saved}" + (f". Go on with:\n{command}" if command else ""))
        self.epoch = epoch


class LossNotFinite(TrainingError):
    """A loss became infinite or not a number; `result` is what was best until then, if anything was."""

    def __init__(self, message: str, result: FitResult | None):
        super().__init__(message)
        self.result = result


class Watcher:
    """Follows a training run; this one says nothing. `coheat.progress` draws a bar."""

    def begin(
        self, model: Model, standing: Standing, settings: TrainingSettings, memory: MemoryEstimate
    ) -> None:
        """Training starts, or goes on after `standing.epoch`; `memory` is what it will need."""

    def backbone(self, model: Model) -> Watcher:  # noqa: ARG002
        """The backbone of `model` is trained before it; who follows that training?"""
        return Watcher()

    def rehearsal(self, model: Model) -> Watcher:  # noqa: ARG002
        """The rehearsal of `model` is trained after it; who follows that training?"""
        return Watcher()

    def batch(self) -> None:
        """One more batch of the current epoch is done."""

    def epoch(self, record: Record, standing: Standing) -> None:
        """An epoch is done; `record` is its line of history."""

    def end(self) -> None:
        """Training is over, one way or another."""


def choose_device(name: str) -> torch.device:
    """`cpu`, `cuda`, or `auto`: the GPU where there is one. An absent device is a ConfigError."""
    if name not in ("cpu", "cuda", "auto"):
        raise ConfigError(f"device {name!r} is unknown; choose cpu, cuda or auto")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device 'cuda' is not available: torch finds no GPU here; use --device cpu or auto")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def fit(
    model: Model,
    split: Split,
    settings: TrainingSettings,
    directory: Path | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    ranks: Ranks = ALONE,
) -> FitResult:
    """Train `model`; afterwards it holds the state, parameters and buffers, of its best epoch.

    With a `directory`, the history and checkpoints are written there, and `resume` goes on from the last
    checkpoint with exactly the numbers of an uninterrupted run. A model with a backbone gets its pretrained
    vectors first, if it has none yet. Without a `watcher`, a progress bar is shown in a terminal or a
    notebook; `watcher=Watcher()` is silent. Several `ranks`, each a process that makes the same call, train
    together, and the leading one has the model afterwards.
    """
    if watcher is None:
        from coheat.progress import ProgressBar

        watcher = ProgressBar()
    keep_freed_memory()
    memory = check_memory(model, split, settings.batch_size, ranks.size)
    run = _Run(model, split, settings, directory, watcher, ranks)
    if resume:
        run.resume()
    elif run.checkpoints and ranks.leads:
        run.checkpoints.clear()
    try:
        pretrain(model, backbone.cache_directory(), run.watcher)
    except KeyboardInterrupt:
        if directory is None:
            raise
        raise TrainingInterrupted(0) from None
    run.watcher.begin(model, run.standing, settings, memory)
    return run.train()


def pretrain(model: Model, cache: Path | None, watcher: Watcher | None = None) -> None:
    """Give a model the vectors of its backbone: from the cache, or trained now by the same `fit`.

    Nothing happens to a model without a backbone, nor to one that has its vectors already.
    """
    if not model.awaits_backbone:
        return
    recipe = backbone.Recipe.of(model)
    found = backbone.read(cache, recipe)
    if found is None:
        trained, split = backbone.untrained(model)
        epochs = recipe.epochs
        settings = TrainingSettings(epochs=epochs, batch_size=recipe.batch_size, evaluate_every=epochs)
        fit(trained, split, settings, watcher=(watcher or Watcher()).backbone(model))
        found = backbone.tables(trained)
        backbone.keep(cache, recipe, found)
    with torch.no_grad():
        model.pretrained_users.copy_(found["users"])
        model.pretrained_bundles.copy_(found["bundles"])


def shortened(settings: TrainingSettings) -> TrainingSettings:
    """What is left to train after a warm start: the last `warm_share` of the epochs."""
    epochs = max(1, round(settings.warm_share * settings.epochs))
    return settings.model_copy(update={"epochs": epochs, "skipped": settings.epochs - epochs})


def rehearse(model: Model, settings: TrainingSettings, watcher: Watcher, ranks: Ranks) -> bool:
    """Train the rehearsal of a model, where it has one, and let the model learn from it; whether it did.

    One that starts from an earlier rehearsal is shortened as the model's own training is.
    """
    found = model.rehearsal()
    if found is None:
        return False
    inner, epochs = found
    nothing = relation([], [], inner.data.user_bundle.shape)
    kept = {"batch_size": settings.batch_size, "warm_share": settings.warm_share}
    own = TrainingSettings(epochs=epochs, evaluate_every=epochs, **kept)
    split = Split(inner.data, nothing, nothing.copy())
    fit(inner, split, shortened(own) if inner.is_warm else own, watcher=watcher.rehearsal(model), ranks=ranks)
    if ranks.leads:
        with one_torch_thread(), one_blas_thread():
            model.learn_from(inner.eval())
    return True


class _Run:
    """The loop and the little it must remember from epoch to epoch."""

    def __init__(
        self,
        model: Model,
        split: Split,
        settings: TrainingSettings,
        directory: Path | None,
        watcher: Watcher,
        ranks: Ranks = ALONE,
    ):
        self.model, self.split, self.settings, self.watcher = model, split, settings, watcher
        self.ranks = ranks
        model.is_served = ranks.leads
        self.optimizers = model.optimizers()
        self.directory = directory
        self.checkpoints = Checkpoints(directory) if directory else None
        self.standing = Standing()
        self.history: list[Record] = []
        self.best_state: State = {}
        self.last: _Snapshot | None = None
        self.saved = 0
        self.outermost = True

    def train(self) -> FitResult:
        self.outermost, self.ranks.cooperates = not self.ranks.cooperates, True
        try:
            while not (reason := self.standing.finished(self.settings)):
                self.one_epoch()
                self.remember()
            self.optimizers.clear()  # their moments are twice the model, and no longer needed
            self.finish()
        except BaseException as error:
            if self.best_state and (self.ranks.size == 1 or isinstance(error, LossNotFinite)):
                restore_model(self.model, self.best_state, self.ranks)
            if isinstance(error, KeyboardInterrupt) and self.checkpoints is not None:
                raise TrainingInterrupted(self.save()) from None
            raise
        finally:
            self.watcher.end()
            self.ranks.cooperates = not self.outermost
        return self.result(reason)

    def finish(self) -> None:
        """The model's last choice, made with its best epoch's state; it becomes part of that state."""
        if self.best_state and (self.standing.best_epoch < self.standing.epoch or self.ranks.size > 1):
            restore_model(self.model, self.best_state, self.ranks)
        self.model.eval()
        started = time.perf_counter()
        rehearsed = rehearse(self.model, self.settings, self.watcher, self.ranks)
        if not self.ranks.leads:
            return
        if self.outermost:
            self.ranks.go_alone()
        metrics = self.model.finish(self)
        if rehearsed or metrics is not None:
            metrics = self.validate() if metrics is None else metrics
            seconds = self.standing.seconds + time.perf_counter() - started
            self.standing = replace(self.standing, best_metrics=metrics, seconds=seconds)
        self.best_state = {}  # the model has it, and more

    @property
    def possible(self) -> bool:
        """Whether there is anything to validate on."""
        return bool(self.split.validation.nnz)

    def turned(
        self, served: Served, knob: str, values: Sequence[float]
    ) -> tuple[list[dict[str, float]], npt.NDArray[np.float64]]:
        """See `coheat.models.base.Validation`."""
        k, bundles, stands = self.settings.k, served.bundles, served.knobs[knob]
        knobs = [stands.turned(knob, value) for value in values]
        added = np.stack([one.curve.at(bundles.taken, bundles.youth) for one in (stands, *knobs)])
        rations = [replace(served, knobs={knob: one}).ration(bundles) for one in knobs]
        shifts, split = added[1:] - added[0], self.split
        offered = split.candidates("validation")
        return evaluate_shifted(
            served, split.train, split.validation, k, shifts, rations, ~bundles.is_young, offered
        )

    def one_epoch(self) -> None:
        started = time.perf_counter()
        epoch = self.standing.epoch + 1
        skipped = self.settings.skipped
        terms = self.train_epoch(Progress(skipped + epoch, skipped + self.settings.epochs))
        record: Record = {"epoch": epoch, "seconds": 0.0, "terms": terms, "facts": self.model.facts()}
        standing = replace(self.standing, epoch=epoch)
        if epoch % self.settings.evaluate_every == 0 or epoch == self.settings.epochs:
            record["validation"] = self.ranks.agree(self.validate)
            standing = standing.judge(record["validation"], self.settings)
            if standing.best_epoch == epoch:
                # In the last epoch the model itself has it.
                needed = self.directory is not None or epoch < self.settings.epochs
                self.best_state = model_state(self.model, self.directory, self.ranks) if needed else {}
        record["seconds"] = time.perf_counter() - started
        self.standing = replace(standing, seconds=standing.seconds + record["seconds"])
        self.history.append(record)
        self.watcher.epoch(record, self.standing)

    def train_epoch(self, progress: Progress) -> dict[str, float]:
        """All batches of one epoch; returns each loss term's mean, and refuses one that is not finite."""
        found: dict[str, list[Tensor]] = {}
        self.model.train()
        self.model.begin_epoch(progress)
        for batch in self.model.batches(self.settings.batch_size):
            with shared_by(self.ranks):
                terms = self.model.step(batch, self.optimizers)
            for name, term in terms.items():
                found.setdefault(name, []).append(term)  # read at the end: reading now would wait for a GPU
            self.ranks.check_stop()
            self.watcher.batch()
        numbers = self.ranks.agree(
            lambda: {name: torch.stack(values).double().tolist() for name, values in found.items()}
        )
        by_batch = {name: torch.tensor(values, dtype=torch.float64) for name, values in numbers.items()}
        if not all(values.isfinite().all() for values in by_batch.values()):
            raise self.not_finite(by_batch, progress.epoch)
        return {name: float(values.mean()) for name, values in by_batch.items()}

    def validate(self) -> dict[str, float]:
        self.model.eval()
        if not self.split.validation.nnz:
            return {}
        k, split = self.settings.k, self.split
        offered = split.candidates("validation")
        metrics = evaluate(
            self.model.served(), split.train, split.validation, (k,), "offered", offered
        ).metrics
        return {name: float(metrics[name]) for name in (f"recall@{k}", f"ndcg@{k}")}

    def remember(self) -> None:
        """Write the epoch's line of history, copy the state, and save it when it is time to."""
        if self.checkpoints is None:
            return
        if self.ranks.leads:
            self.checkpoints.append(self.history[-1])
        self.last = None  # its files, before there are others
        is_best = self.best_state and self.standing.best_epoch == self.standing.epoch
        state = self.best_state if is_best else model_state(self.model, self.directory, self.ranks)
        optimizers = optimizer_state(self.optimizers, self.directory, self.ranks)
        self.last = _Snapshot(self.standing, state, self.best_state, *optimizers)
        if self.standing.epoch % self.settings.checkpoint_every == 0 or self.standing.finished(self.settings):
            self.save()

    def save(self) -> int:
        """Save the last finished epoch, which in the middle of an epoch is not the model's present state.

        Returns the epoch that is on the disk then, 0 for none.
        """
        assert self.checkpoints is not None
        if self.last is not None and self.last.standing.epoch != self.saved:
            last, standing = self.last, self.last.standing
            self.checkpoints.save(
                {"model": last.model, "optimizers": last.optimizers, "best": last.best},
                {"standing": vars(standing), "optimizers": last.optimizer_rest},
                {"model": standing.epoch, "optimizers": standing.epoch, "best": standing.best_epoch},
                self.ranks,
            )
            self.saved = standing.epoch
        return self.saved

    def resume(self) -> None:
        if self.checkpoints is None:
            raise ConfigError("to resume, fit needs the directory of the run")
        standing = Standing()
        if self.checkpoints.exists:
            parts, document = self.checkpoints.load()
            standing = Standing(**document["standing"])
            self.model.load_state_dict(parts["model"])
            restore_optimizers(self.optimizers, parts["optimizers"], document["optimizers"], self.ranks)
            self.best_state = set_aside(own_state(self.model, parts["best"], self.ranks), self.directory)
        if len(set(self.ranks.collect(standing.epoch))) > 1:
            raise TrainingError(
                f"{self.checkpoints.directory}: not all ranks find the same checkpoint there; it has to be "
                "one directory that all machines share"
            )
        if self.ranks.leads:
            self.history = self.checkpoints.cut_history(standing.epoch)
        self.standing, self.saved = standing, standing.epoch

    def not_finite(self, terms: dict[str, Tensor], epoch: int) -> LossNotFinite:
        """Which term it was: the one that went wrong in the earliest batch, before it spoilt the others."""
        first = {name: int(values.isfinite().long().argmin()) for name, values in terms.items()}
        batch = min(first[name] for name, values in terms.items() if not values[first[name]].isfinite())
        bad = [name for name, values in terms.items() if not values[batch].isfinite()]
        rates = ", ".join(f"{group['lr']:g}" for o in self.optimizers for group in o.param_groups)
        best = self.standing.best_epoch
        kept = (
            f"The state of epoch {best}, the best so far, is kept" if best else "No epoch was validated yet"
        )
        return LossNotFinite(
            f"the loss is not finite in epoch {epoch}, batch {batch + 1}: "
            f"{', '.join(f'{name} = {float(terms[name][batch])}' for name in bad)} (learning rate {rates}). "
            f"{kept}. Try a smaller learning rate (--set learning_rate=...) "
            "or a larger batch (--set batch_size=...)",
            self.result("the loss was not finite") if best else None,
        )

    def result(self, reason: str) -> FitResult:
        at = self.standing
        return FitResult(at.best_epoch, at.best_metrics, self.history, at.seconds, reason)


@dataclass(frozen=True)
class _Snapshot:
    """Everything a checkpoint holds, all of the same epoch's end, set aside."""

    standing: Standing
    model: State
    best: State
    optimizers: State
    optimizer_rest: list[dict[str, Any]]
