"""Adam that can do without a table of gradients.

The gradient of a table of vectors is a sum of rows gathered along edges. Written out it is as large as the
table: millions of numbers go to memory, and come back for the update. Within `deferred_gradients`, the inputs
of that sum are kept instead, and the update adds up the gradient of a few rows at a time, in the cache.
"""

# numba functions carry no types that mypy could use
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coheat.data.dataset import Indices
from coheat.graph.kernels import collect, compiled
from coheat.graph.propagation import Floats, array, by_kernels
from coheat.graph.ranks import Ranks, sharing
from coheat.threads import Job, balanced_ranges, run_jobs

Part = tuple[Indices, npt.NDArray[np.int32], Floats, Floats, Floats, npt.NDArray[np.int32]]
"""A term of a table's gradient: what `collect` takes between its rows and its output."""

DEFERRED = "_deferred_parts"

BLOCK = 256
"""Rows whose gradient is added up and used before that of the next ones."""


def deferred_parts(table: Tensor) -> list[Part] | None:
    """The list that collects the parts of this table's gradient; None if it has to be written out now."""
    parts: list[Part] | None = getattr(table, DEFERRED, None)
    return parts


_step_as_written: Callable[..., Any] = unwrap(torch.optim.Adam.step)


class Adam(torch.optim.Adam):
    """`torch.optim.Adam` with the same state, which also takes deferred gradients.

    Where several processes train together (`ranks`), each updates the rows that it owns, has the moments of
    just these, and gets the others' rows from their owners.

    If it is `lazy`, a row that no term of the gradient reaches is left alone, as are its moments: it neither
    decays nor drifts on. A step then costs as much as the rows that it reaches, however many there are.
    """

    # torch wraps these so that its compiler leaves them alone, and the wrapping imports the compiler: more
    # than two seconds at the start of every training. Nothing is compiled by it here.
    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    zero_grad = unwrap(torch.optim.Adam.zero_grad)
    state_dict = unwrap(torch.optim.Adam.state_dict)
    load_state_dict = unwrap(torch.optim.Adam.load_state_dict)

    def __init__(self, parameters: Any, lr: float, weight_decay: float = 0.0, lazy: bool = False):
        super().__init__(parameters, lr=lr, weight_decay=weight_decay, fused=True)
        self.lazy = lazy

    @contextmanager
    def deferred_gradients(self) -> Iterator[None]:
        """Within this context kernels leave the parts of a table's gradient to the next `step`."""
        tables = [p for group in self.param_groups for p in group["params"] if _fits(p)]
        for table in tables:
            setattr(table, DEFERRED, [])
        try:
            yield
        finally:
            for table in tables:
                delattr(table, DEFERRED)

    def step(self, closure: Any = None) -> Any:
        jobs: list[Job] = []
        updated: list[tuple[Floats, Indices]] = []
        ranks = sharing()
        for group in self.param_groups:
            for table in group["params"]:
                if parts := deferred_parts(table):
                    if table.grad is not None:
                        parts.append(_as_part(array(table.grad)))
                        table.grad = None
                    jobs.append(self._update(table, parts, group, ranks))
                    updated.append((array(table), ranks.boundaries(len(table))))
        run_jobs(jobs)
        ranks.exchange(*updated)
        with torch.no_grad():
            return _step_as_written(self, closure)

    def _update(self, table: Tensor, parts: list[Part], group: dict[str, Any], ranks: Ranks) -> Job:
        """The job that updates this rank's rows of a table; it takes over the parts."""
        state, own = self.state[table], ranks.own(len(table))
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(table[own]), torch.zeros_like(table[own])
        state["step"] += 1
        n_steps, (beta, beta_of_squares) = int(state["step"]), group["betas"]
        rate = group["lr"] / (1 - beta**n_steps)
        correction = (1 - beta_of_squares**n_steps) ** -0.5
        settings = rate, group["weight_decay"], beta, beta_of_squares, correction, group["eps"]
        edges = np.sum([indptr for indptr, *_ in parts], 0)
        tables = array(table), array(state["exp_avg"]), array(state["exp_avg_sq"])
        taken = tuple(parts)
        parts.clear()
        ranges = own.start + balanced_ranges(edges[own.start : own.stop + 1] - edges[own.start])
        update = _collect_and_update_reached if self.lazy else _collect_and_update
        return update, ranges, (taken, own.start, *tables, *map(np.float32, settings))


