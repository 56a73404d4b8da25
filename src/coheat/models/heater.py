"""Heater (Zhu, Sefati, Saadatpanah, Caverlee; SIGIR 2020): warm up content until it can stand in for history.

K experts turn a bundle's items into a vector that should resemble its pretrained one (Q~, standardised), and
a gate weighs them for each bundle:

    e_k(b) = tanh(phi_k(items of b)),  g(b) = tanh(phi_g(items of b))
    h_b    = tanh(sum over k of g_k(b) e_k(b))

Two towers T (linear -> batch normalisation -> tanh -> linear) give the score. In training a random half of a
batch's rows shows the pretrained vector and the other half h_b ("randomised training"), so that the towers
learn to live with either:

    score = <T_U(P~_u), T_B(z_b)>,  z_b = Q~_b or h_b
    loss  = mean of (score - y)^2 + similarity_weight * mean of |h_b - Q~_b|^2

with y = 1 for a bundle the user took and 0 for each of `n_negatives` warm ones drawn for it. The second term
is over all rows, whichever vector they show. Afterwards a warm bundle is scored by Q~_b, a cold one by h_b.

Where we differ: the second term is published as a sum over batches of 1024 rows with weight 1e-4, here it is
a mean with weight 0.1, the same for any batch size. Negatives are true ones: the sampler all models share
leaves out what the user took. The optimiser is Adam instead of SGD, with larger batches, and its L2 is for
the towers only: Adam would shrink the rows of rarely seen items as fast as it learns the others.
Gate and experts read the items in one layer of width K d + K.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from coheat.data.dataset import BundleData, Indices
from coheat.data.sampling import draw_negatives, triples
from coheat.graph import kernels
from coheat.graph.adam import Adam
from coheat.models.base import PretrainedConfig
from coheat.models.content import ContentBag
from coheat.models.layers import pick, tensors, where_warm
from coheat.models.towers import Head, TowerModel, weights
from coheat.rng import Randomness
from coheat.served import Served


class HeaterConfig(PretrainedConfig):
    """Settings of Heater."""

    weight_decay: float = Field(1e-4, ge=0, description="L2 weight of the towers, applied by Adam")
    size_exponent: float = Field(
        0.5, ge=0, description="the sum over a bundle's items is divided by its size to this power"
    )
    n_experts: int = Field(5, ge=1, description="experts K that read a bundle's items")
    similarity_weight: float = Field(0.1, ge=0, description="weight of |h_b - Q~_b|^2, averaged over rows")
    n_negatives: int = Field(5, ge=1, description="bundles drawn for each interaction")
    content_share: float = Field(0.5, ge=0, le=1, description="share of rows that show h_b in training")


@dataclass(frozen=True)
class Rows:
    """A batch: users (n,), for each a bundle taken and then those drawn (n, 1 + n_negatives).

    `by_content` (n * (1 + n_negatives), 1) says in which rows the bundle is shown by its items.
    """

    users: Indices
    bundles: Indices
    by_content: Tensor


class Heater(TowerModel):
    """See the module's text. Parameters: the layer that reads the items, and the towers."""

    Config = HeaterConfig
    config: HeaterConfig
    limits = 5.0, 1.0  # those of bundles where tanh ends, so that h_b can reach them

    def __init__(self, data: BundleData, config: HeaterConfig, rng: Randomness):
        super().__init__(data, config, rng)
        size = config.embedding_size
        width = config.n_experts * (size + 1)
        self.content = ContentBag(data, width, rng.torch_generator("content"), config.size_exponent)
        generator = rng.torch_generator("towers")
        self.user_tower = nn.Sequential(weights(size, size, generator), Head(size, size, generator))
        self.bundle_tower = nn.Sequential(weights(size, size, generator), Head(size, size, generator))

    def batches(self, batch_size: int) -> Iterator[Rows]:
        """Every training interaction once, shuffled, each with its negatives."""
        rng = self.rng.generator("batches", self.progress.epoch)
        more = self.rng.generator("more negatives", self.progress.epoch)
        interactions, n_negatives = self.data.user_bundle, self.config.n_negatives
        for batch in triples(interactions, batch_size, rng, self.warm_bundles):
            users = np.repeat(batch.users, n_negatives - 1)
            drawn = draw_negatives(interactions, users, more, self.warm_bundles)
            others = drawn.reshape(len(batch), n_negatives - 1)
            bundles = np.column_stack([batch.positives, batch.negatives, others])
            by_content = np.arange(bundles.size) < round(bundles.size * self.config.content_share)
            shown = torch.from_numpy(more.permutation(by_content)[:, None])
            yield Rows(batch.users, bundles, shown.to(self.pretrained_users.device))

    def from_content(self, bundles: Indices | None = None) -> Tensor:
        """h_b (n, d) of these bundles (n,), or of all: the experts' vectors, weighed by the gate."""
        n_experts = self.config.n_experts
        read = torch.tanh(self.content(bundles))
        gate, experts = read[:, :n_experts], read[:, n_experts:]
        by_expert = experts.view(len(read), n_experts, self.config.embedding_size)
        return torch.tanh((gate[:, :, None] * by_expert).sum(1))

    def loss(self, batch: Rows) -> dict[str, Tensor]:
        user_inputs, bundle_inputs = self.inputs
        distinct, at, counts = kernels.distinct(batch.bundles.ravel(), self.data.n_bundles)
        places, repeats = tensors(bundle_inputs.device, at, counts)
        pretrained, content = pick(bundle_inputs, distinct), self.from_content(distinct)
        shown = torch.where(batch.by_content, content.index_select(0, places), pretrained[places])
        users = self.user_tower(pick(user_inputs, batch.users))
        bundles = self.bundle_tower(shown).view(*batch.bundles.shape, -1)
        scores = (users[:, None, :] * bundles).sum(2)
        wanted = torch.zeros_like(scores)
        wanted[:, 0] = 1
        weight = repeats.to(scores.dtype) / batch.bundles.size
        similarity = ((content - pretrained).square().sum(1) * weight).sum()
        return {
            "error": (scores - wanted).square().mean(),
            "similarity": self.config.similarity_weight * similarity,
        }

    def optimizers(self) -> list[torch.optim.Optimizer]:
        towers = [*self.user_tower.parameters(), *self.bundle_tower.parameters()]
        groups: list[dict[str, Any]] = [
            {"params": towers, "weight_decay": self.config.weight_decay},
            {"params": list(self.content.parameters()), "weight_decay": 0.0},
        ]
        return [Adam(groups, lr=self.config.learning_rate)]

    @torch.no_grad()
    def served(self) -> Served:
        users, pretrained = self.standardised_vectors()
        shown = where_warm(self.data, pretrained, self.from_content())
        return self.one_block(self.user_tower(users), self.bundle_tower(shown))
