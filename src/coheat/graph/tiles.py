"""Sums over all pairs of rows of a table, tile by tile, so that every tile stays in the innermost cache.

For each pair of rows a product of vectors is followed by an exponential and by two more products for the
gradient. Libraries of matrix products would write each result to memory, where the next step reads it again.
"""

# numba functions carry no types that mypy could use
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import numpy as np

from coheat.graph.kernels import compiled
from coheat.graph.propagation import Floats
from coheat.graph.registers import LANES, ROWS, VECTORS, small_product

COLUMNS = LANES * VECTORS
HIGH, WIDE = 48, 96
"""Rows and columns of a tile: multiples of ROWS and of COLUMNS."""


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


def pair_exponentials(x: Floats, factors: Floats) -> tuple[float, Floats]:
    """S, the sum over pairs r < s of E_rs, and (n, d) for each row r of x the sum over s of E_rs x_s.

    E_rs = factors[r] factors[s] exp(4 <x_r, x_s> - 4), for rows (n, d) of length 1 or less.
    """
    # Rows and columns of zeros fill the tiles up; the rows' factors are 0 as well.
    (n, d), height = x.shape, -(-len(x) // HIGH) * HIGH
    filled = np.zeros((height, -(-d // COLUMNS) * COLUMNS), dtype=np.float32)
    filled[:n, :d] = x
    weights = np.zeros((height, 1), dtype=np.float32)
    weights[:n, 0] = factors
    panels = filled.reshape(-1, COLUMNS, filled.shape[1]).transpose(0, 2, 1)
    sums = np.zeros_like(filled)
    tables = filled, np.ascontiguousarray(panels), filled * weights
    total = _pairs(*(table.ravel() for table in tables), weights.ravel(), sums.ravel())
    return total, (sums * weights)[:n, :d]


@compiled
def _pairs(x, panels, scaled, factors, sums):
    """S of `pair_exponentials`, and in `sums` (zeros) the rows' sums, yet to be multiplied by their factors.

    All arrays are flat. x has a row for each factor; `panels` holds it transposed, in strips of COLUMNS rows;
    `scaled` is x times the factors.
    """
    n = len(factors)
    width = len(x) // n
    e, total = np.zeros(HIGH * WIDE, np.float32), 0.0
    for left in range(0, n, HIGH):
        for right in range(left, n, WIDE):
            wide = min(WIDE, n - right)
            for r in range(0, HIGH, ROWS):
                for s in range(0, wide, COLUMNS):
                    _put_product(
                        x, (left + r) * width, width, 1,
                        panels, (right + s) * width, COLUMNS,
                        e, r * WIDE + s, WIDE, width,
                    )  # fmt: skip
            _exponentials(e)
            if left == right:
                for r in range(HIGH):
                    e[r * WIDE : r * WIDE + r + 1] = 0
            total += _weighted_sum(e, factors[left : left + HIGH], factors[right : right + wide])
            for j in range(0, width, COLUMNS):
                for r in range(0, HIGH, ROWS):
                    _add_product(
                        e, r * WIDE, WIDE, 1,
                        scaled, right * width + j, width,
                        sums, (left + r) * width + j, width, wide,
                    )  # fmt: skip
                for s in range(0, wide, ROWS):
                    _add_product(
                        e, s, 1, WIDE,
                        scaled, left * width + j, width,
                        sums, (right + s) * width + j, width, HIGH,
                    )  # fmt: skip
    return total
