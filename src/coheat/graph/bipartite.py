"""Bipartite relations as the models use them: drop edges, weigh the rest, multiply.

A `Direction` is one relation seen from the side that receives (targets) towards the side that gives
(sources). For a training batch it is asked for a `Propagation`: the kept edges of just the rows the batch
needs, with their weights. `multiply` is the differentiable product of a Propagation and a table of
vectors: compiled kernels on the CPU, ordinary torch operations on any other device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from coheat.data.dataset import Indices, Sparse
from coheat.graph import kernels
from coheat.graph.parallel import balanced_ranges, even_ranges, run_ranges

Mask = npt.NDArray[np.uint8]
Weighting = Literal["symmetric", "mean"]
Degrees = Literal["after", "before"]


@dataclass(frozen=True)
class Propagation:
    """A sparse matrix (n_targets, n_sources) in CSR form, ready to multiply a table of vectors."""

    indptr: Indices
    sources: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    n_sources: int

    @property
    def n_targets(self) -> int:
        return len(self.indptr) - 1

    @cached_property
    def row_ranges(self) -> Indices:
        return balanced_ranges(self.indptr)

    def on_needed_sources(self) -> tuple[Indices, Propagation]:
        """The distinct sources that have an edge, and the same matrix with just these as columns."""
        needed, renumbered = kernels.renumber(self.sources, self.n_sources)
        return needed, Propagation(self.indptr, renumbered, self.weights, len(needed))

    def dense(self) -> npt.NDArray[np.float32]:
        """For tests and for reading: the matrix written out."""
        matrix = np.zeros((self.n_targets, self.n_sources), dtype=np.float32)
        rows = np.repeat(np.arange(self.n_targets), np.diff(self.indptr))
        np.add.at(matrix, (rows, self.sources), self.weights)
        return matrix


class Direction:
    """One relation from targets to sources. Edges are numbered in CSR order; a mask says which stay."""

    def __init__(self, matrix: Sparse, weighting: Weighting):
        self.n_targets, self.n_sources = matrix.shape
        self.indptr = matrix.indptr.astype(np.int64)
        self.sources = matrix.indices.astype(np.int32)
        self.weighting = weighting
        self.all_rows = np.arange(self.n_targets, dtype=np.int64)
        self.everything = np.ones(len(self.sources), dtype=np.uint8)

    def draw_mask(self, dropout: float, rng: np.random.Generator) -> Mask:
        """Keep each edge with probability 1 - dropout, independently."""
        if dropout == 0:
            return self.everything
        low, high = rng.integers(2**32, size=2, dtype=np.uint32)
        mask = np.empty(len(self.sources), dtype=np.uint8)
        threshold = np.uint32(round(dropout * 2**32))
        run_ranges(kernels.draw_mask, even_ranges(len(mask)), low, high, threshold, mask)
        return mask

    @cached_property
    def full(self) -> Propagation:
        """All rows, no edge dropped: what evaluation and serving use."""
        return self.select(None, self.everything)

    def select(self, rows: Indices | None, mask: Mask, degrees: Degrees = "after") -> Propagation:
        """The chosen targets (all for None) without dropped edges, weighed by degrees after (or before) it.

        The degree of a source counts all of its kept edges, also those of targets not chosen, so that
        the chosen rows are exactly the rows of the whole dropped and normalised matrix.
        """
        rows = self.all_rows if rows is None else rows
        indptr = np.zeros(len(rows) + 1, dtype=np.int64)
        ranges = even_ranges(len(rows), len(self.sources))
        run_ranges(kernels.count_kept, ranges, rows, self.indptr, mask, indptr)
        np.cumsum(indptr, out=indptr)
        sources = np.empty(indptr[-1], dtype=np.int32)
        run_ranges(kernels.compact, ranges, rows, self.indptr, self.sources, mask, indptr, sources)
        target_degrees = np.diff(indptr if degrees == "after" else self.indptr)
        if degrees == "before":
            target_degrees = target_degrees[rows]
        weights = np.empty(len(sources), dtype=np.float32)
        ranges = balanced_ranges(indptr)
        if self.weighting == "mean":
            run_ranges(kernels.weigh_mean, ranges, indptr, target_degrees, weights)
        else:
            source_degrees = np.empty(self.n_sources, dtype=np.int32)
            counted = mask if degrees == "after" else self.everything
            kernels.count_sources(self.sources, counted, source_degrees)
            run_ranges(
                kernels.weigh_symmetric, ranges, indptr, sources, target_degrees, source_degrees, weights
            )
        return Propagation(indptr, sources, weights, self.n_sources)


class BipartiteGraph:
    """Both directions of a relation between a left and a right side, symmetrically normalised."""

    def __init__(self, matrix: Sparse):
        self.left = Direction(matrix, "symmetric")
        self.right = Direction(matrix.T.tocsr(), "symmetric")

    def to_right(self, left_mask: Mask) -> Mask:
        """The same edges' mask in the numbering of the right direction."""
        return left_mask[np.argsort(self.left.sources, kind="stable")]