def _fits(table: Tensor) -> bool:
    """Whether the kernel can update it in place."""
    return table.ndim == 2 and table.is_contiguous() and by_kernels(table)


def _as_part(gradient: Floats) -> Part:
    """A gradient in one piece as a part: no edges, and every row its own."""
    n = len(gradient)
    nothing = np.zeros(n + 1, np.int64), np.empty(0, np.int32), np.ones(n, np.float32), gradient
    return *nothing, gradient, np.arange(n, dtype=np.int32)


@compiled
def _update_rows(gradient, table, first, second, rate, decay, beta, beta_of_squares, correction, epsilon):
    """One update of some rows of a table and of both their moments, in place; all arrays are flat.

    `rate` and `correction` hold what corrects the moments for their start at 0.
    """
    one = np.float32(1)
    for n in range(len(gradient)):
        g = gradient[n] + decay * table[n]
        mean = beta * first[n] + (one - beta) * g
        square = beta_of_squares * second[n] + (one - beta_of_squares) * g * g
        first[n], second[n] = mean, square
        table[n] -= rate * mean / (correction * np.sqrt(square) + epsilon)


@compiled
def _collect_and_update(
    start, stop, parts, offset, table, first, second, rate, decay, beta, beta_of_squares, correction, epsilon
):
    """`_update_rows` from start to stop, a block at a time; its gradient is the sum over the parts.

    The moments `first` and `second` begin with row `offset` of the table.
    """
    block = np.empty((BLOCK, table.shape[1]), np.float32)
    for t in range(start, stop, BLOCK):
        end = min(t + BLOCK, stop)
        block[:] = 0
        for indptr, sources, target_scales, x, direct, direct_at in parts:
            collect(t, end, indptr, sources, target_scales, x, direct, direct_at, t, block)
        gradient = block[: end - t].reshape(-1)
        rows, moments = table[t:end].reshape(-1), slice(t - offset, end - offset)
        means, squares = first[moments].reshape(-1), second[moments].reshape(-1)
        _update_rows(gradient, rows, means, squares, rate, decay, beta, beta_of_squares, correction, epsilon)


@compiled
def _collect_and_update_reached(
    start, stop, parts, offset, table, first, second, rate, decay, beta, beta_of_squares, correction, epsilon
):
    """`_collect_and_update` of just the rows that a part has an edge to, or a gradient of its own for."""
    block, reached = np.empty((BLOCK, table.shape[1]), np.float32), np.empty(BLOCK, np.bool_)
    for t in range(start, stop, BLOCK):
        end = min(t + BLOCK, stop)
        reached[:] = False
        for indptr, _, _, _, _, direct_at in parts:  # parts outside: to unpack one for every row is slow
            for row in range(t, end):
                reached[row - t] |= indptr[row + 1] > indptr[row] or direct_at[row] >= 0
        if not reached[: end - t].any():
            continue
        block[:] = 0
        for indptr, sources, target_scales, x, direct, direct_at in parts:
            collect(t, end, indptr, sources, target_scales, x, direct, direct_at, t, block)
        # Runs of neighbours together: to cut a row out of four tables takes as long as to update it.
        row = t
        while row < end:
            run = row
            while row < end and reached[row - t]:
                row += 1
            if row > run:
                gradient, moments = block[run - t : row - t].reshape(-1), slice(run - offset, row - offset)
                means, squares = first[moments].reshape(-1), second[moments].reshape(-1)
                _update_rows(
                    gradient, table[run:row].reshape(-1), means, squares,
                    rate, decay, beta, beta_of_squares, correction, epsilon,
                )  # fmt: skip
            row += 1
