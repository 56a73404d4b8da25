"""Tables and research text become the same data, whatever the format, the types and the order of rows."""

from __future__ import annotations

import gzip
import random
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coheat.data import BundleData, DataWarning, Split, Vocabulary, has_split, read_data, read_split, relation
from coheat.data.check import check
from coheat.data.dataset import Sparse
from coheat.data.stats import stats
from coheat.testing import id_pairs, small_data

PUBLISHED = Path(__file__).parents[3] / "shared" / "data"
USER_BUNDLE = [("ann", "tea"), ("ann", "sun"), ("bob", "sun"), ("eve", "box")]
USER_ITEM = [("ann", "cup"), ("bob", "hat"), ("dan", "hat")]
BUNDLE_ITEM = [("tea", "cup"), ("tea", "pot"), ("sun", "hat"), ("box", "pot")]
TABLES = {
    "user_bundle": (("user_id", "bundle_id"), USER_BUNDLE),
    "user_item": (("user_id", "item_id"), USER_ITEM),
    "bundle_item": (("bundle_id", "item_id"), BUNDLE_ITEM),
}


def write(path: Path, columns: dict[str, object]) -> None:
    table = pa.table(columns)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
        return
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    csv.write_csv(table, plain, csv.WriteOptions(delimiter="," if plain.suffix == ".csv" else "\t"))
    if plain != path:
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()


def write_shop(directory: Path, suffix: str, order: random.Random | None = None) -> Path:
    directory.mkdir()
    for name, (columns, rows) in TABLES.items():
        shuffled = order.sample(rows, len(rows)) if order else rows
        write(
            directory / f"{name}{suffix}",
            {column: [r[n] for r in shuffled] for n, column in enumerate(columns)},
        )
    return directory


def same(one: BundleData, other: BundleData) -> bool:
    times = [None if d.timestamps is None else d.timestamps.tolist() for d in (one, other)]
    return one.fingerprint == other.fingerprint and times[0] == times[1]


SHOP = small_data(USER_BUNDLE, USER_ITEM, BUNDLE_ITEM)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".csv.gz", ".tsv.gz"])
def test_all_formats_give_the_same_data_in_any_order_of_rows(suffix: str, tmp_path: Path) -> None:
    for seed in range(3):
        assert same(read_data(write_shop(tmp_path / str(seed), suffix, random.Random(seed))), SHOP)
    assert SHOP.users.ids == ("ann", "bob", "dan", "eve")
    assert id_pairs(SHOP.user_bundle, SHOP.users, SHOP.bundles) == set(USER_BUNDLE)


def test_the_order_of_columns_and_other_columns_do_not_matter(tmp_path: Path) -> None:
    write_shop(tmp_path / "shop", ".csv")
    (tmp_path / "shop" / "user_item.csv").write_text(
        "colour,item_id,user_id\nred,cup,ann\n,hat,bob\ngrün,hat,dan\n", encoding="utf-8"
    )
    assert same(read_data(tmp_path / "shop"), SHOP)


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    shop = write_shop(tmp_path / "shop", ".csv")
    for path in shop.iterdir():
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert same(read_data(shop), SHOP)


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(), pa.int64(), pa.uint32(), pa.float32(), pa.float64(), pa.string(), pa.large_string(),
        pa.string_view(), pa.binary(), pa.binary_view(), pa.dictionary(pa.int8(), pa.int64()),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_become_the_same_texts_whatever_their_type(kind: pa.DataType, tmp_path: Path) -> None:
    shop = write_shop(tmp_path / "shop", ".parquet")
    numbers = pa.array([7, 10, 7])
    simple = kind.value_type if pa.types.is_dictionary(kind) else kind
    texts = (
        numbers if pa.types.is_integer(simple) or pa.types.is_floating(simple) else numbers.cast(pa.string())
    )
    items = texts.cast(simple)
    items = items.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else items
    parquet.write_table(
        pa.table({"user_id": ["ann", "ann", "bob"], "item_id": items}), shop / "user_item.parquet"
    )
    data = read_data(shop)
    assert id_pairs(data.user_item, data.users, data.items) == {("ann", "7"), ("ann", "10"), ("bob", "7")}


