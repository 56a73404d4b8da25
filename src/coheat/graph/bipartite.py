"""Bipartite relations as the models use them: drop edges, weigh the rest, multiply.

A `Direction` is one relation seen from the side that receives (targets) towards the side that gives
(sources). For a training batch it is asked for a `Propagation`: the kept edges of just the rows the batch
needs, with their weights. `multiply` is the differentiable product of a Propagation and a table of
vectors: compiled kernels on the CPU, ordinary torch operations on any other device.
"""

from __future__ import annotations

from collections.abc import Callable
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

    @staticmethod
    def of(matrix: Sparse) -> Propagation:
        """A matrix whose weights are already what they should be."""
        weights = matrix.data.astype(np.float32)
        return Propagation(
            matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), weights, matrix.shape[1]
        )

    @staticmethod
    def picking(rows: Indices, n_sources: int) -> Propagation:
        """Target t is source rows[t]. Rows may repeat; their gradients are then added in a fixed order."""
        indptr, weights = np.arange(len(rows) + 1, dtype=np.int64), np.ones(len(rows), dtype=np.float32)
        return Propagation(indptr, rows.astype(np.int32), weights, n_sources)

    @property
    def n_targets(self) -> int:
        return len(self.indptr) - 1

    @cached_property
    def row_ranges(self) -> Indices:
        """How threads share the targets."""
        return balanced_ranges(self.indptr)

    @cached_property
    def transposed(self) -> Propagation:
        """The matrix from sources to targets; the backward pass gathers with it."""
        indptr, targets, weights = kernels.transpose(self.indptr, self.sources, self.weights, self.n_sources)
        return Propagation(indptr, targets, weights, self.n_targets)

    def gather(self, x: npt.NDArray[np.float32]) -> Tensor:
        """The product with x (n_sources, d) by compiled kernels, rows shared by threads."""
        out = torch.empty(self.n_targets, x.shape[1])
        run_ranges(kernels.gather, self.row_ranges, self.indptr, self.sources, self.weights, x, out.numpy())
        return out

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


