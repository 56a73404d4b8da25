"""The compiled loops of the hot path: masks, degrees, compaction, gathering and scattering rows.

All arrays are C-contiguous; ranges [start, stop) are what one thread does (see `parallel`). Names:
a *target* row receives a weighted sum of *source* rows; `indptr[t]:indptr[t + 1]` are its edges.

The loops over all edges use unsigned indices: a negative index counts from the end in Python, and checking
the sign of each one takes a third of such a loop's time.
"""

# numba functions carry no types that mypy could use
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numba
import numpy as np

from coheat.graph.registers import fetch_row

AHEAD = 16
"""Edges between asking for a row and using it: enough for the row to arrive, few enough for it to stay."""

SHORT = np.float32(1e-12)
"""Rows shorter than this have no direction. Nodes that nothing trains shrink towards 0, and the squares of
their numbers soon are too small for a float."""

# Dividing by 0 gives infinity, as in numpy: a loop that may have to raise an error cannot use vectors.
_options = {"nogil": True, "fastmath": {"contract", "reassoc", "nsz", "arcp"}, "error_model": "numpy"}
compiled = numba.njit(cache=True, **_options)
_part_of_compiled = numba.njit(**_options)  # kept with what calls it


@compiled
def _mix(x, multiplier):
    """One round of a 32-bit finaliser: shift, xor, multiply. The casts keep numba at 32 bits."""
    return np.uint32(np.uint32(x ^ (x >> np.uint32(16))) * multiplier)


@compiled
def _hashed(e, low_key, high_key):
    """A hash of e and the keys: 32 bits."""
    x = _mix(np.uint32(np.uint32(e) ^ low_key), np.uint32(0x21F0AAAD))
    x = _mix(np.uint32(x + high_key), np.uint32(0x735A2D97))
    x = _mix(np.uint32(x ^ low_key), np.uint32(0x7FEB352D))
    return np.uint32(x ^ (x >> np.uint32(15)))


@compiled
def draw_mask(start, stop, low_key, high_key, threshold, mask):
    """mask[e] = 1 where a hash of (keys, e) is at least `threshold`: an edge stays with probability
    1 - threshold / 2**32. Hashing needs no state, so ranges can be drawn by different threads."""
    part, first = mask[start:stop], np.uint32(start)
    for n in range(len(part)):
        part[n] = np.uint8(_hashed(np.uint32(first + np.uint32(n)), low_key, high_key) >= threshold)


@compiled
def source_degrees(sources, mask, n_sources):
    """Number of kept edges that leave each source."""
    degrees, ends = np.zeros(n_sources, np.int32), sources.view(np.uint32)
    for e in range(np.uint64(len(ends))):
        degrees[ends[e]] += mask[e]
    return degrees


@compiled
def inverse_roots(degrees):
    """1 / sqrt(degree), and 1 where there is none."""
    scales = np.empty(len(degrees), np.float32)
    for n in range(len(degrees)):
        scales[n] = np.float32(1.0) / np.sqrt(np.float32(max(degrees[n], 1)))
    return scales


@compiled
def inverses(degrees):
    """1 / degree, and 1 where there is none."""
    scales = np.empty(len(degrees), np.float32)
    for n in range(len(degrees)):
        scales[n] = np.float32(1.0) / np.float32(max(degrees[n], 1))
    return scales


@compiled
def positions(rows, n):
    """For each number below n its position in `rows`; -1 where it is not among them."""
    found = np.full(n, -1, np.int32)
    for position in range(len(rows)):
        found[rows[position]] = position
    return found


@compiled
def compact(rows, indptr, sources, mask, new_indptr, new_sources):
    """Copy the kept edges of the chosen targets to one dense list, and note where each target's begin.

    Every edge is written, and the next one overwrites it unless it stays: a branch on the mask would be
    mispredicted half of the time. So `new_sources` needs room for one more edge than stay.
    """
    end = np.uint64(0)
    for r in range(len(rows)):
        new_indptr[r] = np.int64(end)
        for e in range(np.uint64(indptr[rows[r]]), np.uint64(indptr[rows[r] + 1])):
            new_sources[end] = sources[e]
            end += np.uint64(mask[e])
    new_indptr[len(rows)] = np.int64(end)


