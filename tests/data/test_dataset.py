"""BundleData and Vocabulary refuse what would break an invariant, and nothing in them can be changed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from coheat.attributes import Attributes, column_of
from coheat.data import BundleData, Shown, Vocabulary, pairs, relation
from coheat.data.dataset import DAY, Sparse
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
def test_a_bad_relation_is_refused(matrix: Sparse, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        SHOP.with_user_bundle(matrix)


def test_columns_may_fall_from_one_row_to_the_next() -> None:
    matrix = sparse.csr_array((np.ones(2, np.float32), [1, 0], [0, 1, 2]), shape=(2, 2))
    assert SHOP.with_user_bundle(matrix).user_bundle.nnz == 2


def test_timestamps_must_be_one_per_interaction() -> None:
    with pytest.raises(DataError, match="2 timestamps for 3 user-bundle interactions"):
        replace(SHOP, timestamps=np.array([1, 2]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"item_timestamps": np.array([1])}, "1 item timestamps for 2 user-item pairs"),
        ({"ends": np.array([1.0])}, "1 end times for 2 bundles"),
        ({"shown": Shown(np.array([2]), np.array([0]))}, "showings of users that are not among the users"),
        ({"shown": Shown(np.array([0]), np.array([-1]))}, "showings of bundles that are not among"),
    ],
)
def test_evidence_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        replace(SHOP, **change)
    with pytest.raises(DataError, match="as many users as bundles"):
        Shown(np.array([0, 1]), np.array([0]))


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
    with pytest.raises(DataError, match="item id 'b' is in the vocabulary twice"):
        Vocabulary(["a", "b", "c", "b"], "item")


def content(data: BundleData) -> object:
    """Everything that data hold, as plain Python; a field that this leaves out is found by the next test."""
    relations = (data.user_bundle, data.user_item, data.bundle_item)
    shown = {} if data.shown is None else data.shown.arrays()
    times = (data.timestamps, data.launched, data.ends, data.item_timestamps)
    moments = [*times, *(shown.get(name) for name in ("users", "bundles", "timestamps"))]
    return (
        [list(vocabulary.ids) for vocabulary in (data.users, data.bundles, data.items)],
        [matrix.toarray().tolist() for matrix in relations],
        [None if known is None else str(known.tolist()) for known in moments],
        data.as_of,
        [
            {name: [column.value(row) for row in range(8)] for name, column in table.columns.items()}
            for table in (data.bundle_attributes, data.item_attributes)
        ],
    )


some_data = bundle_data() | bundle_data(timestamps=True) | bundle_data(evidence=True)


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
    "ends": np.array([np.nan, 8.0]),
    "item_timestamps": np.array([4, 6]),
    "shown": Shown(np.array([0, 1]), np.array([1, 1]), np.array([3, 3])),
    "as_of": 10.0,
    "bundle_attributes": Attributes({"title": column_of(["Tea", None], "text", "title")}),
    "item_attributes": Attributes({"price": column_of([1, None, 2.5], "number", "price")}),
}
DATED = replace(
    SHOP,
    timestamps=np.array([1, 2, 3]),
    launched=np.array([5.0, np.nan]),
    ends=np.array([9.0, np.nan]),
    item_timestamps=np.array([4, 5]),
    shown=Shown(np.array([0, 1]), np.array([1, 0]), np.array([3, 3])),
    as_of=9.0,
    bundle_attributes=Attributes({"title": column_of(["Tea", "Sun"], "text", "title")}),
    item_attributes=Attributes({"price": column_of([1, 2, 2.5], "number", "price")}),
)


@pytest.mark.parametrize("name", [field.name for field in fields(BundleData)])
def test_a_change_of_any_field_changes_the_fingerprint(name: str) -> None:
    """Resuming and caches go by it. A new field needs a line in CHANGES."""
    assert replace(DATED, **{name: CHANGES[name]}).fingerprint != DATED.fingerprint
    if getattr(SHOP, name) is None:
        without: dict[str, Any] = {name: None}
        assert replace(DATED, **without).fingerprint != DATED.fingerprint


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


def test_showings_are_the_same_in_any_order_and_every_one_counts() -> None:
    users, bundles, times = np.array([1, 0, 1, 1]), np.array([0, 1, 0, 1]), np.array([9, 5, 3, 3])
    one = replace(SHOP, shown=Shown(users, bundles, times))
    assert one.shown is not None
    assert one.shown.timestamps is not None
    assert one.shown.timestamps.tolist() == [5, 3, 9, 3]
    assert one.exposure is not None
    assert one.exposure.tolist() == [2, 2]
    order = [2, 3, 0, 1]
    other = replace(SHOP, shown=Shown(users[order], bundles[order], times[order]))
    assert one.fingerprint == other.fingerprint
    assert SHOP.exposure is None
    with pytest.raises(ValueError, match="read-only"):
        one.shown.users[0] = 1


def test_now_is_the_latest_moment_that_happened() -> None:
    assert np.isnan(SHOP.now)
    data = replace(SHOP, launched=np.array([np.nan, 70.0]))
    assert data.now == 70
    data = replace(data, timestamps=np.array([3, 60, 5]))
    assert data.now == 60, "a launch planned for later has not happened yet"
    data = replace(data, item_timestamps=np.array([1, 61]))
    assert data.now == 61
    data = replace(data, shown=Shown(np.array([0]), np.array([0]), np.array([62])))
    assert data.now == 62
    assert replace(data, as_of=50.0).now == 50


def test_age_counts_from_the_launch_else_from_the_first_time_a_bundle_was_seen() -> None:
    names = ("launched", "planned", "seen", "shown", "unknown")
    data = small_data(
        [("ann", "seen"), ("bob", "seen"), ("bob", "launched")], (), [(n, "cup") for n in names]
    )
    assert data.bundles.ids == names
    assert np.isnan(data.age_days).all()
    # In CSR order: ann and seen, bob and launched, bob and seen.
    data = replace(data, timestamps=np.array([30, 90, 20]) * DAY)
    np.testing.assert_equal(data.age_days, [0, np.nan, 70, np.nan, np.nan])
    data = replace(
        data,
        launched=np.array([50, 95, np.nan, np.nan, np.nan]) * DAY,
        shown=Shown(np.array([0, 0]), np.array([2, 3]), np.array([80, 80]) * DAY),
    )
    np.testing.assert_equal(data.age_days, [40, 0, 70, 10, np.nan])
    assert data.new_bundles(5).tolist() == [False, True, False, False, True]


def test_what_is_on_offer_lies_between_launch_and_end() -> None:
    names = ("always", "early", "late", "open")
    data = small_data((), (), [(name, "cup") for name in names])
    assert data.on_offer(5).all()
    data = replace(
        data,
        launched=np.array([np.nan, 0, 20, 10]),
        ends=np.array([np.nan, 10, 30, np.nan]),
    )
    assert data.on_offer(10).tolist() == [True, True, False, True]
    assert data.on_offer(11).tolist() == [True, False, False, True]
    assert data.on_offer(11, 20).tolist() == [True, False, True, True]
    assert data.on_offer(31, 99).tolist() == [True, False, False, True]
