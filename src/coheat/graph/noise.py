"""Noise for propagated vectors, drawn and scaled in one pass over memory."""

# numba functions carry no types that mypy could use
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coheat.graph.kernels import _hashed, compiled
from coheat.graph.propagation import array
from coheat.threads import even_ranges, run_ranges

_UNIT = np.float32(1 / 2**32)


@compiled
def draw_steps(start, stop, x, length, low_key, high_key, steps):
    """steps[t] = sign(x[t]) * length * n / |n|, n uniform in (0, 1)^d by a hash of (keys, place)."""
    width = x.shape[1]
    for t in range(start, stop):
        row, step, total = x[t], steps[t], np.float32(0.0)
        for j in range(width):
            drawn = (np.float32(_hashed(t * width + j, low_key, high_key)) + np.float32(0.5)) * _UNIT
            total += drawn * drawn
            step[j] = drawn
        factor = length / np.sqrt(total)
        for j in range(width):
            sign = np.float32(row[j] > 0) - np.float32(row[j] < 0)
            step[j] *= factor * sign


def perturbed(x: Tensor, length: float, rng: np.random.Generator) -> Tensor:
    """Every row of x (n, d) moved by a step of this length, no coordinate towards or over 0.

    The step is a random direction with the signs of the row; what is 0 stays.
    """
    if length == 0:
        return x
    keys = rng.integers(2**32, size=2, dtype=np.uint32)
    steps = torch.empty(x.shape)
    run_ranges(draw_steps, even_ranges(len(x)), array(x.cpu()), np.float32(length), *keys, steps.numpy())
    return x + steps.to(x.device)