def test_text_ids_of_a_csv_are_taken_exactly(tmp_path: Path) -> None:
    shop = write_shop(tmp_path / "shop", ".csv")
    wild = ["007", "7.0", "1e5", "a b", "a/b\\c", "it's", 'say ""x""', "a,b", "🎁", "ä", "NULL x", "-0"]
    lines = "".join(f'ann,"{name}"\n' for name in wild)
    (shop / "user_item.csv").write_text("user_id,item_id\n" + lines, encoding="utf-8")
    data = read_data(shop)
    expected = {("ann", name.replace('""', '"')) for name in wild}
    assert id_pairs(data.user_item, data.users, data.items) == expected


def test_categories_that_do_not_occur_are_no_ids(tmp_path: Path) -> None:
    shop = write_shop(tmp_path / "shop", ".parquet")
    items = pa.DictionaryArray.from_arrays(pa.array([1]), pa.array(["never", "cup"]))
    parquet.write_table(pa.table({"user_id": ["ann"], "item_id": items}), shop / "user_item.parquet")
    assert "never" not in read_data(shop).items


NOON = int(datetime(2024, 5, 31, 12, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["5", "6"], [5, 6]),
        (["2024-05-31T12:00:00", "2024-05-31 12:00:01"], [NOON, NOON + 1]),
        (["2024-05-31T12:00:00Z", "2024-05-31T14:00:01+02:00"], [NOON, NOON + 1]),
        (["2024-05-31T12:00:00.75", "2024-05-31"], [NOON, NOON - 12 * 3600]),
        ([str(NOON), "2024-05-31T12:00:00Z"], [NOON, NOON]),
    ],
)
def test_times_in_text(column: list[str], expected: list[int], tmp_path: Path) -> None:
    shop = write_shop(tmp_path / "shop", ".csv")
    rows = "".join(f"ann,{bundle},{time}\n" for bundle, time in zip(("sun", "tea"), column, strict=True))
    (shop / "user_bundle.csv").write_text("user_id,bundle_id,timestamp\n" + rows)
    data = read_data(shop)
    assert data.timestamps is not None
    assert data.timestamps.tolist() == expected


@pytest.mark.parametrize(
    "kind",
    [
        pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.large_string(), pa.timestamp("s"),
        pa.timestamp("ms"), pa.timestamp("ns"), pa.timestamp("us", "Asia/Tokyo"), pa.date64(),
    ],
    ids=str,
)  # fmt: skip
def test_times_of_every_type(kind: pa.DataType, tmp_path: Path) -> None:
    midnight = NOON - 12 * 3600
    seconds = pa.array([midnight, midnight + 86400])
    moments = seconds.cast(pa.timestamp("s"))
    if pa.types.is_timestamp(kind):
        moments = moments.cast(pa.timestamp(kind.unit)).cast(kind)
    column = seconds.cast(kind) if not pa.types.is_temporal(kind) else moments.cast(kind)
    shop = write_shop(tmp_path / "shop", ".parquet")
    columns = {"user_id": ["ann", "ann"], "bundle_id": ["sun", "tea"], "timestamp": column}
    parquet.write_table(pa.table(columns), shop / "user_bundle.parquet")
    data = read_data(shop)
    assert data.timestamps is not None
    assert data.timestamps.tolist() == [midnight, midnight + 86400]


def test_of_a_repeated_pair_the_earliest_time_is_kept(tmp_path: Path) -> None:
    shop = write_shop(tmp_path / "shop", ".csv")
    (shop / "user_bundle.csv").write_text(
        "user_id,bundle_id,timestamp\nbob,sun,9\nann,tea,7\nbob,sun,3\nann,sun,8\nbob,sun,5\n"
    )
    with pytest.warns(match="2 repeated pairs dropped"):
        data = read_data(shop)
    assert data.timestamps is not None
    assert data.timestamps.tolist() == [8, 7, 3]


