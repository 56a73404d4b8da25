"""MFBPR (Rendle, Freudenthaler, Gantner, Schmidt-Thieme; UAI 2009): matrix factorisation, learned by ranking.

A user is a vector p_u, a bundle a vector q_b, and

    score(u, b) = <p_u, q_b>
    loss        = mean of -ln sigma(score(u, b+) - score(u, b-))
                  + weight_decay * mean of (|p_u|^2 + |q_b+|^2 + |q_b-|^2) / 2

over the triples of a batch: user u took b+ and not b-. As usual for this loss the L2 part reaches just the
vectors a batch uses, not every parameter.

A cold bundle is never a b+: with negatives from all bundles it is pushed down, with negatives from the warm
ones (`negatives="warm"`) it stays where it began. Either way its place means nothing. In the second form
this model is the backbone of those that start from pretrained vectors (`coheat.backbone`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from coheat.config import Settings
from coheat.data.dataset import BundleData
from coheat.data.sampling import Triples, triples
from coheat.losses import bpr
from coheat.models.base import Model, ModelConfig
from coheat.models.layers import pair_scores, triples_l2
from coheat.rng import Randomness
from coheat.served import Served


class MFBPRConfig(ModelConfig):
    """Settings of MFBPR."""

    weight_decay: float = Field(1e-4, ge=0, description="L2 weight of the vectors in a batch")
    negatives: Literal["all", "warm"] = Field(
        "all", description="draw negatives from all bundles, or from those with training interactions"
    )


class MFBPR(Model):
    """score(u, b) = <p_u, q_b>. Parameters: `users` (n_users, d) and `bundles` (n_bundles, d)."""

    Config: ClassVar[type[Settings]] = MFBPRConfig
    config: MFBPRConfig
    decay_in_loss = True
    contract_settings: ClassVar[Mapping[str, Any]] = {"weight_decay": 0.05}

    def __init__(self, data: BundleData, config: MFBPRConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.users = self._table("users", data.n_users)
        self.bundles = self._table("bundles", data.n_bundles)
        self.candidates = np.flatnonzero(data.popularity) if config.negatives == "warm" else None

    def _table(self, name: str, n_rows: int) -> nn.Parameter:
        table = torch.empty(n_rows, self.config.embedding_size)
        nn.init.xavier_uniform_(table, generator=self.rng.torch_generator(name))
        return nn.Parameter(table)

    def batches(self, batch_size: int) -> Iterator[Triples]:
        """Every training interaction once, shuffled, with one negative each."""
        rng = self.rng.generator("batches", self.progress.epoch)
        return triples(self.data.user_bundle, batch_size, rng, self.candidates)

    def loss(self, batch: Triples) -> dict[str, Tensor]:
        return {
            "bpr": bpr(*pair_scores(self.users, self.bundles, batch)),
            "decay": self.config.weight_decay * triples_l2(self.users, self.bundles, batch),
        }

    @torch.no_grad()
    def served(self) -> Served:
        return self.one_block(self.users, self.bundles)
