"""A model small enough to know by heart, for tests of what stands around models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from coheat.data.dataset import BundleData
from coheat.data.sampling import Triples
from coheat.models.base import Model, ModelConfig, numpy
from coheat.rng import Randomness
from coheat.served import Block, Served


class Factorisation(Model):
    """score(u, b) = <u, b>, learned with BPR; an item's vector is the mean of its bundles' vectors."""

    def __init__(self, data: BundleData, config: ModelConfig, rng: Randomness):
        super().__init__(data, config, rng)
        width, generator = config.embedding_size, rng.torch_generator("vectors")
        self.users = nn.Parameter(0.1 * torch.randn(data.n_users, width, generator=generator))
        self.bundles = nn.Parameter(0.1 * torch.randn(data.n_bundles, width, generator=generator))

    def loss(self, batch: Triples) -> dict[str, Tensor]:
        def rows(table: Tensor, positions: object) -> Tensor:
            return functional.embedding(torch.as_tensor(positions), table)

        difference = rows(self.bundles, batch.positives) - rows(self.bundles, batch.negatives)
        margin = (rows(self.users, batch.users) * difference).sum(1)
        return {"bpr": functional.softplus(-margin).mean(), "size": 1e-3 * self.users.square().mean()}

    def served(self) -> Served:
        users, bundles = numpy(self.users), numpy(self.bundles)
        bundle_item = self.data.bundle_item.toarray()
        shares = (bundle_item / bundle_item.sum(0, keepdims=True).clip(1)).astype("float32")
        block = Block("score", "items", users.shape[1], items=shares.T @ bundles, size_exponent=0.5)
        return Served.create(self.relations, [(block, users, bundles)])


def factorisation(data: BundleData, seed: int = 0, learning_rate: float = 0.01) -> Factorisation:
    config = ModelConfig(embedding_size=8, learning_rate=learning_rate)
    return Factorisation(data, config, Randomness(seed))