class _KernelProduct(torch.autograd.Function):
    """propagation @ x with compiled kernels; with `normalise`, each row of the result has length 1 (or 0)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, propagation: Propagation, normalise: bool) -> Tensor:
        out = torch.empty(propagation.n_targets, x.shape[1])
        p, ranges = propagation, propagation.row_ranges
        table = x.detach().contiguous().numpy()
        run_ranges(kernels.gather, ranges, p.indptr, p.sources, p.weights, table, out.numpy())
        ctx.propagation, ctx.lengths = propagation, None
        if normalise:
            lengths = np.empty(p.n_targets, dtype=np.float32)
            run_ranges(kernels.normalise, even_ranges(p.n_targets, out.numel()), out.numpy(), lengths)
            ctx.lengths = lengths
            ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        p: Propagation = ctx.propagation
        gradient = gradients[0].contiguous().numpy()
        if ctx.lengths is not None:
            (unit,) = ctx.saved_tensors
            before = np.empty_like(gradient)
            ranges = even_ranges(p.n_targets, gradient.size)
            run_ranges(kernels.normalise_backward, ranges, unit.numpy(), ctx.lengths, gradient, before)
            gradient = before
        width = gradient.shape[1]
        out = torch.zeros(p.n_sources, width)
        columns = even_ranges(width, len(p.sources) * width)
        run_ranges(kernels.scatter, columns, p.indptr, p.sources, p.weights, gradient, out.numpy())
        return out, None, None


def torch_product(x: Tensor, propagation: Propagation, normalise: bool = False) -> Tensor:
    """The same product in ordinary torch operations, for devices the kernels do not reach."""
    p = propagation
    targets = torch.from_numpy(np.repeat(np.arange(p.n_targets), np.diff(p.indptr))).to(x.device)
    sources = torch.from_numpy(p.sources.astype(np.int64)).to(x.device)
    messages = x[sources] * torch.from_numpy(p.weights).to(x.device)[:, None]
    out = x.new_zeros(p.n_targets, x.shape[1]).index_add(0, targets, messages)
    return normalize(out, eps=1e-30) if normalise else out


def multiply(x: Tensor, propagation: Propagation, normalise: bool = False) -> Tensor:
    """propagation @ x (n_targets, d), differentiable in x; `normalise` gives rows of length 1."""
    if x.device.type == "cpu" and x.dtype == torch.float32:
        product: Tensor = _KernelProduct.apply(x, propagation, normalise)  # type: ignore[no-untyped-call]
        return product
    return torch_product(x, propagation, normalise)


class _TakeRows(torch.autograd.Function):
    """x[rows] for distinct rows; the gradient is then a copy, which is far cheaper than adding up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.n_rows = x.shape[0]
        return x.detach()[rows]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        out = gradients[0].new_zeros(ctx.n_rows, gradients[0].shape[1])
        out[rows] = gradients[0]
        return out, None


def take_rows(x: Tensor, rows: Indices | None) -> Tensor:
    """x[rows], where no row stands twice; all of x for None."""
    if rows is None:
        return x
    taken: Tensor = _TakeRows.apply(x, torch.from_numpy(rows).to(x.device))  # type: ignore[no-untyped-call]
    return taken


def light_gcn(
    graph: BipartiteGraph,
    left: Tensor,
    right: Tensor,
    n_layers: int,
    left_rows: Indices | None = None,
    right_rows: Indices | None = None,
    left_mask: Mask | None = None,
    right_mask: Mask | None = None,
    normalise_layers: bool = True,
    degrees: Degrees = "after",
) -> tuple[Tensor, Tensor]:
    """Light graph convolution: outputs of the chosen rows on both sides (all rows by default).

    Layer k of the left side is the weighted sum of layer k-1 of the right side's neighbours, and the
    other way round. The output is layer 0 plus each propagated layer scaled to length 1
    (`normalise_layers`), or the sum of layer k / (k + 1) without scaling.
    """
    sides = (
        (graph.left, left_rows, graph.left.everything if left_mask is None else left_mask),
        (graph.right, right_rows, graph.right.everything if right_mask is None else right_mask),
    )
    outputs = [take_rows(left, left_rows), take_rows(right, right_rows)]
    layers = left, right
    for k in range(1, n_layers):  # inner layers need all rows: each is a neighbour of something
        to_left, to_right = (direction.select(None, mask, degrees) for direction, _, mask in sides)
        layers = multiply(layers[1], to_left), multiply(layers[0], to_right)
        for side, (_, rows, _) in enumerate(sides):
            layer = take_rows(layers[side], rows)
            outputs[side] = outputs[side] + (normalize(layer) if normalise_layers else layer / (k + 1))
    for side, (direction, rows, mask) in enumerate(sides):  # the last layer: only the rows asked for
        layer = multiply(layers[1 - side], direction.select(rows, mask, degrees), normalise_layers)
        outputs[side] = outputs[side] + (layer if normalise_layers else layer / (n_layers + 1))
    return outputs[0], outputs[1]