def write_parts(directory: Path, suffix: str, timestamps: bool = False) -> Path:
    write_shop(directory, suffix)
    (directory / f"user_bundle{suffix}").unlink()
    parts = {"train": USER_BUNDLE[:2], "validation": USER_BUNDLE[2:3], "test": USER_BUNDLE[3:]}
    for offset, (part, rows) in enumerate(parts.items()):
        columns: dict[str, object] = {"user_id": [u for u, _ in rows], "bundle_id": [b for _, b in rows]}
        if timestamps:
            columns["timestamp"] = [10 * offset + n for n in range(len(rows))]
        write(directory / f"user_bundle_{part}{suffix}", columns)
    return directory


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_a_split_in_tables(suffix: str, tmp_path: Path) -> None:
    shop = write_parts(tmp_path / "shop", suffix)
    assert has_split(shop)
    split = read_split(shop)
    found = {part: id_pairs(matrix, SHOP.users, SHOP.bundles) for part, matrix in split.parts.items()}
    assert found == {
        "train": {("ann", "tea"), ("ann", "sun")},
        "validation": {("bob", "sun")},
        "test": {("eve", "box")},
    }
    assert (split.scenario, split.seed) == ("published", None)
    assert same(read_data(shop), SHOP)


def test_the_union_of_a_split_keeps_times_where_all_parts_have_them(tmp_path: Path) -> None:
    shop = write_parts(tmp_path / "all", ".csv", timestamps=True)
    (shop / "user_bundle_train.csv").write_text("user_id,bundle_id,timestamp\neve,box,7\nbob,sun,5\n")
    (shop / "user_bundle_validation.csv").write_text("user_id,bundle_id,timestamp\nann,tea,3\n")
    (shop / "user_bundle_test.csv").write_text("user_id,bundle_id,timestamp\nann,sun,9\n")
    data = read_data(shop)
    assert data.timestamps is not None
    assert data.timestamps.tolist() == [9, 3, 5, 7]  # ann: sun, tea; bob: sun; eve: box
    some = write_parts(tmp_path / "some", ".csv", timestamps=True)
    (some / "user_bundle_test.csv").write_text("user_id,bundle_id\neve,box\n")
    assert read_data(some).timestamps is None
    assert read_split(some).train.timestamps is not None


def test_lists_of_ids_add_ids_and_fix_their_order(tmp_path: Path) -> None:
    shop = write_shop(tmp_path / "shop", ".csv")
    (shop / "bundles.tsv").write_text("bundle_id\tprice\nnew\t3\nbox\t4\ntea\t5\nsun\t6\n")
    data = read_data(shop)
    assert data.bundles.ids == ("new", "box", "tea", "sun")
    assert id_pairs(data.user_bundle, data.users, data.bundles) == set(USER_BUNDLE)


def write_text(directory: Path, files: dict[str, str]) -> Path:
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_text(content)
    return directory


TEXT = {
    "Shop_data_size.txt": "3\t12\t4\r\n",
    "user_item.txt": "2\t1\n0\t3\n",
    "bundle_item.txt": "11\t0\n2\t3\n",
}


def test_launch_times_stand_in_the_list_of_bundles(tmp_path: Path) -> None:
    (tmp_path / "user_bundle.csv").write_text("user_id,bundle_id\nann,tea\nann,late\n")
    (tmp_path / "user_item.csv").write_text("user_id,item_id\nann,cup\n")
    (tmp_path / "bundle_item.csv").write_text("bundle_id,item_id\ntea,cup\n")
    (tmp_path / "bundles.csv").write_text(
        "bundle_id,launched\nsun,1970-01-03\ntea,\nbox,1970-01-02T00:00:00Z\nsun,1980-01-01\n"
    )
    with pytest.warns(DataWarning):
        data = read_data(tmp_path)
    assert data.bundles.ids == ("sun", "tea", "box", "late")
    np.testing.assert_equal(data.launched, [2 * 86400, np.nan, 86400, np.nan])


def test_research_text_has_declared_sizes_and_numeric_order(tmp_path: Path) -> None:
    shop = write_text(tmp_path / "shop", TEXT | {"user_bundle.txt": "0\t11\n0\t2\n2\t10\n"})
    assert not has_split(shop)
    with pytest.warns(match="hold no item: '10'"):
        data = read_data(shop)
    assert data.bundles.ids == tuple(str(n) for n in range(12))
    assert data.user_bundle.indices.tolist() == [2, 11, 10]
    assert id_pairs(data.user_item, data.users, data.items) == {("2", "1"), ("0", "3")}


