"""BundleNet (Deng, Wang, Zhao et al.; CIKM 2020): messages between users, bundles and items.

Users, bundles and items are nodes of one graph with six directed relations: who took which bundle, who has
which item, which bundle holds which item, and back. A layer (R-GCN) adds to a node's own vector the mean of
its neighbours in each relation, each transformed by a matrix of the relation:

    h'_x = leaky_relu( W_0 h_x + sum over relations r of W_r (mean of h_y over x's neighbours y in r) + bias )
    W_r  = sum over m of a_rm V_m,     score(u, b) = <h_u, h_b> of the last layer

The V_m are shared by all relations of a layer. An interaction must not be predicted from itself, so before
each step the batch's own positive edges are taken out of the graph, in both directions.

Where we differ, as the method is usually run: BPR instead of binary cross-entropy, so that it is compared
with the others on the same loss; vectors of width d throughout, instead of 32 and 16. A cold bundle's own
vector would be one that training has used as a negative only, so it is 0, and its items speak for it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from coheat.data.dataset import BundleData, pairs
from coheat.data.sampling import Triples
from coheat.graph.bipartite import Direction
from coheat.graph.propagation import Propagation, multiply
from coheat.losses import bpr
from coheat.models.base import ModelConfig
from coheat.models.layers import pair_scores, tables, warm_rows
from coheat.models.preparing import PreparingModel, for_gradients
from coheat.rng import Randomness
from coheat.served import Served

USERS, BUNDLES, ITEMS = range(3)
Nodes = list[Tensor]
"""Vectors of all users, of all bundles and of all items."""
Relations = dict[tuple[int, int], Propagation]
"""The means over neighbours, by the kinds (that receive, that give)."""
Prepared = tuple[Triples, Relations]
"""A batch and the graph without its positive edges."""


class BundleNetConfig(ModelConfig):
    """Settings of BundleNet."""

    weight_decay: float = Field(1e-5, ge=0, description="L2 weight, applied by Adam to all parameters")
    n_layers: int = Field(2, ge=1, description="rounds of messages")
    n_bases: int = Field(16, ge=1, description="matrices V that the relations of a layer are mixed from")
    hide_batch: bool = Field(True, description="take the batch's own interactions out of the graph")


class RelationalLayer(nn.Module):
    """One round of messages."""

    def __init__(self, width: int, n_bases: int, relations: Iterable[tuple[int, int]], rng: torch.Generator):
        super().__init__()
        self.relations = list(relations)
        spread = (2 / (width + width)) ** 0.5  # Xavier normal, for the bases and for their mixtures alike
        self.bases = nn.Parameter(spread * torch.randn(n_bases, width * width, generator=rng))
        self.mixtures = nn.Parameter(n_bases**-0.5 * torch.randn(len(self.relations), n_bases, generator=rng))
        self.own = nn.Parameter(spread * torch.randn(width, width, generator=rng))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, nodes: Nodes, means: Relations, kinds: Iterable[int]) -> Nodes:
        """The new vectors of these kinds of nodes; the others stay empty."""
        width = self.own.shape[0]
        matrices = (self.mixtures @ self.bases).view(-1, width, width)
        found = [nodes[0].new_zeros(0, width)] * len(nodes)
        for kind in kinds:
            total = nodes[kind] @ self.own + self.bias
            for (target, source), matrix in zip(self.relations, matrices, strict=True):
                if target == kind:
                    total = total + transformed_mean(nodes[source], matrix, means[target, source])
            found[kind] = leaky_relu(total)
        return found


def transformed_mean(x: Tensor, matrix: Tensor, mean: Propagation) -> Tensor:
    """(mean @ x) @ matrix, transforming on the side that has fewer rows."""
    if mean.n_targets < mean.n_sources:
        return multiply(x, mean) @ matrix
    return multiply(x @ matrix, mean)


class BundleNet(PreparingModel):
    """See the module's text. Parameters: vectors of users, bundles and items, and the layers."""

    Config = BundleNetConfig
    config: BundleNetConfig
    places_cold_bundles = True
    warm: Tensor

    def __init__(self, data: BundleData, config: BundleNetConfig, rng: Randomness):
        super().__init__(data, config, rng)
        width = config.embedding_size
        self.users, self.bundles, self.items = tables(data, width, rng)
        self.register_buffer("warm", warm_rows(data), persistent=False)
        relations = {
            (USERS, BUNDLES): data.user_bundle,
            (USERS, ITEMS): data.user_item,
            (BUNDLES, ITEMS): data.bundle_item,
        }
        relations |= {(other, one): matrix.T.tocsr() for (one, other), matrix in relations.items()}
        self.directions = {kinds: Direction(matrix, "mean") for kinds, matrix in relations.items()}
        self.whole: Relations = {kinds: direction.full for kinds, direction in self.directions.items()}
        takers, taken = pairs(data.user_bundle)
        self.edge_keys = takers * data.n_bundles + taken  # sorted, as edges are
        self.backwards = np.argsort(taken, kind="stable")  # the edges in the order of bundles
        self.layers = nn.ModuleList(
            RelationalLayer(width, config.n_bases, self.directions, rng.torch_generator("layer", k))
            for k in range(config.n_layers)
        )

    def prepare(self, batch: Triples) -> Prepared:
        """Take the batch's own edges out of the graph."""
        means = dict(self.whole)
        if self.config.hide_batch:
            mask = np.ones(len(self.edge_keys), dtype=np.uint8)
            mask[np.searchsorted(self.edge_keys, batch.users * self.data.n_bundles + batch.positives)] = 0
            means[USERS, BUNDLES] = self.directions[USERS, BUNDLES].select(None, mask)
            means[BUNDLES, USERS] = self.directions[BUNDLES, USERS].select(None, mask[self.backwards])
        return batch, {kinds: for_gradients(mean) for kinds, mean in means.items()}

    def outputs(self, means: Relations) -> tuple[Tensor, Tensor]:
        """Last layer of the users (n_users, d) and bundles (n_bundles, d)."""
        nodes: Nodes = [self.users, self.bundles * self.warm, self.items]
        for layer in self.layers[:-1]:
            nodes = layer(nodes, means, (USERS, BUNDLES, ITEMS))
        users, bundles, _ = self.layers[-1](nodes, means, (USERS, BUNDLES))
        return users, bundles

    def loss(self, batch: Prepared) -> dict[str, Tensor]:
        met, means = batch
        users, bundles = self.outputs(means)
        return {"bpr": bpr(*pair_scores(users, bundles, met))}

    @torch.no_grad()
    def served(self) -> Served:
        return self.one_block(*self.outputs(self.whole))