@compiled
def renumber(sources, n_sources):
    """The distinct sources in ascending order, and every edge's position among them."""
    position, ends = np.full(n_sources, -1, np.int32), sources.view(np.uint32)
    for e in range(np.uint64(len(ends))):
        position[ends[e]] = 0
    count = 0
    for s in range(n_sources):
        if position[s] == 0:
            position[s] = count
            count += 1
    distinct = np.empty(count, np.int64)
    for s in range(n_sources):
        if position[s] >= 0:
            distinct[position[s]] = s
    renumbered = np.empty(len(ends), np.int32)
    for e in range(np.uint64(len(ends))):
        renumbered[e] = position[ends[e]]
    return distinct, renumbered


@compiled
def distinct(ids, n):
    """The distinct ids (all below n) in ascending order, the position of each id among them, and counts."""
    counts = np.zeros(n, np.int64)
    for i in ids:
        counts[i] += 1
    found = np.flatnonzero(counts)
    position = np.empty(n, np.int64)
    for p in range(len(found)):
        position[found[p]] = p
    return found, position[ids], counts[found]


@_part_of_compiled
def _of_edge(factors, edge, _source):
    return factors[edge]


@_part_of_compiled
def _of_source(factors, _edge, source):
    return factors[source]


@_part_of_compiled
def _one(_factors, _edge, _source):
    return np.float32(1.0)


def _sum_of_rows(weight: Any) -> Any:
    """A compiled function: row = sum over edges first to end of weight * x[source].

    Rows are read in an order that no processor can guess, so each is asked for AHEAD edges early.
    """

    @_part_of_compiled
    def sum_rows(first, end, sources, factors, x, row):
        row[:] = 0
        ends, last = sources.view(np.uint32), np.uint64(len(sources) - 1)
        for e in range(np.uint64(first), np.uint64(end)):
            fetch_row(x, ends[min(e + np.uint64(AHEAD), last)])
            source, w = x[ends[e]], weight(factors, e, ends[e])
            for j in range(len(row)):
                row[j] += w * source[j]

    return sum_rows


_sum_weighted = _sum_of_rows(_of_edge)
_sum_scaled = _sum_of_rows(_of_source)
_sum_plain = _sum_of_rows(_one)


@compiled
def gather(start, stop, indptr, sources, weights, x, out):
    """out[t] = sum over edges of weight * x[source]."""
    for t in range(start, stop):
        _sum_weighted(indptr[t], indptr[t + 1], sources, weights, x, out[t])


@compiled
def gather_scaled(start, stop, indptr, sources, target_scales, source_scales, x, out):
    """out[t] = target_scales[t] * sum over edges of source_scales[source] * x[source]."""
    width = x.shape[1]
    for t in range(start, stop):
        row, scale = out[t], target_scales[t]
        _sum_scaled(indptr[t], indptr[t + 1], sources, source_scales, x, row)
        for j in range(width):
            row[j] *= scale


@compiled
def convolve(start, stop, rows, indptr, sources, target_scales, source_scales, base, x, scale, out, lengths):
    """out[t] = base[rows[t]] + p / |p|, where p is the sum of `gather_scaled`; lengths[t] = |p|.

    With a `scale` above 0 the sum is scaled by it instead, without normalising. A sum that is SHORT adds
    nothing.
    """
    width = x.shape[1]
    for t in range(start, stop):
        fetch_row(base, rows[min(t + 1, stop - 1)])
        row, own = out[t], base[rows[t]]
        _sum_scaled(indptr[t], indptr[t + 1], sources, source_scales, x, row)
        total = np.float32(0.0)
        for j in range(width):
            total += row[j] * row[j]
        length = np.sqrt(total)
        lengths[t] = target_scales[t] * length
        factor = scale * target_scales[t]
        if scale == 0 and lengths[t] > SHORT:
            factor = np.float32(1.0) / length
        for j in range(width):
            row[j] = own[j] + factor * row[j]


@compiled
def convolve_backward(start, stop, rows, target_scales, base, scale, out, lengths, gradient, message):
    """message[t] = what goes back over each edge of `convolve`, but for the scale of its source.

    A normalised row u = p / |p| passes (g - u <u, g>) / |p| on to p; u is the row without its base.
    """
    width = gradient.shape[1]
    for t in range(start, stop):
        fetch_row(base, rows[min(t + 4, stop - 1)])
        g, own, full, to_sum = gradient[t], base[rows[t]], out[t], message[t]
        inner, factor = np.float32(0.0), scale * target_scales[t]
        if scale == 0 and lengths[t] > SHORT:
            factor = target_scales[t] / lengths[t]
            for j in range(width):
                inner += (full[j] - own[j]) * g[j]
        for j in range(width):
            to_sum[j] = (g[j] - (full[j] - own[j]) * inner) * factor


