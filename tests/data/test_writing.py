"""What is written is read back exactly; writing is whole or not at all, and never hurts other files."""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coheat.data import (
    BundleData,
    Split,
    has_split,
    planted_world,
    read_data,
    read_split,
    realistic_world,
    write_research,
    write_tables,
)
from coheat.data.split import split
from coheat.errors import DataError
from coheat.testing import bundle_data, ids, small_data

SHOP = small_data([("ann", "tea")], [("ann", "cup")], [("tea", "cup")])


def times(data: BundleData) -> list[int] | None:
    return None if data.timestamps is None else data.timestamps.tolist()


def quiet_read(directory: Path) -> BundleData:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_data(directory)


@settings(deadline=None, max_examples=15)  # every example waits for the disk
@given(bundle_data(names=ids(), timestamps=True, evidence=True) | bundle_data(names=ids()))
def test_tables_are_read_back_exactly_with_the_wildest_ids(data: BundleData) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write_tables(data, Path(directory) / "shop")
        again = quiet_read(Path(directory) / "shop")
    assert again.fingerprint == data.fingerprint
    assert times(again) == times(data)


@settings(deadline=None, max_examples=15)  # every example waits for the disk
@given(bundle_data(names=ids()) | bundle_data(names=st.from_regex(r"[0-9]{1,2}", fullmatch=True)))
def test_research_text_is_read_back_exactly_with_its_ids(data: BundleData) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write_research(data, Path(directory) / "shop", "Shop")
        again = quiet_read(Path(directory) / "shop")
    assert again.fingerprint == data.fingerprint


@pytest.mark.parametrize("layout", ["tables", "research"])
@pytest.mark.parametrize("scenario", ["warm", "cold", "time", "warm-up"])
def test_splits_are_read_back_exactly(layout: str, scenario: str, tmp_path: Path) -> None:
    made = split(realistic_world(60, 30, 40, 400, 300, 120), scenario, seed=3)
    if layout == "tables":
        write_tables(made, tmp_path / "split")
    else:
        write_research(made, tmp_path / "split", "Shop")
    assert has_split(tmp_path / "split")
    again = read_split(tmp_path / "split")
    assert (again.scenario, again.seed) == (scenario, 3)
    untimed = replace(made.train, timestamps=None)  # what the text layout can hold
    assert again.train.fingerprint == (made.train if layout == "tables" else untimed).fingerprint
    assert again.report() == made.report()
    assert again.times == made.times
    assert (again.warm_up is None) == (made.warm_up is None)
    if again.warm_up is not None and made.warm_up is not None:
        assert again.warm_up.levels.tolist() == made.warm_up.levels.tolist()
    for part, matrix in made.parts.items():
        assert (again.parts[part] - matrix).count_nonzero() == 0
    if layout == "tables":
        assert times(again.train) == times(made.train)
        # A split at random treats bundles as new that are not, so launch times would tell on them.
        assert (made.train.launched is not None) == (scenario in ("time", "warm-up"))
        np.testing.assert_equal(again.train.launched, made.train.launched)


def test_the_shuffled_order_of_ids_survives(tmp_path: Path) -> None:
    world: Split = planted_world()
    assert list(world.train.users.ids) != sorted(world.train.users.ids)
    write_tables(world, tmp_path / "world")
    assert read_split(tmp_path / "world").train.users == world.train.users


def test_published_code_can_read_the_research_text(tmp_path: Path) -> None:
    write_research(planted_world(), tmp_path / "Planted", "Planted")
    assert (tmp_path / "Planted" / "Planted_data_size.txt").read_text() == "48\t24\t24\n"
    lines = (tmp_path / "Planted" / "user_bundle_train.txt").read_text().splitlines()
    assert [line.split("\t") for line in lines] == [[str(int(a)) for a in line.split("\t")] for line in lines]
    assert len(lines) == 144


def test_ids_that_are_the_integers_need_no_tables_of_ids(tmp_path: Path) -> None:
    data = small_data([("0", "1"), ("1", "0")], [("0", "0")], [("0", "0")])
    write_research(data, tmp_path / "shop", "Shop")
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == [
        "Shop_data_size.txt",
        "bundle_item.txt",
        "user_bundle.txt",
        "user_item.txt",
    ]


def test_a_directory_that_is_not_empty_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    write_tables(SHOP, tmp_path / "shop")
    with pytest.raises(DataError, match=r"shop: not empty; .*--overwrite"):
        write_tables(SHOP, tmp_path / "shop")
    write_research(SHOP, tmp_path / "shop", "Shop", overwrite=True)
    assert not (tmp_path / "shop" / "user_bundle.parquet").exists()
    assert read_data(tmp_path / "shop").fingerprint == SHOP.fingerprint


def test_files_that_are_not_ours_are_never_removed(tmp_path: Path) -> None:
    write_tables(SHOP, tmp_path)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(
        DataError, match=r"not overwritten, because 'thesis.tex' in it was not written by coheat"
    ):
        write_tables(SHOP, tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert read_data(tmp_path).fingerprint == SHOP.fingerprint


def test_an_empty_directory_is_filled_and_a_missing_parent_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_tables(SHOP, tmp_path / "empty")
    write_tables(SHOP, tmp_path / "a" / "b" / "c")
    assert read_data(tmp_path / "empty").fingerprint == read_data(tmp_path / "a" / "b" / "c").fingerprint


def test_a_file_in_the_way_and_a_bad_name_are_sentences(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="there is a file of that name"):
        write_tables(SHOP, tmp_path / "file")
    with pytest.raises(DataError, match="becomes part of a file's name"):
        write_research(SHOP, tmp_path / "shop", "a/b")


def test_a_crash_in_the_middle_leaves_the_old_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tables(SHOP, tmp_path / "shop")
    other = small_data([("bob", "sun")], [("bob", "hat")], [("sun", "hat")])

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "write_table", full_disk)
    with pytest.raises(DataError, match="No space left on device"):
        write_tables(other, tmp_path / "shop", overwrite=True)
    monkeypatch.undo()
    assert read_data(tmp_path / "shop").fingerprint == SHOP.fingerprint
    assert os.listdir(tmp_path) == ["shop"]  # noqa: PTH208