def test_research_text_with_a_split(tmp_path: Path) -> None:
    parts = {"train": "0\t11\n", "tune": "0\t2\n", "test": ""}
    files = {f"user_bundle_{part}.txt": content for part, content in parts.items()}
    shop = write_text(tmp_path / "shop", TEXT | files)
    with pytest.warns(match=r"user_bundle_test.txt: there are no pairs"):
        split = read_split(shop)
    assert {part: matrix.indices.tolist() for part, matrix in split.parts.items()} == {
        "train": [11],
        "validation": [2],
        "test": [],
    }


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=30), st.sampled_from(["\n", "\r\n"])
)
def test_research_text_equals_a_line_by_line_reading(
    tmp_path: Path, found: list[tuple[int, int]], line_end: str
) -> None:
    sizes = {"Shop_data_size.txt": "6\t8\t4", "user_item.txt": "0\t0\n", "bundle_item.txt": "0\t0\n"}
    shop = tmp_path / str(len(list(tmp_path.iterdir())))
    write_text(shop, sizes | {"user_bundle.txt": "".join(f"{u}\t{b}{line_end}" for u, b in found)})
    oracle = set()
    for line in (shop / "user_bundle.txt").read_text().splitlines():
        user, bundle = line.split("\t")
        oracle.add((user, bundle))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = read_data(shop)
    assert id_pairs(data.user_bundle, data.users, data.bundles) == oracle


def large_world() -> BundleData:
    """Four million random pairs in the shape of iFashion."""
    rng = np.random.default_rng(0)
    n_users, n_bundles, n_items = 53_897, 27_694, 42_563
    users, bundles, items = (
        Vocabulary([f"{kind}-{n:05}" for n in range(size)], kind)
        for kind, size in (("user", n_users), ("bundle", n_bundles), ("item", n_items))
    )

    def some(count: int, rows: int, columns: int) -> Sparse:
        return relation(rng.integers(0, rows, count), rng.integers(0, columns, count), (rows, columns))

    return BundleData(
        users,
        bundles,
        items,
        some(1_680_000, n_users, n_bundles),
        some(2_291_000, n_users, n_items),
        some(107_000, n_bundles, n_items),
    )


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["tables", "research"])
def test_four_million_pairs_are_read_in_seconds(layout: str, tmp_path: Path) -> None:
    from coheat.data import write_research, write_tables

    data = large_world()
    if layout == "tables":
        write_tables(data, tmp_path / "large")
    else:
        write_research(data, tmp_path / "large", "Large")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()  # of all threads, but of this process alone
        again = read_data(tmp_path / "large")
        seconds = time.process_time() - start
    assert again.fingerprint == data.fingerprint
    assert seconds < 6  # about one and a half; reading line by line in Python takes far longer


@pytest.mark.real_data
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
@pytest.mark.parametrize(
    ("scenario", "sizes", "cold_bundles"),
    [
        ("cold", (33_468, 4_498, 11_385), (476, 945)),
        ("warm", (34_416, 5_189, 9_746), (246, 412)),
        ("all", (33_475, 5_444, 10_432), (309, 658)),
    ],
)
def test_youshu(scenario: str, sizes: tuple[int, ...], cold_bundles: tuple[int, int]) -> None:
    directory = PUBLISHED / scenario / "Youshu"
    split: Split = read_split(directory)
    assert tuple(part.nnz for part in split.parts.values()) == sizes
    report = split.report()
    assert (report["validation"]["cold_bundles"], report["test"]["cold_bundles"]) == cold_bundles
    found = stats(read_data(directory))
    assert (found.users, found.bundles, found.items) == (8_039, 4_771, 32_770)
    assert (found.user_item, found.bundle_item, found.user_bundle) == (138_515, 176_667, 49_351)
    assert found.average_bundle_size == pytest.approx(37.03, abs=0.005)
    assert check(directory).ok
