"""LightGCN (He, Deng, Wang, Li, Zhang, Wang; SIGIR 2020): graph convolution with nothing but propagation.

Users and bundles are nodes of the graph of who took what. Layer 0 is learned; layer k is what the neighbours
in layer k - 1 pass on, each divided by the square roots of both degrees:

    e_u^k = sum over the bundles b of u of e_b^(k-1) / sqrt(d_u d_b),   e_b^k likewise from its users
    e     = mean of layers 0 .. K,      score(u, b) = <e_u, e_b>
    loss  = mean of -ln sigma(score(u, b+) - score(u, b-))
            + weight_decay * mean of (|e_u^0|^2 + |e_b+^0|^2 + |e_b-^0|^2) / 2

An epoch takes every interaction once, where the authors' sampler draws users at random and one bundle of
each: both are common. A bundle that nobody took has no neighbours, keeps its own layer 0, and is only ever a
negative; its score means nothing.

The models that add a contrast to this one (SGL, SimGCL, LightGCL) derive from it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from coheat.config import Settings
from coheat.data.dataset import BundleData
from coheat.data.sampling import Triples
from coheat.graph.bipartite import BipartiteGraph, Selection, layers
from coheat.losses import bpr
from coheat.models.base import Model, ModelConfig
from coheat.models.layers import pair_scores, triples_l2
from coheat.rng import Randomness
from coheat.served import Served


class LightGCNConfig(ModelConfig):
    """Settings of LightGCN."""

    weight_decay: float = Field(1e-4, ge=0, description="L2 weight of the layer-0 vectors in a batch")
    n_layers: int = Field(3, ge=1, description="layers K of the graph convolution")


class LightGCN(Model):
    """See the module's text. Parameters: layer 0 of users (n_users, d) and of bundles (n_bundles, d)."""

    Config: ClassVar[type[Settings]] = LightGCNConfig
    config: LightGCNConfig
    decay_in_loss = True
    starts_xavier: ClassVar[bool] = False
    """Whether layer 0 is first drawn Xavier uniform, instead of normal with deviation 0.1."""

    def __init__(self, data: BundleData, config: LightGCNConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.users = self._table("users", data.n_users)
        self.bundles = self._table("bundles", data.n_bundles)
        self.graph = BipartiteGraph(data.user_bundle)

    def _table(self, name: str, n_rows: int) -> nn.Parameter:
        table, generator = torch.empty(n_rows, self.config.embedding_size), self.rng.torch_generator(name)
        if self.starts_xavier:
            nn.init.xavier_uniform_(table, generator=generator)
        else:
            nn.init.normal_(table, std=0.1, generator=generator)
        return nn.Parameter(table)

    def outputs(self, selection: Selection) -> tuple[Tensor, Tensor]:
        """Users (n_users, d) and bundles (n_bundles, d) on this graph: the mean of layers 0 .. K."""
        users, bundles = layers(selection, self.users, self.bundles, self.config.n_layers + 1)
        return users.mean(0), bundles.mean(0)

    def loss(self, batch: Triples) -> dict[str, Tensor]:
        return {
            "bpr": bpr(*pair_scores(*self.outputs(self.graph.full), batch)),
            "decay": self.config.weight_decay * triples_l2(self.users, self.bundles, batch),
        }

    @torch.no_grad()
    def served(self) -> Served:
        return self.one_block(*self.outputs(self.graph.full))
