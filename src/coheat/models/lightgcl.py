"""LightGCL (Cai, Huang, Xia, Ren; ICLR 2023): contrast with the graph's own low-rank summary.

A is the user-bundle matrix divided by the square roots of both degrees, and U S V^T its closest matrix of
rank `rank`, found once by a randomised SVD. Beside LightGCN's layers, and from the same inputs, stand layers
that propagate over this summary, in which everybody is connected with everything:

    e_u^k = sum_b A_ub e_b^(k-1),        e = sum of layers 0 .. K,      score(u, b) = <e_u, e_b>
    g_u^k = (U S V^T e_b^(k-1))_u,       g = e^0 + sum of layers 1 .. K of g
    contrast_u = log( sum over all users v of exp(<g_u, e_v> / t) ) - clip(<g_u, e_u> / t, -5, 5)
    loss  = mean BPR + contrast_weight * (mean contrast of the batch's users + of its positives and negatives)
            + L2 of all parameters

and likewise for bundles. Vectors are not scaled to length 1. The authors add lambda_2 times the sum of
squares of all parameters; Adam's weight decay of 2 * lambda_2 is the same gradient. Their edge dropout is off
by default and left out. The sum over all users is made in blocks, so that its memory does not grow with the
data; `candidates="batch"` sums over the batch's own users and bundles instead, to save time on large data.

Cold bundles: no neighbours, only layer 0; no meaningful score.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coheat.config import Settings
from coheat.data.dataset import BundleData
from coheat.data.sampling import Triples
from coheat.graph.bipartite import Selection, layers
from coheat.graph.propagation import Propagation, multiply
from coheat.losses import bpr
from coheat.models.contrast import Candidates, contrast
from coheat.models.layers import both_pairs, pair_scores
from coheat.models.lightgcn import LightGCN, LightGCNConfig
from coheat.rng import Randomness

OWN_LIMIT = 5.0
"""Where the authors cut <g, e> / t of a node with itself: past it the contrast stops pulling."""


class LightGCLConfig(LightGCNConfig):
    """Settings of LightGCL; the defaults are those of its authors."""

    weight_decay: float = Field(2e-7, ge=0, description="L2 weight of all parameters, 2 lambda_2, by Adam")
    n_layers: int = Field(2, ge=1, description="layers K of the graph convolution")
    rank: int = Field(5, ge=1, description="rank q of the summary")
    contrast_weight: float = Field(0.2, ge=0, description="weight of the contrast (lambda_1)")
    contrast_temperature: float = Field(0.2, gt=0, description="temperature t of the contrast")
    candidates: Candidates = Field(
        "all", description="contrast with all users and bundles, or with those of the batch"
    )


class LightGCL(LightGCN):
    """See the module's text. Parameters: as LightGCN, drawn Xavier uniform."""

    Config: ClassVar[type[Settings]] = LightGCLConfig
    config: LightGCLConfig
    starts_xavier: ClassVar[bool] = True
    decay_in_loss = False
    contract_settings: ClassVar[Mapping[str, Any]] = {"contrast_weight": 0.01}
    user_factors: Tensor
    bundle_factors: Tensor

    def __init__(self, data: BundleData, config: LightGCLConfig, rng: Randomness):
        super().__init__(data, config, rng)
        factors = low_rank(self.graph.left.full, config.rank, rng.generator("summary"))
        self.register_buffer("user_factors", factors[0], persistent=False)
        self.register_buffer("bundle_factors", factors[1], persistent=False)

    def outputs(self, selection: Selection) -> tuple[Tensor, Tensor]:
        """Users and bundles: the sum of layers 0 .. K."""
        users, bundles = layers(selection, self.users, self.bundles, self.config.n_layers + 1)
        return users.sum(0), bundles.sum(0)

    def summary_outputs(self, users: Tensor, bundles: Tensor) -> tuple[Tensor, Tensor]:
        """The views g of users and bundles, given the layers 0 .. K - 1 (K, n, d) of both.

        Propagation over the summary is linear, so one product with the sum of the layers does for all.
        """
        to_users = self.user_factors @ (self.bundle_factors.t() @ bundles.sum(0))
        to_bundles = self.bundle_factors @ (self.user_factors.t() @ users.sum(0))
        return self.users + to_users, self.bundles + to_bundles

    def loss(self, batch: Triples) -> dict[str, Tensor]:
        config = self.config
        user_layers, bundle_layers = layers(self.graph.full, self.users, self.bundles, config.n_layers + 1)
        users, bundles = user_layers.sum(0), bundle_layers.sum(0)
        summary_users, summary_bundles = self.summary_outputs(user_layers[:-1], bundle_layers[:-1])
        _, met = both_pairs(batch)
        sides = [(summary_users, users, batch.users), (summary_bundles, bundles, met)]
        value = contrast(sides, config.contrast_temperature, config.candidates, OWN_LIMIT)
        return {
            "bpr": bpr(*pair_scores(users, bundles, batch)),
            "contrast": config.contrast_weight * value,
        }


def low_rank(matrix: Propagation, rank: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Factors (n_targets, rank) and (n_sources, rank) whose product is the closest matrix of that rank.

    Randomised SVD: a few random vectors, multiplied by the matrix and its transpose over and over, come to
    lie in the span of the largest singular vectors; there the decomposition is small and exact. The singular
    values are shared out between the factors by their square roots.
    """
    width = min(rank + 10, matrix.n_targets, matrix.n_sources)
    found = torch.from_numpy(rng.standard_normal((matrix.n_sources, width), dtype=np.float32))
    for _ in range(8):
        found = torch.linalg.qr(multiply(found, matrix)).Q
        found = torch.linalg.qr(multiply(found, matrix.transposed)).Q
    left, values, right = torch.linalg.svd(multiply(found, matrix), full_matrices=False)
    roots = values[:rank].sqrt()
    return left[:, :rank] * roots, found @ right[:rank].t() * roots
