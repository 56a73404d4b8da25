"""Popularity: the same bundles for everybody, most taken first. The least a model has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from coheat.config import Settings
from coheat.models.base import Vectors
from coheat.models.untrained import Untrained


class PopularityConfig(Settings):
    """Popularity has no settings."""


class Popularity(Untrained):
    """score(u, b) = n_b, the training interactions of bundle b; 0 for a cold bundle."""

    Config: ClassVar[type[Settings]] = PopularityConfig
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "planted_answer_is_ranked_first": "it recommends the same bundles to everybody"
    }

    def vectors(self) -> Vectors:
        """Vectors of width 1: every user is 1, a bundle is its popularity."""
        counts = torch.from_numpy(self.data.popularity).to(torch.float32)
        return Vectors(users=torch.ones(self.data.n_users, 1), bundles=counts[:, None])
