"""CLCRec (Wei, Wang, Li, Nie, Li, Li, Chua; ACM Multimedia 2021): contrast history with content.

A bundle has two vectors: its own e_b, learned from who took it, and f(b), computed from its items by
bag -> leaky ReLU -> linear. For a user u who took p, with negatives N among the warm bundles, two
contrasts (each -log softmax over p and N, evaluated at p):

    history-content:  cos(e_p, f(b)) / temperature            over b in {p} and N
    user-bundle:      <e_u, x_b> / temperature,  x_b = f(b) with probability `content_share`, else e_b

    loss = (1 - w) user-bundle + w history-content + norm_weight * (mean |e_u| + mean |e_b|) / 2

The score of a warm bundle is <e_u, e_b>, of a cold one <e_u, f(b)>: the first contrast lets f(b) stand for
the e_b it does not have, the second lets users meet both kinds of vectors.

Where we differ: content is the bundle's items through a `ContentBag`; a batch shares one pool of negatives
(in which each row leaves out what its user has taken) instead of drawing some for every row, which is the
same kind of estimate and far cheaper; the slots that use content are independent draws, where the authors
draw positions with replacement; and what a user took in validation or test is not kept from being a
negative, since that would tell the model about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import leaky_relu, normalize

from coheat.data.dataset import BundleData, Indices
from coheat.data.sampling import triples
from coheat.graph import kernels
from coheat.losses import dot_rows, sampled_softmax
from coheat.models.base import Model
from coheat.models.content import ContentBag, ContentConfig
from coheat.models.layers import linear, pick, table, tensors, where_warm
from coheat.rng import Randomness
from coheat.served import Served


class CLCRecConfig(ContentConfig):
    """Settings of CLCRec; the defaults are the published ones, with a larger pool of negatives."""

    content_size: int = Field(256, ge=1, description="width of the layer that reads a bundle's items")
    temperature: float = Field(2.0, gt=0, description="temperature of both contrasts (tau)")
    content_contrast_weight: float = Field(
        0.5, ge=0, le=1, description="weight of the contrast of history with content (lambda)"
    )
    content_share: float = Field(
        0.5, ge=0, le=1, description="share of candidates that meet the user as content (rho)"
    )
    n_negatives: int = Field(512, ge=1, description="warm bundles in a batch's pool of negatives")
    norm_weight: float = Field(0.1, ge=0, description="weight of the vectors' lengths in the loss")


@dataclass(frozen=True)
class Contrast:
    """A batch of n interactions, and the pool of m bundles that each of them is compared with.

    `users` and `bundles` are the distinct ones; `user_at`, `positive_at` (n,) and `pool_at` (m,) say where
    among them. `known` (n, m) marks what the row's user has taken; `slots` (n, 1 + m) says which candidate,
    the positive first, is met as content.
    """

    users: Tensor
    user_at: Tensor
    bundles: Indices
    positive_at: Tensor
    pool_at: Tensor
    known: Tensor
    slots: Tensor


class CLCRec(Model):
    """See the module's text. Parameters: vectors of users and bundles, the bag and a linear layer."""

    Config = CLCRecConfig
    config: CLCRecConfig
    places_cold_bundles = True
    contract_settings = {"n_negatives": 4}  # noqa: RUF012

    def __init__(self, data: BundleData, config: CLCRecConfig, rng: Randomness):
        super().__init__(data, config, rng)
        width = config.embedding_size
        self.users = table(data.n_users, width, rng.torch_generator("users"))
        self.bundles = table(data.n_bundles, width, rng.torch_generator("bundles"))
        generator = rng.torch_generator("content")
        self.bag = ContentBag(data, config.content_size, generator, config.size_exponent)
        self.head = linear(config.content_size, width, generator)
        self.warm_bundles = np.flatnonzero(data.popularity)

    def content(self, bundles: Indices | None = None) -> Tensor:
        """f(b) of these bundles, or of all (n, embedding_size)."""
        found: Tensor = self.head(leaky_relu(self.bag(bundles)))
        return found

    def batches(self, batch_size: int) -> Iterator[Contrast]:
        rng, data = self.rng.generator("batches", self.progress.epoch), self.data
        n_negatives = min(self.config.n_negatives, len(self.warm_bundles))
        for batch in triples(data.user_bundle, batch_size, rng, self.warm_bundles):
            n = len(batch)
            pool = rng.choice(self.warm_bundles, n_negatives, replace=False)
            users, user_at, _ = kernels.distinct(batch.users, data.n_users)
            bundles, at, _ = kernels.distinct(np.concatenate([batch.positives, pool]), data.n_bundles)
            known = data.user_bundle[users][:, pool].toarray()[user_at] > 0
            slots = rng.random((n, 1 + n_negatives), dtype=np.float32) < self.config.content_share
            arrays = users, user_at, at[:n], at[n:], known, slots
            users, user_at, *rest = tensors(self.users.device, *arrays)
            yield Contrast(users, user_at, bundles, *rest)

    def loss(self, batch: Contrast) -> dict[str, Tensor]:
        config, weight = self.config, self.config.content_contrast_weight
        users = torch.index_select(self.users, 0, batch.users)
        own = pick(self.bundles, batch.bundles)
        content = self.content(batch.bundles)
        met = [compare(users, x, batch.user_at, batch) for x in (content, own)]
        user_bundle = torch.where(batch.slots, met[0], met[1])
        history_content = compare(normalize(own), normalize(content), batch.positive_at, batch)
        terms = {
            "user_bundle": (1 - weight) * self._contrast(user_bundle, batch),
            "history_content": weight * self._contrast(history_content, batch),
        }
        if config.norm_weight:
            lengths = own.norm(dim=1)
            positives = torch.index_select(lengths, 0, batch.positive_at).mean()
            pool = torch.index_select(lengths, 0, batch.pool_at)
            users_mean = torch.index_select(users.norm(dim=1), 0, batch.user_at).mean()
            both = users_mean + torch.cat([positives[None], pool]).mean()
            terms["norm"] = config.norm_weight * both / 2
        return terms

    def _contrast(self, similarities: Tensor, batch: Contrast) -> Tensor:
        """-log softmax at the positive, over it and those of the pool that the user has not taken."""
        logits = similarities / self.config.temperature
        others = logits[:, 1:].masked_fill(batch.known, -torch.inf)
        return sampled_softmax(logits[:, 0], others)

    @torch.no_grad()
    def served(self) -> Served:
        return self.one_block(self.users, where_warm(self.data, self.bundles, self.content()))


def compare(anchors: Tensor, candidates: Tensor, anchor_at: Tensor, batch: Contrast) -> Tensor:
    """Inner products (n, 1 + m) of each row's anchor with its positive and with the bundles of the pool."""
    positive = dot_rows(anchors, candidates, anchor_at, batch.positive_at)
    pool = anchors @ torch.index_select(candidates, 0, batch.pool_at).t()
    return torch.cat([positive[:, None], torch.index_select(pool, 0, anchor_at)], 1)
