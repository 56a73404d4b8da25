"""CCFCRec (Zhou, Zhang, Yang; WWW 2023): content learns collaborative filtering by contrast.

A bundle has a vector s_b learned from who took it, and one computed from its items: with a table A of item
vectors and an attention vector w,

    z_b = sum of softmax(<w, A_i>) A_i over the items i of b       (softmax over the items of b)
    q_b = G2 leaky_relu(G1 z_b)

For a user u who took b, a user v who did not, related bundles r (others that u took), and negatives N that u
did not take, with cosines divided by a temperature:

    collaborative contrast:  -log softmax of cos(q_b, s_r) over r and N, mean over the related
    self contrast:           -log softmax of cos(q_b, s_b) over b and N
    rank:                    -ln sigma(<s_b, e_u - e_v>) - ln sigma(<q_b, e_u - e_v>)
    loss = contrast_weight (collaborative + self) + (1 - contrast_weight) rank

The score of a warm bundle is <e_u, s_b>, of a cold one <e_u, q_b>. Ranking compares users for one bundle, so
nothing sets the scores of different bundles against each other; that is the method, and is left so.

Where we differ: content is the bundle's items, without images; one vector w does what the authors'
w2 . (W1 A_i + b1) does, since a softmax does not see a constant; terms are means over the batch, not sums (so
the authors' weight decay of 0.1 is 0.1 / 1024, about 1e-4); both contrasts share the negatives of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, normalize

from coheat.data.dataset import BundleData, Indices
from coheat.data.sampling import draw_negatives, triples
from coheat.graph import kernels
from coheat.graph.bipartite import Direction
from coheat.graph.propagation import multiply
from coheat.losses import bpr, dot_rows, sampled_softmax
from coheat.models.base import Model, ModelConfig
from coheat.models.layers import linear, pick, tables, tensors, where_warm
from coheat.rng import Randomness
from coheat.served import Served


class CCFCRecConfig(ModelConfig):
    """Settings of CCFCRec; the defaults are the published ones, as far as they carry over."""

    weight_decay: float = Field(1e-4, ge=0, description="L2 weight, applied by Adam to all parameters")
    contrast_weight: float = Field(0.6, ge=0, le=1, description="weight of both contrasts (lambda)")
    temperature: float = Field(0.1, gt=0, description="temperature of both contrasts (tau)")
    n_related: int = Field(5, ge=1, description="related bundles drawn for each interaction (M)")
    n_negatives: int = Field(40, ge=1, description="negative bundles drawn for each interaction")


@dataclass(frozen=True)
class Interactions:
    """A batch of n interactions: who took what, who did not, and which bundles are related or not.

    `bundles` are the distinct ones that were taken, `at` (n,) says which of them. `related`
    (n, n_related) and `negatives` (n, n_negatives) are bundles, flattened row by row.
    """

    users: Tensor
    others: Tensor
    bundles: Indices
    at: Tensor
    related: Tensor
    negatives: Tensor


class CCFCRec(Model):
    """See the module's text. Parameters: vectors of users, bundles and items, attention, two layers."""

    Config = CCFCRecConfig
    config: CCFCRecConfig
    places_cold_bundles = True
    contract_settings = {"n_negatives": 4, "weight_decay": 0.01}  # noqa: RUF012

    def __init__(self, data: BundleData, config: CCFCRecConfig, rng: Randomness):
        super().__init__(data, config, rng)
        width = config.embedding_size
        self.users, self.bundles, self.items = tables(data, width, rng)
        generator = rng.torch_generator("content")
        self.attention = nn.Parameter(torch.randn(width, 1, generator=generator) / width**0.5)
        self.hidden, self.output = (linear(width, width, generator) for _ in range(2))
        self.pooling = Direction(data.bundle_item, "mean")
        self.warm_bundles = np.flatnonzero(data.popularity)
        self.bundle_user = data.user_bundle.T.tocsr()

    def attended(self, bundles: Indices | None = None) -> Tensor:
        """z_b of these bundles, or of all (n, d); 0 for a bundle without items.

        The softmax over each bundle's items is a quotient of two sums over them, of exp(a_i) A_i and of
        exp(a_i). One shift for all items keeps the exponentials finite, and the clamp above 0.
        """
        scores = self.items @ self.attention
        weights = torch.exp((scores - scores.max().detach()).clamp(min=-60))
        pooling = self.pooling
        propagation = pooling.full if bundles is None else pooling.select(bundles, pooling.everything)
        sums = multiply(torch.cat([weights * self.items, weights], 1), propagation)
        return sums[:, :-1] / sums[:, -1:].clamp(min=1e-30)

    def content(self, bundles: Indices | None = None) -> Tensor:
        """q_b of these bundles, or of all (n, d)."""
        found: Tensor = self.output(leaky_relu(self.hidden(self.attended(bundles))))
        return found

    def batches(self, batch_size: int) -> Iterator[Interactions]:
        rng, taken = self.rng.generator("batches", self.progress.epoch), self.data.user_bundle
        for batch in triples(taken, batch_size, rng, self.warm_bundles):
            others = draw_negatives(self.bundle_user, batch.positives, rng)
            repeated = np.repeat(batch.users, self.config.n_negatives)
            negatives = draw_negatives(taken, repeated, rng, self.warm_bundles)
            repeated = np.repeat(batch.users, self.config.n_related)
            places = rng.random(len(repeated)) * np.diff(taken.indptr)[repeated]
            related = taken.indices[taken.indptr[repeated] + places.astype(np.int64)].astype(np.int64)
            bundles, at, _ = kernels.distinct(batch.positives, self.data.n_bundles)
            took, not_taken, *rest = tensors(self.users.device, batch.users, others, at, related, negatives)
            yield Interactions(took, not_taken, bundles, *rest)

    def loss(self, batch: Interactions) -> dict[str, Tensor]:
        weight = self.config.contrast_weight
        own, content = pick(self.bundles, batch.bundles), self.content(batch.bundles)
        pairs_at = torch.cat([batch.users, batch.others]), torch.cat([batch.at, batch.at])
        ranks = [bpr(*dot_rows(self.users, vectors, *pairs_at).chunk(2)) for vectors in (own, content)]
        collaborative, alone = self._contrasts(own, content, batch)
        return {
            "rank": (1 - weight) * torch.stack(ranks).sum(),
            "collaborative": weight * collaborative,
            "self": weight * alone,
        }

    def _contrasts(self, own: Tensor, content: Tensor, batch: Interactions) -> tuple[Tensor, Tensor]:
        """The collaborative and the self contrast."""
        anchors, table = normalize(content), normalize(self.bundles)

        def cosines(bundles: Tensor) -> Tensor:
            at = batch.at.repeat_interleave(len(bundles) // len(batch.at))
            found: Tensor = dot_rows(anchors, table, at, bundles) / self.config.temperature
            return found

        negatives = cosines(batch.negatives).view(len(batch.at), -1)
        together = torch.logsumexp(negatives, 1)  # the negatives' part of every denominator of the row
        related = cosines(batch.related)
        collaborative = sampled_softmax(related, together.repeat_interleave(self.config.n_related)[:, None])
        itself = dot_rows(anchors, normalize(own), batch.at, batch.at) / self.config.temperature
        return collaborative, sampled_softmax(itself, together[:, None])

    @torch.no_grad()
    def served(self) -> Served:
        return self.one_block(self.users, where_warm(self.data, self.bundles, self.content()))
