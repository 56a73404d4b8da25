"""What was recorded, merged into data: nothing twice, nothing lost, times included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coheat.data.dataset import BundleData, pairs
from coheat.data.merging import Recorded, Row, WrittenBundle, merge
from coheat.data.said_columns import SaidColumns
from coheat.data.tables import from_frames

pa = pytest.importorskip("pyarrow")


def shop(**options: Any) -> BundleData:
    """ann took winter; tent and lamp are in summer, stove in winter."""
    return from_frames(
        pa.table({"user_id": ["ann"], "bundle_id": ["winter"], "timestamp": [100]}),
        pa.table({"user_id": ["ann", "bob"], "item_id": ["tent", "lamp"]}),
        pa.table({"bundle_id": ["summer", "summer", "winter"], "item_id": ["tent", "lamp", "stove"]}),
        **options,
    )


def taken(data: BundleData) -> dict[tuple[str, str], int | None]:
    times = data.timestamps if data.timestamps is not None else [None] * data.user_bundle.nnz
    rows = zip(*pairs(data.user_bundle), times, strict=True)
    return {(data.users[int(u)], data.bundles[int(b)]): None if t is None else int(t) for u, b, t in rows}


def contents(data: BundleData, bundle: str) -> set[str]:
    rows, columns = pairs(data.bundle_item)
    return {data.items[int(item)] for item in columns[rows == data.bundles.index[bundle]]}


ROWS = [
    Row(1, "ann", "summer", "took", 200),
    Row(2, "ann", "winter", "took", 250),  # known already
    Row(3, "eve", "winter", "took", 300),
    Row(4, "bob", "summer", "shown", 310),
    Row(5, "bob", "summer", "clicked", 320),
    Row(6, "bob", "spring", "took", 330),
    Row(7, "bob", "nowhere", "took", 340),
]
BUNDLES = [WrittenBundle("spring", ("tent", "rope"), 150.5), WrittenBundle("winter", None, None, 400.0)]
RECORDED = Recorded(ROWS, BUNDLES, 9)


def test_interactions_showings_and_bundles_are_added_with_their_times() -> None:
    merged = merge(shop(), RECORDED)
    data = merged.data
    assert taken(data) == {
        ("ann", "winter"): 100,
        ("ann", "summer"): 200,
        ("eve", "winter"): 300,
        ("bob", "spring"): 330,
    }
    assert contents(data, "spring") == {"tent", "rope"}
    assert data.launched is not None
    assert data.launched[data.bundles.index["spring"]] == 150
    assert data.ends is not None
    assert data.ends[data.bundles.index["winter"]] == 400
    assert np.isnan(data.ends[data.bundles.index["summer"]])
    assert data.shown is not None
    assert data.shown.timestamps is not None
    assert [data.bundles[int(b)] for b in data.shown.bundles] == ["summer"]
    assert data.shown.timestamps.tolist() == [310]
    assert merged.counts == {
        "interactions": 3, "showings": 1, "withdrawn": 0, "new_users": 1, "new_bundles": 1,
        "changed_bundles": 0, "ended_bundles": 1, "described_bundles": 0, "described_items": 0,
        "of_unknown_bundles": 1, "unfit_values": 0,
    }  # fmt: skip


def test_known_ids_keep_their_places() -> None:
    before, after = shop(), merge(shop(), RECORDED).data
    for kind in ("users", "bundles", "items"):
        old, new = getattr(before, kind).ids, getattr(after, kind).ids
        assert new[: len(old)] == old


def test_merging_again_changes_nothing() -> None:
    once = merge(shop(), RECORDED)
    twice = merge(once.data, RECORDED, once.ledger)
    assert twice.data.fingerprint == once.data.fingerprint
    assert twice.ledger == once.ledger
    assert not any(count for name, count in twice.counts.items() if name != "of_unknown_bundles")


def test_merging_in_two_steps_is_merging_at_once() -> None:
    first = merge(shop(), Recorded(ROWS[:3], BUNDLES[:1], 3))
    then = merge(first.data, RECORDED, first.ledger)
    at_once = merge(shop(), RECORDED)
    assert taken(then.data) == taken(at_once.data)
    assert then.ledger == at_once.ledger


def test_what_counts_as_taken_can_be_chosen() -> None:
    data = merge(shop(), RECORDED, positive=("took", "clicked")).data
    assert taken(data)["bob", "summer"] == 320


def test_what_was_withdrawn_is_taken_out_again_and_what_was_there_before_stays() -> None:
    once = merge(shop(), RECORDED)
    left = Recorded([row for row in ROWS if row.sequence not in (1, 2, 4)], BUNDLES, 12)
    then = merge(once.data, left, once.ledger)
    assert taken(then.data) == {("ann", "winter"): 100, ("eve", "winter"): 300, ("bob", "spring"): 330}
    assert then.data.shown is not None
    assert len(then.data.shown) == 0
    assert then.counts["withdrawn"] == 2


def test_another_source_withdraws_nothing() -> None:
    once = merge(shop(), RECORDED)
    other = Recorded([Row(1, "bob", "winter", "took", 500)], [], 1)
    then = merge(once.data, other, once.ledger)
    assert taken(then.data) == {**taken(once.data), ("bob", "winter"): 500}


def test_what_a_removed_bundle_was_taken_for_stays() -> None:
    once = merge(shop(), RECORDED)
    rest = [row for row in ROWS if row.bundle_id != "spring"]
    then = merge(once.data, Recorded(rest, [WrittenBundle("spring", None, None, 500.0)], 13), once.ledger)
    assert taken(then.data) == taken(once.data)
    assert then.data.ends is not None
    assert then.data.ends[then.data.bundles.index["spring"]] == 500


def test_a_bundle_that_is_back_has_not_ended() -> None:
    removed = merge(shop(), Recorded([], [WrittenBundle("winter", None, None, 400.0)], 1))
    back = merge(removed.data, Recorded([], [WrittenBundle("winter", ("stove",), 450.0)], 2))
    assert back.data.ends is not None
    assert np.isnan(back.data.ends[back.data.bundles.index["winter"]])


def test_a_bundle_gets_other_items() -> None:
    merged = merge(shop(), Recorded([], [WrittenBundle("summer", ("stove", "rope"))], 1))
    assert contents(merged.data, "summer") == {"stove", "rope"}
    assert contents(merged.data, "winter") == {"stove"}
    assert merged.counts["changed_bundles"] == 1
    assert merged.data.launched is None  # nobody said when


def test_data_without_times_get_none() -> None:
    plain = from_frames(
        pa.table({"user_id": ["ann"], "bundle_id": ["winter"]}),
        pa.table({"user_id": ["ann"], "item_id": ["tent"]}),
        pa.table({"bundle_id": ["summer", "winter"], "item_id": ["tent", "stove"]}),
    )
    merged = merge(plain, Recorded(ROWS[:1], [], 1))
    assert taken(merged.data) == {("ann", "winter"): None, ("ann", "summer"): None}
    assert merged.ledger == ROWS[:1]


SAID = [
    SaidColumns("bundle", "summer", {"title": "Summer", "available": False, "stock": 3, "price": "cheap"}),
    SaidColumns(
        "bundle", "spring", {"ends": "2031-05-01", "launched": 170, "title": "Spring", "price": None}
    ),
    SaidColumns("bundle", "nowhere", {"title": "?"}),
    SaidColumns("item", "rope", {"category": "CAMPING"}),
    SaidColumns("item", "tent", {"title": "Tent"}),
]


def test_what_was_said_stands_in_the_columns() -> None:
    """Collecting lost all of it, and with it what is out of stock."""
    bundles = pa.table({"bundle_id": ["summer", "winter"], "price": [10.0, 20.0], "title": ["Sun", "Snow"]})
    recorded = replace(RECORDED, columns=SAID)
    merged = merge(shop(bundles=bundles), recorded)
    data = merged.data
    found = data.described_bundles()
    rows = [data.bundles.index[name] for name in ("summer", "winter", "spring")]
    assert [found.values(row, ["title", "price", "available", "stock"]) for row in rows] == [
        {"title": "Summer", "price": 10, "available": False, "stock": 3},
        {"title": "Snow", "price": 20, "available": None, "stock": None},
        {"title": "Spring", "price": None, "available": None, "stock": None},
    ]
    assert data.launched is not None
    assert data.launched[rows[2]] == 170
    assert found.values(rows[2], ["ends"]) == {"ends": "2031-05-01"}
    assert data.item_attributes.values(data.items.index["rope"]) == {"category": "CAMPING", "title": None}
    assert merged.counts["described_bundles"] == merged.counts["described_items"] == 2
    assert merged.counts["unfit_values"] == 1
    again = merge(data, recorded, merged.ledger)
    assert again.data.fingerprint == data.fingerprint
    assert again.counts["described_bundles"] == again.counts["described_items"] == 0
