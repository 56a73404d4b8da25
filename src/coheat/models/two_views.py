"""What models with a history view and an affiliation view share: tables, graphs, dropout, batches, serving.

The *history view* h is a light graph convolution over who took which bundle. The *affiliation view* a is one
over who has which item; there a bundle is the mean of its items. In training some edges are dropped, and a
batch computes just the rows it needs. How the views make a score and a loss is up to the model:

    y_ub = g_b <h_u, h_b> + (1 - g_b) <a_u, a_b>

with g_b = tanh(n_b / temperature), n_b the training interactions of b, or one half for every bundle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from coheat.data.dataset import BundleData, Indices
from coheat.data.sampling import Triples, triples
from coheat.graph import kernels
from coheat.graph.adam import Adam
from coheat.graph.bipartite import (
    BipartiteGraph,
    Direction,
    Mask,
    Selection,
    layers,
    light_gcn,
)
from coheat.graph.parallel import one_torch_thread
from coheat.graph.propagation import Propagation, multiply
from coheat.losses import dot_rows
from coheat.models.base import FloatArray, ModelConfig, Progress, numpy
from coheat.models.layers import tables
from coheat.models.preparing import PreparingModel, for_gradients
from coheat.models.spectral import spectral
from coheat.rng import Randomness
from coheat.served import Block, Curve, Layers, Served


class TwoViewConfig(ModelConfig):
    """Settings of all models with two views; where text and published figures differ, as in the figures."""

    weight_decay: float = Field(1e-4, ge=0, description="L2 weight (lambda_2)")
    n_layers: int = Field(1, ge=1, description="layers K of both graph convolutions")
    contrast_weight: float = Field(0.1, ge=0, description="weight of the contrast between the views")
    user_item_dropout: float = Field(0.5, ge=0, lt=1, description="share of user-item edges dropped")
    user_bundle_dropout: float = Field(0.5, ge=0, lt=1, description="share of user-bundle edges dropped")
    bundle_item_dropout: float = Field(
        0.5, ge=0, lt=1, description="share of affiliations dropped in pooling"
    )
    normalise_layers: bool = Field(
        True, description="scale each propagated layer to length 1; the text sums layer k / (k + 1)"
    )
    dropout_redraw: Literal["batch", "epoch"] = Field(
        "batch", description="draw the dropped edges anew for each batch; the text does not say"
    )
    dropout_directions: Literal["separate", "shared"] = Field(
        "separate", description="drop each direction of an edge on its own; the text speaks of edges"
    )
    dropout_degrees: Literal["after", "before"] = Field(
        "after", description="normalise by the degrees after dropping, or by those of the whole graph"
    )
    negatives: Literal["all", "warm"] = Field(
        "all", description="draw negatives from all bundles, or from those with training interactions"
    )
    optimiser: Literal["adam", "lazy-adam"] = Field(
        "adam", description="update all rows in each batch, or leave those alone that it does not reach"
    )
    drop_last_batch: bool = Field(True, description="leave the last, incomplete batch of an epoch out")
    first_vectors: Literal["random", "spectral"] = Field(
        "random",
        description="draw the first vectors at random, or have a few products with the graphs give them",
    )


Views = tuple[Tensor, Tensor]
"""One view of some users and some bundles."""


@dataclass(frozen=True)
class Masks:
    """Which edges stay in one batch. Each graph's directions are named by the side that receives."""

    history_users: Mask
    history_bundles: Mask
    affiliation_users: Mask
    affiliation_items: Mask
    pooling: Mask


