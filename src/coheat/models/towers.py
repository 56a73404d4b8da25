"""What DropoutNet and Heater share: they read standardised pretrained vectors, by towers of the form

    pre-activation -> batch normalisation -> tanh -> linear.

What stands before a batch normalisation has no bias of its own: the normalisation would take it out again.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from coheat.config import Settings
from coheat.data.dataset import BundleData
from coheat.models.base import Model, Progress
from coheat.models.layers import linear
from coheat.rng import Randomness


def standardised(x: Tensor, limit: float) -> Tensor:
    """Rows of x (n, d) with mean 0 and deviation 1 in each column, cut off at +-limit.

    A row of zeros is a missing one: it counts in neither, and stays zero.
    """
    known = x.any(1)
    rows = x[known]
    scaled = (rows - rows.mean(0)) / rows.std(0, correction=0).clamp_min(1e-12)
    result = torch.zeros_like(x)
    result[known] = scaled.clamp(-limit, limit)
    return result


def weights(n_in: int, n_out: int, generator: torch.Generator) -> nn.Linear:
    """A linear map without a bias, Xavier normal."""
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.xavier_normal_(layer.weight, generator=generator)
    return layer


class Head(nn.Module):
    """The tower above its pre-activation: (n, width) -> (n, n_out)."""

    def __init__(self, width: int, n_out: int, generator: torch.Generator):
        super().__init__()
        self.normalise = nn.BatchNorm1d(width)
        self.out = linear(width, n_out, generator)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = torch.tanh(self.normalise(x))
        result: Tensor = self.out(hidden)
        return result


class TowerModel(Model):
    """Base of the models with towers; `inputs` is what they read: P~ (n_users, d) and Q~ (n_bundles, d)."""

    backbone = "mfbpr"
    places_cold_bundles = True
    limits: tuple[float, float]
    """Where the standardised vectors of users, and those of bundles, are cut off."""
    inputs: tuple[Tensor, Tensor]

    def __init__(self, data: BundleData, config: Settings, rng: Randomness):
        super().__init__(data, config, rng)
        self.warm_bundles = np.flatnonzero(data.popularity)

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        self.inputs = self.standardised_vectors()

    def standardised_vectors(self) -> tuple[Tensor, Tensor]:
        """P~ and Q~, of the pretrained vectors that are there by now."""
        users, bundles = self.pretrained_users, self.pretrained_bundles
        return standardised(users, self.limits[0]), standardised(bundles, self.limits[1])
