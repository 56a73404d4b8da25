"""What DropoutNet and Heater share: standardised pretrained vectors, and towers of the form

    pre-activation -> batch normalisation -> tanh -> linear.

What stands before a batch normalisation has no bias of its own: the normalisation would take it out again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coheat.models.layers import linear


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
