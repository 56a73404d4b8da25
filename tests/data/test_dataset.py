"""BundleData and Vocabulary refuse what would break an invariant, and nothing in them can be changed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from coheat.data import BundleData, Vocabulary, pairs, relation
from coheat.data.dataset import DAY
from coheat.errors import DataError, UnknownIdError
from coheat.testing import bundle_data, small_data

SHOP = small_data(
    [("ann", "tea"), ("ann", "sun"), ("bob", "sun")],
    [("ann", "cup"), ("bob", "hat")],
    [("tea", "cup"), ("tea", "pot"), ("sun", "hat")],
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=40))
def test_a_relation_is_the_set_of_its_pairs(found: list[tuple[int, int]]) -> None:
    matrix = relation([r for r, _ in found], [c for _, c in found], (5, 7))
    rows, columns = pairs(matrix)
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == sorted(set(found))
    assert matrix.dtype == np.float32


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 3)])
def test_a_relation_may_be_empty(shape: tuple[int, int]) -> None:
    assert relation([], [], shape).shape == shape


def test_popularity_and_sizes_count_pairs() -> None:
    assert dict(zip(SHOP.bundles.ids, SHOP.popularity.tolist(), strict=True)) == {"sun": 2, "tea": 1}
    assert dict(zip(SHOP.bundles.ids, SHOP.bundle_sizes.tolist(), strict=True)) == {"sun": 1, "tea": 2}


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        (np.ones((2, 2)), "must be a scipy CSR array"),
        (sparse.coo_array((2, 2)), "must be a scipy CSR array"),
        (relation([0], [0], (2, 3)), r"has shape \(2, 3\), but the ids make it \(2, 2\)"),
        (sparse.csr_array(np.array([[2.0, 0.0], [0.0, 1.0]])), "values other than 1"),
        (sparse.csr_array((np.ones(2), [1, 0], [0, 2, 2]), shape=(2, 2)), "repeated or unsorted"),
        (sparse.csr_array((np.ones(2), [1, 1], [0, 2, 2]), shape=(2, 2)), "repeated or unsorted"),
        (sparse.csr_array((np.ones(3), [0, 1, 1], [0, 1, 3]), shape=(2, 2)), "repeated or unsorted"),
    ],
)
def test_a_bad_relation_is_refused(matrix: object, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        SHOP.with_user_bundle(matrix)


def test_columns_may_fall_from_one_row_to_the_next() -> None:
    matrix = sparse.csr_array((np.ones(2, np.float32), [1, 0], [0, 1, 2]), shape=(2, 2))
    assert SHOP.with_user_bundle(matrix).user_bundle.nnz == 2


def test_timestamps_must_be_one_per_interaction() -> None:
    with pytest.raises(DataError, match="2 timestamps for 3 user-bundle interactions"):
        replace(SHOP, timestamps=np.array([1, 2]))


def test_nothing_can_be_changed() -> None:
    for matrix in (SHOP.user_bundle, SHOP.user_item, SHOP.bundle_item):
        for array in (matrix.data, matrix.indices, matrix.indptr):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0
    with pytest.raises(AttributeError):
        SHOP.users = Vocabulary([], "user")  # type: ignore[misc]


def test_a_vocabulary_finds_positions_and_names_what_it_does_not_know() -> None:
    assert SHOP.users.position("bob") == 1
    assert SHOP.users.positions(["bob", "ann"]).tolist() == [1, 0]
    assert "ann" in SHOP.users
    assert "eve" not in SHOP.users
    with pytest.raises(UnknownIdError, match="unknown user id 'eve'"):
        SHOP.users.position("eve")


def test_a_vocabulary_refuses_empty_and_repeated_ids() -> None:
    with pytest.raises(DataError, match="user id is empty"):
        Vocabulary(["a", ""], "user")
    with pytest.raises(DataError, match="item id 'b' stands twice"):
        Vocabulary(["a", "b", "c", "b"], "item")


def content(data: BundleData) -> object:
    """Everything that data hold, as plain Python; a field that this leaves out is found by the next test."""
    relations = (data.user_bundle, data.user_item, data.bundle_item)
    moments = (data.timestamps, data.launched)
    return (
        [list(vocabulary.ids) for vocabulary in (data.users, data.bundles, data.items)],
        [matrix.toarray().tolist() for matrix in relations],
        [None if known is None else str(known.tolist()) for known in moments],
    )


some_data = bundle_data() | bundle_data(timestamps=True) | bundle_data(launched=True)


@settings(deadline=None)
@given(some_data, some_data)
def test_equal_fingerprints_mean_equal_data(one: BundleData, other: BundleData) -> None:
    assert (one.fingerprint == other.fingerprint) == (content(one) == content(other))


CHANGES: dict[str, Any] = {
    "users": Vocabulary(["ann", "eve"], "user"),
    "bundles": Vocabulary(["sun", "toy"], "bundle"),
    "items": Vocabulary(["cup", "hat", "pan"], "item"),
    "user_bundle": relation([0, 1, 1], [1, 0, 1], (2, 2)),
    "user_item": relation([0, 1], [0, 0], (2, 3)),
    "bundle_item": relation([0, 1, 1], [0, 0, 2], (2, 3)),
    "timestamps": np.array([1, 2, 4]),
    "launched": np.array([np.nan, 6.0]),
}


@pytest.mark.parametrize("name", [field.name for field in fields(BundleData)])
def test_a_change_of_any_field_changes_the_fingerprint(name: str) -> None:
    """Resuming and caches go by it. A new field needs a line in CHANGES."""
    whole = replace(SHOP, timestamps=np.array([1, 2, 3]), launched=np.array([5.0, np.nan]))
    changed = replace(whole, **{name: CHANGES[name]})
    assert changed.fingerprint != whole.fingerprint
    if getattr(SHOP, name) is None:
        without: dict[str, Any] = {name: None}
        assert replace(whole, **without).fingerprint != whole.fingerprint


def test_data_without_times_keep_the_fingerprint_of_earlier_versions() -> None:
    """Runs and caches made before times counted are still recognised."""
    assert SHOP.fingerprint.startswith("483d9d207be291ba")


def test_there_are_several_nans_and_zeros_but_one_fingerprint() -> None:
    other_nan = np.array([0x7FF8000000000001], dtype=np.uint64).view(np.float64)[0]
    one, other = np.array([np.nan, 0.0]), np.array([other_nan, -0.0])
    assert one.tobytes() != other.tobytes()
    assert replace(SHOP, launched=one).fingerprint == replace(SHOP, launched=other).fingerprint


def test_a_bundle_that_nobody_took_is_new_unless_it_is_known_to_be_old() -> None:
    data = small_data(
        [("ann", "taken")], [("ann", "cup")], [(name, "cup") for name in ("old", "taken", "unknown", "young")]
    )
    untaken = [True, False, True, True]
    assert data.bundles.ids == ("old", "taken", "unknown", "young")
    assert data.new_bundles(90).tolist() == untaken
    launched = np.array([0, 0, np.nan, 50]) * DAY
    # Without interactions' times the last launch is the last that is known to have happened.
    assert replace(data, launched=launched).new_bundles(10).tolist() == [False, False, True, True]
    assert replace(data, launched=launched).new_bundles(50).tolist() == untaken
    timed = replace(data, launched=launched, timestamps=np.array([200 * DAY]))
    assert timed.new_bundles(149).tolist() == [False, False, True, False]
    assert timed.new_bundles(150).tolist() == [False, False, True, True]
    with pytest.raises(DataError, match="3 launch times for 4 bundles"):
        replace(data, launched=launched[:3])
