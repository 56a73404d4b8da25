"""What every model is: parameters from data, a loss for a batch, and a served form that scores.

A model costs one file: a config class, a `Model` subclass, one line in `coheat.models.MODELS`, one
preset. Training, evaluation, artifacts, the command line and the contract tests pick it up from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from coheat.config import Settings
from coheat.data.dataset import BundleData, Indices
from coheat.data.sampling import triples
from coheat.graph import overlap as overlap  # puts the compiled sums of overlaps in place
from coheat.graph.adam import Adam
from coheat.graph.parallel import one_torch_thread
from coheat.rng import Randomness
from coheat.served import Block, Csr, Relations, Served

FloatArray = npt.NDArray[np.float32]

HANDED_ON = "handed_on."
"""How the names of tensors begin that an artifact keeps beside a model's state (`Model.handed_on`)."""


class ModelConfig(Settings):
    """Settings that every trained model has; a model adds its own."""

    embedding_size: int = Field(64, ge=1, description="width d of the learned vectors")
    learning_rate: float = Field(1e-3, gt=0, description="Adam's step size")
    weight_decay: float = Field(0.0, ge=0, description="L2 weight, applied by Adam to all parameters")


class PretrainedConfig(ModelConfig):
    """Settings of models that start from the vectors of a backbone, which is trained first (`backbone`)."""

    backbone_epochs: int = Field(100, ge=1, description="epochs of the backbone, all of them")
    backbone_batch_size: int = Field(2048, ge=1, description="interactions per step of the backbone")
    backbone_learning_rate: float = Field(1e-3, gt=0, description="Adam's step size for the backbone")
    backbone_weight_decay: float = Field(1e-2, ge=0, description="L2 weight of the backbone")


@dataclass(frozen=True)
class Progress:
    """Where training stands: `epoch` counts from 1 to `epochs`."""

    epoch: int
    epochs: int

    @property
    def fraction(self) -> float:
        return self.epoch / self.epochs


class Validation(Protocol):
    """What a model may ask validation for a last choice."""

    @property
    def possible(self) -> bool:
        """Whether there is anything to validate on."""
        ...

    def turned(
        self, served: Served, knob: str, values: Sequence[float]
    ) -> tuple[list[dict[str, float]], npt.NDArray[np.float64]]:
        """Recall, nDCG and, where it can be told, which share of all that people took is found and not young
        (`recall@k`, `ndcg@k`, `established`), with a knob at each of these values; and what each bundle adds
        to recall and nDCG then (n_values, n_bundles)."""
        ...