@compiled
def collect(start, stop, indptr, sources, target_scales, x, direct, direct_at, first, out):
    """Add target_scales[t] * sum over edges of x[source], and direct[direct_at[t]] (none at -1), to row t.

    Row `first` is the first of `out`.
    """
    width, sums = x.shape[1], np.empty(x.shape[1], np.float32)
    for t in range(start, stop):
        row, scale = out[t - first], target_scales[t]
        _sum_plain(indptr[t], indptr[t + 1], sources, target_scales, x, sums)
        for j in range(width):
            row[j] += scale * sums[j]
        if direct_at[t] >= 0:
            own = direct[direct_at[t]]
            for j in range(width):
                row[j] += own[j]


@compiled
def unit_rows(start, stop, x, out, lengths):
    """out[t] = x[t] / |x[t]|, or 0 for a SHORT row; lengths[t] = |x[t]|."""
    width = x.shape[1]
    for t in range(start, stop):
        row, scaled, total = x[t], out[t], np.float32(0.0)
        for j in range(width):
            total += row[j] * row[j]
        lengths[t] = np.sqrt(total)
        factor = np.float32(1.0) / lengths[t] if lengths[t] > SHORT else np.float32(0.0)
        for j in range(width):
            scaled[j] = row[j] * factor


@compiled
def unit_rows_backward(start, stop, out, lengths, gradient, found):
    """found[t] = (g - u <u, g>) / |x|, with u = out[t] and g = gradient[t]."""
    width = out.shape[1]
    for t in range(start, stop):
        u, g, row, inner = out[t], gradient[t], found[t], np.float32(0.0)
        for j in range(width):
            inner += u[j] * g[j]
        factor = np.float32(1.0) / lengths[t] if lengths[t] > SHORT else np.float32(0.0)
        for j in range(width):
            row[j] = (g[j] - u[j] * inner) * factor


@compiled
def grow(start, stop, message, bias, own, low_key, high_key, threshold, scale, slope, out):
    """out[t] = dropout([leaky_relu(message[t] + bias) ; own[t]]), dropping by the hash of `draw_mask`."""
    width, total = message.shape[1], out.shape[1]
    for t in range(start, stop):
        first, second, row = message[t], own[t], out[t]
        for j in range(width):
            x = first[j] + bias[j]
            row[j] = x if x > 0 else slope * x
        for j in range(total - width):
            row[width + j] = second[j]
        for j in range(total):
            factor = scale if _hashed(t * total + j, low_key, high_key) >= threshold else np.float32(0.0)
            row[j] *= factor


@compiled
def grow_backward(start, stop, low_key, high_key, threshold, scale, slope, out, gradient, message, own):
    """Gradients of the two inputs of `grow`; the sign of what came out is that of what went in."""
    width, total = message.shape[1], out.shape[1]
    for t in range(start, stop):
        row, g, to_message, to_own = out[t], gradient[t], message[t], own[t]
        for j in range(width):
            factor = scale if _hashed(t * total + j, low_key, high_key) >= threshold else np.float32(0.0)
            to_message[j] = g[j] * factor * (np.float32(1.0) if row[j] > 0 else slope)
        for j in range(width, total):
            factor = scale if _hashed(t * total + j, low_key, high_key) >= threshold else np.float32(0.0)
            to_own[j - width] = g[j] * factor


@compiled
def softmax_rows(start, stop, indptr, logits, weights):
    """weights[e] = exp(logits[e]) / sum of them over the edges of e's target."""
    for t in range(start, stop):
        first, last = indptr[t], indptr[t + 1]
        highest = np.float32(-np.inf)
        for e in range(first, last):
            highest = max(highest, logits[e])
        total = np.float32(0.0)
        for e in range(first, last):
            weights[e] = np.exp(logits[e] - highest)
            total += weights[e]
        for e in range(first, last):
            weights[e] /= total


