"""coheat data prepare: the same data as reading the tables gives, from the disk; whole or absent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from coheat import train_run
from coheat.cli.data import data_app
from coheat.data import has_split, read_data, read_split, realistic_world, write_tables
from coheat.data.check import check
from coheat.data.preparing import prepare
from coheat.data.split import split
from coheat.errors import ConfigError, DataError

duckdb = pytest.importorskip("duckdb")

WORLD = realistic_world(120, 60, 80, 900, 700, 260, seed=1)
TABLES = ("user_bundle", "user_item", "bundle_item", "users", "bundles", "items")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Tables as they come: rows in no order, some pairs twice, further columns, and who was shown what."""
    place = tmp_path / "shop"
    write_tables(WORLD, place)
    rng = np.random.default_rng(0)
    for name in ("user_bundle", "user_item", "bundle_item"):
        table = parquet.read_table(place / f"{name}.parquet")
        order = rng.permutation(np.r_[np.arange(len(table)), :20])
        parquet.write_table(table.take(pa.array(order)), place / f"{name}.parquet")
    bundles = parquet.read_table(place / "bundles.parquet")
    titles = pa.array([f"title {n}, 'quoted' \"twice\"" for n in range(len(bundles))])
    prices = pa.array([None if n % 7 == 0 else n / 4 for n in range(len(bundles))])
    # One bundle less than the other tables know: it comes after those that are listed.
    bundles = bundles.append_column("title", titles).append_column("price", prices).slice(1)
    parquet.write_table(bundles, place / "bundles.parquet")
    (place / "users.parquet").unlink()
    shown = parquet.read_table(place / "user_bundle.parquet").slice(0, 50)
    parquet.write_table(pa.concat_tables([shown, shown]), place / "shown.parquet")
    return place


def as_text(place: Path, suffix: str) -> None:
    for path in list(place.glob("*.parquet")):
        table = parquet.read_table(path)
        target = path.with_name(f"{path.stem}{suffix}")
        csv.write_csv(table, target, csv.WriteOptions(delimiter="," if "csv" in suffix else "\t"))
        path.unlink()


def in_folders(place: Path) -> None:
    for name in ("user_item", "bundle_item"):
        table = parquet.read_table(place / f"{name}.parquet")
        (place / f"{name}.parquet").unlink()
        for number in range(3):
            (place / name / f"part={number}").mkdir(parents=True)
            parquet.write_table(table.slice(number * 100), place / name / f"part={number}" / "a.parquet")


def as_database(place: Path) -> None:
    with duckdb.connect(str(place.with_suffix(".duckdb"))) as connection:
        for path in place.glob("*.parquet"):
            connection.execute(f"CREATE TABLE {path.stem} AS FROM read_parquet('{path}')")
    shutil.rmtree(place)
    place.with_suffix(".duckdb").rename(place)


FORMS: dict[str, Callable[[Path], None]] = {
    "parquet": lambda place: None,
    "csv": lambda place: as_text(place, ".csv"),
    "tsv": lambda place: as_text(place, ".tsv"),
    "folders": in_folders,
    "duckdb": as_database,
}


@pytest.mark.filterwarnings("ignore::coheat.data.problems.DataWarning")
@pytest.mark.parametrize("form", FORMS)
def test_prepared_data_are_those_of_the_tables(form: str, shop: Path, tmp_path: Path) -> None:
    FORMS[form](shop)
    steps: list[str] = []
    made = prepare(shop, tmp_path / "out", "300MB", tell=steps.append)
    data, expected = read_data(tmp_path / "out"), read_data(shop)
    assert data.fingerprint == expected.fingerprint
    assert tuple(data.bundles.ids) == tuple(expected.bundles.ids)
    assert made["user_item"] == expected.user_item.nnz
    assert "sorting user_item" in steps
    assert not list(tmp_path.glob(".*"))
    mapped = data.user_item.indices
    while mapped.base is not None and not isinstance(mapped, np.memmap):
        mapped = mapped.base
    assert isinstance(mapped, np.memmap)


