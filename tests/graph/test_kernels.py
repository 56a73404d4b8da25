"""Loops over edges against what numpy counts."""

from __future__ import annotations

import numpy as np
import pytest

from coheat.graph import kernels


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000, 4096])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_degrees_of_sources_count_kept_edges(n: int, share: float) -> None:
    rng = np.random.default_rng(n)
    sources = rng.integers(50, size=n).astype(np.int32)
    mask = (rng.random(n) >= share).astype(np.uint8)
    whole = np.bincount(sources, minlength=50).astype(np.int32)
    before = whole.copy()
    found = kernels.source_degrees(sources, mask, whole)
    assert np.array_equal(found, np.bincount(sources[mask == 1], minlength=50))
    assert np.array_equal(whole, before)
