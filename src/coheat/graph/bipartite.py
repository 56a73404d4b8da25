"""Bipartite relations as the models use them: drop edges, weigh the rest, multiply.

A `Direction` is one relation seen from the side that receives (targets) towards the side that gives
(sources). For a training batch it is asked for a `Propagation`: the kept edges of just the rows the batch
needs, and how they are scaled.
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
from coheat.graph.adam import Part, deferred_parts
from coheat.graph.propagation import Floats, Scaled, array, by_kernels, multiply, torch_product
from coheat.threads import Job, even_ranges, run_jobs

Mask = npt.NDArray[np.uint8]
Weighting = Literal["symmetric", "mean"]
Degrees = Literal["after", "before"]


def draw_mask(n: int, dropout: float, rng: np.random.Generator) -> Mask:
    """n times 1 with probability 1 - dropout, else 0, independently."""
    low, high = rng.integers(2**32, size=2, dtype=np.uint32)
    mask = np.empty(n, dtype=np.uint8)
    threshold = np.uint32(round(dropout * 2**32))
    kernels.draw_mask(0, n, low, high, threshold, mask)
    return mask


Rowwise = tuple[Indices, Scaled]
"""Some target rows, and the propagation to just these."""


class Direction:
    """One relation from targets to sources. Edges are numbered in CSR order; a mask says which stay."""

    def __init__(self, matrix: Sparse, weighting: Weighting):
        self.n_targets, self.n_sources = matrix.shape
        self.indptr = matrix.indptr.astype(np.int64)
        self.sources = matrix.indices.astype(np.int32, copy=False)
        self.weighting = weighting
        self.all_rows = np.arange(self.n_targets, dtype=np.int64)
        self.everything = np.ones(len(self.sources), dtype=np.uint8)
        self.ones = np.ones(self.n_sources, dtype=np.float32)
        self._scaled_by: tuple[Mask, Floats] | None = None
        self.source_degrees = np.bincount(self.sources, minlength=self.n_sources).astype(np.int32)

    def draw_mask(self, dropout: float, rng: np.random.Generator) -> Mask:
        """Keep each edge with probability 1 - dropout, independently."""
        return self.everything if dropout == 0 else draw_mask(len(self.sources), dropout, rng)

    @cached_property
    def full(self) -> Scaled:
        """All rows, no edge dropped: what evaluation and serving use."""
        return self.select(None, self.everything)

    def select(self, rows: Indices | None, mask: Mask, degrees: Degrees = "after") -> Scaled:
        """The chosen targets (all for None) without dropped edges, weighed by degrees after (or before) it.

        The degree of a source counts all of its kept edges, also those of targets not chosen, so that
        the chosen rows are exactly the rows of the whole dropped and normalised matrix.
        """
        rows = self.all_rows if rows is None else rows
        whole_degrees = self.indptr[rows + 1] - self.indptr[rows]
        indptr = np.empty(len(rows) + 1, dtype=np.int64)
        sources = np.empty(int(whole_degrees.sum()) + 1, dtype=np.int32)
        kernels.compact(rows, self.indptr, self.sources, mask, indptr, sources)
        target_degrees = np.diff(indptr) if degrees == "after" else whole_degrees
        if self.weighting == "mean":
            scales = kernels.inverses(target_degrees), self.ones
        else:
            whole = self.everything if degrees == "before" else mask
            scales = kernels.inverse_roots(target_degrees), self._source_scales(whole)
        return Scaled(indptr, sources[: indptr[-1]], self.n_sources, *scales)

    def _source_scales(self, mask: Mask) -> Floats:
        """1 / sqrt(degree) of all sources when the edges of this mask stay.

        Counting takes all edges, however few a batch needs: so it is done once for all batches of a mask.
        """
        if self._scaled_by is None or self._scaled_by[0] is not mask:
            left = self.source_degrees
            if mask is not self.everything:
                left = kernels.source_degrees(self.sources, mask, self.n_sources)
            self._scaled_by = mask, kernels.inverse_roots(left)
        return self._scaled_by[1]


@dataclass(frozen=True)
class Selection:
    """Both directions of a graph as a batch sees them: some rows of each side, without the dropped edges.

    `whole` has all rows, for models whose inner layers need every node's neighbours.
    """

    left: Rowwise
    right: Rowwise
    whole: tuple[Scaled, Scaled] | None


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


class _KernelConvolution(torch.autograd.Function):
    """Both sides' `convolve` in one function, so that each table gets its whole gradient in one array."""

    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        to_left: Rowwise,
        to_right: Rowwise,
        scale: float,
        deferred: tuple[list[Part] | None, list[Part] | None],
    ) -> tuple[Tensor, Tensor]:
        ctx.deferred = deferred
        ctx.sides, ctx.scale, ctx.lengths = (to_left, to_right), np.float32(scale), []
        tables, outputs = (array(left), array(right)), []
        jobs: list[Job] = []
        for side, (rows, p) in enumerate(ctx.sides):
            out, lengths = torch.empty(p.n_targets, left.shape[1]), np.empty(p.n_targets, dtype=np.float32)
            edges = rows, p.indptr, p.sources, p.target_scales, p.source_scales
            vectors = tables[side], tables[1 - side], ctx.scale, out.numpy(), lengths
            jobs.append((kernels.convolve, p.row_ranges, (*edges, *vectors)))
            outputs.append(out)
            ctx.lengths.append(lengths)
        run_jobs(jobs)
        ctx.save_for_backward(left, right, *outputs)
        return outputs[0], outputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """A table's gradient: what its rows passed on to the other side, plus what came to its own rows."""
        *tables, left, right = (array(tensor) for tensor in ctx.saved_tensors)
        direct = [array(gradient) for gradient in gradients]
        messages: list[Floats] = []
        jobs: list[Job] = []
        for side, ((rows, p), out) in enumerate(zip(ctx.sides, (left, right), strict=True)):
            message = np.empty_like(direct[side])
            forward = rows, p.target_scales, tables[side], ctx.scale, out, ctx.lengths[side]
            ranges = even_ranges(len(rows), 8 * len(rows))
            jobs.append((kernels.convolve_backward, ranges, (*forward, direct[side], message)))
            messages.append(message)
        run_jobs(jobs)
        found: list[Tensor | None] = []
        jobs = []
        for side, (table, deferred) in enumerate(zip(tables, ctx.deferred, strict=True)):
            (rows, _), (_, p) = ctx.sides[side], ctx.sides[1 - side]
            back, own = p.transposed, (direct[side], kernels.positions(rows, len(table)))
            part = back.indptr, back.sources, back.target_scales, messages[1 - side], *own
            if deferred is not None:
                deferred.append(part)
                found.append(None)
            else:
                found.append(gradient := torch.zeros(table.shape))
                jobs.append((kernels.collect, back.row_ranges, (*part, 0, gradient.numpy())))
        run_jobs(jobs)
        return *found, None, None, None, None


def torch_convolution(
    left: Tensor, right: Tensor, to_left: Rowwise, to_right: Rowwise, scale: float
) -> tuple[Tensor, Tensor]:
    """`convolution` in ordinary torch operations."""
    outputs = []
    for own, other, (rows, propagation) in ((left, right, to_left), (right, left, to_right)):
        layer = torch_product(other, propagation)
        base = own[torch.from_numpy(rows).to(own.device)]
        outputs.append(base + (layer * scale if scale else normalize(layer)))
    return outputs[0], outputs[1]


def convolution(
    left: Tensor, right: Tensor, to_left: Rowwise, to_right: Rowwise, scale: float
) -> tuple[Tensor, Tensor]:
    """For both sides: the chosen rows' own vectors plus one propagation from the other side.

    The propagated rows are multiplied by `scale`, or brought to length 1 where it is 0.
    """
    if not by_kernels(left):
        return torch_convolution(left, right, to_left, to_right, scale)
    outputs: tuple[Tensor, Tensor] = _KernelConvolution.apply(  # type: ignore[no-untyped-call]
        left, right, to_left, to_right, scale, (deferred_parts(left), deferred_parts(right))
    )
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
            scaled = normalize(layer) if normalise_layers else layer / (k + 1)
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
