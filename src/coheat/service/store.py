"""What was written since training, kept so that nothing acknowledged is ever lost.

`Store` is the small interface that the service needs; `SqliteStore` keeps it in one SQLite file (WAL,
synchronous FULL: a write is on the disk before it returns). It holds the net state, not a log: for each
bundle what it is made of or that it is gone, for each user and bundle that they met. So it grows with
bundles and interactions, never with how often they are rewritten. The order is a counter of its own;
the clock is written down for people and decides nothing.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from coheat.errors import CoheatError

FORMAT = 1
APPLICATION = 0x636F6865  # "cohe": marks the file as ours
ADVICE = (
    "restore it from a copy, or move it away to start without what was written since training "
    "(keep it: most of it may be readable with sqlite3's .recover)"
)


class StoreError(CoheatError):
    """What was written since training cannot be read or written."""


@dataclass(frozen=True)
class BundleChange:
    """A bundle as last written: its items, or None where it was removed.

    `created_on` is the fingerprint of the model that served when it was made from nothing; None where
    a bundle of the model was replaced or removed.
    """

    sequence: int
    bundle_id: str
    item_ids: tuple[str, ...] | None
    created_on: str | None


@dataclass(frozen=True)
class Interaction:
    """A user took a bundle."""

    sequence: int
    user_id: str
    bundle_id: str


class Store(Protocol):
    """Every method returns when its effect is durable. Calls may come from any thread, one at a time."""

    def put_bundle(self, bundle_id: str, item_ids: Sequence[str], created_on: str | None) -> int:
        """Write a bundle, whether or not it is there already; its sequence number."""
        ...

    def remove_bundle(self, bundle_id: str) -> int:
        """Remember that a bundle is gone, and forget who took it."""
        ...

    def add_interaction(self, user_id: str, bundle_id: str) -> int:
        """Remember that a user took a bundle; doing so again changes nothing."""
        ...

    def bundles(self, after: int = 0) -> Iterator[BundleChange]:
        """Bundles written after a sequence number, in the order of writing."""
        ...

    def interactions(self, after: int = 0) -> Iterator[Interaction]:
        """Interactions written after a sequence number, in the order of writing."""
        ...

    def created_on(self, bundle_id: str) -> str | None:
        """`created_on` of a bundle that is there; None for any other."""
        ...

    def last_sequence(self) -> int:
        """The number of the latest write; 0 before the first."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


SCHEMA = """
CREATE TABLE sequence (latest INTEGER NOT NULL);
INSERT INTO sequence VALUES (0);
CREATE TABLE bundles (
    bundle_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL UNIQUE, item_ids TEXT, created_on TEXT,
    written_at REAL NOT NULL, checksum TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE interactions (
    user_id TEXT NOT NULL, bundle_id TEXT NOT NULL, sequence INTEGER NOT NULL UNIQUE,
    written_at REAL NOT NULL, checksum TEXT NOT NULL, PRIMARY KEY (user_id, bundle_id)
) WITHOUT ROWID;
CREATE INDEX interactions_by_bundle ON interactions (bundle_id);
"""


