"""The compiled loops of the hot path: masks, degrees, compaction, gathering and scattering rows.

All arrays are C-contiguous; ranges [start, stop) are what one thread does (see `parallel`). Names:
a *target* row receives a weighted sum of *source* rows; `indptr[t]:indptr[t + 1]` are its edges.
"""

# numba functions carry no types that mypy could use
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numba
import numpy as np

compiled = numba.njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz", "arcp"})


@compiled
def _mix(x, multiplier):
    """One round of a 32-bit finaliser: shift, xor, multiply. The casts keep numba at 32 bits."""
    return np.uint32(np.uint32(x ^ (x >> np.uint32(16))) * multiplier)


@compiled
def draw_mask(start, stop, low_key, high_key, threshold, mask):
    """mask[e] = 1 where a hash of (keys, e) is at least `threshold`: an edge stays with probability
    1 - threshold / 2**32. Hashing needs no state, so ranges can be drawn by different threads."""
    for e in range(start, stop):
        x = _mix(np.uint32(np.uint32(e) ^ low_key), np.uint32(0x21F0AAAD))
        x = _mix(np.uint32(x + high_key), np.uint32(0x735A2D97))
        x = _mix(np.uint32(x ^ low_key), np.uint32(0x7FEB352D))
        x = np.uint32(x ^ (x >> np.uint32(15)))
        mask[e] = np.uint8(x >= threshold)


@compiled
def count_sources(sources, mask, degrees):
    """degrees[s] = number of kept edges that leave source s."""
    degrees[:] = 0
    for e in range(len(sources)):
        degrees[sources[e]] += mask[e]


@compiled
def count_kept(start, stop, rows, indptr, mask, kept):
    """kept[r + 1] = number of kept edges of target rows[r]."""
    for r in range(start, stop):
        count = 0
        for e in range(indptr[rows[r]], indptr[rows[r] + 1]):
            count += mask[e]
        kept[r + 1] = count


@compiled
def compact(start, stop, rows, indptr, sources, mask, new_indptr, new_sources):
    """Copy the kept edges of the chosen targets to one dense list."""
    for r in range(start, stop):
        position = new_indptr[r]
        for e in range(indptr[rows[r]], indptr[rows[r] + 1]):
            if mask[e]:
                new_sources[position] = sources[e]
                position += 1


@compiled
def weigh_symmetric(start, stop, indptr, sources, target_degrees, source_degrees, weights):
    """weights[e] = 1 / sqrt(degree of target * degree of source)."""
    for r in range(start, stop):
        degree = np.float32(target_degrees[r])
        for e in range(indptr[r], indptr[r + 1]):
            weights[e] = np.float32(1.0) / np.sqrt(degree * np.float32(source_degrees[sources[e]]))


@compiled
def weigh_mean(start, stop, indptr, target_degrees, weights):
    """weights[e] = 1 / degree of target."""
    for r in range(start, stop):
        for e in range(indptr[r], indptr[r + 1]):
            weights[e] = np.float32(1.0) / np.float32(target_degrees[r])


@compiled
def renumber(sources, n_sources):
    """The distinct sources in ascending order, and every edge's position among them."""
    position = np.full(n_sources, -1, np.int32)
    for e in range(len(sources)):
        position[sources[e]] = 0
    count = 0
    for s in range(n_sources):
        if position[s] == 0:
            position[s] = count
            count += 1
    distinct = np.empty(count, np.int64)
    for s in range(n_sources):
        if position[s] >= 0:
            distinct[position[s]] = s
    renumbered = np.empty(len(sources), np.int32)
    for e in range(len(sources)):
        renumbered[e] = position[sources[e]]
    return distinct, renumbered


@compiled
def gather(start, stop, indptr, sources, weights, x, out):
    """out[t] = sum over edges of weight * x[source]; four edges at a time spare loads of out."""
    width = x.shape[1]
    for t in range(start, stop):
        row = out[t]
        row[:] = 0
        e, end = indptr[t], indptr[t + 1]
        while e + 4 <= end:
            a, b, c, d = x[sources[e]], x[sources[e + 1]], x[sources[e + 2]], x[sources[e + 3]]
            wa, wb, wc, wd = weights[e], weights[e + 1], weights[e + 2], weights[e + 3]
            for j in range(width):
                row[j] += wa * a[j] + wb * b[j] + wc * c[j] + wd * d[j]
            e += 4
        while e < end:
            a, wa = x[sources[e]], weights[e]
            for j in range(width):
                row[j] += wa * a[j]
            e += 1


@compiled
def scatter(start, stop, indptr, sources, weights, x, out):
    """out[source] += weight * x[target], the transpose of `gather`, for columns start to stop.

    Threads share the columns instead of the rows: no two write the same number, none has to wait, and
    every number is summed in the same order whatever the number of threads.
    """
    for t in range(len(indptr) - 1):
        row = x[t, start:stop]
        for e in range(indptr[t], indptr[t + 1]):
            target = out[sources[e], start:stop]
            w = weights[e]
            for j in range(stop - start):
                target[j] += w * row[j]


@compiled
def normalise(start, stop, x, lengths):
    """Divide each row by its length, in place; lengths are for the backward pass, a zero row stays zero."""
    width = x.shape[1]
    for t in range(start, stop):
        row = x[t]
        total = np.float32(0.0)
        for j in range(width):
            total += row[j] * row[j]
        length = np.sqrt(total)
        lengths[t] = length
        if length > 0:
            scale = np.float32(1.0) / length
            for j in range(width):
                row[j] *= scale


@compiled
def normalise_backward(start, stop, unit, lengths, gradient, out):
    """Gradient of `normalise`: (g - unit * <unit, g>) / length."""
    width = unit.shape[1]
    for t in range(start, stop):
        u, g, o = unit[t], gradient[t], out[t]
        inner = np.float32(0.0)
        for j in range(width):
            inner += u[j] * g[j]
        scale = np.float32(1.0) / lengths[t] if lengths[t] > 0 else np.float32(0.0)
        for j in range(width):
            o[j] = (g[j] - u[j] * inner) * scale