def test_ids_of_any_type_and_times_as_text(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    tables = {
        "user_bundle": {
            "user_id": [10, 9, 9],
            "bundle_id": [1.0, 2.0, 1.0],
            "timestamp": ["5", "2024-03-01", "7"],
        },
        "user_item": {"user_id": [9, 10], "item_id": [b"cup", b"hat"]},
        "bundle_item": {"bundle_id": [1, 2], "item_id": ["cup", "hat"]},
    }
    for name, columns in tables.items():
        parquet.write_table(pa.table(columns), shop / f"{name}.parquet")
    prepare(shop, tmp_path / "out")
    assert read_data(tmp_path / "out").fingerprint == read_data(shop).fingerprint
    assert list(read_data(tmp_path / "out").users.ids) == ["10", "9"]


def test_a_split_stays_a_split(tmp_path: Path) -> None:
    write_tables(split(WORLD, "time"), tmp_path / "shop")
    prepare(tmp_path / "shop", tmp_path / "out")
    assert has_split(tmp_path / "out")
    found, expected = read_split(tmp_path / "out"), read_split(tmp_path / "shop")
    assert found.train.fingerprint == expected.train.fingerprint
    assert np.array_equal(found.test.toarray(), expected.test.toarray())
    assert (found.scenario, found.times) == (expected.scenario, expected.times)
    assert read_data(tmp_path / "out").fingerprint == read_data(tmp_path / "shop").fingerprint


@pytest.mark.filterwarnings("ignore::coheat.data.problems.DataWarning")
def test_a_model_trained_on_prepared_data_is_the_same(shop: Path, tmp_path: Path) -> None:
    prepare(shop, tmp_path / "out")
    settings = {
        "epochs": 2,
        "batch_size": 128,
        "embedding_size": 8,
        "rehearsal_epochs": 1,
        "companion_size": 8,
    }
    runs = [
        train_run(source, tmp_path / name, overrides=settings, scenario="warm")
        for name, source in (("direct", shop), ("mapped", tmp_path / "out"))
    ]
    stored = [json.loads((run.path / "model" / "artifact.json").read_text())["files"] for run in runs]
    assert stored[0]["served.safetensors"] == stored[1]["served.safetensors"]
    reports = [{**run.evaluate(), "seconds": 0} for run in runs]
    assert reports[0] == reports[1]


@pytest.mark.filterwarnings("ignore::coheat.data.problems.DataWarning")
def test_a_stopped_preparation_goes_on_where_it_was(shop: Path, tmp_path: Path) -> None:
    def stop(step: str) -> None:
        if step == "sorting bundle_item":
            raise KeyboardInterrupt

    out, work = tmp_path / "out", tmp_path / ".out.preparing"
    with pytest.raises(KeyboardInterrupt):
        prepare(shop, out, tell=stop)
    assert not out.exists()
    stamp = (work / "user_item.indices.npy").stat().st_mtime_ns
    with pytest.warns(match="not in this list"):
        prepare(shop, out)
    assert (out / "user_item.indices.npy").stat().st_mtime_ns == stamp
    # Other tables than those that were looked at: everything anew.
    with pytest.raises(KeyboardInterrupt):
        prepare(shop, tmp_path / "again", tell=stop)
    table = parquet.read_table(shop / "user_item.parquet")
    parquet.write_table(table.slice(5), shop / "user_item.parquet")
    with pytest.warns(match="repeated pairs dropped"):
        prepare(shop, tmp_path / "again")
    with pytest.warns(match="not in this list"):
        expected = read_data(shop).fingerprint
    assert read_data(tmp_path / "again").fingerprint == expected


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        ("user_item", "item_id", None, "1 row without a usable item_id"),
        ("user_bundle", "timestamp", "soon", "1 row without a usable timestamp"),
        ("bundle_item", "bundle_id", "", "1 row without a usable bundle_id"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_left(
    table: str, column: str, value: Any, said: str, shop: Path, tmp_path: Path
) -> None:
    path = shop / f"{table}.parquet"
    found = parquet.read_table(path).to_pydict()
    found = {name: list(map(str, values)) for name, values in found.items()}
    found[column][3] = value
    parquet.write_table(pa.table(found), path)
    with pytest.raises(DataError, match=said):
        prepare(shop, tmp_path / "out")
    assert not [path for path in tmp_path.iterdir() if path != shop]


def test_a_table_without_its_column_or_of_another_type(shop: Path, tmp_path: Path) -> None:
    table = parquet.read_table(shop / "user_item.parquet")
    parquet.write_table(table.rename_columns(["user_id", "thing"]), shop / "user_item.parquet")
    with pytest.raises(DataError, match=r"user_item.parquet: there is no column named item_id .*'thing'"):
        prepare(shop, tmp_path / "out")
    (shop / "user_item.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match="user_item"):
        prepare(shop, tmp_path / "out")
    (shop / "user_item.parquet").unlink()
    with pytest.raises(DataError, match="user_item"):
        prepare(shop, tmp_path / "out")


@pytest.mark.filterwarnings("ignore::coheat.data.problems.DataWarning")
def test_damage_is_told_by_the_file(shop: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(shop, out)
    with pytest.raises(ConfigError, match="--overwrite"):
        prepare(shop, out)
    os.truncate(out / "user_item.indices.npy", 200)
    with pytest.raises(DataError, match=r"user_item.indices.npy: 200 bytes instead of"):
        read_data(out)
    assert not check(out).ok
    prepare(shop, out, overwrite=True)
    assert check(out).ok
    with pytest.raises(ConfigError, match="something else"):
        prepare(shop, shop)


@pytest.mark.filterwarnings("ignore::coheat.data.problems.DataWarning")
def test_commands_take_prepared_data(shop: Path, tmp_path: Path) -> None:
    def run(*words: object) -> dict[str, Any]:
        done = CliRunner().invoke(data_app, [*map(str, words), "--json"])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    out = tmp_path / "out"
    made = run("prepare", shop, "--out", out, "--memory-limit", "500MB")
    assert made["users"] == read_data(shop).n_users
    assert run("stats", out) == run("stats", shop)
    assert run("check", out)["ok"]
    report = run("split", out, "--scenario", "cold", "--out", tmp_path / "one")
    assert report == {
        **run("split", shop, "--scenario", "cold", "--out", tmp_path / "two"),
        "out": report["out"],
    }
