"""What every model is: parameters from data, a loss for a batch, vectors whose inner product is the score.

A model costs one file: a config class, a `Model` subclass, one line in `coheat.models.MODELS`, one
preset. Training, evaluation, artifacts, the command line and the contract tests pick it up from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from coheat.config import Settings
from coheat.data.dataset import BundleData, Indices, Sparse
from coheat.data.sampling import triples
from coheat.errors import ConfigError
from coheat.graph.adam import Adam
from coheat.graph.overlap import overlaps
from coheat.rng import Randomness

FloatArray = npt.NDArray[np.float32]


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


@dataclass(frozen=True)
class Overlap:
    """A second part of a score beside the inner product: what the user's items share with the bundle's.

    overlap(u, b) = sum of profiles[u, i] over the items i of b (see `coheat.graph.overlap`), and
    score(u, b)   = users[u] . bundles[b] + weight * log(1 + overlap / scale)              with history,
                    users[u] . bundles[b] + new_weight * log(1 + overlap / scale) + new_offset    without.
    """

    profiles: Sparse
    item_weights: FloatArray
    """What one item is worth (n_items,): own_item_weight times this where the user has the item, this divided
    by the square root of the bundle's size where a bundle of the user holds it. For users to come."""
    own_item_weight: float
    scale: float
    weight: float
    new_weight: float
    new_offset: float
    bundle_item: Sparse
    is_new: npt.NDArray[np.bool_]
    offsets: Mapping[float, float] = field(default_factory=dict)
    """What `new_offset` would be for other values of the model's knob, so that serving can turn it."""

    def with_offsets(self, offsets: Mapping[float, float], welcome: float) -> Overlap:
        """With the offset of `welcome`, and those of the knob's other values."""
        return replace(self, new_offset=offsets[welcome], offsets=offsets)

    @cached_property
    def item_bundle(self) -> Sparse:
        return self.bundle_item.T.tocsr()

    def scores(self, users: Indices) -> FloatArray:
        """This part of the scores (len(users), n_bundles)."""
        found = overlaps(self.profiles, users, self.item_bundle)
        found /= np.float32(self.scale)
        np.log1p(found, out=found)
        found *= np.where(self.is_new, self.new_weight, self.weight).astype(np.float32)
        found += np.where(self.is_new, self.new_offset, 0.0).astype(np.float32)
        return found


@dataclass(frozen=True)
class Vectors:
    """What a trained model is outside of training: score(u, b) = users[u] . bundles[b], plus any overlap.

    Where `items` is given, a bundle never seen in training has the vector
    sum of its items' rows / size ** size_exponent, so it can be served from its items alone.
    """

    users: Tensor
    bundles: Tensor
    items: Tensor | None = None
    size_exponent: float = 1.0
    overlap: Overlap | None = None

    def new_bundles(self, bundle_item: Sparse) -> Tensor:
        """Vectors (n, d) of bundles known only by their items (n, n_items)."""
        if self.items is None:
            raise ConfigError("this model has no vectors for bundles it was not trained on")
        sizes = np.maximum(np.diff(bundle_item.indptr), 1).astype(np.float32) ** self.size_exponent
        pooled = bundle_item @ self.items.detach().cpu().numpy()
        return torch.from_numpy((pooled / sizes[:, None]).astype(np.float32))


@dataclass(frozen=True)
class TwoViews:
    """What serving needs besides `Vectors` of a model whose score is a weighted sum of two views.

    Half of a vector is the history view h, half the affiliation view a (each d wide):
    users = [h_u ; a_u] and bundles = [g_b h_b ; (1 - g_b) a_b], with g_b = tanh(popularity / temperature),
    or g_b = 0.5 for every bundle where `temperature` is None. With the unweighted bundles and the layers
    0 .. K-1 of the graph convolutions, a recommender can weigh anew, and propagate to newcomers.
    """

    bundles: Tensor
    """[h_b ; a_b] before weighing (n_bundles, 2d)."""
    temperature: float | None
    user_layers: Tensor
    """Layers of the users in the history graph (K, n_users, d)."""
    bundle_layers: Tensor
    """Layers of the bundles in the history graph (K, n_bundles, d)."""
    item_layers: Tensor
    """Layers of the items in the affiliation graph (K, n_items, d)."""
    normalise_layers: bool


class Scorer(Protocol):
    """Scores of all bundles for some users; what evaluation ranks."""

    def scores(self, users: Indices) -> FloatArray:
        """A fresh float32 array (len(users), n_bundles); the caller may overwrite it."""
        ...


class VectorScorer:
    """Scores as inner products of two fixed matrices, plus the overlap where there is one."""

    def __init__(self, vectors: Vectors):
        self.users = vectors.users.detach().cpu().contiguous()
        self.bundles_transposed = vectors.bundles.detach().cpu().t().contiguous()
        self.overlap = vectors.overlap

    def scores(self, users: Indices) -> FloatArray:
        product: FloatArray = (self.users[torch.from_numpy(users)] @ self.bundles_transposed).numpy()
        if self.overlap is not None:
            product += self.overlap.scores(users)
        return product


class Model(nn.Module):
    """Base of all models: set `Config`, build parameters in `__init__`, write `loss` and `vectors`."""

    Config: ClassVar[type[Settings]] = ModelConfig
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
    contract_settings: ClassVar[Mapping[str, Any]] = {}
    """Settings with which this model learns a small planted world (see `coheat.contract`)."""
    contract_exceptions: ClassVar[Mapping[str, str]] = {}
    """Checks of `coheat.contract` that this model cannot pass by its nature, each with the reason."""

    def __init__(self, data: BundleData, config: Settings, rng: Randomness):
        super().__init__()
        self.data = data
        self.config: Any = config
        self.rng = rng
        self.progress, self.dropout_rng = Progress(0, 1), rng.generator("dropout", 0)
        if self.backbone is not None:
            self._make_room_for_backbone()

    def _make_room_for_backbone(self) -> None:
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

    def finish(self, validate: Callable[[], dict[str, float]]) -> dict[str, float] | None:  # noqa: ARG002
        """Called once when training is over, with the best epoch's state: a last choice by validation.

        `validate` measures the model as it then is ({} where there is nothing to validate on). Whatever is
        chosen must be part of the state. Returns the metrics after a choice; by default there is none.
        """
        return None

    def vectors(self) -> Vectors:
        """The vectors that score with full graphs and no dropout, as of the current epoch."""
        raise NotImplementedError

    def two_views(self) -> TwoViews | None:
        """For serving: how the vectors come about, where the model has a history and an affiliation view."""
        return None

    def scorer(self) -> Scorer:
        """Scores for evaluation; models without an inner-product form override it."""
        with torch.no_grad():
            return VectorScorer(self.vectors())
