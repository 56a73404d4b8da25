"""Sums over all pairs of rows of a table, tile by tile, so that every tile stays in the innermost cache.

For each pair of rows a product of vectors is followed by an exponential and by two more products for the
gradient. Libraries of matrix products would write each result to memory, where the next step reads it again.
"""

# numba functions carry no types that mypy could use
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from coheat.graph.kernels import compiled
from coheat.graph.parallel import run_tasks, share_tasks
from coheat.graph.propagation import Floats
from coheat.graph.registers import LANES, ROWS, VECTORS, small_product

Doubles = npt.NDArray[np.float64]
COLUMNS = LANES * VECTORS
HIGH, WIDE = 48, 96
"""Rows and columns of a tile: multiples of ROWS and of COLUMNS."""

BAND = 4 * HIGH
"""Rows whose tiles are taken together, column by column: what they read fits into the second cache."""

PARTS = 3
"""Into how many parts the pairs of a set are cut, so that no thread waits long for another."""


_put_product = small_product(adds=False)
_add_product = small_product(adds=True)


@compiled
def _exponentials(e):
    """In place: e -> exp(4 e - 4), for e in [-1, 1].

    The exponent t lies in [-8, 0], so that exp(t) is the eighth power of a polynomial in t / 8, with a
    relative error below 3e-6, which the compiler vectorises, as it cannot a call of exp.
    """
    for n in range(len(e)):
        x = np.float32(0.5) * e[n] - np.float32(0.5)
        square = x * x
        # The polynomial's terms in pairs, which do not wait for each other.
        power = (np.float32(1) + np.float32(0.99999994) * x) + (
            np.float32(0.49999863) + np.float32(0.16665496) * x
        ) * square
        power += (
            (np.float32(0.041619919) + np.float32(0.0082329661) * x)
            + (np.float32(0.001268093) + np.float32(0.00011933035) * x) * square
        ) * (square * square)
        power *= power
        power *= power
        power *= power
        e[n] = power


@compiled
def _weighted_sum(e, row_factors, column_factors):
    """Sum of a tile times the factor of each row and of each column, as far as there are factors."""
    total = 0.0
    for r in range(len(row_factors)):
        row, sum_of_row = e[r * WIDE : (r + 1) * WIDE], np.float32(0.0)
        for s in range(len(column_factors)):
            sum_of_row += row[s] * column_factors[s]
        total += row_factors[r] * sum_of_row
    return total


def pair_exponentials(sets: Sequence[tuple[Floats, Floats]]) -> list[tuple[float, Floats]]:
    """For each set: S, the sum over pairs r < s of E_rs, and for each row r the sum over s of E_rs x_s.

    A set is (x, factors), and E_rs = factors[r] factors[s] exp(4 <x_r, x_s> - 4), for rows x (n, d) of length
    1 or less. Threads, and ranks, share the parts of all sets; those of a set are added up in a fixed order.
    """
    tables = run_tasks([partial(_Tables.of, x, factors) for x, factors in sets])
    parts = [(t, part) for t in tables for part in range(len(t.sums))]
    totals = np.zeros((len(parts), 1))
    share_tasks(
        [
            (partial(t.add_part, part, total), (t.sums[part], total.view(np.float32)))
            for (t, part), total in zip(parts, totals, strict=True)
        ]
    )
    each = iter(totals.ravel().tolist())
    values = [sum(next(each) for _ in t.sums) for t in tables]
    return list(zip(values, run_tasks([t.row_sums for t in tables]), strict=True))


