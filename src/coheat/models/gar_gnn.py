"""GAR-GNN: `gar` with three vectors for each user and bundle, and a recommender over their nine products.

The three vectors of a node are its layers 0, 1 and 2 of a light graph convolution over the training
interactions that starts from the pretrained vectors. A cold bundle has no neighbours, so all three are made.

    real(b) = [x_0 ; x_1 ; x_2],   products_jk = <norm(u_j), norm(x_k)>
    r = linear(hidden(hidden(norm(products)))),   hidden = dropout(leaky_relu(linear(.)))
    distance(x, y) = mean over the three vectors of the sum of |x - y| over the coordinates

norm is batch normalisation. r is no inner product, so every pair must pass the network to be scored, in
blocks. With `combination = "linear"` r is a weighted sum of the products instead; then a trained model is
two matrices, and data with a billion pairs is possible.

Where we differ, besides what `gar` says: the authors sample 25 neighbours at each distance and average them;
whole layers are the same idea without the draws. The generator is that of GAR-CF, three times.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from coheat.data.dataset import BundleData, Indices
from coheat.graph.bipartite import BipartiteGraph, layers
from coheat.losses import dot_rows
from coheat.models.gar import GAR, Draws, GARConfig
from coheat.models.layers import dropout, linear, pick
from coheat.models.scoring import own_scores
from coheat.models.towers import weights
from coheat.rng import Randomness
from coheat.served import Served

N_LAYERS = 3
PAIRS = 2**16
"""Pairs that pass the network at a time when all are scored: a hidden layer of 256 is then 64 MB."""


class GARGNNConfig(GARConfig):
    """Settings of GAR-GNN; the defaults are the published ones."""

    negative_weight: float = Field(
        0.9, ge=0, le=1, description="weight of another bundle against that of the made vectors (beta)"
    )
    combination: Literal["network", "linear"] = Field(
        "network", description="rate by a network over the nine products, or by their weighted sum"
    )
    hidden_size: int = Field(256, ge=1, description="width of the network's two hidden layers")


class Products(nn.Module):
    """The recommender r of the module's text."""

    def __init__(self, config: GARGNNConfig, generator: torch.Generator):
        super().__init__()
        width, self.share = N_LAYERS * config.embedding_size, config.recommender_dropout
        self.norm_users, self.norm_bundles = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        self.norm = nn.BatchNorm1d(N_LAYERS**2, affine=False)
        sizes = [N_LAYERS**2, *([config.hidden_size] * 2 if config.combination == "network" else [])]
        self.hidden = nn.ModuleList(linear(*ends, generator) for ends in pairwise(sizes))
        self.output = weights(sizes[-1], 1, generator)  # a bias would be the same for all pairs

    def forward(
        self, users: Tensor, bundles: Tensor, user_at: Tensor, bundle_at: Tensor, rng: Draws
    ) -> Tensor:
        """r(users[user_at[j]], bundles[bundle_at[j]]) for every j."""
        of_users, of_bundles = self.split(self.norm_users(users)), self.split(self.norm_bundles(bundles))
        products = [dot_rows(u, b, user_at, bundle_at) for u in of_users for b in of_bundles]
        return self.combine(torch.stack(products, 1), rng)

    @staticmethod
    def split(inputs: Tensor) -> list[Tensor]:
        """The vectors (n, d) that stand side by side."""
        return [part.contiguous() for part in inputs.chunk(N_LAYERS, 1)]

    def combine(self, products: Tensor, rng: Draws) -> Tensor:
        """Scores (n,) from products (n, 9)."""
        x = self.norm(products)
        for layer in self.hidden:
            x = dropout(leaky_relu(layer(x)), self.share, rng)
        found: Tensor = self.output(x)[:, 0]
        return found


class GARGNN(GAR):
    """See the module's text. Parameters: those of the generator and of the recommender."""

    Config = GARGNNConfig
    config: GARGNNConfig
    n_vectors = N_LAYERS
    contract_settings = {  # noqa: RUF012
        "recommender_dropout": 0.1,
        "hidden_size": 16,
        "content_size": 16,
    }

    def __init__(self, data: BundleData, config: GARGNNConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.graph = BipartiteGraph(data.user_bundle)

    def make_recommender(self, generator: torch.Generator) -> Products:
        return Products(self.config, generator)

    def inputs(self) -> tuple[Tensor, Tensor]:
        both = layers(self.graph.full, self.pretrained_users, self.pretrained_bundles, N_LAYERS)
        users, bundles = (found.transpose(0, 1).flatten(1) for found in both)
        return users, bundles

    def distances(self, made: Tensor, real: Tensor) -> Tensor:
        return (made - real).abs().sum(1) / N_LAYERS

    def normalised(self) -> tuple[Tensor, Tensor]:
        """Normalised vectors of all users (n_users, 3, d) and all bundles (n_bundles, 3, d)."""
        users, bundles = self.served_inputs()
        parts = self.recommender.norm_users(users), self.recommender.norm_bundles(bundles)
        users, bundles = (part.unflatten(1, (N_LAYERS, -1)) for part in parts)
        return users, bundles

    @torch.no_grad()
    def served(self) -> Served:
        users, bundles = self.normalised()
        if self.config.combination == "linear":
            norm = self.recommender.norm
            scale = self.recommender.output.weight[0] / torch.sqrt(norm.running_var + norm.eps)
            weighed = torch.einsum("jk,njd->nkd", scale.view(N_LAYERS, N_LAYERS), users)
            # What the normalisation subtracts is the same for all pairs, so it does not change any order.
            return self.one_block(weighed.flatten(1), bundles.flatten(1))
        transposed = bundles.flatten(0, 1).t().contiguous()

        def score(block: Indices) -> Tensor:
            """Scores (m, n_bundles) of these users, by the nine products of every pair."""
            products = pick(users, block).flatten(0, 1) @ transposed
            by_pair = products.view(len(block), N_LAYERS, -1, N_LAYERS).transpose(1, 2)
            scores: Tensor = self.recommender.combine(by_pair.reshape(-1, N_LAYERS**2), None)
            return scores.view(len(block), -1)

        return own_scores(self, score, max(PAIRS // len(bundles), 1))
