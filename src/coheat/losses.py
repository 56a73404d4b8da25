"""Losses as pure functions of tensors. Batches repeat users and bundles, so the set losses take distinct
rows with multiplicities; that is exact and saves most of the work."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import softplus

from coheat.graph import kernels
from coheat.graph.parallel import Filling, share_tasks
from coheat.graph.propagation import array, by_kernels
from coheat.graph.tiles import pair_exponentials
from coheat.threads import even_ranges, run_ranges

BLOCK = 192
"""Rows per block of the pairwise products in `uniformity` on other devices than the CPU."""

BLOCK_ENTRIES = 250_000
"""Products per block of `log_partition`: 1 MB stays in cache, however many candidates there are."""


def bpr(positive: Tensor, negative: Tensor) -> Tensor:
    """Mean of -ln sigma(positive - negative): the chosen bundle should score above the other one."""
    return softplus(negative - positive).mean()


def sampled_softmax(positive: Tensor, others: Tensor) -> Tensor:
    """Mean of -log softmax at the positive, over it (n,) and its others (n, m); -inf leaves one out."""
    return (torch.logsumexp(torch.cat([positive[:, None], others], 1), 1) - positive).mean()


def batch_l2(used: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Half the squared length of the vectors that a batch uses, averaged over its entries.

    `used` are pairs of a table (n, d) and the rows (batch size,) a batch takes from it, each as often as the
    batch has it; the means of the pairs are added.
    """
    terms = []
    for table, rows in used:
        counts = torch.bincount(rows, minlength=len(table)).to(table.dtype)
        terms.append(table.square().sum(1) @ counts / (2 * len(rows)))
    return torch.stack(terms).sum()


