"""Tables as DuckDB sees them: ids numbered and pairs sorted within a limit of memory, streamed to files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from coheat.data.columns import INTEGERS_OR_TEXTS, MISSING_WORDS
from coheat.data.databases import database_kind
from coheat.data.files import paths_of
from coheat.data.prepared import KINDS, Relation
from coheat.data.problems import Problems, counted, listed
from coheat.data.tables import DATED_TABLES, PAIR_TABLES, SHOWN
from coheat.errors import ConfigError
from coheat.storage import replacing_file
from coheat.threads import n_threads

STRETCH = 1 << 18
"""Pairs that Python has in hand at a time."""
INTEGERS = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
}
Indices = npt.NDArray[np.int64]


class TableError(Exception):
    """What is wrong with a table that was to be prepared."""

    def __init__(self, table: str, what: str):
        super().__init__(what)
        self.table = table


@dataclass(frozen=True)
class Table:
    """How a table is asked for: what stands behind FROM, its columns with types, its name in messages."""

    name: str
    origin: str
    types: Mapping[str, str]
    typed: bool = True

    def id_column(self, kind: str) -> str:
        """The ids of a column as texts, NULL where there is none that can be used."""
        name = f"{kind}_id"
        if name not in self.types:
            names = ", ".join(map(repr, self.types))
            raise TableError(self.name, f"there is no column named {name} (its columns are {names})")
        column, kind_of = quoted(name), self.types[name]
        if kind_of == "BLOB":
            column = f"decode({column})"
        elif kind_of in ("DOUBLE", "FLOAT"):
            whole = f"isfinite({column}) AND {column} = round({column}) AND abs({column}) < 9007199254740992"
            column = f"CASE WHEN {whole} THEN CAST(CAST({column} AS BIGINT) AS VARCHAR) END"
        elif kind_of in INTEGERS or kind_of.startswith(("DECIMAL", "ENUM")):
            column = f"CAST({column} AS VARCHAR)"
        elif kind_of != "VARCHAR":
            raise TableError(self.name, f"{name} is of type {kind_of}; {INTEGERS_OR_TEXTS}")
        return f"nullif({column}, '')"

    @property
    def time_column(self) -> str:
        """The column `timestamp` as Unix seconds, NULL where it is no time."""
        column, kind = '"timestamp"', self.types["timestamp"]
        if kind in INTEGERS:
            return f"CAST({column} AS BIGINT)"
        if kind.startswith(("TIMESTAMP", "DATE")):
            return f"CAST(floor(epoch({column})) AS BIGINT)"
        if kind in ("DOUBLE", "FLOAT"):
            return f"CASE WHEN abs({column}) < 9007199254740992 THEN CAST(floor({column}) AS BIGINT) END"
        if kind == "VARCHAR":
            number = f"regexp_full_match({column}, '-?[0-9]{{1,18}}')"
            moment = f"CAST(floor(epoch(TRY_CAST({column} AS TIMESTAMP))) AS BIGINT)"
            return f"CASE WHEN {number} THEN TRY_CAST({column} AS BIGINT) ELSE {moment} END"
        raise TableError(self.name, f"timestamp is of type {kind}; write whole Unix seconds")

    def is_dated(self, kinds: tuple[str, str]) -> bool:
        return kinds in DATED_TABLES and "timestamp" in self.types


@dataclass
class Tables:
    """All tables of a directory or a DuckDB file, and the database in which they are put in order."""

    connection: Any
    tables: dict[str, Table]
    pairs: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def open(cls, directory: Path, database: Path, spill: Path, limit: int) -> Self:
        """Work in `database`, which may hold what an earlier process finished, and spill beside it."""
        try:
            import duckdb
        except ImportError:
            raise ConfigError(
                "preparing tables needs DuckDB; install it with: pip install 'coheat[prepare]'"
            ) from None
        config = {"memory_limit": f"{limit}B", "threads": n_threads(), "temp_directory": str(spill)}
        connection = duckdb.connect(str(database), config=config)
        if database_kind(directory):
            connection.execute(f"ATTACH {text(str(directory))} AS given (READ_ONLY)")
            # A view of somebody else's file could read files of ours.
            found = connection.execute(
                "SELECT table_name FROM duckdb_tables() WHERE database_name = 'given' AND NOT internal"
            ).fetchall()
            origins = {name: (f"given.{quoted(name)}", name, True) for (name,) in found}
        else:
            origins = _files(directory)
        opened = cls(connection, {})
        for stem, (origin, name, typed) in origins.items():
            with _telling(name):
                columns = connection.execute(f"DESCRIBE SELECT * FROM {origin}").fetchall()
            opened.tables[stem] = Table(name, origin, {row[0]: row[1] for row in columns}, typed)
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def has(self, stem: str) -> bool:
        return stem in self.tables

    def check(self, pairs: Mapping[str, tuple[str, str]]) -> None:
        """Refuse tables with missing columns, and rows without ids or times."""
        self.pairs = {**pairs, **({SHOWN: PAIR_TABLES["user_bundle"]} if self.has(SHOWN) else {})}
        for stem, kinds in self.pairs.items():
            if not self.has(stem):
                raise TableError(stem, "there is no such table")
            table = self.tables[stem]
            columns = {f"{kind}_id": table.id_column(kind) for kind in kinds}
            if table.is_dated(kinds):
                columns["timestamp"] = table.time_column
            counts = ", ".join(f"count(*) - count({column})" for column in columns.values())
            (missing,) = self._ask(table, f"SELECT {counts} FROM {table.origin}")
            for name, count in zip(columns, missing, strict=True):
                if count:
                    what = f"{counted(count, 'row')} without a usable {name}"
                    raise TableError(table.name, f"{what}; fill it in or delete them")

    def number(self, kind: str) -> None:
        """A table `ids_KIND` whose n-th row is the id at position n: those listed first, then the others."""
        name = f"ids_{kind}"
        if self._is_there(name):
            return
        texts = [
            f"SELECT {self.tables[stem].id_column(kind)} AS id FROM {self.tables[stem].origin}"
            for stem, kinds in self.pairs.items()
            if kind in kinds and not (stem == SHOWN and kind == "bundle")
        ]
        everywhere = " UNION ALL ".join(texts)
        if not self.has(f"{kind}s"):
            self._make(name, f"SELECT DISTINCT id FROM ({everywhere}) ORDER BY id")
            return
        table = self.tables[f"{kind}s"]
        listing = f"list_{kind}"
        if not self._is_there(listing):
            self._make(listing, f"SELECT *, {table.id_column(kind)} AS listed_id FROM {table.origin}", table)
        query = f"""
            WITH listed AS (
                SELECT listed_id AS id, min(rowid) AS place FROM {listing}
                WHERE listed_id IS NOT NULL GROUP BY 1
            ), others AS (
                SELECT DISTINCT id, NULL::BIGINT AS place FROM ({everywhere}) ANTI JOIN listed USING (id)
            )
            SELECT id FROM (FROM listed UNION ALL FROM others) ORDER BY place NULLS LAST, id
        """
        self._make(name, query)

    def count(self, kind: str) -> int:
        return int(self.connection.execute(f"SELECT count(*) FROM ids_{kind}").fetchall()[0][0])

    def write_ids(self, kind: str, path: Path) -> None:
        self._write(f"SELECT id AS {kind}_id FROM ids_{kind} ORDER BY rowid", path)

    def write_listing(self, kind: str, path: Path) -> tuple[str, bool] | None:
        """The table of that kind, each id once; None where there is none, or it has no further columns."""
        table = self.tables.get(f"{kind}s")
        if table is None or len(table.types) < 2:
            return None
        first = f"SELECT min(rowid) FROM list_{kind} WHERE listed_id IS NOT NULL GROUP BY listed_id"
        columns = ", ".join(
            f"listed_id AS {quoted(name)}" if name == f"{kind}_id" else quoted(name) for name in table.types
        )
        self._write(f"SELECT {columns} FROM list_{kind} WHERE rowid IN ({first}) ORDER BY rowid", path)
        return table.name, table.typed

    def write_pairs(self, stem: str, kinds: tuple[str, str], directory: Path) -> Relation:
        """The distinct pairs of a table as positions, by rows; of a repeated one the earliest time."""
        table = self.tables[stem]
        dated = table.is_dated(kinds)
        sizes = np.zeros(self.count(kinds[0]) + 1, dtype=np.int64)
        total = repeated = 0
        before = (-1, -1)
        with (
            _array(directory / f"{stem}.indices.npy", np.int32) as columns,
            _array(directory / f"{stem}.timestamps.npy", np.int64) if dated else nullcontext() as times,
        ):
            for rows, others, moments in self._sorted(stem, kinds, dated):
                first = np.ones(len(rows), dtype=bool)
                first[0] = (int(rows[0]), int(others[0])) != before
                first[1:] = (rows[1:] != rows[:-1]) | (others[1:] != others[:-1])
                before = int(rows[-1]), int(others[-1])
                columns.append(others[first])
                if times is not None and moments is not None:
                    times.append(moments[first])
                sizes[1:] += np.bincount(rows[first], minlength=len(sizes) - 1)
                total += int(first.sum())
                repeated += int((~first).sum())
        indptr = np.cumsum(sizes)
        with _array(directory / f"{stem}.indptr.npy", np.int32 if total < 2**31 else np.int64) as starts:
            starts.append(indptr)
        return Relation(table.name, total, dated, repeated)

    def write_shown(self, directory: Path) -> Relation:
        """Who was shown what: every row counts, in order of user, bundle and time."""
        kinds, table, total = PAIR_TABLES["user_bundle"], self.tables[SHOWN], 0
        dated = table.is_dated(kinds)
        with (
            _array(directory / f"{SHOWN}.users.npy", np.int64) as users,
            _array(directory / f"{SHOWN}.bundles.npy", np.int64) as bundles,
            _array(directory / f"{SHOWN}.timestamps.npy", np.int64) if dated else nullcontext() as times,
        ):
            for rows, others, moments in self._sorted(SHOWN, kinds, dated):
                users.append(rows)
                bundles.append(others)
                if times is not None and moments is not None:
                    times.append(moments)
                total += len(rows)
        return Relation(table.name, total, dated)

    def report(self, problems: Problems) -> None:
        """What readers of tables warn of, as far as it can be told from the ids."""
        for kind in KINDS:
            if self.has(f"{kind}s"):
                self._report_unlisted(kind, problems)
            words = ", ".join(map(text, MISSING_WORDS))
            for condition, what in (
                (f"id IN ({words})", "look like a missing value"),
                ("id <> trim(id)", "begin or end with a space"),
            ):
                odd = self.connection.execute(
                    f"SELECT id FROM ids_{kind} WHERE {condition} ORDER BY id LIMIT 100"
                )
                if names := [repr(name) for (name,) in odd.fetchall()]:
                    many = counted(len(names), f"distinct {kind}_id")
                    hint = "they are kept exactly as they are"
                    problems.warning("", f"{many} {what}: {listed(names)}", hint)
        if self.has(SHOWN):
            table = self.tables[SHOWN]
            known = f"ANTI JOIN ids_bundle b ON {table.id_column('bundle')} = b.id"
            (count,) = self._ask(table, f"SELECT count(*) FROM {table.origin} t {known}")[0]
            if count:
                what = f"{counted(count, 'row')} of bundles that no other table has"
                problems.error(
                    table.name, what, "mend the ids, delete the rows, or add them to the table bundles"
                )

    def _report_unlisted(self, kind: str, problems: Problems) -> None:
        found = self.connection.execute(f"SELECT count(DISTINCT listed_id) FROM list_{kind}").fetchall()
        more = self.count(kind) - found[0][0]
        if more:
            last = f"SELECT id FROM ids_{kind} WHERE rowid >= {found[0][0]} ORDER BY rowid LIMIT 5"
            names = ", ".join(repr(name) for (name,) in self.connection.execute(last).fetchall())
            what = f"{counted(more, f'{kind} id')} not in this list, such as {names}"
            problems.warning(self.tables[f"{kind}s"].name, what, "added after those that are")

    def _sorted(
        self, stem: str, kinds: tuple[str, str], dated: bool
    ) -> Iterator[tuple[Indices, Indices, Indices | None]]:
        """The pairs of a table as positions in order, a stretch at a time, with their times."""
        table = self.tables[stem]
        one, other = (table.id_column(kind) for kind in kinds)
        moment = f", {table.time_column} AS moment" if dated else ""
        given = f"SELECT {one} AS one, {other} AS other{moment} FROM {table.origin}"
        wanted = f"a.rowid, b.rowid{', moment' if dated else ''}"
        query = (
            f"SELECT {wanted} FROM ({given}) JOIN ids_{kinds[0]} a ON one = a.id "
            f"JOIN ids_{kinds[1]} b ON other = b.id ORDER BY ALL"
        )
        with _telling(table.name):
            for batch in self.connection.sql(query).to_arrow_reader(STRETCH):
                if batch.num_rows:
                    found = [column.to_numpy() for column in batch.columns]
                    yield found[0], found[1], found[2] if dated else None

    def _is_there(self, name: str) -> bool:
        found = self.connection.execute(
            "SELECT count(*) FROM duckdb_tables() WHERE table_name = ? AND database_name <> 'given'", [name]
        )
        return bool(found.fetchall()[0][0])

    def _make(self, name: str, query: str, table: Table | None = None) -> None:
        """A table of the rows of a query, in their order: all of it or nothing."""
        with _telling(table.name if table else ""):
            self.connection.execute(f"CREATE TABLE {name} AS {query}")

    def _ask(self, table: Table, query: str) -> Sequence[tuple[Any, ...]]:
        with _telling(table.name):
            rows: Sequence[tuple[Any, ...]] = self.connection.execute(query).fetchall()
            return rows

    def _write(self, query: str, path: Path) -> None:
        with replacing_file(path) as aside:
            self.connection.execute(f"COPY ({query}) TO {text(str(aside))} (FORMAT parquet)")


def _files(directory: Path) -> dict[str, tuple[str, str, bool]]:
    """For each table of a directory what stands behind FROM, its name, and whether it has types."""
    stems = [*PAIR_TABLES, *(f"user_bundle_{part}" for part in ("train", "validation", "test")), SHOWN]
    found = {}
    for stem in (*stems, *(f"{kind}s" for kind in KINDS)):
        present = paths_of(directory, stem)
        if len(present) > 1:
            names = " and as ".join(path.name for path in present)
            raise TableError(stem, f"it is here as {names}; keep one")
        if not present:
            continue
        path = present[0]
        if path.suffix == ".parquet" or path.is_dir():
            files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
            names = ", ".join(text(str(file)) for file in files)
            found[stem] = (f"read_parquet([{names}], hive_partitioning = {path.is_dir()})", path.name, True)
        else:
            between = "," if ".csv" in path.suffixes else "\\t"
            options = f"delim = '{between}', header = true, all_varchar = true, quote = '\"', escape = '\"'"
            found[stem] = (f"read_csv({text(str(path))}, {options})", path.name, False)
    return found


class _Array:
    """An .npy file of one dimension that grows; its length is written at the end."""

    def __init__(self, file: BinaryIO, dtype: Any):
        self.file, self.dtype, self.length = file, np.dtype(dtype), 0
        self._write_header()

    def append(self, values: npt.NDArray[Any]) -> None:
        self.file.write(np.ascontiguousarray(values, dtype=self.dtype).tobytes())
        self.length += len(values)

    def close(self) -> None:
        self.file.seek(0)
        self._write_header()  # as long as before: numpy leaves room for any length

    def _write_header(self) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self.file, header)


@contextmanager
def _array(path: Path, dtype: Any) -> Iterator[_Array]:
    """An array to append to; it stands at `path` when it is whole."""
    with replacing_file(path) as aside, aside.open("wb") as file:
        array = _Array(file, dtype)
        yield array
        array.close()


@contextmanager
def _telling(table: str) -> Iterator[None]:
    """What DuckDB refuses is told as what is wrong with a table."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("duckdb", "_duckdb"):
            raise
        if type(error).__name__ == "OutOfMemoryException":
            raise TableError(table, "more memory is needed; raise --memory-limit") from None
        raise TableError(table, f"it cannot be read: {str(error).splitlines()[0][:300]}") from None


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
