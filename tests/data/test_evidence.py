"""Launches, ends, times of items and showings: read from every format, checked, written back, described."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from coheat.cli.data import data_app
from coheat.data import Shown, from_frames, read_data, write_research, write_tables
from coheat.data.check import check
from coheat.data.stats import stats
from coheat.testing import small_data

DAY = 86_400
TABLES: dict[str, dict[str, list[Any]]] = {
    "user_bundle": {"user_id": ["bob", "ann"], "bundle_id": ["sun", "tea"], "timestamp": [9 * DAY, 8 * DAY]},
    "user_item": {
        "user_id": ["bob", "ann", "ann"],
        "item_id": ["hat", "pot", "cup"],
        "timestamp": ["1970-01-04", "1970-01-03T00:00:00Z", "1970-01-02"],
    },
    "bundle_item": {"bundle_id": ["tea", "sun"], "item_id": ["cup", "hat"]},
    "bundles": {
        "bundle_id": ["sun", "tea"],
        "launched": ["1970-01-03", None],
        "ends": [None, "1970-02-01"],
    },
    "shown": {
        "user_id": ["bob", "ann", "bob"],
        "bundle_id": ["tea", "sun", "tea"],
        "timestamp": [7 * DAY, 5 * DAY, 6 * DAY],
    },
}
# The order of bundles is that of the list: sun, tea.
EXPECTED = replace(
    small_data(
        [("ann", "tea"), ("bob", "sun")],
        [("ann", "cup"), ("ann", "pot"), ("bob", "hat")],
        [("tea", "cup"), ("sun", "hat")],
        timestamps=[8 * DAY, 9 * DAY],
        item_timestamps=[DAY, 2 * DAY, 3 * DAY],
    ),
    launched=np.array([2.0 * DAY, np.nan]),
    ends=np.array([np.nan, 31.0 * DAY]),
    shown=Shown(np.array([0, 1, 1]), np.array([0, 1, 1]), np.array([5, 6, 7]) * DAY),
)


def lay_out(directory: Path, suffix: str, tables: dict[str, dict[str, list[Any]]] | None = None) -> Path:
    directory.mkdir(exist_ok=True)
    for name, columns in (tables or TABLES).items():
        table = pa.table(columns)
        if suffix == ".parquet":
            parquet.write_table(table, directory / f"{name}{suffix}")
        else:
            options = csv.WriteOptions(delimiter="," if suffix == ".csv" else "\t")
            csv.write_csv(table, directory / f"{name}{suffix}", options)
    return directory


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_all_of_it_is_read_from_every_format(suffix: str, tmp_path: Path) -> None:
    shop = lay_out(tmp_path / "shop", suffix)
    assert read_data(shop).fingerprint == EXPECTED.fingerprint
    report = check(shop)
    assert report.problems == ()
    assert report.counts is not None
    assert report.counts["shown"] == 3


@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame, pa.table])
def test_and_from_every_kind_of_frame(make: Any) -> None:
    frames = {name: make(columns) for name, columns in TABLES.items()}
    assert from_frames(**frames).fingerprint == EXPECTED.fingerprint


def test_it_is_written_back(tmp_path: Path) -> None:
    write_tables(EXPECTED, tmp_path / "tables")
    assert read_data(tmp_path / "tables").fingerprint == EXPECTED.fingerprint
    write_tables(EXPECTED, tmp_path / "tables", overwrite=True)  # the table of showings is one of our files
    # The text layout keeps what stands in the list of bundles and has no place for the rest.
    write_research(EXPECTED, tmp_path / "text", "Shop")
    kept = replace(EXPECTED, timestamps=None, item_timestamps=None, shown=None)
    assert read_data(tmp_path / "text").fingerprint == kept.fingerprint


def test_launches_alone_are_written_as_research_text_even_where_ids_are_the_integers(tmp_path: Path) -> None:
    data = small_data([("0", "1"), ("1", "0")], [("0", "0"), ("1", "1")], [("0", "0"), ("1", "1")])
    data = replace(data, launched=np.array([5.0, np.nan]))
    write_research(data, tmp_path / "text", "Shop")
    assert read_data(tmp_path / "text").fingerprint == data.fingerprint


@pytest.mark.parametrize(
    ("table", "column", "values", "severity", "row", "what"),
    [
        ("bundles", "ends", ["1970-03-01", "later"], "error", 3, "1 ends like 'later': not a time"),
        ("bundles", "ends", ["1970-01-01", None], "warning", 2, "1 bundle with an end before"),
        ("user_item", "timestamp", [3, 4, None], "error", 4, "1 row without timestamp (row 4)"),
        ("user_item", "timestamp", [3, "soon", 4], "error", 3, "1 timestamp like 'soon': not a time"),
        ("shown", "timestamp", ["3", "", "4"], "error", 3, "1 row without timestamp"),
        ("shown", "bundle_id", ["tea", "sum", "toy"], "error", 3,
         "2 rows of bundles that no other table has (rows 3, 4): 'sum', 'toy'"),
        ("shown", "user_id", ["bob", "eve", "eve"], "warning", None, "1 user of 2 in no other table: 'eve'"),
        ("shown", "user_id", ["bob", None, "ann"], "error", 3, "1 row without user_id (row 3)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(
    table: str, column: str, values: list[Any], severity: str, row: int | None, what: str, tmp_path: Path
) -> None:
    texts = [None if value is None else str(value) for value in values]
    changed = {**TABLES, table: TABLES[table] | {column: texts}}
    report = check(lay_out(tmp_path / "shop", ".csv", changed))
    found = [*report.errors, *report.warnings]
    assert [(p.severity, p.file, p.row) for p in found] == [(severity, f"{table}.csv", row)]
    assert found[0].what.startswith(what)
    assert found[0].hint


def test_users_who_were_only_shown_something_become_users(tmp_path: Path) -> None:
    shown = TABLES["shown"] | {"user_id": ["bob", "ann", "zoe"]}
    shop = lay_out(tmp_path / "shop", ".csv", TABLES | {"shown": shown})
    with pytest.warns(match="they become users of whom nothing else is known"):
        data = read_data(shop)
    assert data.users.ids == ("ann", "bob", "zoe")
    assert data.exposure is not None
    assert data.exposure.tolist() == [1, 2]
    # Where they are listed, nothing is odd about them.
    (shop / "users.csv").write_text("user_id\nzoe\nann\nbob\n")
    assert check(shop).problems == ()


def test_interactions_while_a_bundle_was_not_on_offer_are_noted(tmp_path: Path) -> None:
    bundles = TABLES["bundles"] | {"launched": ["1970-01-20", None], "ends": [None, "1970-01-02"]}
    found = check(lay_out(tmp_path / "shop", ".csv", TABLES | {"bundles": bundles})).problems
    assert [(p.severity, p.what) for p in found] == [
        ("note", "1 of 2 interactions lie before the launch of the bundle"),
        ("note", "1 of 2 interactions lie after its end"),
    ]


def test_the_table_of_showings_may_be_without_times_and_swapped_columns_are_told(tmp_path: Path) -> None:
    shown = {name: values for name, values in TABLES["shown"].items() if name != "timestamp"}
    data = read_data(lay_out(tmp_path / "one", ".csv", TABLES | {"shown": shown}))
    assert data.shown is not None
    assert data.shown.timestamps is None
    assert data.exposure is not None
    assert data.exposure.tolist() == [1, 2]
    swapped = {"user_id": shown["bundle_id"], "bundle_id": shown["user_id"]}
    report = check(lay_out(tmp_path / "two", ".csv", TABLES | {"shown": swapped}))
    assert "swap the two names in the header" in [problem.hint for problem in report.errors]


def test_stats_tell_what_is_dated(tmp_path: Path) -> None:
    found = stats(EXPECTED)
    assert (found.first_interaction, found.last_interaction) == ("1970-01-09T00:00:00", "1970-01-10T00:00:00")
    assert found.user_item_dated
    assert (found.bundles_with_launch, found.bundles_with_end, found.showings) == (1, 1, 3)
    said = CliRunner().invoke(data_app, ["stats", str(lay_out(tmp_path / "shop", ".csv"))]).stdout
    assert "interactions from 1970-01-09T00:00:00 to 1970-01-10T00:00:00, user-item pairs dated too" in said
    assert "the launch of 1 bundles is known, the end of 1" in said
    assert "shown: 3 times" in said
    plain = small_data([("ann", "tea")], [("ann", "cup")], [("tea", "cup")])
    write_tables(plain, tmp_path / "plain")
    said = CliRunner().invoke(data_app, ["stats", str(tmp_path / "plain")]).stdout
    assert "interactions from" not in said
    assert "shown" not in said
