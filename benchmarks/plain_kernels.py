"""Plain twins of the hand-tuned kernels: the same sums as short loops, or as ordinary torch operations.

`kernel_ablation.py` trains with one of them in the place of the kernel that it doubles, to see what the
kernel is worth. Twins are compiled with the options of `coheat.graph.kernels`.
"""

# numba functions carry no types that mypy could use
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

import numpy as np
import torch

from coheat import losses
from coheat.graph import kernels, tiles
from coheat.graph.kernels import compiled
from coheat.graph.parallel import run_tasks
from coheat.graph.propagation import Floats
from coheat.graph.registers import ROWS
from coheat.threads import even_ranges, run_ranges


@compiled
def fetch_nothing(table, row):
    """In the place of `fetch_row`: load rows when they are used."""


@compiled
def add_product(a, a_at, a_row, a_step, b, b_at, b_row, c, c_at, c_row, depth):
    """c (ROWS x COLUMNS) += a (ROWS x depth) times b (depth x COLUMNS): see `registers.small_product`."""
    for r in range(ROWS):
        row = c[c_at + r * c_row : c_at + r * c_row + tiles.COLUMNS]
        for k in range(depth):
            factor = a[a_at + r * a_row + k * a_step]
            other = b[b_at + k * b_row : b_at + k * b_row + tiles.COLUMNS]
            for j in range(tiles.COLUMNS):
                row[j] += factor * other[j]


@compiled
def put_product(a, a_at, a_row, a_step, b, b_at, b_row, c, c_at, c_row, depth):
    """`add_product` to zeros."""
    for r in range(ROWS):
        c[c_at + r * c_row : c_at + r * c_row + tiles.COLUMNS] = 0
    add_product(a, a_at, a_row, a_step, b, b_at, b_row, c, c_at, c_row, depth)


@compiled
def _pairs(start, stop, x, factors, totals, sums):
    """For rows r in [start, stop): half the sum over s of E_rs, and the sum over s of E_rs x_s."""
    n, width = x.shape
    for r in range(start, stop):
        row, found, total = x[r], sums[r], np.float32(0.0)
        found[:] = 0
        for s in range(n):
            if s != r:
                other, product = x[s], np.float32(0.0)
                for j in range(width):
                    product += row[j] * other[j]
                e = factors[r] * factors[s] * np.exp(np.float32(4) * product - np.float32(4))
                total += e
                for j in range(width):
                    found[j] += e * other[j]
        totals[r] = total / 2


def pairs_by_loops(sets: Sequence[tuple[Floats, Floats]]) -> list[tuple[float, Floats]]:
    """`pair_exponentials` as a loop over all pairs, both ways round."""
    found = []
    for x, factors in sets:
        totals, sums = np.empty(len(x), np.float32), np.empty_like(x)
        run_ranges(_pairs, even_ranges(len(x), len(x) ** 2), x, factors, totals, sums)
        found.append((float(totals.sum(dtype=np.float64)), sums))
    return found


def pairs_by_torch(sets: Sequence[tuple[Floats, Floats]]) -> list[tuple[float, Floats]]:
    """`pair_exponentials` as torch's matrix products, the sets side by side in threads."""
    tasks = [
        partial(losses.torch_pair_exponentials, torch.from_numpy(x), torch.from_numpy(factors))
        for x, factors in sets
    ]
    return [(float(total), sums.numpy()) for total, sums in run_tasks(tasks)]


Replacements = dict[tuple[ModuleType, str], Callable[..., object]]
"""What to put under a name of a module."""

FETCHING: Replacements = {(kernels, "fetch_row"): fetch_nothing}
PRODUCTS: Replacements = {(tiles, "_put_product"): put_product, (tiles, "_add_product"): add_product}
PAIRS_BY_TORCH: Replacements = {(losses, "pair_exponentials"): pairs_by_torch}
PAIRS_BY_LOOPS: Replacements = {(losses, "pair_exponentials"): pairs_by_loops}

VARIANTS: dict[str, tuple[str, Replacements]] = {
    "as it is": ("all kernels as they are", {}),
    "fetch": ("no asking for rows ahead (registers.fetch_row)", FETCHING),
    "products": ("small products of tiles (registers.small_product) as a plain loop", PRODUCTS),
    "pairs-torch": ("uniformity by torch's matrix products instead of tiles", PAIRS_BY_TORCH),
    "pairs-loops": ("uniformity by a plain loop over pairs instead of tiles", PAIRS_BY_LOOPS),
    "all": ("none of them: fetch, pairs-torch", FETCHING | PAIRS_BY_TORCH),
}
"""What each variant is, and what it replaces."""


def replace(replacements: Replacements) -> None:
    """Put the twins in their places; to be called before any kernel is compiled."""
    for (module, name), function in replacements.items():
        assert hasattr(module, name)
        setattr(module, name, function)
