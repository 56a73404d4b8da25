"""Every flaw of `coheat.data.check`'s table: found, placed, hinted at, and stopping reading or not."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coheat.data import DataWarning, Problem, has_split, read_data, read_split
from coheat.data.check import check
from coheat.errors import DataError

SHOP: dict[str, str | bytes] = {
    "user_bundle.csv": "user_id,bundle_id\nann,tea\nbob,sun\n",
    "user_item.csv": "user_id,item_id\nann,cup\nbob,hat\n",
    "bundle_item.csv": "bundle_id,item_id\ntea,cup\nsun,hat\n",
}
SPLIT_SHOP: dict[str, str | bytes] = {
    "user_bundle_train.csv": "user_id,bundle_id\nann,tea\n",
    "user_bundle_validation.csv": "user_id,bundle_id\nbob,sun\n",
    "user_bundle_test.csv": "user_id,bundle_id\nbob,tea\n",
    **{name: content for name, content in SHOP.items() if name != "user_bundle.csv"},
}
TEXT: dict[str, str | bytes] = {
    "Shop_data_size.txt": "2\t3\t4\n",
    "user_bundle.txt": "0\t0\n1\t1\n",
    "user_item.txt": "0\t0\n1\t3\n",
    "bundle_item.txt": "0\t0\n1\t3\n2\t1\n",
}
SPLIT_TEXT: dict[str, str | bytes] = {
    "user_bundle_train.txt": "0\t0\n1\t1\n",
    "user_bundle_tune.txt": "0\t1\n",
    "user_bundle_test.txt": "0\t2\n",
    **{name: content for name, content in TEXT.items() if name != "user_bundle.txt"},
}


def parquet_bytes(**columns: list[object]) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def parquet_shop(**user_item: list[object]) -> dict[str, str | bytes | None]:
    """The shop's change to a Parquet table of users and items."""
    return {"user_item.csv": None, "user_item.parquet": parquet_bytes(**user_item)}