@compiled
def shared_softmax_rows(start, stop, indptr, sources, logits, exponentials, weights):
    """`softmax_rows` where an edge's logit is that of its source, and so is its exponential.

    Exponentials are of logits less the highest of all, so those of a whole row may be lost to rounding; such
    a row is computed from its own highest.
    """
    for t in range(start, stop):
        first, last = indptr[t], indptr[t + 1]
        total = np.float32(0.0)
        for e in range(first, last):
            weights[e] = exponentials[sources[e]]
            total += weights[e]
        if total < 1e-25:
            highest, total = np.float32(-np.inf), np.float32(0.0)
            for e in range(first, last):
                highest = max(highest, logits[sources[e]])
            for e in range(first, last):
                weights[e] = np.exp(logits[sources[e]] - highest)
                total += weights[e]
        for e in range(first, last):
            weights[e] /= total


@compiled
def softmax_rows_backward(start, stop, indptr, weights, gradient, found):
    """found[e] = w (g - sum of w g over the edges of the target), with w = weights[e] and g = gradient[e]."""
    for t in range(start, stop):
        mean = np.float32(0.0)
        for e in range(indptr[t], indptr[t + 1]):
            mean += weights[e] * gradient[e]
        for e in range(indptr[t], indptr[t + 1]):
            found[e] = weights[e] * (gradient[e] - mean)


@compiled
def transpose(indptr, sources, n_sources):
    """The same edges grouped by source (a counting sort): where each source's begin, and their targets."""
    next_free, ends, one = np.zeros(n_sources + 1, np.uint32), sources.view(np.uint32), np.uint32(1)
    for e in range(np.uint64(len(ends))):
        next_free[ends[e] + one] += one
    for s in range(n_sources):
        next_free[s + 1] += next_free[s]
    new_indptr = next_free.astype(np.int64)
    targets = np.empty(len(ends), np.int32)
    for t in range(len(indptr) - 1):
        for e in range(np.uint64(indptr[t]), np.uint64(indptr[t + 1])):
            at = next_free[ends[e]]
            targets[at] = t
            next_free[ends[e]] = at + one
    return new_indptr, targets


@compiled
def transpose_weights(sources, weights, new_indptr):
    """The edges' weights in the order of `transpose`."""
    next_free, new_weights = new_indptr[:-1].copy(), np.empty(len(weights), np.float32)
    for e in range(len(sources)):
        new_weights[next_free[sources[e]]] = weights[e]
        next_free[sources[e]] += 1
    return new_weights


@compiled
def dot_rows(start, stop, x, y, x_at, y_at, out):
    """out[n] = <x[x_at[n]], y[y_at[n]]>."""
    width = x.shape[1]
    for n in range(start, stop):
        a, b = x[x_at[n]], y[y_at[n]]
        total = np.float32(0.0)
        for j in range(width):
            total += a[j] * b[j]
        out[n] = total


@compiled
def dot_rows_backward(start, stop, x, y, x_at, y_at, gradient, x_grad, y_grad):
    """Add the gradients of `dot_rows`, for columns start to stop.

    Threads share the columns instead of the rows: no two write the same number, and every number is summed
    in the same order whatever the number of threads.
    """
    for n in range(len(x_at)):
        a, b, w = x[x_at[n], start:stop], y[y_at[n], start:stop], gradient[n]
        a_grad, b_grad = x_grad[x_at[n], start:stop], y_grad[y_at[n], start:stop]
        for j in range(stop - start):
            a_grad[j] += w * b[j]
            b_grad[j] += w * a[j]


@compiled
def squared_distances(start, stop, x, y, out):
    """out[n] = |x[n] - y[n]|^2."""
    width = x.shape[1]
    for n in range(start, stop):
        a, b, total = x[n], y[n], np.float32(0.0)
        for j in range(width):
            total += (a[j] - b[j]) * (a[j] - b[j])
        out[n] = total


@compiled
def squared_distances_backward(start, stop, x, y, gradient, x_grad, y_grad):
    """Gradients of `squared_distances` in x and in y."""
    width = x.shape[1]
    for n in range(start, stop):
        a, b, a_grad, b_grad, twice = x[n], y[n], x_grad[n], y_grad[n], np.float32(2.0) * gradient[n]
        for j in range(width):
            a_grad[j] = twice * (a[j] - b[j])
            b_grad[j] = -a_grad[j]
