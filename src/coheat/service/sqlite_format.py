"""The SQLite file of the store: its tables, how older files become newer ones, and how damage is noticed.

SQLite notices a broken page, but not a flipped letter, a lost row or a counter that was set back. So every
row has a checksum, and one row, `state`, counts the others and holds the latest sequence number.

`state.in_use` is not 0 in the file itself, not only in its log, while a service has it open: without the log
such a file lacks the latest writes, and somebody who copied it alone is told so.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coheat.service.store import StoreError

FORMAT = 2
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
    one INTEGER PRIMARY KEY CHECK (one = 1), latest INTEGER NOT NULL, bundles INTEGER NOT NULL,
    interactions INTEGER NOT NULL, checksum INTEGER NOT NULL, in_use INTEGER NOT NULL
);
CREATE TABLE bundles (
    bundle_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL UNIQUE, born INTEGER NOT NULL, item_ids TEXT,
    created_on TEXT, request TEXT, written_at REAL NOT NULL, checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE interactions (
    sequence INTEGER PRIMARY KEY, user_id TEXT NOT NULL, bundle_id TEXT NOT NULL,
    written_at REAL NOT NULL, checksum INTEGER NOT NULL
);
CREATE UNIQUE INDEX interactions_by_bundle ON interactions (bundle_id, user_id);
"""

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
    with _all_or_nothing(connection):
        for statement in filter(str.strip, TABLES.split(";")):
            connection.execute(statement)
        connection.execute("INSERT INTO state VALUES (1, 0, 0, 0, ?, 0)", (checksum(0, 0, 0),))
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")


@contextmanager
def _all_or_nothing(connection: sqlite3.Connection) -> Iterator[None]:
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
    if version not in (1, FORMAT):
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
    rows = connection.execute("SELECT latest, bundles, interactions, checksum FROM state").fetchall()
    if len(rows) != 1:
        raise damaged(path, "its counters are missing")
    latest, bundles, interactions, expected = rows[0]
    if checksum(latest, bundles, interactions) != expected:
        raise damaged(path, "its counters are not as written")
    for table, counted, query in (
        ("bundles", bundles, "SELECT count(*), max(sequence) FROM bundles"),
        ("interactions", interactions, "SELECT count(*), max(sequence) FROM interactions"),
    ):
        found, newest = connection.execute(query).fetchone()
        if found != counted:
            raise damaged(path, f"{found} {table} instead of {counted}")
        if (newest or 0) > latest:
            raise damaged(path, f"{table} are newer than the latest write, {newest} than {latest}")


def damaged(path: Path, how: str) -> StoreError:
    return StoreError(f"{path}: damaged ({how}); {ADVICE}")


# --- older formats ------------------------------------------------------------------------------


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """From format 1, all at once; a copy of the old file stays beside it."""
    old = path.with_name(f"{path.stem}.format-1{path.suffix}")
    if not old.exists():
        part = old.with_name(f".{old.name}.part")
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        kept = sqlite3.connect(part)
        try:
            connection.backup(kept)
        finally:
            kept.close()
        part.replace(old)
    with _all_or_nothing(connection):
        _from_format_1(connection, path)


def _from_format_1(connection: sqlite3.Connection, path: Path) -> None:
    run = connection.execute
    for table in ("bundles", "interactions"):
        run(f"ALTER TABLE {table} RENAME TO old_{table}")
    run("DROP INDEX interactions_by_bundle")
    for statement in filter(str.strip, TABLES.split(";")):
        run(statement)
    first = dict(run("SELECT bundle_id, min(sequence) FROM old_interactions GROUP BY bundle_id"))
    n_bundles = n_interactions = newest = 0
    for name, sequence, items, created_on, at, old in run("SELECT * FROM old_bundles"):
        if old != _checksum_1(name, sequence, items, created_on):
            raise damaged(path, f"the bundle {name!r} is not as written")
        # When it was made was not written down; before everything that is known of it will do.
        born = min(sequence, first.get(name, sequence)) if created_on or items is None else 0
        values = name, sequence, born, items, created_on, None
        run("INSERT INTO bundles VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*values, at, checksum(*values)))
        n_bundles, newest = n_bundles + 1, max(newest, sequence)
    for user, bundle, sequence, at, old in run("SELECT * FROM old_interactions"):
        if old != _checksum_1(user, bundle, sequence):
            raise damaged(path, f"the interaction with bundle {bundle!r} is not as written")
        pair = sequence, user, bundle
        run("INSERT INTO interactions VALUES (?, ?, ?, ?, ?)", (*pair, at, checksum(*pair)))
        n_interactions, newest = n_interactions + 1, max(newest, sequence)
    [latest] = run("SELECT latest FROM sequence").fetchone()
    if latest < newest:
        raise damaged(path, f"rows are newer than the latest write, {newest} than {latest}")
    counts = latest, n_bundles, n_interactions
    run("INSERT INTO state VALUES (1, ?, ?, ?, ?, 0)", (*counts, checksum(*counts)))
    for table in ("old_bundles", "old_interactions", "sequence"):
        run(f"DROP TABLE {table}")
    run(f"PRAGMA user_version = {FORMAT}")


def _checksum_1(*values: object) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
