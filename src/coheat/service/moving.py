"""A shop that moves from a directory to a PostgreSQL database; and checking what a database holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any, LiteralString

from psycopg import Connection, sql

from coheat.errors import ConfigError
from coheat.service import sqlite_format as form
from coheat.service.backup import Contents, check
from coheat.service.keys import KeyRing
from coheat.service.locking import lock_directory, release
from coheat.service.opening import KEYS
from coheat.service.places import is_database, shown
from coheat.service.postgres_database import Database, Row, migrate
from coheat.service.postgres_reader import PostgresReader, columns_to, opened, pair_of, to_stored
from coheat.service.sqlite_reader import file_of, read_only
from coheat.service.store import StoreError

TABLES: dict[str, LiteralString] = {
    "bundles": "t.bundle_id",
    "interactions": "t.pair, t.kind, t.recommendation_id",
    "details": "t.subject, t.id",
}
"""And what there is one row of."""


def copy(source: Path, address: str) -> Contents:
    """Copy a state directory, or a backup, with its keys, to an empty database: all of it or nothing.

    Sequence numbers stay as they are, so whoever collects from there goes on where they were.
    """
    if not is_database(address):
        raise ConfigError(f"{shown(address)}: not a database; give postgresql://USER@HOST/DATABASE")
    found = check(source)
    held = lock_directory(source) if source.is_dir() else []
    try:
        database = Database(address)
        try:
            migrate(database)
            with database.transaction() as connection:
                _require_empty(connection, database.name)
                _fill(connection, source)
        finally:
            database.close()
    finally:
        release(held)
    return found


def _require_empty(connection: Connection[Row], name: str) -> None:
    connection.execute("SELECT latest FROM coheat.state FOR UPDATE")
    row = connection.execute(
        "SELECT latest > 0 OR EXISTS (SELECT FROM coheat.keys) FROM coheat.state"
    ).fetchone()
    if row != (False,):
        raise StoreError(f"{name}: something was written to it already; give an empty database")


def _fill(connection: Connection[Row], source: Path) -> None:
    """Rows go in one stream for each table."""
    with read_only(file_of(source)) as old:
        run = old.execute
        bundles = (
            (sequence, to_stored(name), born, born_at, items, created_on, request, at)
            for name, sequence, born, born_at, items, created_on, request, at in run(
                f"SELECT {form.BUNDLE}, written_at FROM bundles ORDER BY sequence"
            )
        )
        interactions = (
            (number, pair_of(user, name), to_stored(user), to_stored(name), kind, at, to_stored(where), on)
            for number, user, name, kind, at, where, on in run(
                f"SELECT {form.INTERACTION}, written_at FROM interactions ORDER BY sequence"
            )
        )
        details = (
            (sequence, subject, to_stored(name), columns_to(json.loads(columns)), at)
            for subject, name, sequence, columns, at in run(
                f"SELECT {form.DETAILS}, written_at FROM details ORDER BY sequence"
            )
        )
        _copy_rows(connection, "COPY coheat.bundles FROM STDIN", bundles)
        _copy_rows(connection, "COPY coheat.interactions FROM STDIN", interactions)
        _copy_rows(connection, "COPY coheat.details FROM STDIN", details)
        latest, withdrawn = run("SELECT latest, withdrawn FROM state").fetchone()
    if source.is_dir():
        known = KeyRing(source / KEYS).keys()
        _copy_rows(connection, "COPY coheat.keys FROM STDIN", map(astuple, known))
    connection.execute(
        "UPDATE coheat.state SET latest = %s, withdrawn = %s, dropped = %s, key_changes = key_changes + 1",
        (latest, withdrawn, latest),
    )
    for table in TABLES:
        connection.execute(sql.SQL("ANALYZE coheat.{}").format(sql.Identifier(table)))


def _copy_rows(connection: Connection[Row], query: LiteralString, rows: Iterable[tuple[Any, ...]]) -> None:
    with connection.cursor() as cursor, cursor.copy(query) as stream:
        for row in rows:
            stream.write_row(row)


def check_database(address: str) -> Contents:
    """Look at every row of a database; `StoreError` says what is wrong."""
    reader = opened(address)
    try:
        for fault in _faults(reader):
            raise StoreError(f"{reader.database.name}: damaged ({fault}); restore it from a backup (pg_dump)")
        [(latest, bundles, interactions)] = reader.database.read(
            "SELECT latest, (SELECT count(*) FROM coheat.bundles), "
            "(SELECT count(*) FROM coheat.interactions) FROM coheat.state"
        )
        return Contents(latest, bundles, interactions)
    finally:
        reader.close()


def _faults(reader: PostgresReader) -> Iterator[str]:
    """What is not as it was written: rows that are newer than the latest write, stand there twice, or name
    another user or bundle than the hash beside them is of."""
    for table, names in TABLES.items():
        [(latest, newest, twice)] = reader.database.read(
            sql.SQL(
                "SELECT s.latest, coalesce(max(t.sequence), 0), count(*) - count(DISTINCT ({names})) "
                "FROM coheat.state s LEFT JOIN coheat.{table} t ON true GROUP BY s.latest"
            ).format(table=sql.Identifier(table), names=sql.SQL(names))
        )
        if newest > latest:
            yield f"{table} are newer than the latest write, {newest} than {latest}"
        if twice > 0 and newest:
            yield f"{twice} {table} stand there twice"
    for bundle in reader.bundles():
        if bundle.born > bundle.sequence:
            yield f"the bundle {bundle.bundle_id!r} is not as written"
    for rows in reader.hashed_pairs():
        for pair, user, bundle_id in rows:
            if pair != pair_of(user, bundle_id):
                yield f"the interaction with bundle {bundle_id!r} is not as written"
