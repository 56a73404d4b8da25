"""Attention over the neighbours of a node: sums whose weights are the softmax of logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from coheat.graph import kernels
from coheat.graph.propagation import Propagation, Weighted, array, by_kernels
from coheat.threads import even_ranges, run_ranges


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, logits: Tensor, edges: Propagation) -> Tensor:
        weights = np.empty(len(edges.sources), dtype=np.float32)
        run_ranges(kernels.softmax_rows, edges.row_ranges, edges.indptr, array(logits), weights)
        weighted = Weighted(edges.indptr, edges.sources, edges.n_sources, weights)
        ctx.weighted = weighted
        ctx.save_for_backward(values)
        return weighted.gather(array(values))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        weighted: Weighted = ctx.weighted
        values, gradient = array(ctx.saved_tensors[0]), array(gradients[0])
        targets = weighted.targets
        of_weights = np.empty(len(targets), dtype=np.float32)
        ends = gradient, values, targets, weighted.sources
        run_ranges(kernels.dot_rows, even_ranges(len(targets)), *ends, of_weights)
        of_logits = torch.empty(len(targets))
        arrays = weighted.indptr, weighted.weights, of_weights, of_logits.numpy()
        run_ranges(kernels.softmax_rows_backward, weighted.row_ranges, *arrays)
        return weighted.transposed.gather(gradient), of_logits, None


def attend(values: Tensor, logits: Tensor, edges: Propagation) -> Tensor:
    """For every target the sum of its sources' values, weighted by the softmax of its edges' logits.

    `values` (n_sources, d) and `logits` (n_edges,) are learned; of `edges` only the ends count. A target
    without edges gets 0.
    """
    if by_kernels(values):
        sums: Tensor = _Attend.apply(values, logits, edges)  # type: ignore[no-untyped-call]
        return sums
    return torch_attend(values, logits, edges)


def torch_attend(values: Tensor, logits: Tensor, edges: Propagation) -> Tensor:
    """`attend` in ordinary torch operations."""
    counts = torch.from_numpy(np.diff(edges.indptr)).to(values.device)
    targets = torch.repeat_interleave(torch.arange(edges.n_targets, device=values.device), counts)
    sources = torch.from_numpy(edges.sources.astype(np.int64)).to(values.device)
    highest = logits.new_full((edges.n_targets,), -torch.inf).scatter_reduce(
        0, targets, logits.detach(), "amax"
    )
    exponentials = torch.exp(logits - highest[targets])
    totals = torch.zeros_like(highest).index_add(0, targets, exponentials)
    weights = exponentials / totals[targets]
    return values.new_zeros(edges.n_targets, values.shape[1]).index_add(
        0, targets, values[sources] * weights[:, None]
    )


def attend_by_source(values: Tensor, logits: Tensor, edges: Propagation) -> Tensor:
    """`attend` where an edge has the logit of its source (n_sources,): one exponential a source.

    For scoring alone: nothing is learned through it.
    """
    if not by_kernels(values):
        return torch_attend(values, logits[torch.from_numpy(edges.sources).to(values.device)], edges)
    exponentials, weights = torch.exp(logits - logits.max()), np.empty(len(edges.sources), dtype=np.float32)
    arrays = edges.indptr, edges.sources, array(logits), array(exponentials), weights
    run_ranges(kernels.shared_softmax_rows, edges.row_ranges, *arrays)
    return Weighted(edges.indptr, edges.sources, edges.n_sources, weights).gather(array(values))
