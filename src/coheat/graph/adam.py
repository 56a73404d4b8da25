"""Adam that need not be given a gradient in one piece.

The gradient of a table of vectors is a sum of rows gathered along edges. Written out it is as large as the
table: millions of numbers go to memory, and come back for the update. Within `late_gradients`, what gathers
them is kept instead, and the update adds up the gradient of a few rows at a time and uses it in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coheat.data.dataset import Indices
from coheat.graph import kernels
from coheat.graph.parallel import Job, balanced_ranges, run_jobs
from coheat.graph.propagation import Floats, array, by_kernels

Part = tuple[Indices, npt.NDArray[np.int32], Floats, Floats, Floats, npt.NDArray[np.int32]]
"""A term of a table's gradient: what `kernels.collect` takes between its rows and its output."""

LATE = "_late_parts"


def late_parts(table: Tensor) -> list[Part] | None:
    """Where to put the parts of this table's gradient; None if it has to be written out now."""
    parts: list[Part] | None = getattr(table, LATE, None)
    return parts


class Adam(torch.optim.Adam):
    """`torch.optim.Adam` with the same state, which also uses late gradients."""

    def __init__(self, parameters: Any, lr: float, weight_decay: float):
        super().__init__(parameters, lr=lr, weight_decay=weight_decay, fused=True)

    @contextmanager
    def late_gradients(self) -> Iterator[None]:
        """In here, kernels that would write a table's gradient leave its parts to the next `step`."""
        tables = [p for group in self.param_groups for p in group["params"] if _fits(p)]
        for table in tables:
            setattr(table, LATE, [])
        try:
            yield
        finally:
            for table in tables:
                delattr(table, LATE)

    def step(self, closure: Any = None) -> Any:
        jobs: list[Job] = []
        for group in self.param_groups:
            for table in group["params"]:
                if parts := late_parts(table):
                    if table.grad is not None:
                        parts.append(_written(array(table.grad)))
                        table.grad = None
                    jobs.append(self._update(table, parts, group))
        run_jobs(jobs)
        return super().step(closure)

    def _update(self, table: Tensor, parts: list[Part], group: dict[str, Any]) -> Job:
        """Updating this table, for threads to share. Its parts are used up."""
        state = self.state[table]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(table), torch.zeros_like(table)
        state["step"] += 1
        beta, beta_of_squares = group["betas"]
        n_steps = int(state["step"])
        rate = group["lr"] / (1 - beta**n_steps)
        correction = (1 - beta_of_squares**n_steps) ** -0.5
        settings = np.float32(rate), np.float32(group["weight_decay"]), np.array(group["betas"], np.float32)
        edges = np.sum([part[0] for part in parts], 0)
        tables = array(table), array(state["exp_avg"]), array(state["exp_avg_sq"])
        numbers = *settings, np.float32(correction), np.float32(group["eps"])
        taken = tuple(parts)
        parts.clear()
        return kernels.collect_and_update, balanced_ranges(edges), (taken, *tables, *numbers)


def _fits(table: Tensor) -> bool:
    """Whether the kernel can update it in place."""
    return table.ndim == 2 and table.is_contiguous() and by_kernels(table)


def _written(gradient: Floats) -> Part:
    """A gradient in one piece as a part: no edges, and every row its own."""
    n = len(gradient)
    nothing = np.zeros(n + 1, np.int64), np.empty(0, np.int32), np.ones(n, np.float32), gradient
    return *nothing, gradient, np.arange(n, dtype=np.int32)
