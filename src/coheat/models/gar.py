"""GAR (Chen, Wang, Huang, Huang, Li, Ye, Wu; SIGIR 2022): a generator of vectors against a recommender.

Matrix factorisation is trained first and stays as it is (`backbone`). From it come the inputs of a
recommender r, which rates a user and a bundle by them: real(b). A generator makes such inputs from a bundle's
items instead, made(b). Both learn in turns, for u who took b and not n:

    recommender:  -ln sigma( r(u, real(b)) - (1 - w) r(u, made(b)) - w r(u, real(n)) )
    generator:    (1 - a) -ln sigma( r(u, made(b)) - r(u, real(b)) ) + a distance(made(b), real(b))

so the recommender learns to tell real inputs from made ones (and from those of other bundles), and the
generator to make inputs that it rates higher. With w = `negative_weight`, a = `similarity_weight`. Each is
without dropout, and with fixed statistics, in the other's turn. A warm bundle is scored by real(b), a cold
one by made(b).

What the inputs and r are, `gar_cf` and `gar_gnn` say. Where both differ from the authors: content is the
bundle's items; every interaction counts once in an epoch, where the authors draw users first; the distinct
users and bundles of a batch pass the recommender once, real and made ones together, so that batch statistics
count each once; pretraining and training use the same interactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from coheat.data.dataset import BundleData, Indices
from coheat.data.sampling import triples
from coheat.graph.adam import Adam
from coheat.losses import bpr
from coheat.models.base import Model, PretrainedConfig, Progress
from coheat.models.content import ContentBag, ContentConfig
from coheat.models.layers import dropout, linear, pick, where_warm
from coheat.models.two_views import Rows
from coheat.rng import Randomness


class GARConfig(PretrainedConfig, ContentConfig):
    """Settings of both forms of GAR; the defaults are the published ones."""

    weight_decay: float = Field(1e-3, ge=0, description="L2 weight, applied by Adam to all parameters")
    generator_dropout: float = Field(0.1, ge=0, lt=1, description="share of numbers dropped in the generator")
    recommender_dropout: float = Field(
        0.5, ge=0, lt=1, description="share of numbers dropped in the recommender"
    )
    similarity_weight: float = Field(
        0.05, ge=0, le=1, description="weight of the distance to the real vectors (alpha)"
    )
    negative_weight: float = Field(
        0.1, ge=0, le=1, description="weight of another bundle against that of the made vectors (beta)"
    )


Draws = np.random.Generator | None
"""Where dropout is drawn from; None where nothing is dropped."""


class Generator(nn.Module):
    """linear(dropout(tanh(norm(phi(b))))): content to one vector, or to each of several by layers of its own.

    phi is a `ContentBag`, norm is batch normalisation.
    """

    def __init__(self, data: BundleData, config: GARConfig, rng: Randomness, n_vectors: int = 1):
        super().__init__()
        generator, width = rng.torch_generator("generator"), config.content_size
        self.share, self.n_vectors = config.generator_dropout, n_vectors
        self.bag = ContentBag(data, n_vectors * width, generator, config.size_exponent, bias=False)
        self.norm = nn.BatchNorm1d(n_vectors * width)
        self.outputs = nn.ModuleList(
            linear(width, config.embedding_size, generator) for _ in range(n_vectors)
        )

    def forward(self, bundles: Indices | None, rng: Draws) -> Tensor:
        """Vectors of these bundles, or of all, side by side (n, n_vectors * d)."""
        hidden = dropout(torch.tanh(self.norm(self.bag(bundles))), self.share, rng)
        parts = hidden.chunk(self.n_vectors, 1)
        return torch.cat([output(part) for output, part in zip(self.outputs, parts, strict=True)], 1)


class GAR(Model):
    """See the module's text. Parameters: those of the generator and of the recommender."""

    Config = GARConfig
    config: GARConfig
    n_vectors = 1
    """How many vectors are read of a user or bundle, side by side."""
    backbone = "mfbpr"
    places_cold_bundles = True

    def __init__(self, data: BundleData, config: GARConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.warm_bundles = np.flatnonzero(data.popularity)
        self.generator = Generator(data, config, rng, self.n_vectors)
        self.recommender = self.make_recommender(rng.torch_generator("recommender"))

    def make_recommender(self, generator: torch.Generator) -> Any:
        """A module that returns the scores of pairs.

        It is called with inputs of users (n, n_vectors * d) and of bundles (m, n_vectors * d), the rows of
        each that make the pairs, and where dropout is drawn from.
        """
        raise NotImplementedError

    def inputs(self) -> tuple[Tensor, Tensor]:
        """The real inputs of all users and bundles; those of cold bundles mean nothing."""
        raise NotImplementedError

    def distances(self, made: Tensor, real: Tensor) -> Tensor:
        """How far each row (m, n_vectors * d) is from the real one (m,)."""
        raise NotImplementedError

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        self.epoch_inputs = self.inputs()

    def batches(self, batch_size: int) -> Iterator[Rows]:
        rng = self.rng.generator("batches", self.progress.epoch)
        for batch in triples(self.data.user_bundle, batch_size, rng, self.warm_bundles):
            yield Rows.of(batch, self.data, self.pretrained_users.device)

    def real(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """What is known of the batch's users and bundles."""
        users, bundles = self.epoch_inputs
        return pick(users, rows.users), pick(bundles, rows.bundles)

    def recommender_loss(self, rows: Rows) -> Tensor:
        """The recommender's turn: the generator's vectors are given."""
        self.generator.eval()
        self.recommender.train()
        n_positives, weight = len(rows.positive_counts), self.config.negative_weight
        users, bundles = self.real(rows)
        with torch.no_grad():
            made = self.generator(rows.bundles[:n_positives], None)
        bundle_at = torch.cat([rows.positive_at, len(bundles) + rows.positive_at, rows.negative_at])
        scores = self.recommender(
            users, torch.cat([bundles, made]), rows.user_at.repeat(3), bundle_at, self.dropout_rng
        )
        positive, generated, negative = scores.chunk(3)
        return bpr(positive, (1 - weight) * generated + weight * negative)

    def generator_loss(self, rows: Rows) -> Tensor:
        """The generator's turn: the recommender is given."""
        self.generator.train()
        self.recommender.eval()
        n_positives, weight = len(rows.positive_counts), self.config.similarity_weight
        users, bundles = self.real(rows)
        positives = bundles[:n_positives]
        made = self.generator(rows.bundles[:n_positives], self.dropout_rng)
        bundle_at = torch.cat([rows.positive_at, n_positives + rows.positive_at])
        scores = self.recommender(
            users, torch.cat([positives, made]), rows.user_at.repeat(2), bundle_at, None
        )
        real, generated = scores.chunk(2)
        shares = rows.positive_counts / rows.positive_counts.sum()
        distance = (shares * self.distances(made, positives)).sum()
        loss: Tensor = (1 - weight) * bpr(generated, real) + weight * distance
        return loss

    def loss(self, batch: Rows) -> dict[str, Tensor]:
        return {"recommender": self.recommender_loss(batch), "generator": self.generator_loss(batch)}

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """One for the recommender and one for the generator."""
        rate, decay = self.config.learning_rate, self.config.weight_decay
        return [
            Adam(part.parameters(), lr=rate, weight_decay=decay)
            for part in (self.recommender, self.generator)
        ]

    def step(self, batch: Rows, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
        """A step of the recommender, then one of the generator, each for its own parameters alone."""
        terms = {}
        losses = {"recommender": self.recommender_loss, "generator": self.generator_loss}
        for (name, loss), optimizer in zip(losses.items(), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=True)
            term = loss(batch)
            term.backward(inputs=optimizer.param_groups[0]["params"])  # type: ignore[no-untyped-call]
            optimizer.step()
            terms[name] = term.detach()
        return terms

    def served_inputs(self) -> tuple[Tensor, Tensor]:
        """What the recommender reads of all users, and of all bundles, made where they are cold."""
        users, bundles = self.inputs()
        return users, where_warm(self.data, bundles, self.generator(None, None))