@dataclass(frozen=True)
class Rows:
    """The distinct users and bundles of a batch, and where each of its entries stands among them.

    Bundles that are positives come first; `positive_counts` says how often each of them is one.
    """

    users: Indices
    user_counts: Tensor
    user_at: Tensor
    bundles: Indices
    positive_counts: Tensor
    positive_at: Tensor
    negative_at: Tensor

    @staticmethod
    def of(batch: Triples, data: BundleData, device: torch.device) -> Rows:
        users, user_at, user_counts = kernels.distinct(batch.users, data.n_users)
        positives, positive_at, positive_counts = kernels.distinct(batch.positives, data.n_bundles)
        negatives, _, _ = kernels.distinct(batch.negatives, data.n_bundles)
        # A negative that is also a positive of the batch has its row there, the others follow behind.
        place = np.full(data.n_bundles, -1)
        place[positives] = np.arange(len(positives))
        only_negatives = negatives[place[negatives] < 0]
        place[only_negatives] = len(positives) + np.arange(len(only_negatives))

        def tensor(array: Indices, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.from_numpy(array).to(device, dtype)

        return Rows(
            users,
            tensor(user_counts, torch.float32),
            tensor(user_at),
            np.concatenate([positives, only_negatives]),
            tensor(positive_counts, torch.float32),
            tensor(positive_at),
            tensor(place[batch.negatives]),
        )

    def scores(self, users: Tensor, bundles: Tensor) -> tuple[Tensor, Tensor]:
        """Inner products of every entry's user with its positive and with its negative, each (n,).

        `users` (m, d) and `bundles` (l, d) are vectors of the distinct rows, in their order.
        """
        user_at = torch.cat([self.user_at, self.user_at])
        bundle_at = torch.cat([self.positive_at, self.negative_at])
        positive, negative = dot_rows(users, bundles, user_at, bundle_at).chunk(2)
        return positive, negative

    def weighed_scores(self, history: Views, affiliation: Views, weights: Tensor) -> tuple[Tensor, Tensor]:
        """`scores` of two views (users, bundles), by each bundle's weight of the first (l,)."""
        of_views = zip(self.scores(*history), self.scores(*affiliation), strict=True)
        at = self.positive_at, self.negative_at
        positive, negative = (
            torch.lerp(second, first, weights[place])
            for (first, second), place in zip(of_views, at, strict=True)
        )
        return positive, negative


@dataclass(frozen=True)
class Prepared:
    """A batch with everything about it that does not depend on the parameters, made ahead of its turn.

    The selections hold just the rows the batch needs, without the dropped edges: its users and bundles, and
    the items that its bundles still have, which are also the columns of `pooling`.
    """

    rows: Rows
    history: Selection
    affiliation: Selection
    pooling: Propagation


class TwoViewModel(PreparingModel):
    """Base of the models with two views. Parameters: vectors of users (for both views), bundles and items."""

    Config = TwoViewConfig
    config: TwoViewConfig
    shares_rows = True
    popularity: Tensor

    def __init__(self, data: BundleData, config: TwoViewConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.users, self.bundles, self.items = tables(data, config.embedding_size, rng)
        self.affiliation_user_table: nn.Parameter | None = None  # where a model has one, for the second view
        self.register_buffer(
            "popularity", torch.from_numpy(data.popularity.astype(np.float32)), persistent=False
        )
        self.history = BipartiteGraph(data.user_bundle)
        self.affiliation = BipartiteGraph(data.user_item)
        self.pooling = Direction(data.bundle_item, "mean")
        self.warm_bundles = np.flatnonzero(data.popularity)
        self._masks: Masks | None = None

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        self._masks = None
        if progress.epoch == 1 and self.config.first_vectors == "spectral" and not self.is_warm:
            self._put_spectral()

    @torch.no_grad()
    def _put_spectral(self) -> None:
        """`spectral` vectors in the place of those drawn; who and what has no edges keeps the drawn ones."""
        drawn = self.users, self.bundles, self.items
        found = spectral(self.history.full, self.affiliation.full, drawn[1].detach(), drawn[2].detach())
        for table, rows in zip(drawn, found, strict=True):
            table.copy_(torch.where(rows.any(dim=1, keepdim=True), rows, table))
        if self.affiliation_user_table is not None:
            self.affiliation_user_table.copy_(self.users)

    def drawn(self, batch_size: int) -> Iterator[tuple[Triples, Masks]]:
        """The bare batches, each with its masks."""
        for batch in self.triples(batch_size):
            yield batch, self.batch_masks()

    def triples(self, batch_size: int) -> Iterator[Triples]:
        """The bare batches: every interaction once, with a negative."""
        rng = self.rng.generator("batches", self.progress.epoch)
        candidates = self.warm_bundles if self.config.negatives == "warm" else None
        return triples(self.data.user_bundle, batch_size, rng, candidates, self.config.drop_last_batch)

    def n_batches(self, batch_size: int) -> int:
        if self.config.drop_last_batch:
            return super().n_batches(batch_size)
        return -(-int(self.data.user_bundle.nnz) // batch_size)

    def draw_masks(self, rng: np.random.Generator) -> Masks:
        """Which edges stay, drawn for each direction of each graph."""
        config = self.config
        history = self._draw_directions(self.history, config.user_bundle_dropout, rng)
        affiliation = self._draw_directions(self.affiliation, config.user_item_dropout, rng)
        return Masks(*history, *affiliation, self.pooling.draw_mask(config.bundle_item_dropout, rng))

    def _draw_directions(
        self, graph: BipartiteGraph, dropout: float, rng: np.random.Generator
    ) -> tuple[Mask, Mask]:
        left = graph.left.draw_mask(dropout, rng)
        if self.config.dropout_directions == "shared":
            return left, graph.to_right(left)
        return left, graph.right.draw_mask(dropout, rng)

    def batch_masks(self) -> Masks:
        """The masks of the next batch: new ones, or the epoch's."""
        if self._masks is None or self.config.dropout_redraw == "batch":
            self._masks = self.draw_masks(self.dropout_rng)
        return self._masks

    def prepare(self, batch: tuple[Triples, Masks]) -> Prepared:
        """Choose the rows and edges a batch needs when just the edges of its masks stay."""
        bare, masks = batch
        config, rows = self.config, Rows.of(bare, self.data, self.users.device)
        options = config.dropout_degrees, config.n_layers
        pooled = self.pooling.select(rows.bundles, masks.pooling)
        items, pooling = pooled.on_needed_sources()
        history = self.history.select(
            (rows.users, rows.bundles), (masks.history_users, masks.history_bundles), *options
        )
        affiliation = self.affiliation.select(
            (rows.users, items), (masks.affiliation_users, masks.affiliation_items), *options
        )
        for _, propagation in (history.left, history.right, affiliation.left, affiliation.right):
            for_gradients(propagation)
        return Prepared(rows, history, affiliation, for_gradients(pooling))

    def optimizers(self) -> list[torch.optim.Optimizer]:
        found = super().optimizers()
        for optimizer in found:
            assert isinstance(optimizer, Adam)
            optimizer.lazy = self.config.optimiser == "lazy-adam"
        return found

    def step(self, batch: Prepared, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
        (optimizer,) = optimizers
        assert isinstance(optimizer, Adam)
        with one_torch_thread(), optimizer.deferred_gradients():
            return super().step(batch, optimizers)

    def history_view(self, selection: Selection) -> tuple[Tensor, Tensor]:
        """Users and bundles of the selection as their interactions place them."""
        options = self.config.n_layers, self.config.normalise_layers
        return light_gcn(selection, self.users, self.bundles, *options)

    def affiliation_view(self, selection: Selection, pooling: Propagation) -> tuple[Tensor, Tensor, Tensor]:
        """Users, pooled bundles and items of the selection as items place them."""
        options = self.config.n_layers, self.config.normalise_layers
        users, items = light_gcn(selection, self._affiliation_users, self.items, *options)
        return users, multiply(items, pooling), items

    @property
    def _affiliation_users(self) -> nn.Parameter:
        return self.users if self.affiliation_user_table is None else self.affiliation_user_table

    def served_temperature(self) -> float | None:
        """The temperature of the history weights in serving; None weighs both views alike."""
        return None

    def history_weights(self, temperature: float | None) -> Tensor:
        """g_b of every bundle (n_bundles,): 0 without interactions, rising with popularity; 0.5 for None."""
        if temperature is None:
            return torch.full_like(self.popularity, 0.5)
        return torch.tanh(self.popularity / temperature)

    def served_blocks(self, history: Curve, items: Curve) -> list[tuple[Block, FloatArray, FloatArray]]:
        """Both views as blocks with these weights."""
        users, bundles = self.history_view(self.history.full)
        owners, pooled, single = self.affiliation_view(self.affiliation.full, self.pooling.full)
        size = self.config.embedding_size
        return [
            (Block("history", "history", size, history), numpy(users), numpy(bundles)),
            (Block("affiliation", "items", size, items, numpy(single)), numpy(owners), numpy(pooled)),
        ]

    @torch.no_grad()
    def served(self) -> Served:
        """Both views, and their layers, so that a new bundle or user can be propagated to."""
        temperature, n_layers = self.served_temperature(), self.config.n_layers
        history = items = Curve.constant(0.5)
        if temperature is not None:
            warmth = np.float32(temperature)
            level = int(10 * temperature) + 1  # tanh(10) is 1 in float32
            history = Curve.tabulated(lambda n: np.tanh(n / warmth), level)
            items = Curve.tabulated(lambda n: 1 - np.tanh(n / warmth), level)
        user_layers, bundle_layers = layers(self.history.full, self.users, self.bundles, n_layers)
        _, item_layers = layers(self.affiliation.full, self._affiliation_users, self.items, n_layers)
        found = Layers(
            numpy(user_layers), numpy(bundle_layers), numpy(item_layers), self.config.normalise_layers
        )
        return Served.create(self.relations, self.served_blocks(history, items), layers=found)
