"""Attention within sequences: everybody in a row of a relation asks everybody, and the answers are averaged.

With the columns x_1 .. x_n of a row and what they ask, q_1 .. q_n,

    A = softmax over t of <q_s, x_t>,     attention = mean over s of sum over t of A_st x_t.

On the CPU it is compiled kernels, which hold nothing but A of all rows; on any other device, ordinary torch
operations on rows of about equal length.
"""

# numba functions carry no types that mypy could use
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coheat.data.dataset import Sparse
from coheat.graph.kernels import compiled
from coheat.graph.propagation import Scaled, array, by_kernels
from coheat.threads import run_ranges


@compiled
def attend_rows(start, stop, indptr, sources, firsts, asked, x, pairs, out):
    """out[r] = the attention of row r; its A is kept in `pairs` from firsts[r] on, row by row."""
    width = x.shape[1]
    for r in range(start, stop):
        tokens = sources[indptr[r] : indptr[r + 1]]
        n, row = len(tokens), out[r]
        for j in range(width):
            row[j] = np.float32(0.0)
        for s in range(n):
            line, question = pairs[firsts[r] + s * n : firsts[r] + (s + 1) * n], asked[tokens[s]]
            highest = np.float32(-np.inf)
            for t in range(n):
                key, product = x[tokens[t]], np.float32(0.0)
                for j in range(width):
                    product += question[j] * key[j]
                line[t] = product
                highest = max(highest, product)
            total = np.float32(0.0)
            for t in range(n):
                line[t] = np.exp(line[t] - highest)
                total += line[t]
            for t in range(n):
                line[t] /= total
        for t in range(n):
            weight, value = np.float32(0.0), x[tokens[t]]
            for s in range(n):
                weight += pairs[firsts[r] + s * n + t]
            weight /= np.float32(n)
            for j in range(width):
                row[j] += weight * value[j]


@compiled
def attend_rows_backward(start, stop, indptr, sources, firsts, asked, x, pairs, gradient, to_asked, to_x):
    """Gradients of `attend_rows` for every edge: of what it asks, and of its vector."""
    width = x.shape[1]
    for r in range(start, stop):
        first, n = indptr[r], indptr[r + 1] - indptr[r]
        above, share = gradient[r], np.float32(1.0) / np.float32(max(n, 1))
        along = np.empty(n, dtype=np.float32)  # gradients of the averaged weights, by column
        for t in range(n):
            value, product, weight = x[sources[first + t]], np.float32(0.0), np.float32(0.0)
            for s in range(n):
                weight += pairs[firsts[r] + s * n + t]
            for j in range(width):
                product += above[j] * value[j]
                to_x[first + t, j] = share * weight * above[j]
                to_asked[first + t, j] = np.float32(0.0)
            along[t] = share * product
        for s in range(n):
            line, question = pairs[firsts[r] + s * n : firsts[r] + (s + 1) * n], asked[sources[first + s]]
            own, mean = to_asked[first + s], np.float32(0.0)
            for t in range(n):
                mean += line[t] * along[t]
            for t in range(n):
                slope, value, other = line[t] * (along[t] - mean), x[sources[first + t]], to_x[first + t]
                for j in range(width):
                    own[j] += slope * value[j]
                    other[j] += slope * question[j]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, asked: Tensor, x: Tensor, sequences: Sequences) -> Tensor:
        edges = sequences.edges
        pairs = np.empty(sequences.firsts[-1], dtype=np.float32)
        out = torch.empty(edges.n_targets, x.shape[1])
        known = edges.indptr, edges.sources, sequences.firsts, array(asked), array(x), pairs
        run_ranges(attend_rows, edges.row_ranges, *known, out.numpy())
        ctx.sequences, ctx.pairs = sequences, pairs
        ctx.save_for_backward(asked, x)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        edges, (asked, x) = ctx.sequences.edges, ctx.saved_tensors
        found = [np.empty((len(edges.sources), x.shape[1]), dtype=np.float32) for _ in range(2)]
        known = edges.indptr, edges.sources, ctx.sequences.firsts, array(asked), array(x), ctx.pairs
        run_ranges(attend_rows_backward, edges.row_ranges, *known, array(gradients[0]), *found)
        to_asked, to_x = (ctx.sequences.by_source.gather(of_edges) for of_edges in found)
        return to_asked, to_x, None


class Sequences:
    """The first columns of every row of a relation, at most `n_tokens`."""

    def __init__(self, matrix: Sparse, n_tokens: int):
        sizes = np.diff(matrix.indptr)
        kept = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], sizes) < n_tokens
        sizes = np.minimum(sizes, n_tokens).astype(np.int64)
        indptr, sources = np.concatenate([[0], np.cumsum(sizes)]), matrix.indices[kept].astype(np.int32)
        n_rows, n_sources = matrix.shape
        ones = np.ones(max(n_rows, n_sources), dtype=np.float32)
        self.edges = Scaled(indptr, sources, n_sources, ones[:n_rows], ones[:n_sources])
        self.firsts = np.concatenate([[0], np.cumsum(sizes**2)])

    @cached_property
    def by_source(self) -> Scaled:
        """From edges to the columns they lead to."""
        return Scaled.picking(self.edges.sources.astype(np.int64), self.edges.n_sources).transposed

    def attend(self, asked: Tensor, x: Tensor) -> Tensor:
        """The attention of every row (n_rows, d), from what columns ask and are (n, d)."""
        if by_kernels(x):
            found: Tensor = _Attend.apply(asked, x, self)  # type: ignore[no-untyped-call]
            return found
        return self.torch_attend(asked, x)

    def torch_attend(self, asked: Tensor, x: Tensor) -> Tensor:
        """`attend` in ordinary torch operations."""
        found = x.new_zeros(self.edges.n_targets, x.shape[1])
        for rows, columns, shares in self._groups:
            at, share = columns.to(x.device), shares.to(x.device)
            tokens, questions = x[at], asked[at]
            logits = torch.bmm(questions, tokens.transpose(1, 2))
            weights = torch.softmax(logits.masked_fill((share == 0)[:, None, :], -torch.inf), 2)
            answers = torch.bmm(torch.bmm(share[:, None, :], weights), tokens).squeeze(1)
            found = found.index_copy(0, rows.to(x.device), answers)
        return found

    @cached_property
    def _groups(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Rows of about equal length, their columns (n, length), and the share of each column in its row's
        mean, which is 0 for what only fills up."""
        sizes, indptr, found = np.diff(self.edges.indptr), self.edges.indptr, []
        above = 0
        while above < sizes.max(initial=0):
            length = max(2 * above, 1)
            rows = np.flatnonzero((sizes > above) & (sizes <= length))
            filled = np.arange(length) < sizes[rows][:, None]
            places = np.where(filled, indptr[rows][:, None] + np.arange(length), 0)
            columns = np.where(filled, self.edges.sources[places], 0).astype(np.int64)
            shares = (filled / sizes[rows][:, None]).astype(np.float32)
            found.append((torch.from_numpy(rows), torch.from_numpy(columns), torch.from_numpy(shares)))
            above = length
        return found
