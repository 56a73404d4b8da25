"""Writing data and splits: as Parquet tables or as research text, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from coheat.data.dataset import BundleData, Indices, Moments, Sparse, pairs
from coheat.data.files import SPLIT_FACTS, SUFFIXES
from coheat.data.research import PART_FILES, UNSPLIT_FILE
from coheat.data.split import PARTS, Split
from coheat.data.tables import KINDS, PAIR_TABLES
from coheat.errors import DataError
from coheat.ids import Vocabulary
from coheat.storage import replacing_directory


def write_tables(data: BundleData | Split, directory: str | Path, overwrite: bool = False) -> None:
    """Write Parquet tables that `read_data` and `read_split` read back exactly, in the same order of ids.

    A BundleData becomes `user_bundle`, `user_item`, `bundle_item`; a Split has `user_bundle_train`,
    `_validation` and `_test` in place of the first. Timestamps of held-out interactions are not part
    of a Split and so are not written.
    """
    world = data.train if isinstance(data, Split) else data
    with _fresh(Path(directory), overwrite) as target:
        for name, (matrix, timestamps) in _interactions(data).items():
            stem = "user_bundle" if name == "all" else f"user_bundle_{name}"
            _write_pairs(target / f"{stem}.parquet", matrix, world.users, world.bundles, timestamps)
        _write_pairs(target / "user_item.parquet", world.user_item, world.users, world.items)
        _write_pairs(target / "bundle_item.parquet", world.bundle_item, world.bundles, world.items)
        for vocabulary in (world.users, world.bundles, world.items):
            _write_ids(target, vocabulary, world.launched if vocabulary.kind == "bundle" else None)
        _write_facts(target, data)


def write_research(
    data: BundleData | Split, directory: str | Path, name: str, overwrite: bool = False
) -> None:
    """Write the research text layout (see `coheat.data.research`), readable by published code.

    Ids become their positions. Where they were other than "0", "1", ..., tables `users`, `bundles`
    and `items` keep them, and reading gives them back. The layout has no place for times.
    """
    if not name or "/" in name or "\\" in name:
        raise DataError(f"the name {name!r} becomes part of a file's name; use letters and digits")
    world = data.train if isinstance(data, Split) else data
    with _fresh(Path(directory), overwrite) as target:
        sizes = f"{world.n_users}\t{world.n_bundles}\t{world.n_items}\n"
        (target / f"{name}_data_size.txt").write_text(sizes, encoding="utf-8")
        for part, (matrix, _) in _interactions(data).items():
            _write_integers(target / (UNSPLIT_FILE if part == "all" else PART_FILES[part]), matrix)
        _write_integers(target / "user_item.txt", world.user_item)
        _write_integers(target / "bundle_item.txt", world.bundle_item)
        for vocabulary in (world.users, world.bundles, world.items):
            if vocabulary.ids != tuple(map(str, range(len(vocabulary)))):
                _write_ids(target, vocabulary)
        _write_facts(target, data)


def _interactions(data: BundleData | Split) -> dict[str, tuple[Sparse, Indices | None]]:
    """The user-bundle relations to write, by part ("all" for undivided data), with their timestamps."""
    if isinstance(data, BundleData):
        return {"all": (data.user_bundle, data.timestamps)}
    timestamps = {"train": data.train.timestamps}
    return {part: (matrix, timestamps.get(part)) for part, matrix in data.parts.items()}


@contextmanager
def _fresh(directory: Path, overwrite: bool) -> Iterator[Path]:
    """A directory beside `directory` to fill, which then takes its place; only data are ever replaced."""
    directory = directory.resolve()
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory}: a file stands there; choose another name")
    present = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    if present and not overwrite:
        raise DataError(
            f"{directory}: not empty; choose another directory, or allow overwriting (--overwrite)"
        )
    foreign = [name for name in present if not _is_ours(name)]
    if foreign:
        raise DataError(
            f"{directory}: not overwritten, because {foreign[0]!r} in it is none of our files; "
            "choose another directory"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing_directory(directory) as target:
            yield target
    except OSError as error:
        raise DataError(f"{directory}: writing failed: {error}") from None


def _is_ours(name: str) -> bool:
    stems = {*PAIR_TABLES, *(f"user_bundle_{part}" for part in PARTS), *(f"{kind}s" for kind in KINDS)}
    texts = {UNSPLIT_FILE, *PART_FILES.values(), "user_item.txt", "bundle_item.txt", SPLIT_FACTS}
    return (
        name in texts
        or name.endswith("_data_size.txt")
        or any(name == stem + suffix for stem in stems for suffix in SUFFIXES)
    )


def _write_pairs(
    path: Path, matrix: Sparse, rows: Vocabulary, columns: Vocabulary, timestamps: Indices | None = None
) -> None:
    table: dict[str, Any] = {
        f"{vocabulary.kind}_id": pa.DictionaryArray.from_arrays(
            pa.array(positions, pa.int32()), pa.array(vocabulary.ids, pa.string())
        ).cast(pa.string())
        for vocabulary, positions in zip((rows, columns), pairs(matrix), strict=True)
    }
    if timestamps is not None:
        table["timestamp"] = timestamps
    parquet.write_table(pa.table(table), path)


def _write_ids(directory: Path, vocabulary: Vocabulary, launched: Moments | None = None) -> None:
    table: dict[str, Any] = {f"{vocabulary.kind}_id": pa.array(vocabulary.ids, pa.string())}
    if launched is not None:
        table["launched"] = pa.array(launched, pa.float64(), from_pandas=True)
    parquet.write_table(pa.table(table), directory / f"{vocabulary.kind}s.parquet")


def _write_integers(path: Path, matrix: Sparse) -> None:
    rows, columns = pairs(matrix)
    options = csv.WriteOptions(include_header=False, delimiter="\t")
    csv.write_csv(pa.table({"row": rows, "column": columns}), path, options)


def _write_facts(directory: Path, data: BundleData | Split) -> None:
    if isinstance(data, Split):
        facts = {"scenario": data.scenario, "seed": data.seed}
        (directory / SPLIT_FACTS).write_text(json.dumps(facts) + "\n", encoding="utf-8")
