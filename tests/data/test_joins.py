"""Tables that do not join are refused or told loudly; those that join little, but rightly, are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from coheat.data import read_data
from coheat.data.check import check
from coheat.errors import DataError

N = 200
USERS = [f"user-{n}" for n in range(N)]


def lay_out(directory: Path, **changes: dict[str, list[str]]) -> Path:
    """A shop of 200 users, 200 bundles and 200 items, one pair each, with some tables replaced."""
    numbers = range(N)
    tables = {
        "user_bundle": {"user_id": USERS, "bundle_id": [f"set {n}" for n in numbers]},
        "user_item": {"user_id": USERS, "item_id": [f"i{(n + 1) % N}" for n in numbers]},
        "bundle_item": {"bundle_id": [f"set {n}" for n in numbers], "item_id": [f"i{n}" for n in numbers]},
    } | changes
    directory.mkdir(exist_ok=True)
    for name, columns in tables.items():
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(row) for row in rows)]
        (directory / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return directory


def users_of(names: list[str]) -> dict[str, list[str]]:
    return {"user_id": names, "item_id": [f"i{n}" for n in range(len(names))]}


def test_what_joins_has_no_flaw(tmp_path: Path) -> None:
    assert check(lay_out(tmp_path)).problems == ()


@pytest.mark.parametrize(
    ("table", "columns", "what"),
    [
        (
            "user_item",
            users_of([str(n) for n in range(N)]),
            "none of its 200 user ids is among the 200 of user_bundle.csv: '0', '1', '10' here, "
            "'user-0', 'user-1', 'user-10' there",
        ),
        (
            "user_item",
            {"user_id": USERS, "item_id": [f"ITEM-{n:04}" for n in range(N)]},
            "none of its 200 item ids is among the 200 of bundle_item.csv: 'ITEM-0000'",
        ),
        (
            "bundle_item",
            {"bundle_id": [f"SET {n}" for n in range(N)], "item_id": [f"i{n}" for n in range(N)]},
            "none of its 200 bundle ids is among the 200 of user_bundle.csv: 'SET 0'",
        ),
    ],
)
def test_where_nothing_joins_reading_stops(
    table: str, columns: dict[str, list[str]], what: str, tmp_path: Path
) -> None:
    report = check(lay_out(tmp_path, **{table: columns}))
    (error,) = report.errors
    assert error.file == f"{table}.csv"
    assert error.what.startswith(what)
    assert "seem to be the same ones in two spellings" in error.hint
    with pytest.raises(DataError, match="in the same way"):
        read_data(tmp_path)


def test_where_hardly_anything_joins_it_is_told_loudly(tmp_path: Path) -> None:
    names = [USERS[0], USERS[1], *(f"visitor {letter}" for letter in "abcdefgh" * 20)]
    report = check(lay_out(tmp_path, user_item=users_of(names)))
    assert report.ok, "ten users in all have items here, and two of them is not hardly any"
    assert report.warnings == []
    names = USERS[:3] + [f"guest {n}" for n in range(N - 3)]
    (warning,) = check(lay_out(tmp_path, user_item=users_of(names))).warnings
    assert warning.what.startswith(
        "only 3 of its 200 user ids are among the 200 of user_bundle.csv: 'guest 0'"
    )
    with pytest.warns(match="only 3 of its 200 user ids"):
        read_data(tmp_path)


def test_few_ids_may_miss_each_other_by_chance(tmp_path: Path) -> None:
    few = {"user_id": ["1", "2"], "item_id": ["i1", "i2"]}
    (warning,) = check(lay_out(tmp_path, user_item=few)).warnings
    assert warning.what.startswith("none of its 2 user ids is among the 200 of user_bundle.csv")


def test_what_is_empty_or_small_but_joins_is_left_alone(tmp_path: Path) -> None:
    (warning,) = check(lay_out(tmp_path, user_item={"user_id": [], "item_id": []})).warnings
    assert warning.what == "there are no pairs in it"
    few = {"user_id": ["user-7", "guest"], "item_id": ["i1", "i2"]}
    assert check(lay_out(tmp_path, user_item=few)).warnings == []


def test_other_errors_are_told_without_those_that_follow_from_them(tmp_path: Path) -> None:
    """Rows with errors are left out, and what is left need not join."""
    nobody = {"user_id": [""] * N, "item_id": [f"i{n}" for n in range(N)]}
    (error,) = check(lay_out(tmp_path, user_item=nobody)).errors
    assert error.what.startswith("200 rows without user_id")


def test_showings_of_users_whom_nobody_knows(tmp_path: Path) -> None:
    shown = {"user_id": [str(n) for n in range(N)], "bundle_id": [f"set {n}" for n in range(N)]}
    (error,) = check(lay_out(tmp_path, shown=shown)).errors
    assert error.file == "shown.csv"
    assert error.what.startswith("none of its 200 user ids is in any other table: '0'")
