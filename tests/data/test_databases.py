"""The same shop from a directory of files, from partitioned Parquet, from SQLite and from DuckDB."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from coheat import train_run
from coheat.data import from_frames, has_split, planted_world, read_data, read_split
from coheat.data.check import check
from coheat.data.databases import database_kind
from coheat.data.writing import write_tables
from coheat.errors import ConfigError, DataError

duckdb = pytest.importorskip("duckdb")

Rows: TypeAlias = dict[str, tuple[tuple[str, ...], list[tuple[Any, ...]]]]

ROWS: Rows = {
    "user_bundle": (
        ("user_id", "bundle_id", "timestamp"),
        [("a", "tea", 5), ("b", "sun", 7), ("b", "tea", 9)],
    ),
    "user_item": (("user_id", "item_id"), [("a", "cup"), ("b", "hat")]),
    "bundle_item": (("bundle_id", "item_id"), [("tea", "cup"), ("sun", "hat")]),
    "bundles": (("bundle_id", "launched"), [("tea", "2024-03-01"), ("sun", None), ("new", "2024-05-01")]),
}
SHOP = from_frames(
    **{
        name: pa.table({column: [row[n] for row in rows] for n, column in enumerate(columns)})
        for name, (columns, rows) in ROWS.items()
    }
)


def fill(connection: Any, rows: Rows) -> None:
    for name, (columns, values) in rows.items():
        first = zip(columns, values[0], strict=True)
        typed = ", ".join(f"{column} {'BIGINT' if isinstance(v, int) else 'VARCHAR'}" for column, v in first)
        connection.execute(f"CREATE TABLE {name} ({typed})")
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"INSERT INTO {name} VALUES ({marks})", values)


def sqlite_file(path: Path, rows: Rows = ROWS) -> Path:
    with sqlite3.connect(path) as connection:
        fill(connection, rows)
    connection.close()
    return path


def duckdb_file(path: Path, rows: Rows = ROWS) -> Path:
    with duckdb.connect(str(path)) as connection:
        fill(connection, rows)
    return path


@pytest.mark.parametrize(("make", "kind"), [(sqlite_file, "sqlite"), (duckdb_file, "duckdb")])
def test_a_database_gives_what_frames_give(make: Callable[[Path], Path], kind: str, tmp_path: Path) -> None:
    path = make(tmp_path / "shop.db")
    assert database_kind(path) == kind
    found = read_data(path)
    assert found.fingerprint == SHOP.fingerprint
    np.testing.assert_array_equal(found.timestamps, SHOP.timestamps)
    np.testing.assert_array_equal(found.launched, SHOP.launched)
    assert not has_split(path)
    assert not check(path).errors


def test_a_split_in_a_database(tmp_path: Path) -> None:
    rows = {**ROWS}
    columns, pairs = rows.pop("user_bundle")
    for part, pair in zip(("train", "validation", "test"), pairs, strict=True):
        rows[f"user_bundle_{part}"] = (columns, [pair])
    split = read_split(duckdb_file(tmp_path / "split.duckdb", rows))
    assert [split.train.user_bundle.nnz, split.validation.nnz, split.test.nnz] == [1, 1, 1]


def test_numbers_and_texts_of_one_sqlite_column_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        for name, (columns, rows) in ROWS.items():
            connection.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
            marks = ", ".join("?" * len(columns))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        connection.execute("INSERT INTO user_bundle VALUES (7, 'tea', 11)")
    connection.close()
    assert "7" in read_data(path).users.ids


def test_wide_numbers_of_duckdb_are_ids(tmp_path: Path) -> None:
    path = duckdb_file(tmp_path / "shop.duckdb")
    with duckdb.connect(str(path)) as connection:
        for table in ("user_item", "bundle_item"):
            connection.execute(f"UPDATE {table} SET item_id = '12' WHERE item_id = 'cup'")
            connection.execute(f"UPDATE {table} SET item_id = '13' WHERE item_id = 'hat'")
            connection.execute(f"ALTER TABLE {table} ALTER item_id TYPE HUGEINT")
    assert read_data(path).items.ids == ("12", "13")


def test_what_is_wrong_with_a_database_is_told(tmp_path: Path) -> None:
    few = {name: ROWS[name] for name in ("user_bundle", "user_item")}
    with pytest.raises(DataError, match=r"bundle_item: there is no such table .*a view in few\.db"):
        read_data(sqlite_file(tmp_path / "few.db", few))
    with pytest.raises(DataError, match="there are no tables here"):
        read_data(sqlite_file(tmp_path / "none.db", {"orders": ROWS["user_item"]}))
    torn = duckdb_file(tmp_path / "torn.duckdb")
    torn.write_bytes(torn.read_bytes()[:6000])
    with pytest.raises(DataError, match=r"torn\.duckdb: cannot be opened"):
        read_data(torn)
    (tmp_path / "text.db").write_text("no database")
    with pytest.raises(DataError, match="not a directory or a database"):
        read_data(tmp_path / "text.db")


def test_a_view_cannot_read_files_beside_the_database(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("user_id,item_id\nann,cup\n")
    path = duckdb_file(tmp_path / "shop.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP TABLE user_item")
        connection.execute(f"CREATE VIEW user_item AS SELECT * FROM read_csv('{secret}')")
    with pytest.raises(DataError, match="user_item: cannot be read"):
        read_data(path)


def test_without_duckdb_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = duckdb_file(tmp_path / "shop.duckdb")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match=r"pip install 'coheat\[duckdb\]'"):
        read_data(path)


@pytest.mark.parametrize("name", ["user_bundle", "user_bundle.parquet"])
def test_partitioned_parquet(name: str, tmp_path: Path) -> None:
    pairs = pa.table({"user_id": ["a", "b", "b"], "bundle_id": ["tea", "sun", "tea"], "month": [1, 1, 2]})
    others = {
        key: pa.table(dict(zip(ROWS[key][0], zip(*ROWS[key][1], strict=True), strict=True)))
        for key in ("user_item", "bundle_item")
    }
    for directory in (tmp_path / "files", tmp_path / "parts"):
        directory.mkdir()
        for key, table in others.items():
            parquet.write_table(table, directory / f"{key}.parquet")
    parquet.write_table(pairs, tmp_path / "files" / "user_bundle.parquet")
    parquet.write_to_dataset(pairs, tmp_path / "parts" / name, partition_cols=["month"])
    (tmp_path / "parts" / name / "_SUCCESS").touch()
    assert read_data(tmp_path / "parts").fingerprint == read_data(tmp_path / "files").fingerprint

    (tmp_path / "parts" / name / "month=1" / "broken.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match="not a readable directory of Parquet files"):
        read_data(tmp_path / "parts")


def test_a_run_trained_from_a_database_is_judged_from_it(tmp_path: Path) -> None:
    world = planted_world()
    write_tables(world, tmp_path / "shop")
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as connection:
        for table in (tmp_path / "shop").glob("*.parquet"):
            connection.execute(f"CREATE TABLE {table.stem} AS SELECT * FROM '{table}'")
    run = train_run(path, tmp_path / "run", "counting")
    assert run.record.data == str(path)
    assert run.evaluate(ks=[5])["warnings"] == []
