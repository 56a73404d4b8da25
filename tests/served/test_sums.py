"""The compiled sums of overlaps are the plain ones to the last bit, and both are what loops give."""

from __future__ import annotations

import numpy as np
from by_hand import csr
from hypothesis import given, settings
from hypothesis import strategies as st

from coheat.graph.overlap import sums
from coheat.served import overlap


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 60), st.integers(1, 3))
def test_compiled_sums_are_the_plain_ones_to_the_last_bit(seed: int, n_items: int, n_lines: int) -> None:
    rng = np.random.default_rng(seed)
    held = rng.random((9, 14)) < 0.4  # which of 9 bundles holds which of 14 items
    index = csr(held.T)
    items = rng.integers(0, 14, n_items)  # an item may come several times, from several bundles
    weights = rng.normal(size=(n_lines, n_items)) * 10.0 ** rng.integers(-8, 8, (n_lines, n_items))
    compiled, plain = sums(index, items, weights, 11), overlap._sums(index, items, weights, 11)
    assert compiled.shape == plain.shape == (n_lines, 11)
    assert compiled.tobytes() == plain.tobytes()
    for line, found in zip(weights, plain, strict=True):
        for bundle in range(11):
            inside = [w for item, w in zip(items, line, strict=True) if bundle < 9 and held[bundle, item]]
            total = 0.0
            for weight in inside:
                total += weight
            assert found[bundle] == total


def test_training_code_puts_the_compiled_ones_in_place() -> None:
    assert overlap.sums is sums
