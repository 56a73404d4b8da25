"""Losses as pure functions of tensors. Batches repeat users and bundles, so the set losses take distinct
rows with multiplicities; that is exact and saves most of the work."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

BLOCK = 256
"""Rows per block of the pairwise products in `uniformity`: a block of 256 x 2048 floats stays in cache."""


def bpr(positive: Tensor, negative: Tensor) -> Tensor:
    """Mean of -ln sigma(positive - negative): the chosen bundle should score above the other one."""
    return softplus(negative - positive).mean()


def alignment(first: Tensor, second: Tensor, counts: Tensor) -> Tensor:
    """Mean squared distance between the normalised rows of two views (n, d); row r counts counts[r] times."""
    distances = (normalize(first) - normalize(second)).square().sum(1)
    return (distances * counts).sum() / counts.sum()


class _Uniformity(torch.autograd.Function):
    """Value and gradient in one pass over blocks of the upper triangle, so that no (n, n) matrix is kept.

    -2 |x - y|^2 = 4<x, y> - 2|x|^2 - 2|y|^2 is the inner product of (2x, -2|x|^2, 1) and (2y, 1, -2|y|^2):
    one matrix product, then one exponential. (Rows have length 1, or 0 for a bundle that lost all its items.)
    With E the matrix of count-weighted exponentials over pairs r < s and S its sum, the loss is
    log(S / number of pairs), and its gradient in row r is 4 / S * sum_s E_rs x_s, leaving out what points
    along x_r itself: `normalize`, which made x, does not pass that on.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Tensor) -> Tensor:
        n = counts.sum()
        # Copies of one row are at distance 0 from each other: each such pair contributes exp(0) = 1.
        total = (counts * (counts - 1)).sum() / 2
        lengths, ones = -2 * x.square().sum(1, keepdim=True), x.new_ones(len(x), 1)
        first, second = torch.cat([2 * x, lengths, ones], 1), torch.cat([2 * x, ones, lengths], 1).t()
        weighted = torch.cat([x * counts[:, None], counts[:, None]], 1)
        sums = torch.zeros_like(weighted)  # row r: sum_s E_rs (x_s, 1), with s's count but not yet r's
        for start in range(0, len(x), BLOCK):
            stop = min(start + BLOCK, len(x))
            e = torch.mm(first[start:stop], second[:, start:]).exp_()
            e[:, : stop - start].triu_(1)  # the block on the diagonal: each pair once
            sums[start:stop].addmm_(e, weighted[start:])
            sums[start:].addmm_(e.t(), weighted[start:stop])
        total = total + (sums[:, -1] * counts).sum() / 2
        ctx.save_for_backward(sums[:, :-1] * (4 / total * counts)[:, None])
        return torch.log(total / (n * (n - 1) / 2))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None


def uniformity(x: Tensor, counts: Tensor) -> Tensor:
    """log of the mean of exp(-2 |x_i - x_j|^2) over distinct pairs of a batch of normalised rows.

    `x` (n, d) holds the batch's distinct rows, not yet normalised; counts[r] says how often row r stands
    in the batch. A batch of one has no pairs and no uniformity: 0.
    """
    if counts.sum() < 2:
        return x.sum() * 0
    value: Tensor = _Uniformity.apply(normalize(x), counts)  # type: ignore[no-untyped-call]
    return value