def draw_mask(n: int, dropout: float, rng: np.random.Generator) -> Mask:
    """n times 1 with probability 1 - dropout, else 0, independently."""
    low, high = rng.integers(2**32, size=2, dtype=np.uint32)
    mask = np.empty(n, dtype=np.uint8)
    threshold = np.uint32(round(dropout * 2**32))
    run_ranges(kernels.draw_mask, even_ranges(n, n // 16), low, high, threshold, mask)
    return mask


Rowwise = tuple[Indices, Propagation]
"""Some target rows, and the propagation to just these."""


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
        return self.everything if dropout == 0 else draw_mask(len(self.sources), dropout, rng)

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
        ranges = even_ranges(len(rows), len(self.sources) // 8)
        run_ranges(kernels.count_kept, ranges, rows, self.indptr, mask, indptr)
        np.cumsum(indptr, out=indptr)
        sources = np.empty(indptr[-1], dtype=np.int32)
        run_ranges(kernels.compact, ranges, rows, self.indptr, self.sources, mask, indptr, sources)
        target_degrees = np.diff(indptr if degrees == "after" else self.indptr)
        if degrees == "before":
            target_degrees = target_degrees[rows]
        weights = np.empty(len(sources), dtype=np.float32)
        ranges = even_ranges(len(rows), len(sources) // 8)
        if self.weighting == "mean":
            run_ranges(kernels.weigh_mean, ranges, indptr, target_degrees, weights)
        else:
            counted = mask if degrees == "after" else self.everything
            factors = kernels.source_factors(self.sources, counted, self.n_sources)
            run_ranges(kernels.weigh_symmetric, ranges, indptr, sources, target_degrees, factors, weights)
        return Propagation(indptr, sources, weights, self.n_sources)


@dataclass(frozen=True)
class Selection:
    """Both directions of a graph as a batch sees them: some rows of each side, without the dropped edges.

    `whole` has all rows, for models whose inner layers need every node's neighbours.
    """

    left: Rowwise
    right: Rowwise
    whole: tuple[Propagation, Propagation] | None


class BipartiteGraph:
    """Both directions of a relation between a left and a right side, symmetrically normalised."""

    def __init__(self, matrix: Sparse):
        self.left = Direction(matrix, "symmetric")
        self.right = Direction(matrix.T.tocsr(), "symmetric")

    def to_right(self, left_mask: Mask) -> Mask:
        """The same edges' mask in the numbering of the right direction."""
        return left_mask[np.argsort(self.left.sources, kind="stable")]

    @cached_property
    def full(self) -> Selection:
        """All rows, no edge dropped: what evaluation and serving use."""
        left, right = self.left, self.right
        return Selection((left.all_rows, left.full), (right.all_rows, right.full), (left.full, right.full))

    def select(
        self,
        rows: tuple[Indices, Indices],
        masks: tuple[Mask, Mask],
        degrees: Degrees = "after",
        n_layers: int = 1,
    ) -> Selection:
        """The chosen rows of the left and the right side under these masks."""
        directions = self.left, self.right
        left, right = (
            (chosen, direction.select(chosen, mask, degrees))
            for direction, chosen, mask in zip(directions, rows, masks, strict=True)
        )
        if n_layers == 1:
            return Selection(left, right, None)
        whole = [d.select(None, mask, degrees) for d, mask in zip(directions, masks, strict=True)]
        return Selection(left, right, (whole[0], whole[1]))

    def dropped(self, dropout: float, rng: np.random.Generator) -> Selection:
        """All rows without a random share of the edges; both directions of an edge go together."""
        mask = self.left.draw_mask(dropout, rng)
        left, right = self.left.select(None, mask), self.right.select(None, self.to_right(mask))
        return Selection((self.left.all_rows, left), (self.right.all_rows, right), (left, right))


class _KernelProduct(torch.autograd.Function):
    """propagation @ x with compiled kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, propagation: Propagation) -> Tensor:
        ctx.propagation = propagation
        return propagation.gather(array(x))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.propagation.transposed.gather(array(gradients[0])), None


class _KernelConvolution(torch.autograd.Function):
    """Both sides' `convolve` in one function, so that each table gets its whole gradient in one array."""

    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, to_left: Rowwise, to_right: Rowwise, scale: float
    ) -> tuple[Tensor, Tensor]:
        ctx.sides, ctx.scale, ctx.lengths = (to_left, to_right), np.float32(scale), []
        tables = array(left), array(right)
        outputs = []
        for side, (rows, p) in enumerate(ctx.sides):
            out, lengths = torch.empty(p.n_targets, left.shape[1]), np.empty(p.n_targets, dtype=np.float32)
            edges = rows, p.indptr, p.sources, p.weights
            vectors = tables[side], tables[1 - side], ctx.scale, out.numpy(), lengths
            run_ranges(kernels.convolve, p.row_ranges, *edges, *vectors)
            outputs.append(out)
            ctx.lengths.append(lengths)
        ctx.save_for_backward(left, right, *outputs)
        return outputs[0], outputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """A table's gradient: what its rows passed on to the other side, plus what came to its own rows."""
        left, right, *outputs = (array(tensor) for tensor in ctx.saved_tensors)
        arrays = [array(gradient) for gradient in gradients]
        found = []
        for side, (rows, p) in enumerate(ctx.sides):
            message = np.empty_like(arrays[side])
            forward = (left, right)[side], ctx.scale, outputs[side], ctx.lengths[side]
            ranges = even_ranges(len(rows))
            run_ranges(kernels.convolve_backward, ranges, rows, *forward, arrays[side], message)
            found.append(p.transposed.gather(message))
        to_right, to_left = found  # messages to the left side's rows came from the right table
        for (rows, _), direct, table in zip(ctx.sides, arrays, (to_left, to_right), strict=True):
            run_ranges(kernels.add_rows, even_ranges(len(rows)), rows, direct, table.numpy())
        return to_left, to_right, None, None, None


def array(x: Tensor) -> npt.NDArray[np.float32]:
    """The numbers of a tensor, for a kernel."""
    numbers: npt.NDArray[np.float32] = x.detach().contiguous().numpy()
    return numbers


def by_kernels(x: Tensor) -> bool:
    """Whether the compiled kernels can work on this tensor."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def torch_product(x: Tensor, propagation: Propagation) -> Tensor:
    """propagation @ x in ordinary torch operations, for devices the kernels do not reach."""
    p = propagation
    targets = torch.from_numpy(np.repeat(np.arange(p.n_targets), np.diff(p.indptr))).to(x.device)
    sources = torch.from_numpy(p.sources.astype(np.int64)).to(x.device)
    messages = x[sources] * torch.from_numpy(p.weights).to(x.device, x.dtype)[:, None]
    return x.new_zeros(p.n_targets, x.shape[1]).index_add(0, targets, messages)


def multiply(x: Tensor, propagation: Propagation) -> Tensor:
    """propagation @ x (n_targets, d), differentiable in x."""
    if not by_kernels(x):
        return torch_product(x, propagation)
    product: Tensor = _KernelProduct.apply(x, propagation)  # type: ignore[no-untyped-call]
    return product


def torch_convolution(
    left: Tensor, right: Tensor, to_left: Rowwise, to_right: Rowwise, scale: float
) -> tuple[Tensor, Tensor]:
    """`convolution` in ordinary torch operations."""
    outputs = []
    for own, other, (rows, propagation) in ((left, right, to_left), (right, left, to_right)):
        layer = torch_product(other, propagation)
        base = own[torch.from_numpy(rows).to(own.device)]
        outputs.append(base + (layer * scale if scale else normalize(layer, eps=1e-30)))
    return outputs[0], outputs[1]


def convolution(
    left: Tensor, right: Tensor, to_left: Rowwise, to_right: Rowwise, scale: float
) -> tuple[Tensor, Tensor]:
    """For both sides: the chosen rows' own vectors plus one propagation from the other side.

    The propagated rows are multiplied by `scale`, or brought to length 1 where it is 0.
    """
    if not by_kernels(left):
        return torch_convolution(left, right, to_left, to_right, scale)
    outputs: tuple[Tensor, Tensor] = _KernelConvolution.apply(left, right, to_left, to_right, scale)  # type: ignore[no-untyped-call]
    return outputs


def light_gcn(
    selection: Selection, left: Tensor, right: Tensor, n_layers: int, normalise_layers: bool = True
) -> tuple[Tensor, Tensor]:
    """Light graph convolution: outputs of the selected rows on both sides.

    Layer k of the left side is the weighted sum of layer k-1 of the right side's neighbours, and the
    other way round. The output is layer 0 plus each propagated layer scaled to length 1
    (`normalise_layers`), or the sum of layer k / (k + 1) without scaling.
    """
    scale = 0.0 if normalise_layers else 1 / 2
    outputs = list(convolution(left, right, selection.left, selection.right, scale))
    for k in range(2, n_layers + 1):  # layer k of the chosen rows needs layer k - 1 of every row
        assert selection.whole is not None
        left, right = multiply(right, selection.whole[0]), multiply(left, selection.whole[1])
        for side, (source, (_, propagation)) in enumerate(((right, selection.left), (left, selection.right))):
            layer = multiply(source, propagation)
            scaled = normalize(layer, eps=1e-30) if normalise_layers else layer / (k + 1)
            outputs[side] = outputs[side] + scaled
    return outputs[0], outputs[1]


def layers(
    selection: Selection,
    left: Tensor,
    right: Tensor,
    n_layers: int,
    change: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Layers 0 .. n_layers - 1 of both sides on the whole graph, each (n_layers, rows, d), unscaled.

    They are what `light_gcn` sums over a node's neighbours, so with them its output can be had for a node
    that was not there in training. A `change`, say noise, is made to each layer as it is propagated, and
    goes on to the next.
    """
    assert selection.whole is not None
    found = [(left, right)]
    for _ in range(1, n_layers):
        left, right = multiply(right, selection.whole[0]), multiply(left, selection.whole[1])
        if change is not None:
            left, right = change(left), change(right)
        found.append((left, right))
    return torch.stack([one for one, _ in found]), torch.stack([other for _, other in found])
