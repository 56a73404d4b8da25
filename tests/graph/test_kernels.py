"""Loops over edges against what numpy counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coheat.graph import kernels


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000, 4096])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_degrees_of_sources_count_kept_edges(n: int, share: float) -> None:
    rng = np.random.default_rng(n)
    sources = rng.integers(50, size=n).astype(np.int32)
    mask = (rng.random(n) >= share).astype(np.uint8)
    found = kernels.source_degrees(sources, mask, 50)
    assert np.array_equal(found, np.bincount(sources[mask == 1], minlength=50))


@given(st.integers(0, 30), st.integers(1, 20), st.floats(0, 1), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_transposing_groups_edges_by_source(
    n_targets: int, n_sources: int, density: float, seed: int
) -> None:
    matrix = np.random.default_rng(seed).random((n_targets, n_sources)) < density
    _, sources = np.nonzero(matrix)
    indptr = np.concatenate([[0], np.cumsum(matrix.sum(1))])
    new_indptr, targets = kernels.transpose(indptr, sources.astype(np.int32), n_sources)
    assert np.array_equal(new_indptr, np.concatenate([[0], np.cumsum(matrix.sum(0))]))
    assert np.array_equal(targets, np.nonzero(matrix.T)[1])
