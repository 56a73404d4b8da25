"""Frames of pandas, polars and pyarrow give the data that the same tables give as files."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest

from coheat.data import DataWarning, from_frames
from coheat.errors import DataError
from coheat.testing import id_pairs, small_data

Columns = dict[str, list[Any]]
USER_BUNDLE: Columns = {"user_id": ["ann", "bob"], "bundle_id": ["tea", "sun"], "timestamp": [9, 4]}
USER_ITEM: Columns = {"user_id": ["ann", "bob"], "item_id": ["cup", "hat"]}
BUNDLE_ITEM: Columns = {"bundle_id": ["tea", "sun"], "item_id": ["cup", "hat"]}
EXPECTED = small_data(
    [("ann", "tea"), ("bob", "sun")],
    [("ann", "cup"), ("bob", "hat")],
    [("tea", "cup"), ("sun", "hat")],
    timestamps=[9, 4],
)
MAKERS = [pandas.DataFrame, polars.DataFrame, pa.table]


@pytest.mark.parametrize("make", MAKERS)
def test_every_kind_of_frame(make: Any) -> None:
    data = from_frames(make(USER_BUNDLE), make(USER_ITEM), make(BUNDLE_ITEM))
    assert data.fingerprint == EXPECTED.fingerprint
    assert data.timestamps is not None
    assert data.timestamps.tolist() == [9, 4]


@pytest.mark.parametrize("make", MAKERS)
def test_launch_times(make: Any) -> None:
    bundles = make({"bundle_id": ["tea", "box", "sun"], "launched": [7, 3, None]})
    data = from_frames(make(USER_BUNDLE), make(USER_ITEM), make(BUNDLE_ITEM), bundles)
    assert data.bundles.ids == ("tea", "box", "sun")
    np.testing.assert_equal(data.launched, [7, 3, np.nan])
    with pytest.raises(DataError, match=r"bundles: a list is not a table.*bundle_id and launched"):
        from_frames(make(USER_BUNDLE), make(USER_ITEM), make(BUNDLE_ITEM), ["tea"])


def test_anything_that_streams_arrow() -> None:
    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table(USER_BUNDLE).__arrow_c_stream__(requested_schema)

    data = from_frames(Stream(), pa.table(USER_ITEM), pa.table(BUNDLE_ITEM))
    assert data.fingerprint == EXPECTED.fingerprint


def test_numbers_of_pandas_with_a_gap_become_whole_again() -> None:
    frame = pandas.DataFrame({"user_id": [7, 8, None], "item_id": [1, 2, 3]}).iloc[:2]
    assert frame["user_id"].dtype == float
    bundles = pandas.DataFrame({"user_id": [7], "bundle_id": ["x"]}, index=[5])
    data = from_frames(bundles, frame, pandas.DataFrame({"bundle_id": ["x"], "item_id": [1]}))
    assert data.users.ids == ("7", "8")
    assert id_pairs(data.user_item, data.users, data.items) == {("7", "1"), ("8", "2")}


@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame])
def test_times_as_times(make: Any) -> None:
    moments = pandas.to_datetime(["2024-01-01", "2024-01-02"]).to_pydatetime().tolist()
    data = from_frames(make(USER_BUNDLE | {"timestamp": moments}), make(USER_ITEM), make(BUNDLE_ITEM))
    assert data.timestamps is not None
    assert data.timestamps.tolist() == [1_704_067_200, 1_704_153_600]


@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame])
def test_categories(make: Any) -> None:
    frame = make(USER_ITEM)
    if make is pandas.DataFrame:
        frame["user_id"] = pandas.Categorical(frame["user_id"], categories=["zoe", "bob", "ann"])
    else:
        frame = frame.with_columns(polars.col("user_id").cast(polars.Categorical))
    assert from_frames(make(USER_BUNDLE), frame, make(BUNDLE_ITEM)).fingerprint == EXPECTED.fingerprint


def test_a_missing_id_is_an_error_with_its_row() -> None:
    frame = pandas.DataFrame({"user_id": ["ann", None, float("nan")], "item_id": ["cup", "hat", "hat"]})
    with pytest.raises(DataError, match=r"^user_item:2: 2 rows without user_id \(rows 2, 3\)"):
        from_frames(pa.table(USER_BUNDLE), frame, pa.table(BUNDLE_ITEM))


def test_mixed_types_are_an_error_that_says_what_to_do() -> None:
    frame = pandas.DataFrame({"user_id": ["ann", 3], "item_id": ["cup", "hat"]})
    with pytest.raises(DataError, match=r"user_item: a column mixes types .* turn its ids into texts"):
        from_frames(pa.table(USER_BUNDLE), frame, pa.table(BUNDLE_ITEM))


def test_something_else_than_a_frame_is_an_error() -> None:
    with pytest.raises(DataError, match=r"user_item: a list is not a table; .* columns user_id and item_id"):
        from_frames(pa.table(USER_BUNDLE), [("ann", "cup")], pa.table(BUNDLE_ITEM))


def test_warnings_point_at_the_caller() -> None:
    twice = pa.table({"user_id": ["ann", "ann"], "item_id": ["cup", "cup"]})
    with pytest.warns(DataWarning, match="user_item:2: 1 repeated pair dropped") as caught:
        from_frames(pa.table(USER_BUNDLE), twice, pa.table(BUNDLE_ITEM))
    assert caught[0].filename == __file__


def test_neither_pandas_nor_polars_nor_torch_is_imported_by_us() -> None:
    heavy = {"pandas", "polars", "torch", "matplotlib"}
    code = f"import coheat.data, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
