"""Small parts that several models are built of, made from a generator instead of torch's global one."""

from __future__ import annotations

import torch
from torch import nn


def table(n_rows: int, width: int, generator: torch.Generator) -> nn.Parameter:
    """Vectors (n_rows, width) to be learned, Xavier normal."""
    return nn.Parameter(nn.init.xavier_normal_(torch.empty(n_rows, width), generator=generator))


def linear(n_in: int, n_out: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer with Xavier normal weights and a bias of 0."""
    layer = nn.Linear(n_in, n_out)
    nn.init.xavier_normal_(layer.weight, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