class SqliteStore:
    """`Store` in one SQLite file. Opening checks it; a damaged one is refused, never overwritten."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time):
        self.path, self.clock = path, clock
        self.lock = threading.Lock()
        with self._explained("opened"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self.connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self.connection.close()
                raise

    def _prepare(self) -> None:
        run = self.connection.execute
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run("PRAGMA foreign_keys = ON")
        [application] = run("PRAGMA application_id").fetchone()
        [version] = run("PRAGMA user_version").fetchone()
        if application == 0 and not run("SELECT 1 FROM sqlite_master").fetchone():
            statements = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT};"
            self.connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} {statements} COMMIT;")
        elif application != APPLICATION:
            raise StoreError(f"{self.path}: a database of something else; choose another --state directory")
        elif version != FORMAT:
            raise StoreError(
                f"{self.path}: format {version}, this version of coheat reads format {FORMAT}; "
                "use the version that wrote it"
            )
        faults = [row[0] for row in run("PRAGMA quick_check(1)")]
        if faults != ["ok"]:
            raise StoreError(f"{self.path}: damaged ({faults[0]}); {ADVICE}")
        # A write that leaves all as it was: a read-only or full disk says so now, not at the first order.
        with self._writing():
            run("UPDATE sequence SET latest = latest")

    def put_bundle(self, bundle_id: str, item_ids: Sequence[str], created_on: str | None) -> int:
        return self._write_bundle(bundle_id, json.dumps(list(item_ids), ensure_ascii=False), created_on)

    def remove_bundle(self, bundle_id: str) -> int:
        return self._write_bundle(bundle_id, None, None)

    def _write_bundle(self, bundle_id: str, items: str | None, created_on: str | None) -> int:
        with self._writing() as sequence:
            if items is None:
                self.connection.execute("DELETE FROM interactions WHERE bundle_id = ?", (bundle_id,))
            self.connection.execute(
                "INSERT OR REPLACE INTO bundles VALUES (?, ?, ?, ?, ?, ?)",
                (bundle_id, sequence, items, created_on, self.clock(),
                 _checksum(bundle_id, sequence, items, created_on)),
            )  # fmt: skip
            return sequence

    def add_interaction(self, user_id: str, bundle_id: str) -> int:
        with self._writing() as sequence:
            self.connection.execute(
                "INSERT OR IGNORE INTO interactions VALUES (?, ?, ?, ?, ?)",
                (user_id, bundle_id, sequence, self.clock(), _checksum(user_id, bundle_id, sequence)),
            )
            return sequence

    def bundles(self, after: int = 0) -> Iterator[BundleChange]:
        query = (
            "SELECT sequence, bundle_id, item_ids, created_on, checksum FROM bundles "
            "WHERE sequence > ? ORDER BY sequence"
        )
        for sequence, bundle_id, items, created_on, checksum in self._read(query, after):
            self._verify(checksum == _checksum(bundle_id, sequence, items, created_on), "bundle", bundle_id)
            item_ids = None if items is None else tuple(json.loads(items))
            yield BundleChange(sequence, bundle_id, item_ids, created_on)

    def interactions(self, after: int = 0) -> Iterator[Interaction]:
        query = (
            "SELECT sequence, user_id, bundle_id, checksum FROM interactions "
            "WHERE sequence > ? ORDER BY sequence"
        )
        for sequence, user_id, bundle_id, checksum in self._read(query, after):
            whole = checksum == _checksum(user_id, bundle_id, sequence)
            self._verify(whole, "interaction with bundle", bundle_id)
            yield Interaction(sequence, user_id, bundle_id)

    def created_on(self, bundle_id: str) -> str | None:
        query = "SELECT created_on FROM bundles WHERE bundle_id = ? AND item_ids IS NOT NULL"
        rows = self._read(query, bundle_id)
        created_on: str | None = rows[0][0] if rows else None
        return created_on

    def last_sequence(self) -> int:
        return int(self._read("SELECT latest FROM sequence WHERE 0 = ?", 0)[0][0])

    def close(self) -> None:
        with self.lock:
            self.connection.close()

    def _read(self, query: str, value: int | str) -> list[Any]:
        with self.lock, self._explained("read"):
            return self.connection.execute(query, (value,)).fetchall()

    def _verify(self, whole: bool, kind: str, name: object) -> None:
        if not whole:
            raise StoreError(f"{self.path}: damaged (the {kind} {name!r} is not as written); {ADVICE}")

    @contextmanager
    def _writing(self) -> Iterator[int]:
        """One durable transaction with the next sequence number; all of it happens, or nothing."""
        with self.lock, self._explained("written"):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                [sequence] = self.connection.execute(
                    "UPDATE sequence SET latest = latest + 1 RETURNING latest"
                ).fetchone()
                yield sequence
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        """SQLite's and the system's errors as a sentence that names the file and what to do."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            name = getattr(error, "sqlite_errorname", "") or ""
            if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
                advice = ADVICE
            elif name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
                advice = "make room on the disk; nothing that was acknowledged is lost"
            elif name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
                advice = "the directory must exist and be writable; choose another with --state"
            else:
                advice = "see whether another program holds it"
            raise StoreError(f"{self.path}: cannot be {verb} ({error}); {advice}") from error
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be {verb} ({error.strerror}); "
                "the directory must exist and be writable; choose another with --state"
            ) from error


def _checksum(*values: object) -> str:
    """SQLite notices a broken page but not a flipped letter; this does."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
