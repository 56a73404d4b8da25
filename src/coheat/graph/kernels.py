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
    for e in range(start, stop):
        mask[e] = np.uint8(_hashed(e, low_key, high_key) >= threshold)


@compiled
def source_factors(sources, mask, n_sources):
    """1 / sqrt(number of kept edges that leave the source), for every source; 1 where there are none."""
    degrees = np.zeros(n_sources, np.int32)
    for e in range(len(sources)):
        degrees[sources[e]] += mask[e]
    factors = np.empty(n_sources, np.float32)
    for s in range(n_sources):
        factors[s] = np.float32(1.0) / np.sqrt(np.float32(max(degrees[s], 1)))
    return factors


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
    """Copy the kept edges of the chosen targets to one dense list.

    Every edge is written and the place moves on only where it stays: a branch on the mask would be guessed
    wrong half of the time.
    """
    for r in range(start, stop):
        place, end = new_indptr[r], new_indptr[r + 1]
        e = indptr[rows[r]]
        while place < end:
            new_sources[place] = sources[e]
            place += mask[e]
            e += 1


@compiled
def weigh_symmetric(start, stop, indptr, sources, target_degrees, source_factors, weights):
    """weights[e] = 1 / sqrt(degree of target * degree of source), with 1 / sqrt(degree of source) given."""
    for r in range(start, stop):
        factor = np.float32(1.0) / np.sqrt(np.float32(max(target_degrees[r], 1)))
        for e in range(indptr[r], indptr[r + 1]):
            weights[e] = factor * source_factors[sources[e]]


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
def distinct(ids, n):
    """The distinct ones among ids below n in ascending order, the place of each id among them, and counts."""
    counts = np.zeros(n, np.int64)
    for i in ids:
        counts[i] += 1
    found = np.flatnonzero(counts)
    place = np.empty(n, np.int64)
    for at in range(len(found)):
        place[found[at]] = at
    return found, place[ids], counts[found]


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
def convolve(start, stop, rows, indptr, sources, weights, base, x, scale, out, lengths):
    """out[t] = base[rows[t]] + p / |p|, where p = sum over edges of weight * x[source]; lengths[t] = |p|.

    With a `scale` above 0 the sum is scaled by it instead, without normalising. A zero sum adds nothing.
    """
    width = x.shape[1]
    gather(start, stop, indptr, sources, weights, x, out)
    for t in range(start, stop):
        row, own = out[t], base[rows[t]]
        total = np.float32(0.0)
        for j in range(width):
            total += row[j] * row[j]
        length = np.sqrt(total)
        lengths[t] = length
        factor = scale
        if scale == 0 and length > 0:
            factor = np.float32(1.0) / length
        for j in range(width):
            row[j] = own[j] + factor * row[j]


@compiled
def convolve_backward(start, stop, rows, base, scale, out, lengths, gradient, message):
    """message[t] = gradient of the sum p in `convolve`, which goes on to the sources.

    A normalised row u = p / |p| passes (g - u <u, g>) / |p| on to p; u is the row without its base.
    """
    width = gradient.shape[1]
    for t in range(start, stop):
        g, own, full, to_sum = gradient[t], base[rows[t]], out[t], message[t]
        inner, factor = np.float32(0.0), scale
        if scale == 0 and lengths[t] > 0:
            factor = np.float32(1.0) / lengths[t]
            for j in range(width):
                inner += (full[j] - own[j]) * g[j]
        for j in range(width):
            to_sum[j] = (g[j] - (full[j] - own[j]) * inner) * factor


@compiled
def add_rows(start, stop, rows, x, out):
    """out[rows[t]] += x[t]; no row stands twice, so that threads never meet."""
    width = x.shape[1]
    for t in range(start, stop):
        target, row = out[rows[t]], x[t]
        for j in range(width):
            target[j] += row[j]


@compiled
def unit_rows(start, stop, x, out, lengths):
    """out[t] = x[t] / |x[t]|, or 0 for a row of zeros; lengths[t] = |x[t]|."""
    width = x.shape[1]
    for t in range(start, stop):
        row, scaled, total = x[t], out[t], np.float32(0.0)
        for j in range(width):
            total += row[j] * row[j]
        lengths[t] = np.sqrt(total)
        factor = np.float32(1.0) / lengths[t] if total > 0 else np.float32(0.0)
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
        factor = np.float32(1.0) / lengths[t] if lengths[t] > 0 else np.float32(0.0)
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
def transpose(indptr, sources, weights, n_sources):
    """The same edges grouped by source: for each, its targets and weights (a counting sort)."""
    new_indptr = np.zeros(n_sources + 1, np.int64)
    for e in range(len(sources)):
        new_indptr[sources[e] + 1] += 1
    for s in range(n_sources):
        new_indptr[s + 1] += new_indptr[s]
    place = new_indptr[:-1].copy()
    targets, new_weights = np.empty(len(sources), np.int32), np.empty(len(sources), np.float32)
    for t in range(len(indptr) - 1):
        for e in range(indptr[t], indptr[t + 1]):
            at = place[sources[e]]
            targets[at] = t
            new_weights[at] = weights[e]
            place[sources[e]] = at + 1
    return new_indptr, targets, new_weights


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
def weighted_exponentials(start, stop, gram, squares, counts, totals):
    """In place: gram[r, s] -> c_r c_s exp(4 gram - 2 |x_r|^2 - 2 |x_s|^2) for pairs r < s, else 0.

    Row r of the block and column r are the same element of the set; totals[r] is the row's sum. Lengths are
    0 or 1, so t = -2 |x_r - x_s|^2 lies in [-8, 0]: exp(t) is the eighth power of a polynomial in t / 8
    (relative error below 3e-6), which the compiler vectorises, as it cannot a call of exp.
    """
    for r in range(start, stop):
        gram[r, : r + 1] = 0
        row, others, multiples = gram[r, r + 1 :], squares[r + 1 :], counts[r + 1 :]
        own, count, total = squares[r], counts[r], np.float32(0.0)
        for s in range(len(row)):
            x = np.float32(0.5) * row[s] - np.float32(0.25) * (own + others[s])
            power = np.float32(0.00011933035)
            power = power * x + np.float32(0.001268093)
            power = power * x + np.float32(0.0082329661)
            power = power * x + np.float32(0.041619919)
            power = power * x + np.float32(0.16665496)
            power = power * x + np.float32(0.49999863)
            power = power * x + np.float32(0.99999994)
            power = power * x + np.float32(1)
            power *= power
            power *= power
            power *= power
            value = power * count * multiples[s]
            row[s] = value
            total += value
        totals[r] = total