@dataclass(frozen=True)
class _Tables:
    """A set as `_pairs` reads it, and room for the sums of each part, zeros at first.

    Rows and columns of zeros fill the tiles up; their factors are 0.
    """

    shape: tuple[int, int]
    x: Floats
    panels: Floats
    scaled: Floats
    factors: Floats
    boundaries: list[int]
    sums: Floats

    @staticmethod
    def of(x: Floats, factors: Floats) -> _Tables:
        (n, d), height = x.shape, -(-len(x) // HIGH) * HIGH
        filled = np.zeros((height, -(-d // COLUMNS) * COLUMNS), dtype=np.float32)
        filled[:n, :d] = x
        weights = np.zeros((height, 1), dtype=np.float32)
        weights[:n, 0] = factors
        panels = filled.reshape(-1, COLUMNS, filled.shape[1]).transpose(0, 2, 1)
        strips = (filled * weights).reshape(height, -1, COLUMNS).transpose(1, 0, 2)
        boundaries = _boundaries(height)
        sums = np.zeros((len(boundaries) - 1, filled.size), dtype=np.float32)
        arrays = filled.ravel(), panels.ravel(), strips.ravel(), weights.ravel()
        return _Tables((n, d), *arrays, boundaries, sums)

    def add_part(self, part: int, total: Doubles) -> None:
        """Have `_pairs` add up one part of the pairs; what these add to S goes to `total` (1,)."""
        start, stop = self.boundaries[part : part + 2]
        arrays = self.x, self.panels, self.scaled, self.factors, self.sums[part]
        total[0] = _pairs(start, stop, self.shape[0], *arrays)

    def row_sums(self) -> Floats:
        """For each row its sums in all parts, times its factor."""
        found = np.empty(self.shape, dtype=np.float32)
        _add_parts(self.sums, self.factors, found)
        return found


def _boundaries(n: int) -> list[int]:
    """Bands of rows where PARTS parts with about as many pairs begin and end."""
    shares = [1 - math.sqrt(1 - part / PARTS) for part in range(PARTS)]
    return sorted({min(round(share * n / BAND) * BAND, n) for share in shares} | {n})


@compiled
def _add_parts(sums, factors, found):
    """found[r] = factors[r] times the sum over parts of row r, which lie in strips as in `_pairs`."""
    (n, d), height = found.shape, len(factors)
    for column in range(0, d, COLUMNS):
        wide = min(COLUMNS, d - column)
        for r in range(n):
            row, at = found[r, column : column + wide], column * height + r * COLUMNS
            row[:] = 0
            for part in range(len(sums)):
                of_part = sums[part, at : at + wide]
                for c in range(wide):
                    row[c] += of_part[c]
            for c in range(wide):
                row[c] *= factors[r]


@compiled
def _tile(x, panels, scaled, factors, sums, e, left, right, high, wide):
    """The pairs of `high` rows from `left` on with `wide` rows from `right` on: their part of `_pairs`.

    `e` has room for the tile. Where both begin with the same row, only pairs r < s count, and small products
    without any are left out.
    """
    n, diagonal = len(factors), left == right
    width = len(x) // n
    for s in range(0, wide, COLUMNS):
        for r in range(0, min(high, s + COLUMNS) if diagonal else high, ROWS):
            _put_product(
                x, (left + r) * width, width, 1,
                panels, (right + s) * width, COLUMNS,
                e, r * WIDE + s, WIDE, width,
            )  # fmt: skip
    _exponentials(e)
    if diagonal:
        for r in range(high):
            e[r * WIDE : r * WIDE + r + 1] = 0
    for strip in range(0, n * width, n * COLUMNS):
        of_left, of_right = strip + left * COLUMNS, strip + right * COLUMNS
        for r in range(0, high, ROWS):
            first = r if diagonal else 0
            _add_product(
                e, r * WIDE + first, WIDE, 1,
                scaled, of_right + first * COLUMNS, COLUMNS,
                sums, of_left + r * COLUMNS, COLUMNS, wide - first,
            )  # fmt: skip
        for s in range(0, wide, ROWS):
            _add_product(
                e, s, 1, WIDE,
                scaled, of_left, COLUMNS,
                sums, of_right + s * COLUMNS, COLUMNS, min(high, s + ROWS) if diagonal else high,
            )  # fmt: skip
    return _weighted_sum(e, factors[left : left + high], factors[right : right + wide])


@compiled
def _pairs(start, stop, count, x, panels, scaled, factors, sums):
    """What pairs with r in [start, stop) add to S; `sums` (zeros) get the rows' sums, without their factors.

    All arrays are flat. x has a row for each factor; `panels` holds it transposed, in strips of COLUMNS rows;
    `scaled`, x times the factors, and `sums` lie in strips of COLUMNS columns.
    """
    n, total, e = -(-count // COLUMNS) * COLUMNS, 0.0, np.zeros(HIGH * WIDE, np.float32)
    for band in range(start, stop, BAND):
        for column in range(band, n, WIDE):
            end = min(column + WIDE, n)
            for left in range(band, min(band + BAND, end), HIGH):
                right, high = max(column, left), min(HIGH, n - left)
                total += _tile(x, panels, scaled, factors, sums, e, left, right, high, end - right)
    return total
