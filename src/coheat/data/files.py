"""Reading a directory or a database: what stands in it decides how it is read.

Tables: `user_bundle`, `user_item`, `bundle_item`, each as .parquet, .csv or .tsv (the latter two also
compressed, as .csv.gz and .tsv.gz), as a directory of Parquet files (`user_bundle/`, partitioned or not), or
as a table of a SQLite or DuckDB file; with columns named `user_id`, `bundle_id`, `item_id` and, where known,
`timestamp` in the first two. Instead of `user_bundle`, a split: `user_bundle_train`,
`user_bundle_validation`, `user_bundle_test`. Optional tables `users`, `bundles`, `items` list ids that stand
nowhere else and fix the order of the ids; without them ids are sorted, so the order of rows never matters.
`bundles` may have columns `launched` and `ends`: since and until when a bundle is on offer, so that one that
nobody took for long is not taken for new. All further columns of `bundles` and `items`, such as `title`, are
kept (`describing.py`). An optional table `shown` (`user_id`, `bundle_id`, where known `timestamp`) counts who
was shown what.

Research text: see `coheat.data.research`. Tables that were prepared for being larger than memory: see
`coheat.data.prepared`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from coheat.data import prepared, research
from coheat.data.databases import database_kind, read_table, table_names
from coheat.data.dataset import BundleData
from coheat.data.facts import SplitFacts, check_levels, read_facts
from coheat.data.problems import Problems
from coheat.data.sources import Source, read_parquet_table
from coheat.data.split import PARTS, Split
from coheat.data.tables import KINDS, PAIR_TABLES, SHOWN, code_table, world_from_tables
from coheat.data.text import read_text
from coheat.data.world import World
from coheat.errors import DataError

SUFFIXES = (".parquet", ".csv", ".tsv", ".csv.gz", ".tsv.gz")
LEDGER = "collected.parquet"
"""Which rows of the tables beside it were collected from a service."""


def read_data(directory: str | Path) -> BundleData:
    """All interactions of a directory; if it holds a split, those of its parts together."""
    return _read(Path(directory)).world.data()


def read_split(directory: str | Path) -> Split:
    """The split that a directory holds: train, validation (or tune) and test."""
    reading = _read(Path(directory))
    if set(reading.world.parts) != set(PARTS):
        raise DataError(
            f"{directory}: it holds no split; name a scenario, or make a split with "
            f"`coheat data split {directory} --scenario cold --out SPLIT`"
        )
    return reading.world.split(reading.facts)


def read_pairs(path: str | Path) -> tuple[list[str], list[str]]:
    """The user ids and bundle ids of one file of interactions, row by row: a table, or research text."""
    place, problems = Path(path), Problems()
    if not place.is_file():
        raise DataError(f"{place}: there is no such file of interactions (user_id, bundle_id)")
    kinds = ("user", "bundle")
    if place.suffix == ".txt":
        found = research.read_pairs(place, kinds, None, problems)
        problems.raise_errors()
        assert found is not None
        return [str(n) for n in found.rows.tolist()], [str(n) for n in found.columns.tolist()]
    stem = next((place.name.removesuffix(end) for end in SUFFIXES if place.name.endswith(end)), None)
    if stem is None:
        raise DataError(f"{place}: not a table of interactions; write it as {', '.join(SUFFIXES)} or .txt")
    source = _open(place.parent, stem, problems)
    table = None if source is None else code_table(source, kinds, problems)
    problems.raise_errors()
    assert table is not None
    users, bundles = (
        ids.take(pa.array(codes)).to_pylist()
        for ids, codes in zip(table.ids, (table.pairs.rows, table.pairs.columns), strict=True)
    )
    return users, bundles


def has_split(directory: str | Path) -> bool:
    """Whether a directory holds interactions that are already divided into parts."""
    layout = find_layout(Path(directory), Problems())
    return layout is not None and layout.is_split


@dataclass(frozen=True)
class Layout:
    """How a directory is written (one of READERS), and which files hold the interactions."""

    kind: str
    parts: Mapping[str, str]

    @property
    def is_split(self) -> bool:
        return set(self.parts) == set(PARTS)


@dataclass(frozen=True)
class Reading:
    """What a directory holds: a world, and the facts about its split where it tells them."""

    world: World
    facts: SplitFacts


def _read(directory: Path) -> Reading:
    problems = Problems(directory)
    reading = inspect(directory, problems)
    problems.conclude(stacklevel=4)
    assert reading is not None, "without an error there is a world"
    return reading


def inspect(directory: Path, problems: Problems) -> Reading | None:
    """Read a directory and tell everything that is wrong to `problems`; None where errors prevent reading."""
    try:
        layout = find_layout(directory, problems)
        if layout is None:
            return None
        world = READERS[layout.kind](directory, layout.parts, problems)
        facts = read_facts(directory, problems)
        if world is not None and layout.is_split:
            taken = world.parts["train"].matrix.indices
            check_levels(facts, world.bundles, np.bincount(taken, minlength=len(world.bundles)), problems)
    except OSError as error:
        problems.error("", f"reading failed: {error}")
        return None
    except MemoryError:
        problems.error("", "there is not enough memory to read it", "raise --memory-limit, or leave out rows")
        return None
    return None if world is None else Reading(world, facts)


def find_layout(directory: Path, problems: Problems) -> Layout | None:
    """Tell tables from research text, and a split from undivided interactions."""
    if prepared.is_prepared(directory):
        index = prepared.read_index(directory, problems)
        parts = () if index is None else index.interactions
        return Layout("prepared", {part: prepared.stem_of(part) for part in parts}) if parts else None
    unsplit_table, part_tables = "user_bundle", {part: f"user_bundle_{part}" for part in PARTS}
    stems = (*PAIR_TABLES, *part_tables.values())
    if database_kind(directory):
        stored = table_names(directory, problems)
        if stored is None:
            return None
        names, tables = set(), set(stems) & stored
    elif directory.is_dir():
        names = {path.name for path in directory.iterdir()}
        tables = {stem for stem in stems if paths_of(directory, stem)}
    else:
        is_file = directory.exists()
        what = "this is a file, not a directory or a database" if is_file else "there is no such directory"
        problems.error("", what, "name the directory that holds the tables, or a SQLite or DuckDB file")
        return None
    texts = names & {research.UNSPLIT_FILE, *research.PART_FILES.values(), "user_item.txt", "bundle_item.txt"}
    if tables and texts:
        both = f"{min(tables)} as a table and {min(texts)}"
        problems.error("", f"two layouts stand here: {both}", "keep the tables or the .txt files")
        return None
    if not tables and not texts:
        problems.error("", "there are no tables here", _where_tables_are(directory))
        return None
    kind, present = ("tables", tables) if tables else ("research", texts)
    unsplit, parts = (
        (unsplit_table, part_tables) if tables else (research.UNSPLIT_FILE, dict(research.PART_FILES))
    )
    if not present & set(parts.values()):
        return Layout(kind, {"all": unsplit})
    if unsplit in present:
        problems.warning(unsplit, "not read, because the parts of a split stand beside it")
    return Layout(kind, parts)


def paths_of(directory: Path, stem: str) -> list[Path]:
    """What stands there by the name of a table: files, or directories of Parquet files."""
    files = [directory / f"{stem}{suffix}" for suffix in SUFFIXES]
    folders = [directory / stem, directory / f"{stem}.parquet"]
    return [path for path in files if path.is_file()] + [
        path for path in folders if path.is_dir() and next(path.rglob("*.parquet"), None)
    ]


def _where_tables_are(directory: Path) -> str:
    """A hint for a directory without tables: perhaps one below it was meant."""
    expected = "expected: user_bundle, user_item, bundle_item as .parquet, .csv or .tsv"
    if not directory.is_dir():
        return "expected: user_bundle, user_item, bundle_item"
    for below in sorted(path for path in directory.iterdir() if path.is_dir()):
        if find_layout(below, Problems()) is not None:
            return f"did you mean {below}?"
    return expected


def _read_tables(directory: Path, parts: Mapping[str, str], problems: Problems) -> World | None:
    names = {**parts, "user_item": "user_item", "bundle_item": "bundle_item"}
    sources = {name: _open(directory, stem, problems) for name, stem in names.items()}
    shown = _open(directory, SHOWN, problems, optional=True)
    if shown is not None:
        sources[SHOWN] = shown
    id_lists = {kind: _open(directory, f"{kind}s", problems, optional=True) for kind in KINDS}
    known_ids = {kind: source for kind, source in id_lists.items() if source is not None}
    if directory.is_dir():
        _tell_of_others(directory, problems)
    return world_from_tables(sources, known_ids, problems)


def _tell_of_others(directory: Path, problems: Problems) -> None:
    """Say which tables of a directory are not read; a known one may be meant by a name that is nearly its."""
    known = {*PAIR_TABLES, *(f"user_bundle_{part}" for part in PARTS), SHOWN, *(f"{kind}s" for kind in KINDS)}
    others = sorted(
        path.name
        for path in directory.iterdir()
        if path.is_file() and path.name.endswith(SUFFIXES) and path.name != LEDGER
    )
    unknown = [name for name in others if name.partition(".")[0] not in known]
    missing = sorted(stem for stem in known if not paths_of(directory, stem))
    for name in unknown:
        close = difflib.get_close_matches(name.partition(".")[0], missing, n=1, cutoff=0.8)
        if close:
            problems.warning(name, "not read: a table of this name is not known", f"did you mean {close[0]}?")
        else:
            problems.note(name, "not read: a table of this name is not known")


def _open(directory: Path, stem: str, problems: Problems, optional: bool = False) -> Source | None:
    """The table of that name in whichever format it stands there."""
    if database_kind(directory):
        stored = stem in (table_names(directory, problems) or ())
        if not stored and not optional:
            problems.error(stem, "there is no such table", f"expected a table or a view in {directory.name}")
        table = read_table(directory, stem, problems) if stored else None
        return None if table is None else Source(stem, table)
    present = paths_of(directory, stem)
    if not present:
        if not optional:
            expected = " or ".join(f"{stem}{suffix}" for suffix in SUFFIXES)
            problems.error(stem, "there is no such table", f"expected {expected}")
        return None
    if len(present) > 1:
        problems.error(stem, f"it stands here as {' and as '.join(p.name for p in present)}", "keep one")
        return None
    path = present[0]
    if path.suffix == ".parquet" or path.is_dir():
        table = read_parquet_table(path, problems)
        return None if table is None else Source(path.name, table)
    found = read_text(path, "," if ".csv" in path.suffixes else "\t", problems)
    return None if found is None else Source(path.name, found.table, found.show_rows, typed=False)


READERS: dict[str, Callable[[Path, Mapping[str, str], Problems], World | None]] = {
    "tables": _read_tables,
    "research": research.read_world,
    "prepared": prepared.read_world,
}