def lay_out(directory: Path, files: Mapping[str, str | bytes | None]) -> Path:
    """Write files into a directory; None leaves a file out."""
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        if content is not None:
            (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return directory


@dataclass(frozen=True)
class Case:
    """A flaw in otherwise good files, and the one finding it must give."""

    label: str
    base: Mapping[str, str | bytes]
    change: Mapping[str, str | bytes | None]
    severity: str
    file: str
    row: int | None
    what: str
    hint: str = ""
    also: int = field(default=0)  # further findings that follow from the first


CASES = [
    Case(
        "no table",
        SHOP,
        {"user_item.csv": None},
        "error",
        "user_item",
        None,
        "no such table",
        "user_item.csv",
    ),
    Case("no such text file", TEXT, {"user_item.txt": None}, "error", "user_item.txt", None, "no such file"),
    Case(
        "a part of the split is missing",
        SPLIT_TEXT,
        {"user_bundle_tune.txt": None},
        "error",
        "user_bundle_tune.txt",
        None,
        "no such file",
    ),
    Case("no files", {}, {}, "error", "", None, "no tables here", "user_bundle, user_item, bundle_item"),
    Case(
        "two formats",
        SHOP,
        {"user_item.tsv": "user_id\titem_id\n"},
        "error",
        "user_item",
        None,
        "user_item.csv and as user_item.tsv",
    ),
    Case(
        "two layouts",
        SHOP,
        {"user_item.txt": "0\t0\n"},
        "error",
        "",
        None,
        "two layouts",
    ),
    Case(
        "column missing",
        SHOP,
        {"user_item.csv": "user,item_id\nann,cup\n"},
        "error",
        "user_item.csv",
        None,
        "no column named user_id",
        "'user', 'item_id'",
    ),
    Case(
        "column twice",
        SHOP,
        {"user_item.csv": "user_id,item_id,user_id\nann,cup,ann\n"},
        "error",
        "user_item.csv",
        None,
        "2 columns are named user_id",
    ),
    Case(
        "wrong delimiter",
        SHOP,
        {"user_item.csv": "user_id;item_id\nann;cup\n"},
        "error",
        "user_item.csv",
        None,
        "no column named user_id",
        "holds semicolons",
        also=1,
    ),
    Case(
        "wrong delimiter in text",
        TEXT,
        {"user_item.txt": "0\t0\n1,3\n"},
        "error",
        "user_item.txt",
        2,
        "1 line without 2 columns (line 2); the first has 1: '1,3'",
        "a tab",
        also=1,
    ),
    Case("empty table", SHOP, {"user_item.csv": ""}, "error", "user_item.csv", None, "the file is empty"),
    Case(
        "header only",
        SHOP,
        {"user_item.csv": "user_id,item_id\n"},
        "warning",
        "user_item.csv",
        None,
        "no pairs",
        also=1,
    ),
    Case(
        "empty text file", TEXT, {"user_item.txt": ""}, "warning", "user_item.txt", None, "no pairs", also=1
    ),
    Case(
        "not Parquet",
        SHOP,
        {"user_item.csv": None, "user_item.parquet": b"PAR1 is not enough"},
        "error",
        "user_item.parquet",
        None,
        "not a readable Parquet file",
    ),
    Case(
        "not gzip",
        SHOP,
        {"user_item.csv": None, "user_item.csv.gz": b"user_id,item_id\nann,cup\n"},
        "error",
        "user_item.csv.gz",
        None,
        "not a readable gzip file",
    ),
    Case(
        "gzip cut short",
        SHOP,
        {"user_item.csv": None, "user_item.csv.gz": gzip.compress(b"user_id,item_id\nann,cup\n")[:-9]},
        "error",
        "user_item.csv.gz",
        None,
        "not a readable gzip file",
    ),
    Case(
        "too many columns in gzip",
        SHOP,
        {
            "user_item.csv": None,
            "user_item.csv.gz": gzip.compress(b"user_id,item_id\nann,cup\n\nbob,hat,red\nbob,hat\n"),
        },
        "error",
        "user_item.csv.gz",
        4,
        "1 line without 2 columns (line 4)",
    ),
    Case(
        "plain and gzip",
        SHOP,
        {"user_item.csv.gz": gzip.compress(b"user_id,item_id\nann,cup\n")},
        "error",
        "user_item",
        None,
        "user_item.csv and as user_item.csv.gz",
    ),
    Case(
        "too many columns",
        SHOP,
        {"user_item.csv": "user_id,item_id\n\nann,cup\nbob,hat,red\nbob,hat\nann\n"},
        "error",
        "user_item.csv",
        4,
        "2 lines without 2 columns (lines 4, 6); the first has 3: 'bob,hat,red'",
    ),
    Case(
        "id missing",
        SHOP,
        {"user_item.csv": "user_id,item_id\nann,cup\n,hat\n\nbob,hat\n,cup\n"},
        "error",
        "user_item.csv",
        3,
        "2 rows without user_id (rows 3, 6)",
        "fill it in or delete the row",
    ),
    Case(
        "id not UTF-8",
        SHOP,
        {"user_item.csv": b"user_id,item_id\nann,cup\nbob,h\xe4t\nbob,hat\n"},
        "error",
        "user_item.csv",
        3,
        "not UTF-8 text",
        "UTF-8",
    ),
    Case(
        "line of another width not UTF-8",
        SHOP,
        {"user_item.csv": b"user_id,item_id\nann,cup\nbob,h\xe4t,3\nbob,hat\n"},
        "error",
        "user_item.csv",
        3,
        "1 line not UTF-8 text (line 3)",
        also=1,
    ),
    Case(
        "quote not closed",
        SHOP,
        {"user_item.csv": 'user_id,item_id\n\nann,cup\nbob,"hat\nann,hat\n'},
        "error",
        "user_item.csv",
        4,
        "goes over several lines",
        "close the quote",
        also=2,
    ),
    Case(
        "line without end",
        SHOP,
        {"user_item.csv": f"user_id,item_id\nann,{'x' * 9_000_000}\nbob,hat\n"},
        "error",
        "user_item.csv",
        None,
        "cannot be read as a table",
    ),
    Case(
        "bytes that are no table",
        SHOP,
        {"user_item.csv": bytes(range(256)) * 50},
        "error",
        "user_item.csv",
        3,
        "50 lines not UTF-8 text (lines 3, 5, 7, 9, 11 and 45 more)",
        also=4,
    ),
    Case(
        "header not UTF-8",
        SHOP,
        {"user_item.csv": b"user_id,item_id,gr\xf6\xdfe\nann,cup,1\n"},
        "error",
        "user_item.csv",
        1,
        "1 line not UTF-8 text (line 1)",
        also=2,
    ),
    Case(
        "id with a space around it",
        SHOP,
        {"user_item.csv": "user_id,item_id\nann,cup\nbob, hat\n"},
        "warning",
        "user_item.csv",
        3,
        "1 distinct item_id begin or end with a space: ' hat'",
    ),
    Case(
        "id that reads nan",
        SHOP,
        {"user_item.csv": "user_id,item_id\nann,cup\nbob,hat\nnan,cup\n"},
        "warning",
        "user_item.csv",
        4,
        "look like a missing value: 'nan'",
        also=1,
    ),
    Case(
        "columns swapped",
        SHOP,
        {"user_bundle.csv": "bundle_id,user_id\nann,tea\nbob,sun\n"},
        "error",
        "user_bundle.csv",
        None,
        "its user_id column holds bundle ids",
        "swap",
        also=3,
    ),
    Case(
        "not an integer",
        TEXT,
        {"user_item.txt": "0\t0\n\n1\tx\n1\t1.5\n1\t\n"},
        "error",
        "user_item.txt",
        3,
        "3 items not a whole number (lines 3, 4, 5); the first is 'x'",
        also=1,
    ),
    Case(
        "integer of 30 digits",
        TEXT,
        {"user_item.txt": f"0\t0\n1\t3\n1\t{'9' * 30}\n"},
        "error",
        "user_item.txt",
        3,
        "not a whole number",
    ),
    Case(
        "text not UTF-8",
        TEXT,
        {"user_item.txt": b"0\t0\n1\t3\n\xff\t1\n"},
        "error",
        "user_item.txt",
        3,
        "1 user not a whole number (line 3); the first is '\ufffd'",
        also=1,
    ),
    Case(
        "beyond the declared size",
        TEXT,
        {"user_item.txt": "0\t0\n1\t4\n1\t-1\n1\t1\n"},
        "error",
        "user_item.txt",
        2,
        "2 items outside 0..3 (lines 2, 3); the first is 4",
        "declares 4 items",
    ),
    Case(
        "text columns swapped",
        TEXT,
        {"user_item.txt": "0\t0\n3\t1\n"},
        "error",
        "user_item.txt",
        2,
        "1 user outside 0..1",
        "seem to be swapped",
        also=1,
    ),
    Case(
        "no sizes",
        TEXT,
        {"Shop_data_size.txt": None},
        "error",
        "*_data_size.txt",
        None,
        "exactly one such file",
    ),
    Case(
        "two files of sizes",
        TEXT,
        {"Other_data_size.txt": "1\t1\t1"},
        "error",
        "*_data_size.txt",
        None,
        "found: Other_data_size.txt, Shop_data_size.txt",
    ),
    Case(
        "sizes that are none",
        TEXT,
        {"Shop_data_size.txt": "2 three 4"},
        "error",
        "Shop_data_size.txt",
        1,
        "three whole numbers are expected, not '2 three 4'",
    ),
    Case(
        "timestamp missing",
        SHOP,
        {"user_bundle.csv": "user_id,bundle_id,timestamp\nann,tea,5\nbob,sun,\n"},
        "error",
        "user_bundle.csv",
        3,
        "1 row without timestamp",
    ),
    Case(
        "not a time",
        SHOP,
        {"user_bundle.csv": "user_id,bundle_id,timestamp\nann,tea,2024-02-30\nbob,sun,2024-03-01\n"},
        "error",
        "user_bundle.csv",
        2,
        "1 timestamp like '2024-02-30': not a time",
    ),
    Case(
        "launch that is not a time",
        SHOP,
        {"bundles.csv": "bundle_id,launched\ntea,2024-02-01\nsun,soon\n"},
        "error",
        "bundles.csv",
        3,
        "1 launched like 'soon': not a time",
    ),
    Case(
        "milliseconds",
        SHOP,
        {"user_bundle.csv": "user_id,bundle_id,timestamp\nann,tea,5\nbob,sun,1700000000000\n"},
        "warning",
        "user_bundle.csv",
        3,
        "thousands of years ahead",
        "divide milliseconds",
    ),
    Case(
        "repeated pairs",
        SHOP,
        {"user_item.csv": "user_id,item_id\nann,cup\nbob,hat\n\nann,cup\nbob,hat\nann,cup\n"},
        "warning",
        "user_item.csv",
        5,
        "3 repeated pairs dropped (rows 5, 6, 7)",
    ),
    Case(
        "a pair of train also in test",
        SPLIT_TEXT,
        {"user_bundle_test.txt": "0\t2\n\n1\t1\n"},
        "error",
        "user_bundle_test.txt",
        3,
        "1 pair also in user_bundle_train.txt (row 3)",
        "share no pair",
    ),
    Case(
        "a pair of validation also in test",
        SPLIT_SHOP,
        {"user_bundle_test.csv": "user_id,bundle_id\nbob,tea\nbob,sun\n"},
        "error",
        "user_bundle_test.csv",
        3,
        "1 pair also in user_bundle_validation.csv",
    ),
    Case(
        "undivided interactions beside a split",
        SPLIT_SHOP,
        {"user_bundle.csv": "not,read\n"},
        "warning",
        "user_bundle",
        None,
        "not read",
    ),
    Case(
        "bundles without items",
        SHOP,
        {"user_bundle.csv": "user_id,bundle_id\nann,tea\nbob,sun\nbob,box\n"},
        "warning",
        "bundle_item.csv",
        None,
        "1 of the bundles that users have hold no item: 'box'",
    ),
    Case(
        "user without items",
        SHOP,
        {"user_item.csv": "user_id,item_id\nann,cup\nann,hat\n"},
        "note",
        "user_bundle.csv",
        None,
        "1 of 2 users stand here but not in user_item.csv",
    ),
    Case(
        "user without bundles",
        SHOP,
        {"user_item.csv": "user_id,item_id\nann,cup\nbob,hat\neve,hat\n"},
        "note",
        "user_item.csv",
        None,
        "1 of 3 users stand here but not in user_bundle.csv",
    ),
    Case(
        "id not in the list",
        SHOP,
        {"users.csv": "user_id\nbob\n"},
        "warning",
        "users",
        None,
        "1 user id not in this list: 'ann'",
    ),
    Case(
        "id twice in the list",
        SHOP,
        {"users.csv": "user_id\nbob\nann\nbob\n"},
        "warning",
        "users.csv",
        None,
        "1 repeated id dropped",
    ),
    Case(
        "list of ids shorter than declared",
        TEXT,
        {"users.parquet": parquet_bytes(user_id=["ann"])},
        "error",
        "users.parquet",
        None,
        "1 ids, 1 of them distinct, for the 2 users declared",
    ),
    Case(
        "null in Parquet",
        SHOP,
        parquet_shop(user_id=["ann", None, "bob"], item_id=["cup", "cup", "hat"]),
        "error",
        "user_item.parquet",
        2,
        "1 row without user_id (row 2)",
    ),
    Case(
        "NaN in Parquet",
        SHOP,
        parquet_shop(user_id=["ann", "bob", "bob"], item_id=[7.0, 8.0, float("nan")]),
        "error",
        "user_item.parquet",
        3,
        "1 row without item_id (row 3)",
    ),
    Case(
        "broken number",
        SHOP,
        parquet_shop(user_id=["ann", "bob"], item_id=[7.0, 7.5]),
        "error",
        "user_item.parquet",
        2,
        "1 item_id like '7.5': not a whole number that is exact (row 2)",
        also=1,
    ),
    Case(
        "number too large to be exact",
        SHOP,
        parquet_shop(user_id=["ann", "bob"], item_id=[7.0, 2.0**60]),
        "error",
        "user_item.parquet",
        2,
        "1 item_id like '1.152921504606847e+18': not a whole number that is exact",
        also=1,
    ),
    Case(
        "bytes in Parquet that are no text",
        SHOP,
        parquet_shop(user_id=["ann", "bob"], item_id=[b"cup", b"\xff"]),
        "error",
        "user_item.parquet",
        2,
        "1 item_id like",
        "UTF-8",
        also=1,
    ),
    Case(
        "lists of ids",
        SHOP,
        parquet_shop(user_id=["ann", "bob"], item_id=[["cup"], ["hat"]]),
        "error",
        "user_item.parquet",
        None,
        "item_id is of type list",
        also=2,
    ),
    Case(
        "true and false",
        SHOP,
        parquet_shop(user_id=["ann", "bob"], item_id=[True, False]),
        "error",
        "user_item.parquet",
        None,
        "item_id is of type bool",
        also=2,
    ),
    Case(
        "split.json that is none",
        SPLIT_SHOP,
        {"split.json": '{"scenario": 3}'},
        "error",
        "split.json",
        None,
        "must hold",
    ),
]


def finding(case: Case, directory: Path) -> Problem:
    """The finding that the case is about; there are no others than those that follow from it."""
    report = check(lay_out(directory, {**case.base, **case.change}))
    found = [p for p in report.problems if p.severity == case.severity and case.what in p.what]
    assert len(found) == 1, report.problems
    assert len(report.problems) <= 1 + case.also, report.problems
    assert report.ok == (not report.errors)
    return found[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_the_flaw_is_found_with_its_place_and_a_hint(case: Case, tmp_path: Path) -> None:
    problem = finding(case, tmp_path / "shop")
    assert (problem.file, problem.row) == (case.file, case.row)
    assert case.hint in problem.hint


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_reading_stops_at_errors_and_only_warns_of_warnings(case: Case, tmp_path: Path) -> None:
    problem = finding(case, tmp_path / "shop")
    read = read_split if has_split(tmp_path / "shop") else read_data
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if case.severity == "error":
            with pytest.raises(DataError) as raised:
                read(tmp_path / "shop")
            place = str(tmp_path / "shop" / case.file) + (f":{case.row}" if case.row else "")
            assert f"{place}: {problem.what}" in str(raised.value)
            assert problem.hint in str(raised.value)
        else:
            read(tmp_path / "shop")
    told = [str(w.message) for w in caught if w.category is DataWarning and problem.what in str(w.message)]
    assert len(told) == (case.severity == "warning")
    assert all(w.filename == __file__ for w in caught), "a warning must point at the caller"


@pytest.mark.parametrize(
    "files", [SHOP, SPLIT_SHOP, TEXT, SPLIT_TEXT], ids=["shop", "split", "text", "split text"]
)
def test_good_files_have_no_flaw(files: dict[str, str | bytes], tmp_path: Path) -> None:
    report = check(lay_out(tmp_path / "shop", files))
    assert report.problems == ()
    assert report.ok
    assert report.counts is not None
    assert report.counts["users"] == 2


def test_everything_is_told_at_once(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        {
            "user_bundle.csv": "user_id,bundle_id\n,tea\nbob,\n",
            "user_item.csv": "user,item_id\nann,cup\n",
            "bundle_item.tsv": "",
        },
    )
    report = check(tmp_path)
    assert [(p.file, p.row) for p in report.errors] == [
        ("bundle_item.tsv", None),
        ("user_bundle.csv", 2),
        ("user_bundle.csv", 3),
        ("user_item.csv", None),
    ]
    assert report.counts is None
    assert report.to_dict()["ok"] is False


def test_a_directory_above_the_data_is_recognised(tmp_path: Path) -> None:
    lay_out(tmp_path / "shop", SHOP)
    with pytest.raises(DataError, match=r"no tables here \(did you mean .*shop\?\)"):
        read_data(tmp_path)


def test_a_file_or_nothing_in_place_of_a_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: there is no such directory"):
        read_data(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file: this is a file, not a directory"):
        read_split(tmp_path / "file")


def test_without_a_split_the_error_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no split; name a scenario, or .*`coheat data split "):
        read_split(lay_out(tmp_path / "shop", SHOP))


def test_many_errors_are_cut_short_in_the_message_but_not_in_the_report(tmp_path: Path) -> None:
    header = "user_id,bundle_id,timestamp\n"
    lay_out(
        tmp_path,
        {
            "user_bundle_train.csv": header + ",tea,x\nann,,5\n",
            "user_bundle_validation.csv": header + ",sun,x\nann,,5\n",
            "user_bundle_test.csv": header + "bob,box,5\n",
            "user_item.csv": SHOP["user_item.csv"],
            "bundle_item.csv": SHOP["bundle_item.csv"],
        },
    )
    assert len(check(tmp_path).errors) == 6
    with pytest.raises(DataError, match="and 1 more; `coheat data check` tells all"):
        read_data(tmp_path)


def test_the_rows_kept_are_those_without_a_flaw(tmp_path: Path) -> None:
    """After a line that is no pair, the numbers of later lines are still right."""
    lay_out(tmp_path, {**TEXT, "user_item.txt": "0\t0\nx\t1\n\n0\n1\t9\n1\t3\n"})
    assert [(p.row, p.what[:20]) for p in check(tmp_path).errors] == [
        (4, "1 line without 2 col"),
        (2, "1 user not a whole n"),
        (5, "1 item outside 0..3 "),
    ]


FRAGMENTS = [
    b"user_id",
    b"item_id",
    b",",
    b"\t",
    b"\n",
    b"\r",
    b'"',
    b"0",
    b"1",
    b"-",
    b".",
    b" ",
    b"\xff",
    "ä".encode(),
]


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=25), st.sampled_from(["table", "text", "sizes"]))
def test_whatever_stands_in_a_file_it_is_read_or_told_and_never_a_crash(
    tmp_path: Path, fragments: list[bytes], kind: str
) -> None:
    content = b"".join(fragments)
    if kind == "table":
        shop = lay_out(tmp_path / "table", {**SHOP, "user_item.csv": b"user_id,item_id\n" + content})
    else:
        name = "user_item.txt" if kind == "text" else "Shop_data_size.txt"
        shop = lay_out(tmp_path / kind, {**TEXT, name: content})
    report = check(shop)
    assert report.ok == (report.counts is not None)
