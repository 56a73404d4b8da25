"""BGCN (Chang, Gao, He, Jin, Li; SIGIR 2020, TKDE 2023): graph convolution with bundles and items as levels.

At the *item level* users and items are nodes of the graph of who has what, each also its own neighbour; a
bundle is the mean of its items, scaled to length 1. At the *bundle level* users and bundles are nodes of one
graph: who took what, users as their own neighbours, and bundles joined by the cosine of their sets of items.
Both graphs are normalised, A^ = D^(-1/2) A D^(-1/2), and have layers of their own. One layer transforms what
the neighbours pass on and puts it beside what the node had, so that vectors grow:

    x^k = dropout([leaky_relu(W_k A^ x^(k-1) + bias) ; x^(k-1)])
    r   = [x^0 ; x^1 / |x^1| ; ... ; x^K / |x^K|]
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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from scipy import sparse
from torch import Tensor, nn

from coheat.config import Settings
from coheat.data.dataset import BundleData, Indices, Sparse
from coheat.data.sampling import Triples, contains, draw_overlapping, triples
from coheat.graph.bipartite import Direction, Propagation, multiply
from coheat.graph.fused import grow, unit_rows
from coheat.graph.prefetch import prefetched
from coheat.graph.weighted import closest_rows, normalised
from coheat.losses import bpr
from coheat.models.base import Model, ModelConfig, Progress, Vectors
from coheat.models.layers import linear, table
from coheat.models.two_views import Rows
from coheat.rng import Randomness

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


class Level(nn.Module):
    """The layers of one level, on a graph of which all nodes are computed up to the last layer."""

    def __init__(self, graph: Sparse, config: BGCNConfig, generator: torch.Generator):
        super().__init__()
        self.graph, self.whole = graph, Propagation.of(graph)
        width = config.embedding_size
        self.transforms = nn.ModuleList(
            linear((k + 1) * width, width, generator) for k in range(config.n_layers)
        )

    def select(self, nodes: Indices) -> Propagation:
        """The last layer's propagation to these nodes."""
        chosen = Propagation.of(self.graph[nodes])
        _ = chosen.transposed  # now, since the backward pass will need it
        return chosen

    def forward(
        self,
        x: Tensor,
        nodes: Indices,
        last: Propagation,
        share: float,
        rng: np.random.Generator,
    ) -> Tensor:
        """Representations of some nodes (len(nodes), d + 2d + ...) from the vectors x of all (n, d)."""
        rows = torch.from_numpy(nodes).to(x.device)
        found = []
        for k, transform in enumerate(self.transforms):
            assert isinstance(transform, nn.Linear)
            chosen = x.index_select(0, rows)
            found.append(unit_rows(chosen) if k else chosen)
            final = k + 1 == len(self.transforms)
            # W A^ x = A^ (W x): propagating d numbers instead of (k + 1) d.
            message = multiply(x @ transform.weight.t(), last if final else self.whole)
            x = grow(message, transform.bias, chosen if final else x, share, rng)
        return torch.cat([*found, unit_rows(x)], 1)


@dataclass(frozen=True)
class Needed:
    """Which users and bundles are to be represented, and the nodes and propagations that takes.

    Nodes of a level are its users, then its items or bundles; the items are the columns of `pooling`.
    """

    n_users: int
    item_nodes: Indices
    item_level: Propagation
    pooling: Propagation
    bundle_nodes: Indices
    bundle_level: Propagation


@dataclass(frozen=True)
class Prepared:
    """A batch, and what representing its users and bundles takes."""

    rows: Rows
    needed: Needed


