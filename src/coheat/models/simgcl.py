"""SimGCL (Yu, Yin, Xia, Chen, Cui, Nguyen; SIGIR 2022): contrast by a little noise instead of damaged graphs.

The encoder is LightGCN's without layer 0: the output e is the mean of layers 1 .. K. In a perturbed pass each
layer is moved, as it is propagated, by a step of length `noise` that stays in the layer's own orthant:

    e^k <- e^k + sign(e^k) * noise * n / |n|,   n uniform in (0, 1)^d for each node

With h' and h'' from two perturbed passes, scaled to length 1, and sums over the batch's distinct users v,

    contrast_u = -log( exp(<h'_u, h''_u> / t) / sum over v of exp(<h'_u, h''_v> / t) )
    loss       = mean BPR + contrast_weight * (mean contrast of the batch's distinct users + of its positives)
                 + weight_decay * (|e_u| + |e_b+|) / batch size

where |e_u| is the length of all outputs of the batch's users as one vector, not its square, as the authors
have it. A cold bundle has no neighbours, so its vector is 0 and its score is exactly 0 for everybody. That
may stand above the negative scores of warm bundles, but says nothing about the bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from coheat.config import Settings
from coheat.data.dataset import Indices
from coheat.data.sampling import Triples
from coheat.graph.bipartite import Selection, layers
from coheat.losses import batch_l2, bpr, infonce
from coheat.models.base import Progress
from coheat.models.layers import pair_scores, pick, tensors
from coheat.models.lightgcn import LightGCN, LightGCNConfig


class SimGCLConfig(LightGCNConfig):
    """Settings of SimGCL; the defaults are those of its authors."""

    weight_decay: float = Field(1e-4, ge=0, description="weight of the lengths of the outputs in a batch")
    n_layers: int = Field(2, ge=1, description="layers K of the graph convolution")
    noise: float = Field(
        0.1, ge=0, description="length of the step added to each propagated vector (epsilon)"
    )
    contrast_weight: float = Field(0.5, ge=0, description="weight of the contrast (lambda)")
    contrast_temperature: float = Field(0.2, gt=0, description="temperature t of the contrast")


class SimGCL(LightGCN):
    """See the module's text. Parameters: as LightGCN, drawn Xavier uniform."""

    Config: ClassVar[type[Settings]] = SimGCLConfig
    config: SimGCLConfig
    starts_xavier: ClassVar[bool] = True
    contract_settings: ClassVar[Mapping[str, Any]] = {"contrast_weight": 0.05}

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        self.noise_rng = self.rng.generator("noise", progress.epoch)

    def outputs(self, selection: Selection) -> tuple[Tensor, Tensor]:
        """Users and bundles without noise: the mean of layers 1 .. K."""
        users, bundles = layers(selection, self.users, self.bundles, self.config.n_layers + 1)
        return users[1:].mean(0), bundles[1:].mean(0)

    def perturbed_outputs(self) -> tuple[Tensor, Tensor]:
        """The same with fresh noise in every layer."""
        tables = self.users, self.bundles
        users, bundles = layers(self.graph.full, *tables, self.config.n_layers + 1, self.perturb)
        return users[1:].mean(0), bundles[1:].mean(0)

    def perturb(self, layer: Tensor) -> Tensor:
        """Move each vector of a layer (n, d) by the length `noise`, no coordinate towards or over 0."""
        drawn = self.noise_rng.random(layer.shape, dtype=np.float32)
        step = normalize(torch.from_numpy(drawn).to(layer.device))
        moved: Tensor = layer + layer.detach().sign() * step * self.config.noise
        return moved

    def loss(self, batch: Triples) -> dict[str, Tensor]:
        config = self.config
        users, bundles = self.outputs(self.graph.full)
        (first_users, first_bundles), (second_users, second_bundles) = (
            self.perturbed_outputs() for _ in range(2)
        )
        pairs = [
            (first_users, second_users, np.unique(batch.users)),
            (first_bundles, second_bundles, np.unique(batch.positives)),
        ]
        rows = tensors(users.device, batch.users, batch.positives)
        lengths = [
            batch_l2([used]).mul(2 * len(batch)).sqrt() for used in zip((users, bundles), rows, strict=True)
        ]
        return {
            "bpr": bpr(*pair_scores(users, bundles, batch)),
            "contrast": config.contrast_weight
            * infonce([_views(*p) for p in pairs], config.contrast_temperature).sum(),
            "decay": config.weight_decay * torch.stack(lengths).sum() / len(batch),
        }


def _views(first: Tensor, second: Tensor, nodes: Indices) -> tuple[Tensor, Tensor, Tensor]:
    """Both views of some nodes scaled to length 1, each counting once: what `infonce` takes."""
    x, y = (normalize(pick(view, nodes)) for view in (first, second))
    return x, y, x.new_ones(len(x))
