"""Backups of the store: made while it is written to, verified row by row, put back in one piece."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from coheat.errors import ConfigError
from coheat.service import sqlite_format as form
from coheat.service.locking import lock_directory, release
from coheat.service.sqlite_format import ADVICE, checksum, damaged
from coheat.service.store import StoreError

STORE = "store.sqlite"


@dataclass(frozen=True)
class Contents:
    """What a store holds: the number of its latest write, and how many rows of each kind."""

    latest: int
    bundles: int
    interactions: int


def backup(state: Path, target: Path) -> Contents:
    """Copy a state's store to a file, as it is at one moment; a service may be writing to it."""
    if target.exists():
        raise ConfigError(f"{target}: exists already; name a file that does not, or move it away")
    with _reading(_file_of(state)) as source:
        return _copied(source, target)


def restore(state: Path, source: Path) -> tuple[Contents, Path | None]:
    """Put a backup in the place of a state's store, which is kept beside it; where, if there was one."""
    check(source)
    held = lock_directory(state)
    try:
        store, kept = state / STORE, _free_name(state)
        aside = state / f".{STORE}.restored"
        for name in (aside, form.log_of(aside)):
            name.unlink(missing_ok=True)
        with _reading(source) as connection:
            found = _copied(connection, aside)
        had_one = store.exists()
        for ending in ("-wal", "-shm", ""):  # the log first: without its file it is refused, not overlooked
            old = store.with_name(STORE + ending)
            if old.exists():
                old.rename(kept.with_name(kept.name + ending))
        aside.rename(store)
        _flush(state)
        return found, kept if had_one else None
    finally:
        release(held)


def check(place: Path) -> Contents:
    """Verify every row of a store (a file, or that of a state directory); `StoreError` says what is wrong."""
    file = _file_of(place)
    with _reading(file) as connection:
        return _verified(connection, file)


def _file_of(place: Path) -> Path:
    file = place / STORE if place.is_dir() else place
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file; a state directory is RUN.service, or --state")
    return file


def _free_name(state: Path) -> Path:
    number = 1
    while (state / f"store.replaced-{number}.sqlite").exists():
        number += 1
    return state / f"store.replaced-{number}.sqlite"


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[sqlite3.Connection]:
    """A store's file, to be read only; errors of SQLite's name it."""
    has_log = form.log_of(file).exists()
    try:
        connection = sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)
        try:
            if form.is_empty(connection) or form.format_of(connection, file) != form.FORMAT:
                raise StoreError(
                    f"{file}: empty, or of an older format; start the service on it once, then try again"
                )
            if not has_log and connection.execute("SELECT in_use FROM state").fetchone() in ((1,), (2,)):
                raise StoreError(f"{file}: {form.BARE.format(log=form.log_of(file).name)}")
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StoreError(f"{file}: cannot be read ({error}); {ADVICE}") from error


def _copied(source: sqlite3.Connection, target: Path) -> Contents:
    """Copied to a temporary file, verified, and only then given its name."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    try:
        copy = sqlite3.connect(part, isolation_level=None)
        try:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute("UPDATE state SET in_use = 0")
            found = _verified(copy, part)
        finally:
            copy.close()
        part.rename(target)
        _flush(target.parent)
        return found
    finally:
        part.unlink(missing_ok=True)


def _verified(connection: sqlite3.Connection, file: Path) -> Contents:
    form.check_pages(connection, file, quickly=False)
    form.check_counts(connection, file)
    rows = connection.execute(
        "SELECT bundle_id, sequence, born, item_ids, created_on, request, checksum FROM bundles"
    )
    for *values, expected in rows:
        if checksum(*values) != expected:
            raise damaged(file, f"the bundle {values[0]!r} is not as written")
    pairs = connection.execute("SELECT sequence, user_id, bundle_id, checksum FROM interactions")
    for *values, expected in pairs:
        if checksum(*values) != expected:
            raise damaged(file, f"the interaction with bundle {values[2]!r} is not as written")
    return Contents(*connection.execute("SELECT latest, bundles, interactions FROM state").fetchone())


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
