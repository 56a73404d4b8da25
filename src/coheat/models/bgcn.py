"""BGCN (Chang, Gao, He, Jin, Li; SIGIR 2020, TKDE 2023): graph convolution with bundles and items as levels.

At the *item level* users and items are nodes of the graph of who has what, each also its own neighbour; a
bundle is the mean of its items, scaled to length 1. At the *bundle level* users and bundles are nodes of one
graph: who took what, users as their own neighbours, and bundles joined by the cosine of their sets of items.
Each level has layers of its own, in which a node's vector grows from x^0 to r (`growing` has the equations):

    score(u, b) = <r_u, r_b> at the item level + <r_u, r_b> at the bundle level
    loss        = BPR + weight_decay * mean of (|r_u|^2 + |r_b+|^2 + |r_b-|^2), both levels

The vectors of users, x^0, are shared by the levels. A cold bundle has items and bundles like it, so its score
means something.

Where we differ. The bundle-bundle block is dense where bundles are large, so each bundle keeps its
`n_neighbours` closest ones (itself included), and an edge stays if either side keeps it. The authors train a
second time, from the saved model, with hard negatives; here it is the last `hard_share` of the epochs of one
training, none by default. A hard negative is, with probability 0.4, among the 30% of bundles with most of the
user's items, with 0.4 among the 30% that share most items with the positive, and otherwise any; we count the
30% among the bundles that share an item at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from pydantic import Field
from scipy import sparse
from torch import Tensor

from coheat.data.dataset import BundleData, Indices
from coheat.data.sampling import Triples, contains, draw_overlapping, triples
from coheat.graph.bipartite import Direction
from coheat.graph.fused import unit_rows
from coheat.graph.propagation import Propagation, multiply
from coheat.graph.weighted import closest_rows
from coheat.losses import bpr
from coheat.models.base import ModelConfig
from coheat.models.growing import GrowingLayers, Selected
from coheat.models.layers import tables
from coheat.models.preparing import PreparingModel, for_gradients
from coheat.models.two_views import Rows
from coheat.rng import Randomness
from coheat.served import Served

Needed = tuple[Selected, Selected, Propagation]
"""What some users and bundles are made of: parts of the item level, of the bundle level, and the pooling."""
HARD = 0.4, 0.4
"""Probabilities of a negative that is hard for the user, and of one that is hard beside the positive."""
HARDEST = 0.3
"""Share of the overlapping bundles, those that overlap most, from which a hard negative is drawn."""


class BGCNConfig(ModelConfig):
    """Settings of BGCN."""

    learning_rate: float = Field(3e-4, gt=0, description="Adam's step size")
    weight_decay: float = Field(1e-7, ge=0, description="L2 weight of the representations in a batch")
    n_layers: int = Field(2, ge=1, description="layers K of both levels")
    message_dropout: float = Field(0.3, ge=0, lt=1, description="share of numbers dropped from each layer")
    n_neighbours: int = Field(50, ge=1, description="closest bundles that a bundle is joined with")
    hard_share: float = Field(
        0.0, ge=0, le=1, description="share of the epochs, the last ones, that have hard negatives"
    )


class BGCN(PreparingModel):
    """See the module's text. Parameters: vectors of users, bundles and items, and both levels' layers."""

    Config = BGCNConfig
    config: BGCNConfig
    decay_in_loss = True
    places_cold_bundles = True

    def __init__(self, data: BundleData, config: BGCNConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.users, self.bundles, self.items = tables(data, config.embedding_size, rng)
        alone = sparse.eye_array(data.n_items, dtype=np.float32).tocsr()
        alike = closest_rows(data.bundle_item, config.n_neighbours)
        shape = config.embedding_size, config.n_layers
        self.item_level = GrowingLayers(data.user_item, alone, *shape, rng.torch_generator("item level"))
        self.bundle_level = GrowingLayers(
            data.user_bundle, alike, *shape, rng.torch_generator("bundle level")
        )
        self.pooling = Direction(data.bundle_item, "mean")

    def drawn(self, batch_size: int) -> Iterator[Triples]:
        """In the last epochs with hard negatives, where `hard_share` says so."""
        rng = self.rng.generator("batches", self.progress.epoch)
        hard = self.progress.epoch > self.progress.epochs * (1 - self.config.hard_share)
        for batch in triples(self.data.user_bundle, batch_size, rng):
            yield self.with_hard_negatives(batch, rng) if hard else batch

    def with_hard_negatives(self, batch: Triples, rng: np.random.Generator) -> Triples:
        """Replace most negatives by bundles that overlap much with the user's items, or with the positive."""
        data, negatives = self.data, batch.negatives.copy()
        kind = np.searchsorted(np.cumsum(HARD), rng.random(len(batch)), side="right")
        sources = (data.user_item, batch.users), (data.bundle_item, batch.positives)
        for chosen, (matrix, ids) in enumerate(sources):
            places = np.flatnonzero(kind == chosen)
            drawn = draw_overlapping(matrix[ids[places]], data.bundle_item, HARDEST, negatives[places], rng)
            known = contains(data.user_bundle, batch.users[places], drawn)
            negatives[places[~known]] = drawn[~known]
        return replace(batch, negatives=negatives)

    def prepare(self, batch: Triples) -> tuple[Rows, Needed]:
        rows = Rows.of(batch, self.data, self.users.device)
        return rows, self.needed(rows.users, rows.bundles)

    def needed(self, users: Indices, bundles: Indices) -> Needed:
        """What representing these users and bundles takes."""
        items, pooling = self.pooling.select(bundles, self.pooling.everything).on_needed_sources()
        levels = self.item_level.select(users, items), self.bundle_level.select(users, bundles)
        return *levels, for_gradients(pooling)

    def represent(self, needed: Needed, share: float) -> tuple[Tensor, Tensor]:
        """Both levels side by side: users (m, 2w) and bundles (l, 2w), where w = d + 2d + ... + (K + 1)d."""
        of_items, of_bundles, pooling = needed
        dropped = share, self.dropout_rng
        users, items = self.item_level(self.users, self.items, of_items, *dropped)
        same_users, bundles = self.bundle_level(self.users, self.bundles, of_bundles, *dropped)
        pooled = unit_rows(multiply(items, pooling))
        return torch.cat([users, same_users], 1), torch.cat([pooled, bundles], 1)

    def loss(self, batch: tuple[Rows, Needed]) -> dict[str, Tensor]:
        rows, needed = batch
        users, bundles = self.represent(needed, self.config.message_dropout)
        counts = torch.bincount(torch.cat([rows.positive_at, rows.negative_at]), minlength=len(bundles))
        squares = users.square().sum(1) @ rows.user_counts + bundles.square().sum(1) @ counts.to(users.dtype)
        return {
            "bpr": bpr(*rows.scores(users, bundles)),
            "decay": self.config.weight_decay * squares / len(rows.user_at),
        }

    @torch.no_grad()
    def served(self) -> Served:
        everything = self.needed(np.arange(self.data.n_users), np.arange(self.data.n_bundles))
        return self.one_block(*self.represent(everything, 0.0))
