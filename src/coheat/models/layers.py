"""Small parts that several models are built of. Draws come from a given generator, never from torch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coheat.data.dataset import BundleData, Indices
from coheat.data.sampling import Triples
from coheat.graph.bipartite import draw_mask
from coheat.losses import batch_l2, dot_rows
from coheat.rng import Randomness


def table(
    n_rows: int, width: int, generator: torch.Generator, deviation: float | None = None
) -> nn.Parameter:
    """Vectors (n_rows, width) to be learned, normal with this deviation; without one, Xavier normal."""
    if deviation is None:
        return nn.Parameter(nn.init.xavier_normal_(torch.empty(n_rows, width), generator=generator))
    return nn.Parameter(deviation * torch.randn(n_rows, width, generator=generator))


def tables(
    data: BundleData, width: int, rng: Randomness, deviation: float | None = None
) -> list[nn.Parameter]:
    """A `table` each of users, bundles and items, from generators of these names."""
    counts = {"users": data.n_users, "bundles": data.n_bundles, "items": data.n_items}
    return [table(count, width, rng.torch_generator(name), deviation) for name, count in counts.items()]


def linear(n_in: int, n_out: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer with Xavier normal weights and a bias of 0."""
    layer = nn.Linear(n_in, n_out)
    nn.init.xavier_normal_(layer.weight, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def dropout(x: Tensor, share: float, rng: np.random.Generator | None) -> Tensor:
    """Each number is 0 with probability `share`, and the others grow so that the mean stays.

    Nothing is dropped where there is nothing to draw from.
    """
    if share == 0 or rng is None:
        return x
    mask = torch.from_numpy(draw_mask(x.numel(), share, rng)).to(x.device).view_as(x)
    return x * mask.to(x.dtype).div_(1 - share)


def both_pairs(batch: Triples) -> tuple[Indices, Indices]:
    """Users and bundles of a batch's pairs (2n,): every positive pair, then every negative one."""
    return np.tile(batch.users, 2), np.concatenate([batch.positives, batch.negatives])


def tensors(device: torch.device, *arrays: npt.NDArray[Any]) -> list[Tensor]:
    """The same numbers for torch, on this device."""
    return [torch.from_numpy(array).to(device) for array in arrays]


def pair_scores(users: Tensor, bundles: Tensor, batch: Triples) -> tuple[Tensor, Tensor]:
    """Inner products of every user of a batch with the positive and with the negative, each (n,).

    `users` (n_users, d) and `bundles` (n_bundles, d) are the vectors of all.
    """
    positive, negative = dot_rows(users, bundles, *tensors(users.device, *both_pairs(batch))).chunk(2)
    return positive, negative


def triples_l2(users: Tensor, bundles: Tensor, batch: Triples) -> Tensor:
    """Mean of (|u|^2 + |b+|^2 + |b-|^2) / 2 over a batch's triples, by the vectors of all."""
    rows = tensors(users.device, batch.users, batch.positives, batch.negatives)
    return batch_l2(list(zip((users, bundles, bundles), rows, strict=True)))


def pick(x: Tensor, rows: Indices) -> Tensor:
    """These rows of x, in their order."""
    return x.index_select(0, torch.from_numpy(rows).to(x.device))


def warm_rows(data: BundleData) -> Tensor:
    """Which bundles have training interactions (n_bundles, 1)."""
    return torch.from_numpy(data.popularity > 0)[:, None]


def where_warm(data: BundleData, own: Tensor, made: Tensor) -> Tensor:
    """Vectors of all bundles (n_bundles, d): a warm one's own, a cold one's as it was made from its items."""
    return torch.where(warm_rows(data).to(own.device), own, made)
