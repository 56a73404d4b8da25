"""Sums over pairs of rows by tiles against the whole matrix of pairs in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coheat.graph.propagation import Floats
from coheat.graph.tiles import HIGH, WIDE, pair_exponentials


def by_the_whole_matrix(x: Floats, factors: Floats) -> tuple[float, np.ndarray]:
    rows, scale = x.astype(np.float64), factors.astype(np.float64)
    e = np.exp(4 * rows @ rows.T - 4) * np.outer(scale, scale)
    np.fill_diagonal(e, 0)
    return float(e.sum() / 2), e @ rows


def unit(n: int, d: int, seed: int) -> Floats:
    x = np.random.default_rng(seed).standard_normal((n, d))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), dtype=np.float32)


def check(x: Floats, factors: Floats) -> None:
    ((total, sums),) = pair_exponentials([(x, factors)])
    expected_total, expected_sums = by_the_whole_matrix(x, factors)
    assert total == pytest.approx(expected_total, rel=1e-5)
    assert sums.shape == x.shape
    assert np.allclose(sums, expected_sums, rtol=1e-4, atol=1e-5 * np.abs(expected_sums).max(initial=1))


@given(st.integers(1, 5 * HIGH), st.integers(1, 40), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_sums_equal_those_of_the_whole_matrix(n: int, d: int, seed: int) -> None:
    check(unit(n, d, seed), np.random.default_rng(seed).integers(1, 4, n).astype(np.float32))


@pytest.mark.parametrize("n", [1, 2, HIGH - 1, HIGH, HIGH + 1, WIDE - 1, WIDE, WIDE + 1, 3 * WIDE, 3 * HIGH])
def test_the_edges_of_tiles(n: int) -> None:
    check(unit(n, 64, n), np.ones(n, dtype=np.float32))


def test_equal_opposite_and_empty_rows() -> None:
    one = unit(1, 64, 0)
    x = np.concatenate([one, one, -one, np.zeros_like(one)])
    # Two equal rows: 1; each with its opposite: exp(-8); each of the three with the empty row: exp(-4).
    assert pair_exponentials([(x, np.ones(4, dtype=np.float32))])[0][0] == pytest.approx(
        1 + 2 * np.exp(-8) + 3 * np.exp(-4), rel=1e-5
    )
