"""The SQLite file of the store: its tables, and how damage is noticed.

SQLite notices a broken page, but not a flipped letter, a lost row or a counter that was set back. So every
row has a checksum, and one row, `state`, counts the others and holds the latest sequence number.

`state.in_use` is not 0 in the file itself, not only in its log, while a service has it open: without the log
such a file lacks the latest writes, and somebody who copied it alone is told so.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coheat.service.store import StoreError

FORMAT = 3
OLDER = (1, 2)
"""Formats that are taken over (see `sqlite_migration.py`)."""
APPLICATION = 0x636F6865  # "cohe": marks the file as ours
ADVICE = (
    "restore it from a backup (coheat state restore), or move it away to start without what was written "
    "since training (keep it: most of it may be readable with sqlite3's .recover)"
)
BARE = (
    "written to without its log ({log}): it is a copy of a file in use, or its log was removed, and the "
    "latest writes are missing; copy with coheat state backup, which works while the service runs, or put "
    "the log back beside it"
)

TABLES = """
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1), latest INTEGER NOT NULL, withdrawn INTEGER NOT NULL,
    bundles INTEGER NOT NULL, interactions INTEGER NOT NULL, details INTEGER NOT NULL,
    checksum INTEGER NOT NULL, in_use INTEGER NOT NULL
);
CREATE TABLE bundles (
    bundle_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL UNIQUE, born INTEGER NOT NULL,
    born_at REAL NOT NULL, item_ids TEXT, created_on TEXT, request TEXT, written_at REAL NOT NULL,
    checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE interactions (
    sequence INTEGER PRIMARY KEY, user_id TEXT NOT NULL, bundle_id TEXT NOT NULL, kind TEXT NOT NULL,
    happened_at REAL NOT NULL, recommendation_id TEXT NOT NULL, written_at REAL NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE UNIQUE INDEX interactions_by_bundle ON interactions (bundle_id, user_id, kind, recommendation_id);
CREATE INDEX interactions_by_list ON interactions (recommendation_id, kind) WHERE recommendation_id <> '';
CREATE INDEX interactions_shown ON interactions (user_id, happened_at, bundle_id) WHERE kind = 'shown';
CREATE TABLE details (
    subject TEXT NOT NULL, id TEXT NOT NULL, sequence INTEGER NOT NULL UNIQUE, columns TEXT NOT NULL,
    written_at REAL NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (subject, id)
) WITHOUT ROWID;
"""
STATE = "latest, withdrawn, bundles, interactions, details"
"""Columns of `state` that its checksum is of."""
BUNDLE = "bundle_id, sequence, born, born_at, item_ids, created_on, request"
INTERACTION = "sequence, user_id, bundle_id, kind, happened_at, recommendation_id"
DETAILS = "subject, id, sequence, columns"

TOUCH = "UPDATE state SET in_use = CASE in_use WHEN 1 THEN 2 ELSE 1 END"
"""Marks the file as in use. It changes something every time: what stays the same is not written at all."""


def checksum(*values: object) -> int:
    """Of a row's values, in their order."""
    return zlib.crc32("\0".join(map(str, values)).encode("utf-8", "surrogatepass"))


def log_of(path: Path) -> Path:
    """SQLite's write-ahead log of a database."""
    return path.with_name(f"{path.name}-wal")


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file, all at once."""
    with all_or_nothing(connection):
        for statement in filter(str.strip, TABLES.split(";")):
            connection.execute(statement)
        counts = 0, 0, 0, 0, 0
        connection.execute(
            f"INSERT INTO state ({STATE}, checksum, in_use) VALUES (?, ?, ?, ?, ?, ?, 0)",
            (*counts, checksum(*counts)),
        )
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")


@contextmanager
def all_or_nothing(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether there is no table yet."""
    return connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None


def format_of(connection: sqlite3.Connection, path: Path) -> int:
    """The number of its format; an error where it is not ours, or newer than we are."""
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise StoreError(f"{path}: a database of something else; choose another --state directory")
    if version not in (*OLDER, FORMAT):
        raise StoreError(
            f"{path}: format {version}, this version of coheat reads format {FORMAT}; use the version that "
            "wrote it"
        )
    return int(version)


def check_pages(connection: sqlite3.Connection, path: Path, quickly: bool = True) -> None:
    """SQLite's own check: whether the pages hang together (and, slowly, whether the indexes fit)."""
    pragma = "quick_check" if quickly else "integrity_check"
    faults = [row[0] for row in connection.execute(f"PRAGMA {pragma}(1)")]
    if faults != ["ok"]:
        raise damaged(path, faults[0])


def check_counts(connection: sqlite3.Connection, path: Path) -> None:
    """Whether as many rows are there as were counted, and none is newer than the latest write."""
    rows = connection.execute(f"SELECT {STATE}, checksum FROM state").fetchall()
    if len(rows) != 1:
        raise damaged(path, "its counters are missing")
    *counts, expected = rows[0]
    if checksum(*counts) != expected:
        raise damaged(path, "its counters are not as written")
    latest, _, *tables = counts
    for table, counted in zip(("bundles", "interactions", "details"), tables, strict=True):
        found, newest = connection.execute(f"SELECT count(*), max(sequence) FROM {table}").fetchone()
        if found != counted:
            raise damaged(path, f"{found} {table} instead of {counted}")
        if (newest or 0) > latest:
            raise damaged(path, f"{table} are newer than the latest write, {newest} than {latest}")


def check_rows(connection: sqlite3.Connection, path: Path) -> None:
    """Every row against its checksum."""
    for *values, expected in connection.execute(f"SELECT {BUNDLE}, checksum FROM bundles"):
        if checksum(*values) != expected:
            raise damaged(path, f"the bundle {values[0]!r} is not as written")
    for *values, expected in connection.execute(f"SELECT {INTERACTION}, checksum FROM interactions"):
        if checksum(*values) != expected:
            raise damaged(path, f"the interaction with bundle {values[2]!r} is not as written")
    for *values, expected in connection.execute(f"SELECT {DETAILS}, checksum FROM details"):
        if checksum(*values) != expected:
            raise damaged(path, f"the columns of the {values[0]} {values[1]!r} are not as written")


def damaged(path: Path, how: str) -> StoreError:
    return StoreError(f"{path}: damaged ({how}); {ADVICE}")
