"""Stores of earlier formats become those of today, all at once; a copy of the old file stays beside it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from coheat.service import sqlite_format as form
from coheat.service.sqlite_format import checksum, damaged


class OldBundle(NamedTuple):
    bundle_id: str
    sequence: int
    born: int
    items: str | None
    created_on: str | None
    request: str | None
    written_at: float


class OldInteraction(NamedTuple):
    sequence: int
    user_id: str
    bundle_id: str
    written_at: float


def migrate(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """From format 1 or 2. What was recorded was taken, when it was written, from no known list."""
    _keep(connection, path.with_name(f"{path.stem}.format-{version}{path.suffix}"))
    run = connection.execute
    with form.all_or_nothing(connection):
        latest, counted = _counters(connection, path, version)
        for table in ("bundles", "interactions"):
            run(f"ALTER TABLE {table} RENAME TO old_{table}")
        run("DROP INDEX interactions_by_bundle")
        for statement in filter(str.strip, form.TABLES.split(";")):
            run(statement)
        read_bundles, read_interactions = (
            (_bundles_1, _interactions_1) if version == 1 else (_bundles_2, _interactions_2)
        )
        n_bundles = n_interactions = newest = 0
        for bundle in read_bundles(connection, path):
            _insert_bundle(connection, bundle)
            n_bundles, newest = n_bundles + 1, max(newest, bundle.sequence)
        for interaction in read_interactions(connection, path):
            _insert_interaction(connection, interaction)
            n_interactions, newest = n_interactions + 1, max(newest, interaction.sequence)
        if latest < newest:
            raise damaged(path, f"rows are newer than the latest write, {newest} than {latest}")
        if counted is not None and counted != (n_bundles, n_interactions):
            raise damaged(
                path, f"{(n_bundles, n_interactions)} bundles and interactions instead of {counted}"
            )
        counts = latest, 0, n_bundles, n_interactions, 0
        run(
            f"INSERT INTO state (one, {form.STATE}, checksum, in_use) VALUES (1, ?, ?, ?, ?, ?, ?, 0)",
            (*counts, checksum(*counts)),
        )
        for table in ("old_bundles", "old_interactions"):
            run(f"DROP TABLE {table}")
        run(f"PRAGMA user_version = {form.FORMAT}")


def _keep(connection: sqlite3.Connection, old: Path) -> None:
    if old.exists():
        return
    part = old.with_name(f".{old.name}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    kept = sqlite3.connect(part)
    try:
        connection.backup(kept)
    finally:
        kept.close()
    part.replace(old)


def _counters(connection: sqlite3.Connection, path: Path, version: int) -> tuple[int, tuple[int, int] | None]:
    """The latest sequence number and, where they were counted, bundles and interactions."""
    run = connection.execute
    if version == 1:
        [latest] = run("SELECT latest FROM sequence").fetchone()
        run("DROP TABLE sequence")
        return latest, None
    rows = run("SELECT latest, bundles, interactions, checksum FROM state").fetchall()
    if len(rows) != 1 or checksum(*rows[0][:3]) != rows[0][3]:
        raise damaged(path, "its counters are not as written")
    run("DROP TABLE state")
    return rows[0][0], (rows[0][1], rows[0][2])


def _insert_bundle(connection: sqlite3.Connection, old: OldBundle) -> None:
    born_at = old.written_at if old.created_on or old.items is None else 0.0
    values = old.bundle_id, old.sequence, old.born, born_at, old.items, old.created_on, old.request
    connection.execute(
        f"INSERT INTO bundles ({form.BUNDLE}, written_at, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, old.written_at, checksum(*values)),
    )


def _insert_interaction(connection: sqlite3.Connection, old: OldInteraction) -> None:
    values = old.sequence, old.user_id, old.bundle_id, "took", round(old.written_at, 3), ""
    connection.execute(
        f"INSERT INTO interactions ({form.INTERACTION}, written_at, checksum) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, old.written_at, checksum(*values)),
    )


def _bundles_2(connection: sqlite3.Connection, path: Path) -> Iterator[OldBundle]:
    columns = "bundle_id, sequence, born, item_ids, created_on, request"
    for *values, at, expected in connection.execute(
        f"SELECT {columns}, written_at, checksum FROM old_bundles"
    ):
        if checksum(*values) != expected:
            raise damaged(path, f"the bundle {values[0]!r} is not as written")
        yield OldBundle._make((*values, at))


def _interactions_2(connection: sqlite3.Connection, path: Path) -> Iterator[OldInteraction]:
    for *values, at, expected in connection.execute(
        "SELECT sequence, user_id, bundle_id, written_at, checksum FROM old_interactions"
    ):
        if checksum(*values) != expected:
            raise damaged(path, f"the interaction with bundle {values[2]!r} is not as written")
        yield OldInteraction._make((*values, at))


def _bundles_1(connection: sqlite3.Connection, path: Path) -> Iterator[OldBundle]:
    run = connection.execute
    first = dict(run("SELECT bundle_id, min(sequence) FROM old_interactions GROUP BY bundle_id"))
    columns = "bundle_id, sequence, item_ids, created_on"
    for name, sequence, items, created_on, at, expected in run(
        f"SELECT {columns}, written_at, checksum FROM old_bundles"
    ):
        if expected != _checksum_1(name, sequence, items, created_on):
            raise damaged(path, f"the bundle {name!r} is not as written")
        # When it was made was not written down; before everything that is known of it will do.
        born = min(sequence, first.get(name, sequence)) if created_on or items is None else 0
        yield OldBundle(name, sequence, born, items, created_on, None, at)


def _interactions_1(connection: sqlite3.Connection, path: Path) -> Iterator[OldInteraction]:
    for user, bundle, sequence, at, expected in connection.execute(
        "SELECT user_id, bundle_id, sequence, written_at, checksum FROM old_interactions"
    ):
        if expected != _checksum_1(user, bundle, sequence):
            raise damaged(path, f"the interaction with bundle {bundle!r} is not as written")
        yield OldInteraction(sequence, user, bundle, at)


def _checksum_1(*values: object) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
