"""Writing data and splits: as Parquet tables or as research text, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from coheat.attributes import Attributes
from coheat.attributes.arrow import to_arrow
from coheat.data.dataset import BundleData, Indices, Shown, Sparse, pairs
from coheat.data.facts import SPLIT_FACTS, write_facts
from coheat.data.files import LEDGER, SUFFIXES
from coheat.data.research import PART_FILES, UNSPLIT_FILE
from coheat.data.split import PARTS, Split
from coheat.data.tables import KINDS, PAIR_TABLES, SHOWN
from coheat.errors import DataError
from coheat.ids import Vocabulary
from coheat.storage import replacing_directory

COLLECTED = "collected.json"
"""What is known of tables that `coheat data collect` wrote: see `coheat.retraining.collecting`."""


def write_tables(data: BundleData | Split, directory: str | Path, overwrite: bool = False) -> None:
    """Write Parquet tables that `read_data` and `read_split` read back exactly, in the same order of ids.

    A BundleData becomes `user_bundle`, `user_item`, `bundle_item`; a Split has `user_bundle_train`,
    `_validation` and `_test` in place of the first. Timestamps of held-out interactions are not part
    of a Split and so are not written.
    """
    with fresh_directory(Path(directory), overwrite) as target:
        fill_tables(data, target)


def fill_tables(data: BundleData | Split, target: Path) -> None:
    """Write the tables into a directory that is there; see `write_tables`."""
    world = data.train if isinstance(data, Split) else data
    for name, (matrix, timestamps) in _interactions(data).items():
        stem = "user_bundle" if name == "all" else f"user_bundle_{name}"
        _write_pairs(target / f"{stem}.parquet", matrix, world.users, world.bundles, timestamps)
    _write_pairs(
        target / "user_item.parquet", world.user_item, world.users, world.items, world.item_timestamps
    )
    _write_pairs(target / "bundle_item.parquet", world.bundle_item, world.bundles, world.items)
    for vocabulary in (world.users, world.bundles, world.items):
        _write_ids(target, vocabulary, world)
    if world.shown is not None:
        _write_shown(target / f"{SHOWN}.parquet", world, world.shown)
    if isinstance(data, Split):
        write_facts(target, data)


def write_research(
    data: BundleData | Split, directory: str | Path, name: str, overwrite: bool = False
) -> None:
    """Write the research text layout (see `coheat.data.research`), readable by published code.

    Ids become their positions. If they were other than "0", "1", ..., tables `users`, `bundles` and `items`
    keep them, and reading restores them; `bundles` and `items` also keep all their columns. The layout has no
    place for other times, nor for what was shown.
    """
    if not name or "/" in name or "\\" in name:
        raise DataError(f"the name {name!r} becomes part of a file's name; use letters and digits")
    world = data.train if isinstance(data, Split) else data
    with fresh_directory(Path(directory), overwrite) as target:
        sizes = f"{world.n_users}\t{world.n_bundles}\t{world.n_items}\n"
        (target / f"{name}_data_size.txt").write_text(sizes, encoding="utf-8")
        for part, (matrix, _) in _interactions(data).items():
            _write_integers(target / (UNSPLIT_FILE if part == "all" else PART_FILES[part]), matrix)
        _write_integers(target / "user_item.txt", world.user_item)
        _write_integers(target / "bundle_item.txt", world.bundle_item)
        for vocabulary in (world.users, world.bundles, world.items):
            numbered = vocabulary.ids == tuple(map(str, range(len(vocabulary))))
            times = vocabulary.kind == "bundle" and world.offer_times
            if not numbered or times or _attributes(world, vocabulary.kind):
                _write_ids(target, vocabulary, world)
        if isinstance(data, Split):
            write_facts(target, data)


def _interactions(data: BundleData | Split) -> dict[str, tuple[Sparse, Indices | None]]:
    """The user-bundle relations to write, by part ("all" for undivided data), with their timestamps."""
    if isinstance(data, BundleData):
        return {"all": (data.user_bundle, data.timestamps)}
    timestamps = {"train": data.train.timestamps}
    return {part: (matrix, timestamps.get(part)) for part, matrix in data.parts.items()}


@contextmanager
def fresh_directory(directory: Path, overwrite: bool) -> Iterator[Path]:
    """A directory beside `directory` to fill, which then takes its place; only data are ever replaced."""
    directory = directory.resolve()
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory}: there is a file of that name; choose another")
    present = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    if present and not overwrite:
        raise DataError(
            f"{directory}: not empty; choose another directory, or allow overwriting (--overwrite)"
        )
    foreign = [name for name in present if not _is_ours(name)]
    if foreign:
        raise DataError(
            f"{directory}: not overwritten, because {foreign[0]!r} in it was not written by coheat; choose "
            "another directory"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing_directory(directory) as target:
            yield target
    except OSError as error:
        raise DataError(f"{directory}: writing failed: {error}") from None


def _is_ours(name: str) -> bool:
    stems = {*PAIR_TABLES, SHOWN, *(f"user_bundle_{part}" for part in PARTS), *(f"{kind}s" for kind in KINDS)}
    texts = {UNSPLIT_FILE, *PART_FILES.values(), "user_item.txt", "bundle_item.txt", SPLIT_FACTS}
    texts |= {COLLECTED, LEDGER}
    return (
        name in texts
        or name.endswith("_data_size.txt")
        or any(name == stem + suffix for stem in stems for suffix in SUFFIXES)
    )


def _write_pairs(
    path: Path, matrix: Sparse, rows: Vocabulary, columns: Vocabulary, timestamps: Indices | None = None
) -> None:
    row_positions, column_positions = pairs(matrix)
    _write_rows(path, (rows, row_positions), (columns, column_positions), timestamps)


def _write_shown(path: Path, world: BundleData, shown: Shown) -> None:
    _write_rows(path, (world.users, shown.users), (world.bundles, shown.bundles), shown.timestamps)


def _write_rows(
    path: Path,
    one: tuple[Vocabulary, Indices],
    other: tuple[Vocabulary, Indices],
    timestamps: Indices | None,
) -> None:
    """A table of two columns of ids, given as positions in their vocabularies, and of times where known."""
    table: dict[str, Any] = {
        f"{vocabulary.kind}_id": pa.DictionaryArray.from_arrays(
            pa.array(positions, pa.int32()), pa.array(vocabulary.ids, pa.string())
        ).cast(pa.string())
        for vocabulary, positions in (one, other)
    }
    if timestamps is not None:
        table["timestamp"] = timestamps
    parquet.write_table(pa.table(table), path)


def _write_ids(directory: Path, vocabulary: Vocabulary, world: BundleData) -> None:
    table: dict[str, Any] = {f"{vocabulary.kind}_id": pa.array(vocabulary.ids, pa.string())}
    if vocabulary.kind == "bundle":
        for name, moments in world.offer_times.items():
            table[name] = pa.array(moments, pa.float64(), from_pandas=True)
    for name, column in _attributes(world, vocabulary.kind).columns.items():
        table[name] = to_arrow(column, len(vocabulary))
    parquet.write_table(pa.table(table), directory / f"{vocabulary.kind}s.parquet")


def _attributes(world: BundleData, kind: str) -> Attributes:
    return {"bundle": world.bundle_attributes, "item": world.item_attributes}.get(kind, Attributes())


def _write_integers(path: Path, matrix: Sparse) -> None:
    rows, columns = pairs(matrix)
    options = csv.WriteOptions(include_header=False, delimiter="\t")
    csv.write_csv(pa.table({"row": rows, "column": columns}), path, options)
