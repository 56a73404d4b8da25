"""A bundle's content as a vector: the layer that takes the place of "linear in the multi-hot row of items".

    phi(b) = |b| ** -size_exponent * (sum of W_i over the items i of b) + bias

Exponent 0 is the plain product with the multi-hot row, 1/2 the product with that row scaled to length 1,
1 the mean over items. The default is 1/2: sizes differ by a factor of twenty between data sets, and with 0
whatever stands behind the layer saturates for large bundles.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from coheat.data.dataset import BundleData, Indices
from coheat.graph.bipartite import Direction
from coheat.graph.propagation import multiply
from coheat.models.base import ModelConfig
from coheat.models.layers import pick


class ContentConfig(ModelConfig):
    """Settings of a model that reads a bundle's items through a `ContentBag`."""

    content_size: int = Field(128, ge=1, description="width of the layer that reads a bundle's items")
    size_exponent: float = Field(
        0.5, ge=0, description="the sum over a bundle's items is divided by its size to this power"
    )


class ContentBag(nn.Module):
    """phi of the module's text. Parameters: W (n_items, width) and, unless left out, a bias (width)."""

    scale: Tensor

    def __init__(
        self,
        data: BundleData,
        width: int,
        generator: torch.Generator,
        size_exponent: float = 0.5,
        bias: bool = True,
    ):
        super().__init__()
        self.items = nn.Parameter(torch.empty(data.n_items, width))
        nn.init.xavier_normal_(self.items, generator=generator)
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.pooling = Direction(data.bundle_item, "mean")
        sizes = np.maximum(np.diff(data.bundle_item.indptr), 1).astype(np.float64)
        scale = torch.from_numpy((sizes ** (1 - size_exponent)).astype(np.float32))
        self.register_buffer("scale", scale, persistent=False)  # turns the mean into the scaled sum

    def forward(self, bundles: Indices | None = None) -> Tensor:
        """phi (n, width) of these bundles (n,), in their order, or of all bundles.

        Costs what the bundles' items cost, so ask for the distinct bundles of a batch. A bundle without
        items is the bias.
        """
        if bundles is None:
            propagation, scale = self.pooling.full, self.scale
        else:
            propagation = self.pooling.select(bundles, self.pooling.everything)
            scale = pick(self.scale, bundles)
        pooled = multiply(self.items, propagation) * scale[:, None]
        return pooled if self.bias is None else pooled + self.bias
