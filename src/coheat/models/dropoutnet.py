"""DropoutNet (Volkovs, Yu, Poutanen; NeurIPS 2017): learn to do without the pretrained vectors.

Two towers take a user's and a bundle's pretrained vectors (standardised: P~, Q~) and the bundle's items, and
are fitted to the score of the pretrained vectors themselves:

    x_u  = f_U(P~_u)
    x_b  = f_B(Q~_b, items of b)
    loss = mean of (<x_u, x_b> - <P_u, Q_b>)^2

In a random half of a batch's rows Q~_b is replaced by zero, so that f_B learns to find its place from the
items alone; independently P~_u in another half. A cold bundle's vector is zero to begin with, and is scored
just so. Each tower: linear -> batch normalisation -> tanh -> linear; in f_B the linear layer of Q~_b and the
content layer of the items are added first.

The pairs (u, b) of an epoch are, for each user, `pairs_per_user` draws: half from the `n_best` warm bundles
that the pretrained vectors place first, half from all warm bundles.

Where we differ: the authors take all of 2 * 2500 bundles per user at once, in minibatches of 100 by SGD. Our
epochs draw some of them, anew each time, which is the same sample in smaller portions; the optimiser is Adam,
and the weights start as Xavier's. Cold bundles are not drawn: their target would be zero for everybody. The
pretrained vectors are those of MFBPR instead of weighted factorisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coheat.data.dataset import BundleData, Indices
from coheat.models.base import PretrainedConfig
from coheat.models.content import ContentBag, ContentConfig
from coheat.models.layers import pick, tensors
from coheat.models.towers import Head, TowerModel, weights
from coheat.rng import Randomness
from coheat.served import Served

BLOCK = 1024
"""Users whose pretrained scores are ranked at a time."""


class DropoutNetConfig(ContentConfig, PretrainedConfig):
    """Settings of DropoutNet."""

    user_dropout: float = Field(0.5, ge=0, lt=1, description="share of rows without the user's vector")
    bundle_dropout: float = Field(0.5, ge=0, lt=1, description="share of rows without the bundle's vector")
    n_best: int = Field(
        500, ge=1, description="a user's best bundles to draw from, at most an eighth of the warm ones"
    )
    pairs_per_user: int = Field(40, ge=2, description="bundles drawn for a user in an epoch")


@dataclass(frozen=True)
class Pairs:
    """A batch of users and warm bundles (n,), and whether each one's pretrained vector is shown (n, 1)."""

    users: Indices
    bundles: Indices
    shown_users: Tensor
    shown_bundles: Tensor


class DropoutNet(TowerModel):
    """See the module's text. Parameters: the layer that reads the items, and the towers."""

    Config = DropoutNetConfig
    config: DropoutNetConfig
    limits = 5.0, 5.0
    contract_settings = {"content_size": 16, "pairs_per_user": 8}  # noqa: RUF012

    def __init__(self, data: BundleData, config: DropoutNetConfig, rng: Randomness):
        super().__init__(data, config, rng)
        size, width = config.embedding_size, config.content_size
        generator = rng.torch_generator("towers")
        self.user_layer = weights(size, width, generator)
        self.user_head = Head(width, size, generator)
        self.bundle_layer = weights(size, width, generator)
        self.content = ContentBag(
            data, width, rng.torch_generator("content"), config.size_exponent, bias=False
        )
        self.bundle_head = Head(width, size, generator)
        self.active_users = np.flatnonzero(np.diff(data.user_bundle.indptr))

    @cached_property
    def best(self) -> Indices:
        """For each active user the warm bundles with the highest pretrained scores (n_active, n_best).

        First asked for by an epoch's batches, when the pretrained vectors are there.
        """
        count = max(min(self.config.n_best, len(self.warm_bundles) // 8), 1)
        warm = pick(self.pretrained_bundles, self.warm_bundles)
        best = np.empty((len(self.active_users), count), dtype=np.int64)
        for start in range(0, len(best), BLOCK):
            block = slice(start, start + BLOCK)
            users = pick(self.pretrained_users, self.active_users[block])
            best[block] = self.warm_bundles[torch.topk(users @ warm.t(), count).indices.cpu().numpy()]
        return best

    def batches(self, batch_size: int) -> Iterator[Pairs]:
        """Pairs of some users at a time, every active user once in an epoch."""
        rng = self.rng.generator("pairs", self.progress.epoch)
        half = self.config.pairs_per_user // 2
        order = rng.permutation(len(self.active_users))
        for rows in np.array_split(order, self.n_batches(batch_size)):
            best = np.take_along_axis(
                self.best[rows], rng.integers(self.best.shape[1], size=(len(rows), half)), axis=1
            )
            others = self.warm_bundles[rng.integers(len(self.warm_bundles), size=best.shape)]
            bundles = np.concatenate([best, others], axis=1)
            users = np.repeat(self.active_users[rows], bundles.shape[1])
            shares = self.config.user_dropout, self.config.bundle_dropout
            shown = [rng.random((len(users), 1)) >= share for share in shares]
            yield Pairs(users, bundles.ravel(), *tensors(self.pretrained_users.device, *shown))

    def n_batches(self, batch_size: int) -> int:
        pairs: int = len(self.active_users) * (self.config.pairs_per_user // 2 * 2)
        return max(pairs // batch_size, 1)

    def user_vectors(self, inputs: Tensor) -> Tensor:
        """f_U of standardised vectors (n, d), zero where they are missing."""
        vectors: Tensor = self.user_head(self.user_layer(inputs))
        return vectors

    def bundle_vectors(self, inputs: Tensor, bundles: Indices | None = None) -> Tensor:
        """f_B of standardised vectors (n, d), zero where they are missing, and of the bundles' items."""
        vectors: Tensor = self.bundle_head(self.bundle_layer(inputs) + self.content(bundles))
        return vectors

    def loss(self, batch: Pairs) -> dict[str, Tensor]:
        users, bundles = tensors(self.pretrained_users.device, batch.users, batch.bundles)
        target = (self.pretrained_users[users] * self.pretrained_bundles[bundles]).sum(1)
        user_vectors = self.user_vectors(self.inputs[0][users] * batch.shown_users)
        bundle_vectors = self.bundle_vectors(self.inputs[1][bundles] * batch.shown_bundles, batch.bundles)
        found = (user_vectors * bundle_vectors).sum(1)
        return {"error": (found - target).square().mean()}

    @torch.no_grad()
    def served(self) -> Served:
        users, bundles = self.standardised_vectors()
        return self.one_block(self.user_vectors(users), self.bundle_vectors(bundles))