class Model(nn.Module):
    """Base of all models: set `Config`, build parameters in `__init__`, write `loss` and `served`."""

    Config: ClassVar[type[Settings]] = ModelConfig
    config: Settings
    """The settings of this one; a model names its own class here too, so that its fields are checked."""
    places_cold_bundles: ClassVar[bool] = False
    """Whether a bundle without training interactions gets a meaningful score."""
    backbone: ClassVar[str | None] = None
    """The model of `MODELS` whose vectors this one starts from; its Config derives from `PretrainedConfig`.

    `fit` trains it once, before the first epoch, and puts its vectors into the buffers `pretrained_users` and
    `pretrained_bundles`, which checkpoints and artifacts carry along.
    """
    pretrained_users: Tensor
    """(n_users, d); zero for a user without training interactions, and for all until `fit` fills it."""
    pretrained_bundles: Tensor
    """(n_bundles, d); zero for a cold bundle."""
    decay_in_loss: bool = False
    """Whether the loss has an L2 part with `weight_decay`; if not, Adam applies it to all parameters."""
    dropout_rng: np.random.Generator
    """Where an epoch's dropout is drawn from; each epoch has its own."""
    shares_rows: ClassVar[bool] = False
    """Whether several processes can train it together: all its parameters are tables whose gradients `Adam`
    adds up row by row (`deferred_gradients`)."""
    is_served: bool = True
    """Whether this process serves what it trains; if not, what only `served` needs may be left out."""
    learns: ClassVar[bool] = True
    """Whether it has parameters to learn; popularity and counting have none."""
    row_tables: ClassVar[Mapping[str, str]] = {"users": "user", "bundles": "bundle", "items": "item"}
    """Parameters with a row for each user, bundle or item, by the last part of their name; a warm start
    (`coheat.warm_start`) takes these over id by id, and all others as they are."""
    learned_buffers: ClassVar[tuple[str, ...]] = ()
    """Buffers that hold something learned, of the same shape for all data: a warm start takes them over."""
    warm_part: ClassVar[float] = 1.0
    """How much of its vectors a warm start takes from the other model; the rest is as it was drawn."""
    is_warm: bool = False
    """Whether it started from what another model had learned."""
    contract_settings: ClassVar[Mapping[str, Any]] = {}
    """Settings with which this model learns a small planted world (see `coheat.contract`)."""
    contract_exceptions: ClassVar[Mapping[str, str]] = {}
    """Checks of `coheat.contract` that this model cannot pass by its nature, each with the reason."""

    def __init__(self, data: BundleData, config: Settings, rng: Randomness):
        super().__init__()
        self.data = data
        self.config = config
        self.rng = rng
        self.progress, self.dropout_rng = Progress(0, 1), rng.generator("dropout", 0)
        if self.backbone is not None:
            self._make_room_for_backbone()

    def _make_room_for_backbone(self) -> None:
        assert isinstance(self.config, PretrainedConfig), "a model with a backbone has its settings"
        for name, n_rows in (("users", self.data.n_users), ("bundles", self.data.n_bundles)):
            self.register_buffer(f"pretrained_{name}", torch.zeros(n_rows, self.config.embedding_size))

    @property
    def awaits_backbone(self) -> bool:
        """Whether this model needs pretrained vectors and has none yet."""
        return self.backbone is not None and not bool(self.pretrained_users.any())

    def begin_epoch(self, progress: Progress) -> None:
        """Called before each epoch's batches; schedules and per-epoch draws go here."""
        self.progress = progress
        self.dropout_rng = self.rng.generator("dropout", progress.epoch)

    def batches(self, batch_size: int) -> Iterable[Any]:
        """This epoch's batches: every training interaction once, shuffled, with one negative each.

        A model may yield batches of a kind of its own; `loss` and `step` get what this yields.
        """
        rng = self.rng.generator("batches", self.progress.epoch)
        return triples(self.data.user_bundle, batch_size, rng)

    def n_batches(self, batch_size: int) -> int:
        """How many batches `batches` yields, for the progress bar."""
        return max(int(self.data.user_bundle.nnz) // batch_size, 1)

    def loss(self, batch: Any) -> dict[str, Tensor]:
        """Named terms, already weighted; their sum is minimised."""
        raise NotImplementedError

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Adam over all parameters unless a model needs otherwise; an untrained model has none."""
        parameters = [p for p in self.parameters() if p.requires_grad]
        if not parameters:
            return []
        assert isinstance(self.config, ModelConfig), "a model that learns has a learning rate"
        decay = 0.0 if self.decay_in_loss else self.config.weight_decay
        return [Adam(parameters, lr=self.config.learning_rate, weight_decay=decay)]

    def step(self, batch: Any, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
        """One optimisation step; models with alternating optimisers override it."""
        (optimizer,) = optimizers
        optimizer.zero_grad(set_to_none=True)
        terms = self.loss(batch)
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return {name: term.detach() for name, term in terms.items()}

    def facts(self) -> dict[str, float]:
        """What the history should remember of this epoch besides the losses, e.g. a schedule's value."""
        return {}

    def rehearsal(self) -> tuple[Model, int] | None:
        """A model on a part of the training data, and its epochs: `fit` trains it after the last epoch, and
        `learn_from` takes from it what only held-out interactions can tell. By default there is none."""
        return None

    def learn_from(self, rehearsal: Model) -> None:
        """Called with the trained `rehearsal`; what is learned must be part of the state."""

    def handed_on(self) -> dict[str, Tensor]:
        """What a later training can start from beside the state, under names that begin with `HANDED_ON`; by
        default nothing."""
        return {}

    def take_over(self, learned: Mapping[str, Tensor], rows: Mapping[str, Indices]) -> None:
        """Called by a warm start with all that an artifact keeps and, for users, bundles and items, with the
        row there of each row here (-1: none). The parameters and `learned_buffers` are filled already."""

    def finish(self, validate: Validation) -> dict[str, float] | None:  # noqa: ARG002
        """Called once when training is over, with the best epoch's state: a last choice by validation.

        Whatever is chosen must be part of the state. Returns the metrics after a choice; by default there is
        none.
        """
        return None

    def served(self) -> Served:
        """What the model is outside of training, with full graphs and no dropout, as of the current epoch."""
        raise NotImplementedError

    @cached_property
    def relations(self) -> Relations:
        """The training relations as the served form has them."""
        data = self.data
        return Relations(*(Csr(m.indptr, m.indices, m.shape[1])
                           for m in (data.user_bundle, data.user_item, data.bundle_item)))  # fmt: skip

    def one_block(self, users: Tensor, bundles: Tensor) -> Served:
        """The served form of a model whose score is one inner product."""
        vectors = numpy(users), numpy(bundles)
        block = Block("score", "history", vectors[0].shape[1])
        return Served.create(self.relations, [(block, *vectors)])


def take_rows(target: Tensor, learned: Tensor, rows: Indices, part: float = 1.0) -> None:
    """Move the rows of a table so much of the way to those of another one; -1 leaves a row as it is."""
    known = np.flatnonzero(rows >= 0)
    with torch.no_grad(), one_torch_thread():
        if np.array_equal(rows[: len(known)], np.arange(len(known))):  # all stand where they stood
            target[: len(known)].lerp_(learned[: len(known)].to(target.device), part)
        else:
            at = torch.from_numpy(known).to(target.device)
            target[at] = target[at].lerp(learned[rows[known]].to(target.device), part)


def numpy(tensor: Tensor) -> FloatArray:
    """A tensor's values on the CPU."""
    values: FloatArray = tensor.detach().cpu().numpy()
    return values