class _SquaredDistances(torch.autograd.Function):
    """Squared distances of rows with compiled kernels, without a table of differences."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        out = torch.empty(len(x))
        run_ranges(kernels.squared_distances, even_ranges(len(x)), array(x), array(y), out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        found = torch.empty(x.shape), torch.empty(y.shape)
        arrays = [array(tensor) for tensor in (x, y, gradients[0], *found)]
        run_ranges(kernels.squared_distances_backward, even_ranges(len(x)), *arrays)
        return found


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """|x[n] - y[n]|^2 for every row n."""
    if by_kernels(x):
        distances: Tensor = _SquaredDistances.apply(x, y)  # type: ignore[no-untyped-call]
        return distances
    return (x - y).square().sum(1)


def alignment(first: Tensor, second: Tensor, counts: Tensor) -> Tensor:
    """Mean squared distance between the rows of two normalised views (n, d); row r counts counts[r] times."""
    return (squared_distances(first, second) * counts).sum() / counts.sum()


class _Uniformity(torch.autograd.Function):
    """Values and gradients of several sets, in one pass over the pairs of rows r < s of each.

    -2 |x - y|^2 = 4<x, y> - 2|x|^2 - 2|y|^2: a matrix product, then an exponential. (Rows have length 1, or 0
    for a bundle that lost all its items.) With E_rs the exponential of the pair times both counts and S the
    sum over pairs r < s, the loss is log(S / number of pairs), and its gradient in row r is
    4 / S * sum_s E_rs x_s, leaving out what points along x_r itself: `unit_rows`, which made x, does not
    pass that on.
    """

    @staticmethod
    def forward(ctx: Any, counts: list[Tensor], *sets: Tensor) -> Tensor:
        # E_rs = both factors * exp(4 <x, y> - 4)
        factors = [
            c * torch.exp(2 - 2 * vector_norm(x, dim=1).square()) for x, c in zip(sets, counts, strict=True)
        ]
        values, found = [], []
        for (pairs, sums), c in zip(_pair_exponentials(sets, factors), counts, strict=True):
            # Copies of one row are at distance 0 from each other: each such pair contributes exp(0) = 1.
            total, n = pairs + (c * (c - 1)).sum() / 2, c.sum()
            values.append(torch.log(total / (n * (n - 1) / 2)))
            found.append(sums.mul_(4 / total))
        ctx.save_for_backward(*found)
        return torch.stack(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(g * upstream for g, upstream in zip(ctx.saved_tensors, gradients[0], strict=True))


def _pair_exponentials(sets: Sequence[Tensor], factors: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """`pair_exponentials` of each set, by compiled kernels where they can work on it."""
    if all(by_kernels(x) for x in sets):
        pairs = [(array(x), array(f)) for x, f in zip(sets, factors, strict=True)]
        return [(torch.tensor(value), torch.from_numpy(sums)) for value, sums in pair_exponentials(pairs)]
    return [torch_pair_exponentials(x, f) for x, f in zip(sets, factors, strict=True)]


def torch_pair_exponentials(x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """`pair_exponentials` in torch operations, by blocks of rows: no (n, n) matrix is kept."""
    total, sums = x.new_zeros(()), torch.zeros_like(x)
    scaled, minus_four = factors[:, None] * x, x.new_tensor(-4.0)
    for start in range(0, len(x), BLOCK):
        rows = slice(start, start + BLOCK)
        e = torch.addmm(minus_four, x[rows], x[start:].t(), alpha=4).exp_()
        e[:, :BLOCK].triu_(1)  # pairs r < s, each once
        total = total + factors[rows] @ (e @ factors[start:])
        sums[rows].addmm_(e, scaled[start:])
        sums[start:].addmm_(e.t(), scaled[rows])
    return total, sums.mul_(factors[:, None])


class _DotRows(torch.autograd.Function):
    """Row-wise inner products with compiled kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, x_at: Tensor, y_at: Tensor) -> Tensor:
        ctx.save_for_backward(x, y, x_at, y_at)
        out = torch.empty(len(x_at))
        arrays = [array(tensor) for tensor in (x, y, x_at, y_at)]
        run_ranges(kernels.dot_rows, even_ranges(len(out), 4 * len(out)), *arrays, out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, y, x_at, y_at = ctx.saved_tensors
        found = torch.zeros_like(x), torch.zeros_like(y)
        arrays = [array(tensor) for tensor in (x, y, x_at, y_at, gradients[0], *found)]
        run_ranges(kernels.dot_rows_backward, even_ranges(x.shape[1], 8 * len(x_at)), *arrays)
        return *found, None, None


def dot_rows(x: Tensor, y: Tensor, x_at: Tensor, y_at: Tensor) -> Tensor:
    """<x[x_at[n]], y[y_at[n]]> for every n: scores of pairs from tables of distinct rows."""
    if by_kernels(x):
        products: Tensor = _DotRows.apply(x, y, x_at, y_at)  # type: ignore[no-untyped-call]
        return products
    return (x[x_at] * y[y_at]).sum(1)


def uniformity(sets: list[tuple[Tensor, Tensor]]) -> Tensor:
    """For each set: log of the mean of exp(-2 |x_i - x_j|^2) over distinct pairs of its rows.

    A set is (x, counts): the distinct rows x (n, d) of a batch, made by `unit_rows`, and how often each
    stands in the batch. A set of one has no pairs and no uniformity: 0.
    """
    counted = [(x, c) for x, c in sets if len(c) > 1 or c.sum() > 1]
    if not counted:
        return torch.zeros(len(sets))
    rows, counts = [x for x, _ in counted], [c for _, c in counted]
    values: Tensor = _Uniformity.apply(counts, *rows)  # type: ignore[no-untyped-call]
    return values


Partition = tuple[Tensor, Tensor, Tensor, Tensor]
"""Anchors (n, d), candidates (m, d), and how often each anchor (n,) and each candidate (m,) counts."""


class _LogPartition(torch.autograd.Function):
    """Values and gradients of several sets, side by side in threads, each by `_log_partition`."""

    @staticmethod
    def forward(ctx: Any, temperature: float, counts: list[tuple[Tensor, Tensor]], *sets: Tensor) -> Tensor:
        tasks: list[Filling] = []
        values, gradients = [], []
        for anchors, candidates, counted in zip(sets[::2], sets[1::2], counts, strict=True):
            vectors = anchors.detach(), candidates.detach()
            value, found = anchors.new_zeros(1), [x.new_zeros(x.shape) for x in vectors]
            filled = value, *found
            tasks.append((partial(_log_partition, *vectors, *counted, temperature, *filled), filled))
            values.append(value)
            gradients += found
        share_tasks(tasks)
        ctx.save_for_backward(*gradients)
        return torch.cat(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        upstream = gradients[0].repeat_interleave(2)
        return None, None, *(g * above for g, above in zip(ctx.saved_tensors, upstream, strict=True))


def _log_partition(
    anchors: Tensor,
    candidates: Tensor,
    weights: Tensor,
    counts: Tensor,
    temperature: float,
    value: Tensor,
    to_anchors: Tensor,
    to_candidates: Tensor,
) -> None:
    """Value and both gradients in one pass over blocks of anchors, so that no (n, m) matrix is kept.

    With p_rs the share of candidate s in anchor r's sum of exponentials and w_r the anchor's share of the
    mean, the gradients are w_r / temperature * p_rs times the candidate, and times the anchor. They are added
    to `value` (1,), `to_anchors` and `to_candidates`, all zeros.
    """
    shares, log_counts = weights / weights.sum(), counts.log()
    block = min(max(BLOCK_ENTRIES // len(candidates), 1), len(anchors))
    scaled, buffer = anchors / temperature, anchors.new_empty(block, len(candidates))
    for start in range(0, len(anchors), block):
        rows = slice(start, start + block)
        e = torch.mm(scaled[rows], candidates.t(), out=buffer[: len(anchors) - start]).add_(log_counts)
        top = e.amax(1, keepdim=True)  # subtracted, so that no exponential overflows
        totals = e.sub_(top).exp_().sum(1, keepdim=True)
        value += (shares[rows, None] * (top + totals.log())).sum()
        e.mul_(shares[rows, None] / (temperature * totals))
        torch.mm(e, candidates, out=to_anchors[rows])
        to_candidates.addmm_(e.t(), anchors[rows])


def log_partition(sets: list[Partition], temperature: float) -> Tensor:
    """For each set: the mean over anchors x of log(sum over candidates y of exp(<x, y> / temperature)).

    It is what InfoNCE holds against an anchor's own candidate. Anchors and candidates count as often as the
    set says.
    """
    counts = [(weights, counted) for _, _, weights, counted in sets]
    vectors = [x for anchors, candidates, _, _ in sets for x in (anchors, candidates)]
    values: Tensor = _LogPartition.apply(temperature, counts, *vectors)  # type: ignore[no-untyped-call]
    return values


def infonce(sets: list[tuple[Tensor, Tensor, Tensor]], temperature: float) -> Tensor:
    """For each set: the mean over rows r of -log(exp(<x_r, y_r> / t) / sum over s of exp(<x_r, y_s> / t)).

    A set is (x, y, counts): two views (n, d) of the distinct rows of a batch, and how often each stands in
    it; rows count that often both as anchors x and as candidates y. For cosines, give rows of length 1.
    """
    own = [((x * y).sum(1) * counts).sum() / counts.sum() for x, y, counts in sets]
    partitions = log_partition([(x, y, counts, counts) for x, y, counts in sets], temperature)
    return partitions - torch.stack(own) / temperature
