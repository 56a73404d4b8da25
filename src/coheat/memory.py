"""How much memory training will take, said before it starts rather than found out in the middle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import torch

from coheat.data.split import Split
from coheat.errors import TrainingError
from coheat.memory_limit import memory_limit, readable
from coheat.models.base import Model
from coheat.served.ranking import ROWS


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that training adds to what the loaded data and the built model already take."""

    gradients: int
    moments: int
    copies: int
    batches: int
    graphs: int
    evaluation: int

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))

    def describe(self) -> str:
        parts = [(part.name, getattr(self, part.name)) for part in fields(self)]
        return ", ".join(f"{name} {readable(size)}" for name, size in parts if size)


def estimate_memory(model: Model, split: Split, batch_size: int, n_ranks: int = 1) -> MemoryEstimate:
    """An upper estimate for training `model` on `split`, from the sizes of its parts.

    Adam keeps two moments per parameter. A copy is the best epoch's state; where a run has a directory,
    that stands there. Of the graphs, a step may hold a dropped copy of every edge in both directions
    (position and weight, 8 bytes). A batch holds three rows of vectors and their gradients in every layer;
    evaluation a block of scores. Of several ranks each has its share of the moments and of the copy.
    """
    trained = _bytes(p for p in model.parameters() if p.requires_grad)
    everything = _bytes(model.state_dict().values())
    width = max((p.shape[-1] for p in model.parameters() if p.dim()), default=0)
    train = split.train
    edges = train.user_bundle.nnz + train.user_item.nnz + train.bundle_item.nnz if trained else 0
    return MemoryEstimate(
        gradients=trained,
        moments=2 * trained // n_ranks,
        copies=everything // n_ranks,
        batches=batch_size * width * 4 * 3 * 8,
        graphs=edges * 2 * 8,
        evaluation=2 * ROWS * train.n_bundles * 4 + (train.n_users + train.n_bundles) * 2 * width * 4,
    )


def check_memory(model: Model, split: Split, batch_size: int, n_ranks: int = 1) -> MemoryEstimate:
    """The estimate; a TrainingError with its numbers where the machine cannot hold it."""
    estimate = estimate_memory(model, split, batch_size, n_ranks)
    available = memory_limit()
    if estimate.total > available:
        raise TrainingError(
            f"training needs about {readable(estimate.total)} more memory ({estimate.describe()}), "
            f"but {readable(available)} is available; lower embedding_size or batch_size, "
            "or use a machine with more memory"
        )
    return estimate


@contextlib.contextmanager
def explaining_allocation() -> Iterator[None]:
    """Turn a refused allocation, of torch, numpy or Python, into a TrainingError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        refused = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
        if not refused:
            raise
        raise TrainingError(
            f"not enough memory ({readable(memory_limit())} available): {str(error).splitlines()[0]}; "
            "lower embedding_size or batch_size, or use a machine with more memory"
        ) from None


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
