"""CoHeat (Jeon, Lee, Yun, Kang; WWW 2024): popularity-based coalescence and curriculum heating.

Two views of users and bundles. The *history view* h is a light graph convolution over who took which
bundle. The *affiliation view* a is one over who has which item; there a bundle is the mean of its items.
The score weighs them by how much history a bundle has:

    y_ub = g_b <h_u, h_b> + (1 - g_b) <a_u, a_b>,   g_b = tanh(n_b / temperature),

with n_b the training interactions of b, so a bundle that nobody took yet (n_b = 0) is scored by its items
alone. The temperature rises from 1 to `max_temperature` over the epochs, temperature(t) =
max_temperature ** (t / T): training starts with the easier history view and moves on to the other.

    loss = BPR + contrast_weight * (alignment + uniformity of the two views) + L2

Where the published figures were produced by something else than the paper's text says, an option of
`CoHeatConfig` names the difference, and its default is what reproduces the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from coheat.data.dataset import BundleData, Indices
from coheat.data.sampling import Triples, triples
from coheat.graph import kernels
from coheat.graph.bipartite import (
    BipartiteGraph,
    Direction,
    Mask,
    Propagation,
    Selection,
    layers,
    light_gcn,
    multiply,
)
from coheat.graph.prefetch import prefetched
from coheat.losses import alignment, bpr, dot_rows, uniformity
from coheat.models.base import Model, ModelConfig, Progress, TwoViews, Vectors
from coheat.rng import Randomness


class CoHeatConfig(ModelConfig):
    """Settings of CoHeat; the defaults are those of the paper's Youshu figures."""

    weight_decay: float = Field(1e-4, ge=0, description="L2 weight (lambda_2)")
    n_layers: int = Field(1, ge=1, description="layers K of both graph convolutions")
    max_temperature: float = Field(1e4, gt=1, description="temperature of the last epoch (epsilon)")
    contrast_weight: float = Field(0.1, ge=0, description="weight of alignment and uniformity (lambda_1)")
    user_item_dropout: float = Field(0.5, ge=0, lt=1, description="share of user-item edges dropped")
    user_bundle_dropout: float = Field(0.5, ge=0, lt=1, description="share of user-bundle edges dropped")
    bundle_item_dropout: float = Field(
        0.5, ge=0, lt=1, description="share of affiliations dropped in pooling"
    )

    # The paper's ablations.
    coalescence: Literal["popularity", "constant"] = Field(
        "popularity", description="history weight by popularity, or 0.5 for every bundle (CoHeat-PC)"
    )
    curriculum: Literal["heating", "anti", "fixed"] = Field(
        "heating", description="temperature rises, falls (CH-Ant), or stays at its maximum (CH-Fix)"
    )

    # Where the published figures differ from the paper's text. Defaults reproduce the figures.
    normalise_layers: bool = Field(
        True, description="scale each propagated layer to length 1; the text sums layer k / (k + 1)"
    )
    share_users: bool = Field(True, description="one table of user vectors for both views; the text has two")
    average_contrast: bool = Field(
        True, description="average the contrast over users and bundles and over views; the text sums"
    )
    weight_decay_as: Literal["adam", "loss"] = Field(
        "adam", description="L2 by Adam's weight decay; the text adds weight_decay * |parameters| to the loss"
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
    first_epoch: Literal[0, 1] = Field(
        1, description="number of the first epoch in the temperature; the text has 0"
    )
    score_temperature: Literal["epoch", "maximum"] = Field(
        "epoch", description="score with the temperature of the evaluated epoch; or with the maximum"
    )
    negatives: Literal["all", "warm"] = Field(
        "all", description="draw negatives from all bundles, or from those with training interactions"
    )
    drop_last_batch: bool = Field(True, description="leave the last, incomplete batch of an epoch out")


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

    def for_gradients(self) -> None:
        """Transpose now what the backward pass will need transposed."""
        for selection in (self.history, self.affiliation):
            for _, propagation in (selection.left, selection.right):
                _ = propagation.transposed
        _ = self.pooling.transposed


class CoHeat(Model):
    """See the module's text. Parameters: vectors of users (shared by the views), bundles and items."""

    Config = CoHeatConfig
    places_cold_bundles = True
    temperature: Tensor
    popularity: Tensor

    def __init__(self, data: BundleData, config: CoHeatConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.users = self._table("users", data.n_users)
        self.affiliation_user_table = None if config.share_users else self._table("item users", data.n_users)
        self.bundles = self._table("bundles", data.n_bundles)
        self.items = self._table("items", data.n_items)
        self.register_buffer("temperature", torch.tensor(1.0, dtype=torch.float64))
        self.register_buffer(
            "popularity", torch.from_numpy(data.popularity.astype(np.float32)), persistent=False
        )
        self.history = BipartiteGraph(data.user_bundle)
        self.affiliation = BipartiteGraph(data.user_item)
        self.pooling = Direction(data.bundle_item, "mean")
        self.warm_bundles = np.flatnonzero(data.popularity)
        self._masks: Masks | None = None

    def _table(self, name: str, n_rows: int) -> nn.Parameter:
        table = torch.empty(n_rows, self.config.embedding_size)
        nn.init.xavier_normal_(table, generator=self.rng.torch_generator(name))
        return nn.Parameter(table)

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        self.temperature.fill_(self.temperature_at(progress))
        self.dropout_rng = self.rng.generator("dropout", progress.epoch)
        self._masks = None

    def temperature_at(self, progress: Progress) -> float:
        """max_temperature ** (t / T); falling from T to 0 in CH-Ant, at its maximum in CH-Fix."""
        config = self.config
        fraction = (progress.epoch - 1 + config.first_epoch) / progress.epochs
        if config.curriculum == "fixed":
            fraction = 1.0
        elif config.curriculum == "anti":
            fraction = 1.0 - fraction
        return float(config.max_temperature**fraction)

    def facts(self) -> dict[str, float]:
        """What the training history notes besides the losses."""
        weights = self.history_weights(float(self.temperature))
        warm = self.popularity > 0
        return {
            "temperature": float(self.temperature),
            "history_weight": float(weights[warm].mean()) if warm.any() else 0.0,
        }

    def history_weights(self, temperature: float) -> Tensor:
        """g_b of every bundle (n_bundles,): 0 without interactions, rising with popularity."""
        if self.config.coalescence == "constant":
            return torch.full_like(self.popularity, 0.5)
        return torch.tanh(self.popularity / temperature)

    def batches(self, batch_size: int) -> Iterable[Prepared]:
        """This epoch's batches, each prepared while the one before it is learned from."""
        return prefetched(self.prepare(batch, self.batch_masks()) for batch in self.triples(batch_size))

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

    def prepare(self, batch: Triples, masks: Masks) -> Prepared:
        """Choose the rows and edges a batch needs when just these edges stay."""
        config, rows = self.config, Rows.of(batch, self.data, self.users.device)
        options = {"degrees": config.dropout_degrees, "n_layers": config.n_layers}
        pooled = self.pooling.select(rows.bundles, masks.pooling)
        items, pooling = pooled.on_needed_sources()
        prepared = Prepared(
            rows,
            self.history.select(
                (rows.users, rows.bundles), (masks.history_users, masks.history_bundles), **options
            ),
            self.affiliation.select(
                (rows.users, items), (masks.affiliation_users, masks.affiliation_items), **options
            ),
            pooling,
        )
        prepared.for_gradients()
        return prepared

    def history_view(self, selection: Selection) -> tuple[Tensor, Tensor]:
        """Users and bundles of the selection as their interactions place them."""
        options = self.config.n_layers, self.config.normalise_layers
        return light_gcn(selection, self.users, self.bundles, *options)

    def affiliation_view(self, selection: Selection, pooling: Propagation) -> tuple[Tensor, Tensor, Tensor]:
        """Users, pooled bundles and items of the selection as items place them."""
        options = self.config.n_layers, self.config.normalise_layers
        table = self.users if self.affiliation_user_table is None else self.affiliation_user_table
        users, items = light_gcn(selection, table, self.items, *options)
        return users, multiply(items, pooling), items

    def loss(self, batch: Prepared) -> dict[str, Tensor]:
        rows = batch.rows
        history = self.history_view(batch.history)
        affiliation = self.affiliation_view(batch.affiliation, batch.pooling)[:2]
        bundles = torch.from_numpy(rows.bundles).to(self.users.device)
        weights = self.history_weights(float(self.temperature))[bundles, None]
        user_vectors = torch.cat([history[0], affiliation[0]], 1)
        bundle_vectors = torch.cat([weights * history[1], (1 - weights) * affiliation[1]], 1)
        user_at = torch.cat([rows.user_at, rows.user_at])
        bundle_at = torch.cat([rows.positive_at, rows.negative_at])
        positive, negative = dot_rows(user_vectors, bundle_vectors, user_at, bundle_at).chunk(2)
        terms = {"bpr": bpr(positive, negative)}
        if self.config.contrast_weight > 0:
            terms["contrast"] = self.config.contrast_weight * self._contrast(history, affiliation, rows)
        if self.config.weight_decay_as == "loss":
            norm = torch.sqrt(sum((p.square().sum() for p in self.parameters()), torch.zeros(())))
            terms["decay"] = self.config.weight_decay * norm
        return terms

    def _contrast(
        self, history: tuple[Tensor, Tensor], affiliation: tuple[Tensor, Tensor], rows: Rows
    ) -> Tensor:
        """Alignment between the views and uniformity within each, for the batch's users and positives."""
        n_positives = len(rows.positive_counts)
        parts = [
            (normalize(history[0]), normalize(affiliation[0]), rows.user_counts),
            (
                normalize(history[1][:n_positives]),
                normalize(affiliation[1][:n_positives]),
                rows.positive_counts,
            ),
        ]
        aligned = torch.stack([alignment(h, a, counts) for h, a, counts in parts]).sum()
        spread = uniformity([(x, counts) for h, a, counts in parts for x in (h, a)]).sum()
        return (aligned + spread / 2) / 2 if self.config.average_contrast else aligned + spread

    def optimizers(self) -> list[torch.optim.Optimizer]:
        decay = self.config.weight_decay if self.config.weight_decay_as == "adam" else 0.0
        return [
            torch.optim.Adam(self.parameters(), lr=self.config.learning_rate, weight_decay=decay, fused=True)
        ]

    def vectors(self) -> Vectors:
        history_users, history_bundles = self.history_view(self.history.full)
        users, bundles, items = self.affiliation_view(self.affiliation.full, self.pooling.full)
        weights = self.history_weights(self._served_temperature())[:, None]
        unseen = 0.5 if self.config.coalescence == "constant" else 1.0
        return Vectors(
            users=torch.cat([history_users, users], 1),
            bundles=torch.cat([weights * history_bundles, (1 - weights) * bundles], 1),
            items=torch.cat([torch.zeros_like(items), unseen * items], 1),
            size_exponent=1.0,
        )

    def _served_temperature(self) -> float:
        maximum = self.config.score_temperature == "maximum"
        return float(self.config.max_temperature if maximum else self.temperature)

    def two_views(self) -> TwoViews:
        _, history_bundles = self.history_view(self.history.full)
        _, bundles, _ = self.affiliation_view(self.affiliation.full, self.pooling.full)
        item_users = self.users if self.affiliation_user_table is None else self.affiliation_user_table
        user_layers, bundle_layers = layers(self.history.full, self.users, self.bundles, self.config.n_layers)
        _, item_layers = layers(self.affiliation.full, item_users, self.items, self.config.n_layers)
        return TwoViews(
            bundles=torch.cat([history_bundles, bundles], 1),
            temperature=None if self.config.coalescence == "constant" else self._served_temperature(),
            user_layers=user_layers,
            bundle_layers=bundle_layers,
            item_layers=item_layers,
            normalise_layers=self.config.normalise_layers,
        )
