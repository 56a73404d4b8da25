"""Sparse matrices ready to multiply a table of vectors, and the differentiable product.

`multiply` runs compiled kernels on the CPU and ordinary torch operations on any other device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coheat.data.dataset import Indices, Sparse
from coheat.graph import kernels
from coheat.threads import balanced_ranges, run_ranges

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Propagation:
    """A sparse matrix (n_targets, n_sources) in CSR form. What its edges weigh, its two kinds say."""

    indptr: Indices
    sources: npt.NDArray[np.int32]
    n_sources: int

    @property
    def n_targets(self) -> int:
        return len(self.indptr) - 1

    @cached_property
    def row_ranges(self) -> Indices:
        """How threads share the targets."""
        return balanced_ranges(self.indptr)

    @property
    def targets(self) -> Indices:
        """The target of every edge."""
        return np.repeat(np.arange(self.n_targets), np.diff(self.indptr))

    @property
    def weights(self) -> Floats:
        """The weight of every edge."""
        raise NotImplementedError

    @property
    def transposed(self) -> Propagation:
        """The matrix from sources to targets; the backward pass gathers with it."""
        raise NotImplementedError

    def gather(self, x: Floats) -> Tensor:
        """The product with x (n_sources, d) by compiled kernels, rows shared by threads."""
        raise NotImplementedError

    def dense(self) -> Floats:
        """For tests and for reading: the matrix written out."""
        matrix = np.zeros((self.n_targets, self.n_sources), dtype=np.float32)
        np.add.at(matrix, (self.targets, self.sources), self.weights)
        return matrix


@dataclass(frozen=True)
class Weighted(Propagation):
    """Every edge has a weight of its own."""

    edge_weights: Floats

    @staticmethod
    def of(matrix: Sparse) -> Weighted:
        """A matrix whose weights are already what they should be."""
        indptr, sources = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
        return Weighted(indptr, sources, matrix.shape[1], matrix.data.astype(np.float32))

    @property
    def weights(self) -> Floats:
        return self.edge_weights

    @cached_property
    def transposed(self) -> Weighted:
        indptr, targets = kernels.transpose(self.indptr, self.sources, self.n_sources)
        weights = kernels.transpose_weights(self.sources, self.edge_weights, indptr)
        return Weighted(indptr, targets, self.n_targets, weights)

    def gather(self, x: Floats) -> Tensor:
        out = torch.empty(self.n_targets, x.shape[1])
        edges = self.indptr, self.sources, self.edge_weights
        run_ranges(kernels.gather, self.row_ranges, *edges, x, out.numpy())
        return out

    def on_needed_sources(self) -> tuple[Indices, Weighted]:
        """The distinct sources that have an edge, and the same matrix with just these as columns."""
        needed, renumbered = kernels.renumber(self.sources, self.n_sources)
        return needed, Weighted(self.indptr, renumbered, len(needed), self.edge_weights)


@dataclass(frozen=True)
class Scaled(Propagation):
    """An edge weighs the scale of its target times the scale of its source, as in every normalised graph.

    So nothing is stored for an edge but its ends, which saves most of the work of dropping edges.
    """

    target_scales: Floats
    source_scales: Floats

    @staticmethod
    def picking(rows: Indices, n_sources: int) -> Scaled:
        """Target t is source rows[t]. Rows may repeat; their gradients are then added in a fixed order."""
        indptr = np.arange(len(rows) + 1, dtype=np.int64)
        ones = np.ones(max(len(rows), n_sources), dtype=np.float32)
        return Scaled(indptr, rows.astype(np.int32), n_sources, ones[: len(rows)], ones[:n_sources])

    @property
    def weights(self) -> Floats:
        product: Floats = self.target_scales[self.targets] * self.source_scales[self.sources]
        return product

    @cached_property
    def transposed(self) -> Scaled:
        indptr, targets = kernels.transpose(self.indptr, self.sources, self.n_sources)
        return Scaled(indptr, targets, self.n_targets, self.source_scales, self.target_scales)

    def gather(self, x: Floats) -> Tensor:
        out = torch.empty(self.n_targets, x.shape[1])
        edges = self.indptr, self.sources, self.target_scales, self.source_scales
        run_ranges(kernels.gather_scaled, self.row_ranges, *edges, x, out.numpy())
        return out

    def on_needed_sources(self) -> tuple[Indices, Scaled]:
        """The distinct sources that have an edge, and the same matrix with just these as columns."""
        needed, renumbered = kernels.renumber(self.sources, self.n_sources)
        scales = self.target_scales, self.source_scales[needed]
        return needed, Scaled(self.indptr, renumbered, len(needed), *scales)


class _KernelProduct(torch.autograd.Function):
    """propagation @ x with compiled kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, propagation: Propagation) -> Tensor:
        ctx.propagation = propagation
        return propagation.gather(array(x))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.propagation.transposed.gather(array(gradients[0])), None


def array(x: Tensor) -> Floats:
    """The numbers of a tensor, for a kernel."""
    numbers: Floats = x.detach().contiguous().numpy()
    return numbers


def by_kernels(x: Tensor) -> bool:
    """Whether the compiled kernels can work on this tensor."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def torch_product(x: Tensor, propagation: Propagation) -> Tensor:
    """propagation @ x in ordinary torch operations, for devices the kernels do not reach."""
    targets = torch.from_numpy(propagation.targets).to(x.device)
    sources = torch.from_numpy(propagation.sources.astype(np.int64)).to(x.device)
    messages = x[sources] * torch.from_numpy(propagation.weights).to(x.device, x.dtype)[:, None]
    return x.new_zeros(propagation.n_targets, x.shape[1]).index_add(0, targets, messages)


def multiply(x: Tensor, propagation: Propagation) -> Tensor:
    """propagation @ x (n_targets, d), differentiable in x."""
    if not by_kernels(x):
        return torch_product(x, propagation)
    product: Tensor = _KernelProduct.apply(x, propagation)  # type: ignore[no-untyped-call]
    return product
