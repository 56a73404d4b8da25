"""The compiled sums of overlaps beside the plain ones that serving uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from coheat.data.dataset import BundleData
from coheat.graph import overlap as compiled
from coheat.served import Csr, Curve, Overlap, Relations
from coheat.served import overlap as plain
from coheat.served.relations import by_key
from coheat.testing import bundle_data


def relations_of(data: BundleData) -> Relations:
    user_bundle, user_item, bundle_item = (
        Csr(matrix.indptr, matrix.indices, matrix.shape[1])
        for matrix in (data.user_bundle, data.user_item, data.bundle_item)
    )
    return Relations(user_bundle, user_item, bundle_item)


@settings(max_examples=50, deadline=None)
@given(bundle_data())
def test_compiled_sums_are_the_plain_ones_but_for_rounding(data: BundleData) -> None:
    relations = relations_of(data)
    rare = np.linspace(0.1, 1, data.n_items, dtype=np.float32)
    overlaps = [
        Overlap("count", "linear", Curve.constant(1.0)),
        Overlap("rare", "log", Curve.constant(1.0), own=0.4, taken_exponent=0.5, item_weights=rare),
        Overlap("taken only", "linear", Curve.constant(1.0), own=0.0, item_weights=rare),
    ]
    index = plain.ItemIndex(relations.bundle_item.transposed)
    rows, n = np.arange(data.n_users), data.n_bundles
    asked: Any = overlaps, relations, rows, {}, index, n
    found, expected = (
        np.concatenate([shared.dense(n) for shared in way.shared(*asked)], axis=1)
        for way in (compiled, plain)
    )
    assert np.allclose(found, expected, rtol=1e-5, atol=0)
    # And both are what one counts by hand.
    has = data.user_item.toarray() + data.user_bundle.toarray() @ data.bundle_item.toarray()
    assert np.array_equal(expected[0], has @ data.bundle_item.toarray().T)


def test_few_bundles_are_counted_as_all_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    contents = [np.unique(rng.integers(50, size=size)) for size in rng.integers(1, 6, size=80)]
    held = by_key(np.concatenate(contents), np.repeat(np.arange(80), [len(one) for one in contents]), 50, 80)
    changed = {3: np.array([1, 2]), 7: np.array([40]), 80: np.array([2, 9])}
    index = plain.ItemIndex(held).with_bundles(np.array([*changed]), [*changed.values()])
    contents = [changed.get(row, one) for row, one in enumerate([*contents, changed[80]])]
    items, weights = np.array([2, 9, 2, 40, 11]), rng.random((2, 5))
    expected = np.array([[line[np.isin(items, one)].sum() for one in contents] for line in weights])
    for few, columns in ((0, True), (10**9, False)):
        monkeypatch.setattr(plain, "MUCH_FEWER", few)
        found = index.shared(items, weights, 81)
        assert (found.columns is not None) == columns
        assert np.allclose(found.dense(81), expected)


def test_training_code_puts_the_compiled_sums_in_place() -> None:
    assert plain.in_use[0] is compiled.shared
