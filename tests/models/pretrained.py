"""Models with pretrained vectors that a test has chosen, so that their equations can be written out."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from coheat.models.base import Model, Progress

ModelType = TypeVar("ModelType", bound=Model)


def with_random_backbone(model: ModelType, seed: int = 0) -> ModelType:
    """The model in its first epoch, with random vectors: zero for users and bundles without interactions."""
    generator = torch.Generator().manual_seed(seed)
    known = {
        "users": np.diff(model.data.user_bundle.indptr) > 0,
        "bundles": model.data.popularity > 0,
    }
    for name, rows in known.items():
        buffer = getattr(model, f"pretrained_{name}")
        buffer.copy_(torch.randn(buffer.shape, generator=generator) * torch.from_numpy(rows)[:, None])
    model.train()
    model.begin_epoch(Progress(1, 10))
    return model


def double(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    array: npt.NDArray[np.float64] = tensor.detach().double().numpy()
    return array


def standardise(x: npt.NDArray[np.float64], limit: float) -> npt.NDArray[np.float64]:
    """Column by column over the rows that are not zero, cut off at the limit."""
    result = np.zeros_like(x)
    known = [row for row in range(len(x)) if np.any(x[row] != 0)]
    for column in range(x.shape[1]):
        values = np.array([x[row, column] for row in known])
        for row in known:
            scaled = (x[row, column] - values.mean()) / values.std()
            result[row, column] = min(max(scaled, -limit), limit)
    return result


def content(model: Model, bundle: int, exponent: float = 0.5) -> npt.NDArray[np.float64]:
    """The content layer's output for one bundle: its items' rows summed, divided by size ** exponent."""
    bag = model.get_submodule("content")
    items = np.flatnonzero(model.data.bundle_item.toarray()[bundle])
    table = double(bag.get_parameter("items"))
    total = np.zeros(table.shape[1])
    for item in items:
        total += table[item]
    scale: float = len(items) ** exponent
    if "bias" in dict(bag.named_parameters()):
        return total / scale + double(bag.get_parameter("bias"))
    return total / scale


def head(module: torch.nn.Module, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Batch normalisation by this batch's own mean and variance, tanh, linear."""
    centred = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    weights = {name: double(p) for name, p in module.named_parameters()}
    hidden = np.tanh(centred * weights["normalise.weight"] + weights["normalise.bias"])
    result: npt.NDArray[np.float64] = hidden @ weights["out.weight"].T + weights["out.bias"]
    return result
