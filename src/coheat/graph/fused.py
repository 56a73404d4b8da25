"""Operations on all rows of a layer that torch would do in a dozen passes over memory, in one or two.

On the CPU they are compiled kernels; on any other device, ordinary torch operations with the same results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, normalize

from coheat.graph import kernels
from coheat.graph.propagation import array, by_kernels
from coheat.threads import even_ranges, run_ranges

SLOPE = 0.01
"""Slope of the leaky rectifier below 0."""


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out, lengths = torch.empty(x.shape), torch.empty(len(x))
        run_ranges(kernels.unit_rows, even_ranges(len(x)), array(x), out.numpy(), lengths.numpy())
        ctx.save_for_backward(out, lengths)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        out, lengths = (array(tensor) for tensor in ctx.saved_tensors)
        found = torch.empty(out.shape)
        arrays = out, lengths, array(gradients[0]), found.numpy()
        run_ranges(kernels.unit_rows_backward, even_ranges(len(out)), *arrays)
        return found


def unit_rows(x: Tensor) -> Tensor:
    """Every row of x (n, d) scaled to length 1; a row of zeros stays."""
    if not by_kernels(x):
        return normalize(x)
    scaled: Tensor = _UnitRows.apply(x)  # type: ignore[no-untyped-call]
    return scaled


class _Grow(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, message: Tensor, bias: Tensor, own: Tensor, keys: tuple[Any, ...], scale: np.float32
    ) -> Tensor:
        ctx.keys, ctx.scale = keys, scale
        out = torch.empty(len(message), message.shape[1] + own.shape[1])
        inputs = array(message), array(bias), array(own)
        run_ranges(kernels.grow, even_ranges(len(out)), *inputs, *keys, scale, np.float32(SLOPE), out.numpy())
        ctx.save_for_backward(out)
        ctx.width = message.shape[1]
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        out = array(ctx.saved_tensors[0])
        message = torch.empty(len(out), ctx.width)
        own = torch.empty(len(out), out.shape[1] - ctx.width)
        arrays = out, array(gradients[0]), message.numpy(), own.numpy()
        options = *ctx.keys, ctx.scale, np.float32(SLOPE)
        run_ranges(kernels.grow_backward, even_ranges(len(out)), *options, *arrays)
        return message, message.sum(0), own, None, None


def grow(message: Tensor, bias: Tensor, own: Tensor, dropout: float, rng: np.random.Generator) -> Tensor:
    """dropout([leaky_relu(message + bias) ; own]) (n, d + e), for a message (n, d) and own vectors (n, e).

    Each number is 0 with probability `dropout`, and the others grow so that the mean stays.
    """
    low, high = rng.integers(2**32, size=2, dtype=np.uint32)
    threshold, scale = np.uint32(round(dropout * 2**32)), np.float32(1 / (1 - dropout))
    if by_kernels(message):
        grown: Tensor = _Grow.apply(message, bias, own, (low, high, threshold), scale)  # type: ignore[no-untyped-call]
        return grown
    joined = torch.cat([leaky_relu(message + bias, SLOPE), own], 1)
    mask = np.empty(joined.numel(), dtype=np.uint8)
    kernels.draw_mask(0, len(mask), low, high, threshold, mask)
    return joined * torch.from_numpy(mask).to(joined.device, joined.dtype).view_as(joined) * float(scale)
