"""Further columns of bundles and items: read from every format, checked, kept, written back, listed."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
from test_evidence import DAY, TABLES, lay_out
from typer.testing import CliRunner

from coheat.cli.data import data_app
from coheat.data import BundleData, from_frames, read_data, read_split, write_research, write_tables
from coheat.data.check import check
from coheat.data.split import split
from coheat.data.stats import stats

BUNDLES = TABLES["bundles"] | {
    "title": ['Sun, and "fun"', "Tea"],
    "price": [None, 12.5],
    "available": [True, None],
    "colour": ["red", None],
}
ITEMS: dict[str, list[Any]] = {
    "item_id": ["pot", "cup", "hat"],
    "title": ["Pot", "Cup", None],
    "category": ["KITCHEN", "KITCHEN", "CLOTHES"],
    "weight": [900, 250, None],
}
SHOP: dict[str, dict[str, list[Any]]] = TABLES | {"bundles": BUNDLES, "items": ITEMS}


def check_shop(data: BundleData, times: bool = True) -> None:
    bundles, items = data.described_bundles(), data.item_attributes
    kinds = {"title": "text", "price": "number", "available": "truth", "colour": "text"}
    assert bundles.kinds() == kinds | ({"launched": "time", "ends": "time"} if times else {})
    assert items.kinds() == {"title": "text", "category": "text", "weight": "number"}
    assert bundles.values(0)["title"] == 'Sun, and "fun"'
    assert bundles.values(1, ["price", "available", "colour"]) == {
        "price": 12.5,
        "available": None,
        "colour": None,
    }
    pot = data.items.index["pot"]
    assert items.values(pot) == {"title": "Pot", "category": "KITCHEN", "weight": 900}
    assert items.values(data.items.index["hat"]) == {"title": None, "category": "CLOTHES", "weight": None}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_columns_are_read_from_every_format(suffix: str, tmp_path: Path) -> None:
    shop = lay_out(tmp_path / "shop", suffix, SHOP)
    check_shop(read_data(shop))
    assert check(shop).problems == ()


def test_columns_are_read_from_compressed_text(tmp_path: Path) -> None:
    shop = lay_out(tmp_path / "shop", ".csv", SHOP)
    plain = shop / "items.csv"
    (shop / "items.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    check_shop(read_data(shop))


@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame, pa.table])
def test_columns_are_read_from_every_kind_of_frame(make: Any) -> None:
    check_shop(from_frames(**{name: make(columns) for name, columns in SHOP.items()}))


def test_columns_are_written_back_and_part_of_the_fingerprint(tmp_path: Path) -> None:
    data = read_data(lay_out(tmp_path / "shop", ".csv", SHOP))
    assert data.fingerprint != read_data(lay_out(tmp_path / "other", ".csv", TABLES)).fingerprint
    write_tables(data, tmp_path / "tables")
    assert read_data(tmp_path / "tables").fingerprint == data.fingerprint
    write_research(data, tmp_path / "text", "Shop")
    check_shop(read_data(tmp_path / "text"))


@pytest.mark.parametrize("scenario", ["warm", "everything", "time"])
def test_a_split_keeps_columns_and_shows_models_no_times_that_it_hides(scenario: str, tmp_path: Path) -> None:
    tables = SHOP | {
        "user_bundle": {
            "user_id": ["ann", "bob"] * 5,
            "bundle_id": ["tea", "sun"] * 5,
            "timestamp": [(8 + n) * DAY for n in range(10)],
        }
    }
    frames = {name: pa.table(columns) for name, columns in tables.items()}
    frames["user_bundle"] = pa.table(
        {
            "user_id": [f"u{n}" for n in range(10)],
            "bundle_id": ["tea", "sun"] * 5,
            "timestamp": [(8 + n) * DAY for n in range(10)],
        }
    )
    with pytest.warns(match="none of its"):
        made = split(from_frames(**frames), scenario)
    check_shop(made.train)
    assert (made.train.launched is None) == (scenario == "warm")
    write_tables(made, tmp_path / "made")
    with pytest.warns(match="none of its"):
        again = read_split(tmp_path / "made")
    check_shop(again.train)
    assert (again.train.launched is None) == (scenario == "warm")
    np.testing.assert_equal(again.train.described_bundles().columns["ends"].data, [np.nan, 31 * DAY])


@pytest.mark.parametrize(
    ("table", "column", "values", "row", "what"),
    [
        ("bundles", "price", ["1.5", "cheap"], 3, "1 price like 'cheap': not a number (row 3)"),
        ("bundles", "price", ["€3", "4,50"], 2, "2 prices like '€3': not a number (rows 2, 3)"),
        ("bundles", "available", ["perhaps", "no"], 2, "1 available like 'perhaps': neither true nor false"),
        ("items", "price", ["1", "x", "2"], 3, "1 price like 'x': not a number (row 3)"),
        ("items", "ends", ["2024-01-01", "", "soon"], 4, "1 ends like 'soon': not a time (row 4)"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(
    table: str, column: str, values: list[str], row: int, what: str, tmp_path: Path
) -> None:
    changed = {**SHOP, table: SHOP[table] | {column: values}}
    report = check(lay_out(tmp_path / "shop", ".csv", changed))
    assert [(p.severity, p.file, p.row) for p in report.problems] == [("error", f"{table}.csv", row)]
    assert report.problems[0].what.startswith(what)
    assert report.problems[0].hint


def test_no_column_disappears_silently(tmp_path: Path) -> None:
    tables = SHOP | {
        "users": {"user_id": ["ann", "bob"], "email": ["a", "b"]},
        "bundle_item": TABLES["bundle_item"] | {"amount": [1, 2]},
        "items": ITEMS | {"tags": [["a"], ["b"], []]},
    }
    shop = lay_out(tmp_path / "shop", ".parquet", tables)
    report = check(shop)
    assert [(p.severity, p.file, p.what) for p in report.problems] == [
        ("note", "bundle_item.parquet", "1 column not read: 'amount'"),
        ("note", "users.parquet", "1 column not read: 'email'"),
        ("warning", "items.parquet", "the column tags of type list<element: string> is not kept"),
    ]
    assert report.columns == report.to_dict()["columns"]
    assert report.columns is not None
    assert report.columns["items"] == {"title": "text", "category": "text", "weight": "number"}
    with pytest.warns(match="the column tags"):
        assert stats(read_data(shop)).columns == report.columns
    for command in ("check", "stats"):
        said = CliRunner().invoke(data_app, [command, str(shop)]).stdout
        assert "columns of bundles: title (text), price (number), available (truth)" in said
        assert "columns of items: title (text), category (text), weight (number, kept as it is)" in said


def test_codes_with_zeros_in_front_stay_texts_and_rows_may_be_in_any_order(tmp_path: Path) -> None:
    shop = lay_out(tmp_path / "shop", ".csv", TABLES)
    (shop / "items.csv").write_text("code,item_id,size,fresh\n007,hat,1,true\n12,cup,2.5,\n,pot,,FALSE\n")
    items = read_data(shop).item_attributes
    assert items.kinds() == {"code": "text", "size": "number", "fresh": "truth"}
    assert items.values(0) == {"code": "007", "size": 1.0, "fresh": True}
    assert items.values(2) == {"code": None, "size": None, "fresh": False}


def test_of_an_id_that_stands_twice_the_first_row_counts(tmp_path: Path) -> None:
    shop = lay_out(tmp_path / "shop", ".csv", TABLES)
    (shop / "items.csv").write_text("item_id,title\nhat,Hat\nhat,Cap\ncup,Cup\npot,Pot\n")
    with pytest.warns(match="1 repeated id"):
        data = read_data(shop)
    assert [data.item_attributes.values(row)["title"] for row in range(3)] == ["Hat", "Cup", "Pot"]


def test_tables_that_are_not_read_are_told(tmp_path: Path) -> None:
    shop = lay_out(tmp_path / "shop", ".csv", {name: SHOP[name] for name in SHOP if name != "bundles"})
    (shop / "bundle.csv").write_text("bundle_id,title\nsun,Picnic\n")
    (shop / "mailed.csv.gz").write_bytes(b"")
    (shop / "readme.txt").write_text("about these tables")
    found = {(one.severity, one.file, one.hint) for one in check(shop).problems if "not read" in one.what}
    assert found == {("warning", "bundle.csv", "did you mean bundles?"), ("note", "mailed.csv.gz", "")}