class BGCN(Model):
    """See the module's text. Parameters: vectors of users, bundles and items, and both levels' layers."""

    Config: ClassVar[type[Settings]] = BGCNConfig
    places_cold_bundles: ClassVar[bool] = True

    def __init__(self, data: BundleData, config: BGCNConfig, rng: Randomness):
        super().__init__(data, config, rng)
        width = config.embedding_size
        self.users = table(data.n_users, width, rng.torch_generator("users"))
        self.bundles = table(data.n_bundles, width, rng.torch_generator("bundles"))
        self.items = table(data.n_items, width, rng.torch_generator("items"))
        own_user, own_item = (sparse.eye_array(n, dtype=np.float32) for n in (data.n_users, data.n_items))
        alike = closest_rows(data.bundle_item, config.n_neighbours)
        blocks = (
            [[own_user, data.user_item], [data.user_item.T, own_item]],
            [[own_user, data.user_bundle], [data.user_bundle.T, alike]],
        )
        self.item_level, self.bundle_level = (
            Level(normalised(sparse.block_array(block).tocsr()), config, rng.torch_generator(name))
            for block, name in zip(blocks, ("item level", "bundle level"), strict=True)
        )
        self.pooling = Direction(data.bundle_item, "mean")
        self.dropout_rng = rng.generator("dropout", 0)

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        self.dropout_rng = self.rng.generator("dropout", progress.epoch)

    def batches(self, batch_size: int) -> Iterable[Prepared]:
        """This epoch's batches, each prepared while the one before it is learned from."""
        return prefetched(self.prepare(batch) for batch in self.triples(batch_size))

    def triples(self, batch_size: int) -> Iterator[Triples]:
        """The bare batches; in the last epochs with hard negatives, where `hard_share` says so."""
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

    def prepare(self, batch: Triples) -> Prepared:
        rows = Rows.of(batch, self.data, self.users.device)
        return Prepared(rows, self.needed(rows.users, rows.bundles))

    def needed(self, users: Indices, bundles: Indices) -> Needed:
        """What representing these users and bundles takes."""
        items, pooling = self.pooling.select(bundles, self.pooling.everything).on_needed_sources()
        _ = pooling.transposed  # now, since the backward pass will need it
        nodes = [np.concatenate([users, self.data.n_users + others]) for others in (items, bundles)]
        levels = self.item_level.select(nodes[0]), self.bundle_level.select(nodes[1])
        return Needed(len(users), nodes[0], levels[0], pooling, nodes[1], levels[1])

    def represent(self, needed: Needed, share: float) -> tuple[Tensor, Tensor]:
        """Both levels side by side: users (m, 2w) and bundles (l, 2w), where w = d + 2d + ... + (K + 1)d."""
        of_items, of_bundles = (torch.cat([self.users, other]) for other in (self.items, self.bundles))
        by_items = self.item_level(of_items, needed.item_nodes, needed.item_level, share, self.dropout_rng)
        by_bundles = self.bundle_level(
            of_bundles, needed.bundle_nodes, needed.bundle_level, share, self.dropout_rng
        )
        # Split, not sliced: the gradient of a slice is a whole table of zeros with the slice in it.
        users, items = by_items.split([needed.n_users, len(by_items) - needed.n_users])
        same_users, bundles = by_bundles.split([needed.n_users, len(by_bundles) - needed.n_users])
        pooled = unit_rows(multiply(items, needed.pooling))
        return torch.cat([users, same_users], 1), torch.cat([pooled, bundles], 1)

    def loss(self, batch: Prepared) -> dict[str, Tensor]:
        rows = batch.rows
        users, bundles = self.represent(batch.needed, self.config.message_dropout)
        counts = torch.bincount(torch.cat([rows.positive_at, rows.negative_at]), minlength=len(bundles))
        squares = users.square().sum(1) @ rows.user_counts + bundles.square().sum(1) @ counts.to(users.dtype)
        return {
            "bpr": bpr(*rows.scores(users, bundles)),
            "decay": self.config.weight_decay * squares / len(rows.user_at),
        }

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Adam without decay: the L2 part stands in the loss."""
        return [torch.optim.Adam(self.parameters(), lr=self.config.learning_rate, fused=True)]

    def vectors(self) -> Vectors:
        everything = self.needed(np.arange(self.data.n_users), np.arange(self.data.n_bundles))
        return Vectors(*self.represent(everything, 0.0))
