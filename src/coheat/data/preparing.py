"""From tables of any size to prepared data (`prepared.py`), within a limit of memory.

DuckDB does what needs all rows at once: it numbers the ids, puts positions in their place and sorts the
pairs, on the disk where they do not fit. Python sees a stretch of numbers at a time and never the ids.

Everything is made in a directory beside the result, which takes its name at the end: it is whole or absent. A
killed process leaves that directory, and the next one goes on with the steps that it had finished, or starts
again where the tables have changed since.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coheat import __version__
from coheat.data.databases import database_kind
from coheat.data.facts import SPLIT_FACTS
from coheat.data.files import find_layout
from coheat.data.prepared import (
    FORMAT,
    INDEX,
    KINDS,
    Index,
    Listing,
    Relation,
    is_prepared,
    stem_of,
    world_of,
)
from coheat.data.problems import Problems, counted
from coheat.data.streaming import TableError, Tables
from coheat.data.tables import PAIR_TABLES, SHOWN
from coheat.data.world import report_world
from coheat.errors import ConfigError, DataError
from coheat.memory_limit import parse_size
from coheat.storage import lock, read_json, write_json

INPUTS, DATABASE, SPILL = "inputs.json", "work.duckdb", "spill"
SHARE = 0.6
"""Of the limit that DuckDB gets; the rest is for Python and for what passes between them."""
LEAST = 128 * 10**6
Tell = Callable[[str], None]


def prepare(
    directory: str | Path,
    out: str | Path,
    memory_limit: str = "1GB",
    overwrite: bool = False,
    tell: Tell = lambda _: None,
) -> dict[str, Any]:
    """Prepare the tables in a directory (Parquet, .csv, .tsv) or in a DuckDB file; what was made, by name.

    `out` is then read by whatever reads `directory`, with the same ids in the same order. About as much
    memory as `memory_limit` is taken, whatever the size of the tables. `tell` hears of every step.
    """
    directory, out = Path(directory), Path(out)
    limit = max(int(SHARE * parse_size(memory_limit)), LEAST)
    _check_free(out, overwrite)
    work = out.with_name(f".{out.name}.preparing")
    work.mkdir(parents=True, exist_ok=True)
    with _alone(work):
        if not is_prepared(work):  # killed just before its last step
            _begin(work, directory)
            try:
                _Preparation(directory, work, limit, tell).run()
            except TableError as error:
                shutil.rmtree(work)
                raise DataError(f"{directory / error.table}: {error}") from None
            except DataError:
                shutil.rmtree(work)
                raise
        for name in (DATABASE, f"{DATABASE}.wal", INPUTS):
            (work / name).unlink(missing_ok=True)
        shutil.rmtree(work / SPILL, ignore_errors=True)
        for marker in work.glob("*.step.json"):
            marker.unlink()
        if out.exists():
            shutil.rmtree(out)
        work.rename(out)
    index = read_json(out / INDEX)
    pairs = {stem_of(part): relation["pairs"] for part, relation in index["interactions"].items()}
    others = {name: index[name]["pairs"] for name in ("user_item", "bundle_item")}
    counts = {f"{kind}s": count for kind, count in index["sizes"].items()}
    return {**counts, **pairs, **others, "bytes": sum(index["files"].values())}


def _check_free(out: Path, overwrite: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir() or (any(out.iterdir()) and not is_prepared(out)):
        raise ConfigError(f"{out}: something else is there; choose another --out, so that nothing is lost")
    if is_prepared(out) and not overwrite:
        raise ConfigError(f"{out}: there are prepared data already; replace them with --overwrite")


@contextmanager
def _alone(work: Path) -> Iterator[None]:
    handle = os.open(work, os.O_RDONLY)
    try:
        lock(handle)
        yield
    except BlockingIOError:
        raise ConfigError(f"{work}: another process is preparing these data; wait for it to end") from None
    finally:
        os.close(handle)


def _begin(work: Path, directory: Path) -> None:
    """Keep what an earlier process finished, if it had the same tables before it; else start again."""
    inputs = {"format": FORMAT, "coheat": __version__, "files": _stamps(directory)}
    known = work / INPUTS
    if not known.exists() or json.loads(known.read_text(encoding="utf-8")) != inputs:
        for path in work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_json(known, inputs)


def _stamps(directory: Path) -> dict[str, list[int]]:
    """Size and time of every file that could be read."""
    files = [directory] if directory.is_file() else sorted(p for p in directory.rglob("*") if p.is_file())
    return {str(path.absolute()): [path.stat().st_size, path.stat().st_mtime_ns] for path in files}


@dataclass(frozen=True)
class _Preparation:
    """One run over the tables; each step leaves something that is whole or not there."""

    directory: Path
    work: Path
    limit: int
    tell: Tell

    def run(self) -> None:
        problems = Problems(self.directory)
        layout = find_layout(self.directory, problems)
        problems.raise_errors()
        assert layout is not None
        if layout.kind != "tables" or database_kind(self.directory) == "sqlite":
            raise DataError(
                f"{self.directory}: it takes Parquet, .csv and .tsv tables and DuckDB files; write it as "
                "one of these, or use it as it is"
            )
        pairs = dict.fromkeys(layout.parts.values(), PAIR_TABLES["user_bundle"])
        pairs |= {name: PAIR_TABLES[name] for name in ("user_item", "bundle_item")}
        with Tables.open(self.directory, self.work / DATABASE, self.work / SPILL, self.limit) as tables:
            found, shown = self._relations(tables, pairs)
            about = {
                kind: Listing(*listing)
                for kind in ("bundle", "item")
                if (listing := tables.write_listing(kind, self.work / f"about_{kind}s.parquet")) is not None
            }
            sizes = {kind: tables.count(kind) for kind in KINDS}
            for kind in KINDS:
                tables.write_ids(kind, self.work / f"{kind}s.parquet")
            tables.report(problems)
        problems.raise_errors()
        if (self.directory / SPLIT_FACTS).is_file():
            shutil.copyfile(self.directory / SPLIT_FACTS, self.work / SPLIT_FACTS)
        self._conclude(layout.parts, sizes, found, shown, about, problems)

    def _relations(
        self, tables: Tables, pairs: Mapping[str, tuple[str, str]]
    ) -> tuple[dict[str, Relation], Relation | None]:
        """All relations; ids first, since every table adds to them."""
        self.tell("looking at the tables")
        tables.check(pairs)
        for kind in KINDS:
            self.tell(f"numbering {kind}s")
            tables.number(kind)
        found = {}
        for name, kinds in pairs.items():
            self.tell(f"sorting {name}")
            found[name] = self._once(name, partial(tables.write_pairs, name, kinds, self.work))
        shown = None
        if tables.has(SHOWN):
            self.tell(f"sorting {SHOWN}")
            shown = self._once(SHOWN, partial(tables.write_shown, self.work))
        return found, shown

    def _once(self, name: str, make: Callable[[], Relation]) -> Relation:
        """A relation, made unless a process before this one has made it."""
        marker = self.work / f"{name}.step.json"
        if not marker.exists():
            write_json(marker, asdict(make()))
        return Relation(**read_json(marker))

    def _conclude(
        self,
        parts: Mapping[str, str],
        sizes: dict[str, int],
        found: Mapping[str, Relation],
        shown: Relation | None,
        about: Mapping[str, Listing],
        problems: Problems,
    ) -> None:
        """Look at the whole as every reader of tables does, and write what makes it valid."""
        self.tell("checking")
        index = Index(
            FORMAT,
            __version__,
            sizes,
            {part: asdict(found[stem]) for part, stem in parts.items()},
            asdict(found["user_item"]),
            asdict(found["bundle_item"]),
            None if shown is None else asdict(shown),
            {kind: asdict(listing) for kind, listing in about.items()},
        )
        files = {
            path.name: path.stat().st_size
            for path in sorted(self.work.iterdir())
            if path.is_file() and path.suffix in (".npy", ".parquet")
        }
        told = Problems(self.directory)
        for relation in (*found.values(), *([] if shown is None else [shown])):
            if relation.repeated:
                what = f"{counted(relation.repeated, 'repeated pair')} dropped"
                told.warning(relation.source, what, "each pair counts once; of its timestamps the earliest")
        world = world_of(self.work, index, list(parts), told)
        if world is not None:
            sources = {part: found[stem].source for part, stem in parts.items()}
            report_world(world, sources, found["bundle_item"].source, told)
        problems.found += told.found
        problems.conclude(stacklevel=5)
        write_json(self.work / INDEX, {**asdict(index), "files": files})
