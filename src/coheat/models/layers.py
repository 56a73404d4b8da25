"""Small parts that several models are built of, made from a generator instead of torch's global one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from coheat.graph.bipartite import draw_mask


def table(n_rows: int, width: int, generator: torch.Generator) -> nn.Parameter:
    """Vectors (n_rows, width) to be learned, Xavier normal."""
    return nn.Parameter(nn.init.xavier_normal_(torch.empty(n_rows, width), generator=generator))


def linear(n_in: int, n_out: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer with Xavier normal weights and a bias of 0."""
    layer = nn.Linear(n_in, n_out)
    nn.init.xavier_normal_(layer.weight, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def dropout(x: Tensor, share: float, rng: np.random.Generator) -> Tensor:
    """Each number is 0 with probability `share`, and the others grow so that the mean stays."""
    if share == 0:
        return x
    mask = torch.from_numpy(draw_mask(x.numel(), share, rng)).to(x.device).view_as(x)
    return x * mask.to(x.dtype).div_(1 - share)
