"""Sums of rows against dense products, for widths that fit the processor's vectors and for all others."""

from __future__ import annotations

import numpy as np
import pytest

from coheat.graph import kernels

WIDTHS = [1, 7, 8, 12, 63, 64, 65, 72, 128, 137]


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_added_up_with_each_kind_of_weight(width: int) -> None:
    rng = np.random.default_rng(width)
    n_targets, n_sources = 9, 30
    degrees = np.array([0, 1, 2, 17, 0, 40, 3, 0, 5])  # targets without edges first, in between and often
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    sources = rng.integers(n_sources, size=indptr[-1]).astype(np.int32)
    targets = np.repeat(np.arange(n_targets), degrees)
    x = rng.standard_normal((n_sources, width)).astype(np.float32)
    weights = rng.standard_normal(len(sources)).astype(np.float32)
    of_targets = rng.standard_normal(n_targets).astype(np.float32)
    of_sources = rng.standard_normal(n_sources).astype(np.float32)

    def dense(edge_weights: np.ndarray) -> np.ndarray:
        matrix = np.zeros((n_targets, n_sources))
        np.add.at(matrix, (targets, sources), edge_weights)
        return np.asarray(matrix @ x)

    out = np.full((n_targets, width), np.nan, dtype=np.float32)
    kernels.gather(0, n_targets, indptr, sources, weights, x, out)
    np.testing.assert_allclose(out, dense(weights), rtol=1e-4, atol=1e-5)
    kernels.gather_scaled(0, n_targets, indptr, sources, of_targets, of_sources, x, out)
    scaled = of_targets[targets] * of_sources[sources]
    np.testing.assert_allclose(out, dense(scaled), rtol=1e-4, atol=1e-5)
    nowhere = np.full(n_targets, -1, dtype=np.int32)
    out[:] = 1
    kernels.collect(0, n_targets, indptr, sources, of_targets, x, x, nowhere, 0, out)
    np.testing.assert_allclose(out - 1, dense(of_targets[targets]), rtol=1e-4, atol=1e-5)


def test_a_range_leaves_the_other_rows_alone() -> None:
    indptr, sources = np.arange(5, dtype=np.int64), np.zeros(4, dtype=np.int32)
    x, out = np.ones((1, 64), dtype=np.float32), np.zeros((4, 64), dtype=np.float32)
    kernels.gather(1, 3, indptr, sources, np.ones(4, dtype=np.float32), x, out)
    assert out.sum(1).tolist() == [0, 64, 64, 0]
