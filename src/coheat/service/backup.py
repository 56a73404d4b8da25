"""Backups of the store: made while it is written to, verified row by row, put back in one piece."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from coheat.errors import ConfigError
from coheat.service import sqlite_format as form
from coheat.service.locking import lock_directory, release
from coheat.service.sqlite_reader import STORE, file_of, read_only


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
    with read_only(file_of(state)) as source:
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
        with read_only(source) as connection:
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
    file = file_of(place)
    with read_only(file) as connection:
        return _verified(connection, file)


def _free_name(state: Path) -> Path:
    number = 1
    while (state / f"store.replaced-{number}.sqlite").exists():
        number += 1
    return state / f"store.replaced-{number}.sqlite"


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
    form.check_rows(connection, file)
    return Contents(*connection.execute("SELECT latest, bundles, interactions FROM state").fetchone())


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
