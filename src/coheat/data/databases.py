"""Tables of a SQLite or a DuckDB file, read by their names as those of a directory are.

Which of the two a file is, its first bytes tell, not its name. It is opened for reading only, and a DuckDB
file may not reach outside of itself: a view of somebody else's file must not read ours.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa

from coheat.data.problems import Problems
from coheat.errors import ConfigError

Kind = Literal["sqlite", "duckdb"]
Found = TypeVar("Found")
ROWS = 100_000
"""Rows of SQLite that are Python objects at the same time."""
OUTSIDE = {"enable_external_access": "false"}


def database_kind(path: Path) -> Kind | None:
    """Which database a file is; None for any other file, a directory, or nothing at all."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(16)
    if head == b"SQLite format 3\0":
        return "sqlite"
    return "duckdb" if head[8:12] == b"DUCK" else None


def holds_tables(path: Path) -> bool:
    """Whether tables can stand here: in a directory, or in a database."""
    return path.is_dir() or database_kind(path) is not None


def table_names(path: Path, problems: Problems) -> set[str] | None:
    """The tables and views of a database; None where it cannot be opened, which is told."""

    def names() -> set[str]:
        if database_kind(path) == "sqlite":
            with closing(_sqlite(path)) as connection:
                found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
                return {name for (name,) in found}
        with _duckdb(path) as connection:
            rows = connection.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
            ).fetchall()
            return {name for (name,) in rows}

    return _telling(names, path.name, "cannot be opened", problems)


def read_table(path: Path, name: str, problems: Problems) -> Any | None:
    """A table or view as an Arrow table; None where it cannot be read, which is told."""

    def table() -> Any:
        if database_kind(path) == "sqlite":
            with closing(_sqlite(path)) as connection:
                return _from_sqlite(connection, name)
        with _duckdb(path) as connection:
            found = connection.sql(f"SELECT * FROM {_quoted(name)}").to_arrow_table()
            return found.cast(pa.schema([_with_plain_numbers(field) for field in found.schema]))

    return _telling(table, f"{path.name}: {name}", "cannot be read", problems)


def _telling(read: Callable[[], Found], place: str, what: str, problems: Problems) -> Found | None:
    """What was read, or None: what a database refuses is told in its own words instead of raised."""
    try:
        return read()
    except (sqlite3.Error, pa.ArrowException) as error:
        problems.error(place, f"{what}: {error}", "is it whole, and closed by whoever writes to it?")
    except Exception as error:  # DuckDB's errors, without importing it here
        if type(error).__module__.split(".")[0] not in ("duckdb", "_duckdb"):
            raise
        reason = str(error).split("\n")[0]
        hint = "close it where it is open for writing; make tables of views that read other files"
        problems.error(place, f"{what}: {reason}", hint)
    return None


def _sqlite(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


@contextmanager
def _duckdb(path: Path) -> Iterator[Any]:
    try:
        import duckdb
    except ImportError:
        raise ConfigError(
            f"{path}: reading it needs DuckDB; install it with: pip install 'coheat[duckdb]'"
        ) from None
    connection = duckdb.connect(str(path), read_only=True, config=OUTSIDE)
    try:
        yield connection
    finally:
        connection.close()


def _from_sqlite(connection: sqlite3.Connection, name: str) -> Any:
    """SQLite types values, not columns: a column of one kind keeps it, any mixture becomes text."""
    table = _quoted(name)
    columns = [row[0] for row in connection.execute(f"SELECT * FROM {table} LIMIT 0").description]
    kinds = {column: _sqlite_type(connection, table, column) for column in columns}
    wanted = ", ".join(
        f"CAST({_quoted(column)} AS TEXT)" if kind == pa.string() else _quoted(column)
        for column, kind in kinds.items()
    )
    rows = connection.execute(f"SELECT {wanted} FROM {table}")
    blocks: list[list[Any]] = [[] for _ in columns]
    while found := rows.fetchmany(ROWS):
        for block, kind, values in zip(blocks, kinds.values(), zip(*found, strict=True), strict=True):
            block.append(pa.array(values, kind))
    arrays = [pa.chunked_array(block, kind) for block, kind in zip(blocks, kinds.values(), strict=True)]
    return pa.table(arrays, names=columns)


def _sqlite_type(connection: sqlite3.Connection, table: str, column: str) -> Any:
    found = connection.execute(f"SELECT DISTINCT typeof({_quoted(column)}) FROM {table}")
    kinds = {kind for (kind,) in found} - {"null"}
    if kinds == {"integer"}:
        return pa.int64()
    if kinds and kinds <= {"integer", "real"}:
        return pa.float64()
    return pa.large_binary() if kinds == {"blob"} else pa.string()


def _with_plain_numbers(field: Any) -> Any:
    """DuckDB's sums and counts can be 128 bits wide, which Arrow has as decimals: ids are written as text."""
    whole = pa.types.is_decimal(field.type) and field.type.scale == 0
    return field.with_type(pa.string()) if whole else field


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
