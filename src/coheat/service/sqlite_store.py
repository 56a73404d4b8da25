"""The store in one SQLite file: write-ahead log, synchronous FULL; a write is on the disk when it returns.

One connection writes; another reads beside it, in short steps, so that reading millions of rows makes no
writer wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from coheat.service import sqlite_format as form
from coheat.service.sqlite_format import ADVICE, checksum, damaged
from coheat.service.store import NOT_NOW, BundleChange, Interaction, StoreError

STEP = 20_000
"""Rows read at once."""
LEAST_FREE = 4 << 20
"""Bytes on the disk below which the next writes may fail."""
LAST = (1 << 63) - 1
ROW = "SELECT sequence, bundle_id, item_ids, created_on, born, request, checksum FROM bundles"


class SqliteStore:
    """`Store` in one SQLite file. Opening checks it; a damaged one is refused, never overwritten."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time):
        self.path, self.clock = path, clock
        self._writer, self._reader = threading.Lock(), threading.Lock()
        self._failed = False
        with self._explained("opened"):
            had_log = _prepare_file(path)
            self._connection = self._connect()
            try:
                self._open(had_log)
                self._reading = self._connect()
                self._reading.execute("PRAGMA query_only = ON")
            except BaseException:
                self._connection.close()
                raise
        self._files = WatchedFiles(path)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)

    def _open(self, had_log: bool) -> None:
        run = self._connection.execute
        if form.is_empty(self._connection):
            if self.path.stat().st_size and not had_log:
                raise self._bare()
            form.create(self._connection)
        version = form.format_of(self._connection, self.path)
        form.check_pages(self._connection, self.path)
        if version != form.FORMAT:
            form.migrate(self._connection, self.path)
        if not had_log and run("SELECT in_use FROM state").fetchone() in ((1,), (2,)):
            raise self._bare()
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        form.check_counts(self._connection, self.path)
        # A write into the file itself: a read-only or full disk says so now, not at the first order.
        run(form.TOUCH)
        run("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _bare(self) -> StoreError:
        return StoreError(f"{self.path}: {form.BARE.format(log=form.log_of(self.path).name)}")

    # --- writing --------------------------------------------------------------------------------

    def put_bundle(
        self, bundle_id: str, item_ids: Sequence[str], created_on: str | None, request: str | None = None
    ) -> int:
        items = json.dumps(list(item_ids), ensure_ascii=False)
        with self._writing() as sequence:
            there = self._stored(self._connection, bundle_id)
            born = sequence if created_on else 0
            if there is not None and there.item_ids is not None:
                born, created_on, request = there.born, there.created_on, there.request
            self._write_bundle((bundle_id, sequence, born, items, created_on, request), there is None)
            return sequence

    def remove_bundle(self, bundle_id: str) -> int:
        with self._writing() as sequence:
            gone = self._connection.execute("DELETE FROM interactions WHERE bundle_id = ?", (bundle_id,))
            self._connection.execute("UPDATE state SET interactions = interactions - ?", (gone.rowcount,))
            is_first = self._stored(self._connection, bundle_id) is None
            self._write_bundle((bundle_id, sequence, sequence, None, None, None), is_first)
            return sequence

    def _write_bundle(self, values: tuple[object, ...], is_first: bool) -> None:
        self._connection.execute(
            "INSERT INTO bundles VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (bundle_id) DO UPDATE SET "
            "sequence = excluded.sequence, born = excluded.born, item_ids = excluded.item_ids, "
            "created_on = excluded.created_on, request = excluded.request, "
            "written_at = excluded.written_at, checksum = excluded.checksum",
            (*values, self.clock(), checksum(*values)),
        )
        if is_first:
            self._connection.execute("UPDATE state SET bundles = bundles + 1")

    def add_interaction(self, user_id: str, bundle_id: str) -> int:
        known = self._read(
            "SELECT sequence FROM interactions WHERE bundle_id = ? AND user_id = ?", bundle_id, user_id
        )
        if known:
            return int(known[0][0])
        with self._writing() as sequence:
            values = sequence, user_id, bundle_id
            self._connection.execute(
                "INSERT INTO interactions VALUES (?, ?, ?, ?, ?)", (*values, self.clock(), checksum(*values))
            )
            self._connection.execute("UPDATE state SET interactions = interactions + 1")
            return sequence

    # --- reading --------------------------------------------------------------------------------

    def bundles(self, after: int = 0, until: int | None = None) -> Iterator[BundleChange]:
        for rows in self._steps(ROW, after, until):
            for row in rows:
                yield self._change(row)

    def interactions(self, after: int = 0, until: int | None = None) -> Iterator[Interaction]:
        for rows in self._interactions(after, until):
            for sequence, user_id, bundle_id, _ in rows:
                yield Interaction(sequence, user_id, bundle_id)

    def pairs(self, after: int = 0, until: int | None = None) -> Iterator[list[tuple[str, str]]]:
        for rows in self._interactions(after, until):
            yield [(user_id, bundle_id) for _, user_id, bundle_id, _ in rows]

    def _interactions(self, after: int, until: int | None) -> Iterator[list[Any]]:
        query = "SELECT sequence, user_id, bundle_id, checksum FROM interactions"
        for rows in self._steps(query, after, until):
            for sequence, user_id, bundle_id, expected in rows:
                # As `checksum` does it, written out: there may be millions of rows.
                if crc32(f"{sequence}\0{user_id}\0{bundle_id}".encode("utf-8", "surrogatepass")) != expected:
                    raise damaged(self.path, f"the interaction with bundle {bundle_id!r} is not as written")
            yield rows

    def bundle(self, bundle_id: str) -> BundleChange | None:
        with self._reader, self._explained("read"):
            return self._stored(self._reading, bundle_id)

    def takers(self, bundle_id: str) -> list[str]:
        query = "SELECT user_id FROM interactions WHERE bundle_id = ? ORDER BY sequence"
        return [user_id for (user_id,) in self._read(query, bundle_id)]

    def last_sequence(self) -> int:
        return int(self._read("SELECT latest FROM state")[0][0])

    def _steps(self, query: str, after: int, until: int | None) -> Iterator[list[Any]]:
        """The rows of a table in the order of writing, some at a time; nobody is kept waiting between."""
        query = f"{query} WHERE sequence > ? AND sequence <= ? ORDER BY sequence LIMIT {STEP}"
        last = LAST if until is None else until
        while rows := self._read(query, after, last):
            yield rows
            after = rows[-1][0]

    def _read(self, query: str, *values: int | str) -> list[Any]:
        with self._reader, self._explained("read"):
            return self._reading.execute(query, values).fetchall()

    def _stored(self, connection: sqlite3.Connection, bundle_id: str) -> BundleChange | None:
        row = connection.execute(f"{ROW} WHERE bundle_id = ?", (bundle_id,)).fetchone()
        return None if row is None else self._change(row)

    def _change(self, row: tuple[Any, ...]) -> BundleChange:
        sequence, bundle_id, items, created_on, born, request, expected = row
        if checksum(bundle_id, sequence, born, items, created_on, request) != expected:
            raise damaged(self.path, f"the bundle {bundle_id!r} is not as written")
        item_ids = None if items is None else tuple(json.loads(items))
        return BundleChange(sequence, bundle_id, item_ids, created_on, born, request)

    # --- the file -------------------------------------------------------------------------------

    def check(self) -> None:
        self._files.check()
        free = os.statvfs(self.path.parent)
        if free.f_bavail * free.f_frsize < LEAST_FREE:
            raise StoreError(f"{self.path}: the disk is nearly full; make room", "the disk is nearly full")
        if self._failed:  # whether it would still fail is known by trying only
            with self._writing(numbered=False):
                self._connection.execute(form.TOUCH)

    def close(self) -> None:
        with self._writer, self._reader:
            self._reading.close()
            marked = False
            with contextlib.suppress(sqlite3.Error):
                # Frees the log's room, in case that there is no other for the mark.
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                self._connection.execute("UPDATE state SET in_use = 0")
                marked = True
            self._connection.close()
            if not marked and not form.log_of(self.path).exists():
                with contextlib.suppress(OSError):  # all is in the file: an empty log says so
                    form.log_of(self.path).touch(mode=0o600)

    @contextlib.contextmanager
    def _writing(self, numbered: bool = True) -> Iterator[int]:
        """One durable transaction with the next sequence number; all of it happens, or nothing."""
        with self._writer, self._explained("written"):
            try:
                self._files.check()
                with self._transaction():
                    [sequence] = self._connection.execute(
                        "UPDATE state SET latest = latest + ? RETURNING latest", (int(numbered),)
                    ).fetchone()
                    yield sequence
                    self._sum_up()
                self._check_arrival()
            except BaseException:
                self._failed = True
                raise
            self._failed = False

    def _check_arrival(self) -> None:
        """Whether what was written went into files that will be found again.

        They are looked at once: between two looks one could vanish, or another take its place.
        """
        try:
            self._files.seen = self._files.check()
        except StoreError as error:
            error.is_uncertain = True
            raise

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _sum_up(self) -> None:
        counts = self._connection.execute("SELECT latest, bundles, interactions FROM state").fetchone()
        self._connection.execute("UPDATE state SET checksum = ?", (checksum(*counts),))

    @contextlib.contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        """SQLite's and the system's errors as a sentence that names the file and what to do."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "") or ""
            advice, reason = _advice(name)
            found = StoreError(f"{self.path}: cannot be {verb} ({error}); {advice}", reason)
            # It is in the log, but perhaps not on the disk: a restart finds it or not.
            found.is_uncertain = name.startswith("SQLITE_IOERR") and "FSYNC" in name
            raise found from error
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be {verb} ({error.strerror}); "
                "the directory must exist and be writable; choose another with --state"
            ) from error


class WatchedFiles:
    """The files of an open database: still those at their paths, and none shorter than it was.

    SQLite goes on with the files that it opened, whatever happens to their names; what it writes then is gone
    when the process ends.
    """

    def __init__(self, path: Path):
        self.paths = [path.with_name(path.name + ending) for ending in ("", "-wal", "-shm")]
        self.seen: dict[Path, os.stat_result] = {}
        self.seen = self.check()

    def check(self) -> dict[Path, os.stat_result]:
        """The files as they are; an error where one is not as it was seen before."""
        return {path: self._checked(path, self.seen.get(path)) for path in self.paths}

    @staticmethod
    def _checked(path: Path, before: os.stat_result | None) -> os.stat_result:
        try:
            now = path.stat()
        except FileNotFoundError:
            raise _changed(path, "removed") from None
        if before is not None and not os.path.samestat(now, before):
            raise _changed(path, "exchanged")
        if before is not None and now.st_size < before.st_size:
            raise _changed(path, "cut off")
        return now


def _changed(path: Path, how: str) -> StoreError:
    return StoreError(
        f"{path}: {how} while the service runs; nothing more is written. Put it back, or restart the service "
        "with a restored one (coheat state restore); what was written before can be saved from the running "
        "service by reading its bundles and users",
        f"the store's file {path.name} was {how} while the service ran; writes are refused until the "
        "operator puts it right",
    )


def _prepare_file(path: Path) -> bool:
    """Make the file, private to its owner, where there is none; whether it has a log."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = form.log_of(path)
    has_log = log.exists()
    if not path.exists() or path.stat().st_size == 0:
        if has_log and log.stat().st_size:
            raise StoreError(
                f"{path}: missing or empty, while its log {log.name} is there; put it back beside its log, "
                "restore a backup (coheat state restore), or move the log away to start empty"
            )
        path.touch(mode=0o600, exist_ok=True)
    for file in (path, log):
        if file.exists() and file.stat().st_mode & 0o077:
            with contextlib.suppress(PermissionError):
                file.chmod(0o600)
    return has_log


def _advice(name: str) -> tuple[str, str]:
    """What to do about one of SQLite's errors: for the operator, and for whoever asked."""
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CONSTRAINT")):
        return ADVICE, "the store is damaged; writes are refused until the operator restores it"
    if name.startswith("SQLITE_IOERR") and "FSYNC" in name:
        return "see whether the disk fails", "the disk failed while the service ran; it may be written or not"
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
        return "make room on the disk; nothing that was acknowledged is lost", NOT_NOW
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return "the directory must exist and be writable; choose another with --state", NOT_NOW
    return "see whether another program holds it", NOT_NOW
