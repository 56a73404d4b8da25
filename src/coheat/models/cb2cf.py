"""CB2CF (Barkan, Koenigstein, Yogev, Katz; RecSys 2019): a bridge from content to collaborative vectors.

A small network is fitted to the pretrained vectors Q_b of the warm bundles, from their items alone:

    a   = dropout(ReLU(phi(items of b)))
    q_b = W2 ReLU(W1 a + b1) + b2
    loss = mean over warm bundles of |q_b - Q_b|^2

Nothing else is learned: interactions enter by the pretrained vectors only, and users keep theirs.

    score(u, b) = <P_u, Q_b> for a warm bundle, <P_u, q_b> for a cold one

Pretrained vectors are longer for popular bundles, and a regression shrinks towards the mean, so cold bundles
stand below warm ones where both are ranked together. That is the method's own weakness, and is left in.

The paper has a subnetwork for each kind of content (text, tags, numbers); a bundle has one kind, its items.
Its figures for warm bundles in the CoHeat paper look as if they too had been scored by q_b:
`warm_vectors="content"` does so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coheat.config import Settings
from coheat.data.dataset import BundleData, Indices
from coheat.models.base import Model, PretrainedConfig, Progress
from coheat.models.content import ContentBag, ContentConfig
from coheat.models.layers import linear, pick, where_warm
from coheat.rng import Randomness
from coheat.served import Served


class CB2CFConfig(ContentConfig, PretrainedConfig):
    """Settings of CB2CF."""

    hidden_size: int = Field(256, ge=1, description="width of the layer that combines what was read")
    dropout: float = Field(0.2, ge=0, lt=1, description="share of the read content that is dropped")
    warm_vectors: Literal["backbone", "content"] = Field(
        "backbone", description="score warm bundles by their pretrained vectors, or by their items too"
    )


class CB2CF(Model):
    """See the module's text. A batch is an array of warm bundles."""

    Config: ClassVar[type[Settings]] = CB2CFConfig
    config: CB2CFConfig
    backbone: ClassVar[str | None] = "mfbpr"
    places_cold_bundles: ClassVar[bool] = True
    contract_settings: ClassVar[Mapping[str, Any]] = {"content_size": 16, "hidden_size": 16}

    def __init__(self, data: BundleData, config: CB2CFConfig, rng: Randomness):
        super().__init__(data, config, rng)
        generator = rng.torch_generator("bridge")
        self.content = ContentBag(
            data, config.content_size, rng.torch_generator("content"), config.size_exponent
        )
        self.combine = linear(config.content_size, config.hidden_size, generator)
        self.out = linear(config.hidden_size, config.embedding_size, generator)
        self.warm_bundles = np.flatnonzero(data.popularity)

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        self.dropout_generator = self.rng.torch_generator("dropout", progress.epoch)

    def batches(self, batch_size: int) -> Iterator[Indices]:
        """Every warm bundle once, in random order."""
        order = self.rng.generator("batches", self.progress.epoch).permutation(self.warm_bundles)
        yield from np.array_split(order, self.n_batches(batch_size))

    def n_batches(self, batch_size: int) -> int:
        return -(-len(self.warm_bundles) // batch_size)

    def bridge(self, bundles: Indices | None = None) -> Tensor:
        """q_b (n, d) of these bundles (n,), or of all."""
        read = torch.relu(self.content(bundles))
        rate = self.config.dropout
        if self.training and rate > 0:
            kept = torch.rand(read.shape, generator=self.dropout_generator) >= rate
            read = read * kept.to(read.device) / (1 - rate)
        vectors: Tensor = self.out(torch.relu(self.combine(read)))
        return vectors

    def loss(self, batch: Indices) -> dict[str, Tensor]:
        target = pick(self.pretrained_bundles, batch)
        return {"error": (self.bridge(batch) - target).square().sum(1).mean()}

    @torch.no_grad()
    def served(self) -> Served:
        bundles = self.bridge()
        if self.config.warm_vectors == "backbone":
            bundles = where_warm(self.data, self.pretrained_bundles, bundles)
        return self.one_block(self.pretrained_users, bundles)
