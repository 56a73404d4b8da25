"""CVAR (Zhao, Ren, Du, Zhang, Wang; SIGIR 2022): warm up a cold vector by a conditional autoencoder.

Matrix factorisation is trained first and stays as it is: vectors P_u and Q_b (`backbone`). An autoencoder
learns to write vectors like Q_b from a short code z; its encoder reads Q_b, its prior reads the bundle's
items phi(b), and the decoder D also sees the popularity f_b:

    z   = mu(Q_b)     + noise * sd(Q_b) * eps,        Q^_b  = D([z ; f_b])
    z_p = mu_p(phi_b) + noise * sd_p(phi_b) * eps,    Q^p_b = D([z_p ; f_b])

    rank        = mean of -ln sigma(<P_u, Q^p_b> - <P_u, Q_n>)       over u who took b and not n
    reconstruct = mean of |Q^_b - Q_b|^2
    distance    = mean of |mu - mu_p|^2 + |sd - sd_p|^2              (Wasserstein-2 of the two Gaussians)
    loss        = rank + reconstruct + distance_weight * distance

All of mu, sd, mu_p, sd_p and D are single linear layers (sd after exp). The score of a warm bundle is
<P_u, Q_b>, so in the warm scenario CVAR is its backbone; of a cold one <P_u, Q^p_b> without noise.

Where we differ: the task is ranking by inner products instead of predicting clicks; content is the bundle's
items through a `ContentBag`; f_b = log(1 + n_b) / log(1 + max n). A cold bundle has f_b = 0, which training
would never show, so half of the time f_b is 0 in training (`popularity_dropout`). The distance is averaged
over the batch where the authors sum: their 1e-4 for batches of 2048 is our 0.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coheat.data.dataset import BundleData, Indices
from coheat.data.sampling import triples
from coheat.graph import kernels
from coheat.losses import bpr, dot_rows
from coheat.models.base import Model, PretrainedConfig
from coheat.models.content import ContentBag, ContentConfig
from coheat.models.layers import linear, pick, tensors, where_warm
from coheat.rng import Randomness
from coheat.served import Served


class CVARConfig(PretrainedConfig, ContentConfig):
    """Settings of CVAR; the defaults are the published ones."""

    weight_decay: float = Field(1e-6, ge=0, description="L2 weight, applied by Adam to all parameters")
    content_size: int = Field(64, ge=1, description="width of the layer that reads a bundle's items")
    code_size: int = Field(16, ge=1, description="width of the autoencoder's code z")
    noise: float = Field(1e-4, ge=0, description="scale of the noise that is added to a code in training")
    distance_weight: float = Field(0.2, ge=0, description="weight of the distance between code and prior")
    popularity_dropout: float = Field(
        0.5, ge=0, lt=1, description="share of bundles whose popularity is hidden in a batch of training"
    )


@dataclass(frozen=True)
class Warming:
    """A batch of n interactions with negatives, and the draws for its m distinct positive bundles.

    `counts` (m,) says how often each is a positive and `at` (n,) where; `shown` (m, 1) is 0 where the
    popularity is hidden; `noise` (2, m, code_size) is for the code and for the prior.
    """

    users: Tensor
    bundles: Indices
    at: Tensor
    counts: Tensor
    negatives: Tensor
    shown: Tensor
    noise: Tensor


class CVAR(Model):
    """See the module's text. Parameters: the bag, two encoders and the decoder; P and Q are frozen."""

    Config = CVARConfig
    config: CVARConfig
    backbone = "mfbpr"
    places_cold_bundles = True
    popularity: Tensor

    def __init__(self, data: BundleData, config: CVARConfig, rng: Randomness):
        super().__init__(data, config, rng)
        generator, code = rng.torch_generator("autoencoder"), config.code_size
        self.bag = ContentBag(data, config.content_size, generator, config.size_exponent)
        self.encoder = linear(config.embedding_size, 2 * code, generator)
        self.prior = linear(config.content_size, 2 * code, generator)
        self.decoder = linear(code + 1, config.embedding_size, generator)
        counts = np.log1p(data.popularity)
        scaled = torch.from_numpy((counts / max(counts.max(), 1)).astype(np.float32))
        self.register_buffer("popularity", scaled[:, None], persistent=False)
        self.warm_bundles = np.flatnonzero(data.popularity)

    def batches(self, batch_size: int) -> Iterator[Warming]:
        rng = self.rng.generator("batches", self.progress.epoch)
        for batch in triples(self.data.user_bundle, batch_size, rng, self.warm_bundles):
            bundles, at, counts = kernels.distinct(batch.positives, self.data.n_bundles)
            shown = rng.random((len(bundles), 1)) >= self.config.popularity_dropout
            noise = rng.standard_normal((2, len(bundles), self.config.code_size), dtype=np.float32)
            arrays = batch.users, at, counts, batch.negatives, shown, self.config.noise * noise
            users, at, counts, *rest = tensors(self.popularity.device, *arrays)
            yield Warming(users, bundles, at, counts, *rest)

    def loss(self, batch: Warming) -> dict[str, Tensor]:
        vectors = pick(self.pretrained_bundles, batch.bundles)
        popularity = pick(self.popularity, batch.bundles) * batch.shown
        mean, deviation = gaussian(self.encoder(vectors))
        prior_mean, prior_deviation = gaussian(self.prior(self.bag(batch.bundles)))
        rebuilt = self.decode(mean + deviation * batch.noise[0], popularity)
        warmed = self.decode(prior_mean + prior_deviation * batch.noise[1], popularity)
        positive = dot_rows(self.pretrained_users, warmed, batch.users, batch.at)
        negative = dot_rows(self.pretrained_users, self.pretrained_bundles, batch.users, batch.negatives)
        errors = (rebuilt - vectors).square().sum(1)
        distances = (mean - prior_mean).square() + (deviation - prior_deviation).square()
        shares = batch.counts / batch.counts.sum()
        return {
            "rank": bpr(positive, negative),
            "reconstruct": (shares * errors).sum(),
            "distance": self.config.distance_weight * (shares * distances.sum(1)).sum(),
        }

    def decode(self, codes: Tensor, popularity: Tensor) -> Tensor:
        """Vectors (m, d) from codes (m, code_size) and popularities (m, 1)."""
        found: Tensor = self.decoder(torch.cat([codes, popularity], 1))
        return found

    @torch.no_grad()
    def served(self) -> Served:
        warmed = self.decode(gaussian(self.prior(self.bag()))[0], self.popularity)
        return self.one_block(self.pretrained_users, where_warm(self.data, self.pretrained_bundles, warmed))


def gaussian(parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation (m, code_size) each, from an encoder's output (m, 2 code_size)."""
    mean, log_variance = parameters.chunk(2, 1)
    return mean, torch.exp(log_variance / 2)
