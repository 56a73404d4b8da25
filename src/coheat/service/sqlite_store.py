"""The store in one SQLite file: write-ahead log, synchronous FULL; a write is on the disk when it returns.

One connection writes; another reads beside it (see `sqlite_reader.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress, takewhile
from pathlib import Path

from coheat.attributes import Value
from coheat.service import sqlite_format as form
from coheat.service.sqlite_format import checksum
from coheat.service.sqlite_migration import migrate
from coheat.service.sqlite_reader import SqliteReader
from coheat.service.store import (
    KINDS,
    UNKNOWN,
    Appended,
    BundleChange,
    Change,
    Details,
    Interaction,
    Kind,
    Missed,
    NewInteraction,
    Origin,
    Overtaken,
    Recorded,
    StoreError,
    Subject,
    Withdrawal,
    Withdrawn,
)

LEAST_FREE = 4 << 20
"""Bytes on the disk below which the next writes may fail."""
ASKED_AT_ONCE = 200
"""Interactions that are looked for in one query: every SQLite takes 999 values."""
KEPT_CHANGES = 1000
Identity = tuple[str, str, Kind, str]
"""Of an interaction: user, bundle, kind, list."""


class SqliteStore(SqliteReader):
    """`Store` in one SQLite file. Opening checks it; a damaged one is refused, never overwritten.

    Only this process writes to it, so the latest changes are kept in memory alone.
    """

    is_shared = False

    def __init__(self, path: Path, clock: Callable[[], float] = time.time):
        self.path, self.clock = path, clock
        self._writer = threading.Lock()
        self._failed = False
        with self._explained("opened"):
            had_log = _prepare_file(path)
            self._connection = self._connect()
            try:
                self._open(had_log)
                super().__init__(path, self._connect())
                self._reading.execute("PRAGMA query_only = ON")
            except BaseException:
                self._connection.close()
                raise
        self._files = WatchedFiles(path)
        self._changes: deque[Change] = deque(maxlen=KEPT_CHANGES)
        self._newest = self.last_sequence()
        self._complete_after = self._newest
        """Changes after this number are all kept."""
        # Also where nobody closes it, at the end of the process: SQLite takes the log away then, and a file
        # that is marked as in use would look like a copy without its log.
        self._let_go = weakref.finalize(self, _let_go, path, self._connection, self._reading)

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
            migrate(self._connection, self.path, version)
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
        self,
        bundle_id: str,
        item_ids: Sequence[str],
        created_on: str | None,
        request: str | None = None,
        columns: Mapping[str, Value] | None = None,
        origin: Origin = UNKNOWN,
    ) -> int:
        items = json.dumps(list(item_ids), ensure_ascii=False)
        with self._writing() as sequence:
            there = self._stored(self._connection, bundle_id)
            self._check_seen(bundle_id, origin)
            now = self.clock()
            born, born_at = (sequence, now) if created_on else (0, 0.0)
            if there is not None and there.item_ids is not None:
                born, born_at = there.born, there.born_at
                created_on, request = there.created_on, there.request
            values = bundle_id, sequence, born, born_at, items, created_on, request
            self._write_bundle(values, now, there is None)
            if columns:
                self._write_details(sequence, "bundle", bundle_id, columns)
        made = BundleChange(sequence, bundle_id, tuple(item_ids), created_on, born, born_at, request)
        return self._made(made)

    def remove_bundle(self, bundle_id: str, origin: Origin = UNKNOWN) -> int:
        with self._writing() as sequence:
            self._check_seen(bundle_id, origin)
            gone = self._connection.execute("DELETE FROM interactions WHERE bundle_id = ?", (bundle_id,))
            self._connection.execute("UPDATE state SET interactions = interactions - ?", (gone.rowcount,))
            unsaid = self._connection.execute(
                "DELETE FROM details WHERE subject = 'bundle' AND id = ?", (bundle_id,)
            )
            self._connection.execute("UPDATE state SET details = details - ?", (unsaid.rowcount,))
            is_first = self._stored(self._connection, bundle_id) is None
            now = self.clock()
            self._write_bundle((bundle_id, sequence, sequence, now, None, None, None), now, is_first)
        return self._made(BundleChange(sequence, bundle_id, None, None, sequence, now))

    def _write_bundle(self, values: tuple[object, ...], now: float, is_first: bool) -> None:
        columns = f"{form.BUNDLE}, written_at, checksum"
        taken_over = ", ".join(f"{name} = excluded.{name}" for name in columns.split(", "))
        self._connection.execute(
            f"INSERT INTO bundles ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            f"ON CONFLICT (bundle_id) DO UPDATE SET {taken_over}",
            (*values, now, checksum(*values)),
        )
        if is_first:
            self._connection.execute("UPDATE state SET bundles = bundles + 1")

    def put_columns(
        self, subject: Subject, name: str, columns: Mapping[str, Value], origin: Origin = UNKNOWN
    ) -> int:
        with self._writing() as sequence:
            if subject == "bundle":
                self._check_seen(name, origin)
            self._write_details(sequence, subject, name, columns)
        return self._made(Details(sequence, subject, name, dict(columns)))

    def _check_seen(self, bundle_id: str, origin: Origin) -> None:
        """Whether nothing was written of a bundle since the one who asks looked at it."""
        if origin.seen is None:
            return
        query = (
            "SELECT max(sequence) FROM (SELECT sequence FROM bundles WHERE bundle_id = ? UNION ALL "
            "SELECT sequence FROM details WHERE subject = 'bundle' AND id = ?)"
        )
        [newest] = self._connection.execute(query, (bundle_id, bundle_id)).fetchone()
        if (newest or 0) > origin.seen:
            raise Overtaken(f"the bundle {bundle_id!r} was written meanwhile")

    def _write_details(
        self, sequence: int, subject: Subject, name: str, columns: Mapping[str, Value]
    ) -> None:
        before = self._columns(self._connection, subject, name)
        text = json.dumps({**before, **columns}, ensure_ascii=False, sort_keys=True)
        values = subject, name, sequence, text
        self._connection.execute(
            f"INSERT INTO details ({form.DETAILS}, written_at, checksum) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (subject, id) DO UPDATE SET sequence = excluded.sequence, "
            "columns = excluded.columns, written_at = excluded.written_at, checksum = excluded.checksum",
            (*values, self.clock(), checksum(*values)),
        )
        if not before:
            self._connection.execute("UPDATE state SET details = (SELECT count(*) FROM details)")

    def add_interactions(self, interactions: Sequence[NewInteraction], origin: Origin = UNKNOWN) -> Appended:
        if origin.seen is not None and origin.seen < self._newest:
            self._check_made(interactions, origin.seen)
        now = self.clock()
        pending: dict[Identity, tuple[int | None, float]] = {}
        is_new = []
        identities = [(one.user_id, one.bundle_id, one.kind, one.recommendation_id) for one in interactions]
        stored = self._known(list(dict.fromkeys(identities)))
        for one, identity in zip(interactions, identities, strict=True):
            at = round(float(now if one.timestamp is None else one.timestamp), 3)
            known = pending.get(identity, stored.get(identity))
            is_new.append(known is None)
            if known is None:
                pending[identity] = None, at
            elif one.kind != "took" and at > known[1]:
                pending[identity] = known[0], at
        if not pending:
            return Appended(self.last_sequence(), is_new)
        with self._writing(sum(is_new)) as latest:
            self._write_interactions(pending, latest - sum(is_new), now)
            self._connection.execute("UPDATE state SET interactions = interactions + ?", (sum(is_new),))
        if any(is_new):
            self._made(Recorded(latest, tuple(compress(interactions, is_new))))
        return Appended(latest, is_new)

    def _check_made(self, interactions: Sequence[NewInteraction], seen: int) -> None:
        for name in {one.bundle_id for one in interactions}:
            there = self.bundle(name)
            if there is not None and max(there.born, there.sequence if there.item_ids is None else 0) > seen:
                raise Overtaken(f"the bundle {name!r} was removed or made anew meanwhile")

    def _known(self, identities: Sequence[Identity]) -> dict[Identity, tuple[int, float]]:
        """Sequence number and time of those interactions that are there."""
        found: dict[Identity, tuple[int, float]] = {}
        for start in range(0, len(identities), ASKED_AT_ONCE):
            asked = identities[start : start + ASKED_AT_ONCE]
            places = ", ".join(["(?, ?, ?, ?)"] * len(asked))
            rows = self._read(
                f"WITH asked (user_id, bundle_id, kind, recommendation_id) AS (VALUES {places}) "
                "SELECT user_id, bundle_id, kind, recommendation_id, sequence, happened_at "
                "FROM asked CROSS JOIN interactions USING (bundle_id, user_id, kind, recommendation_id)",
                *(value for identity in asked for value in identity),
            )
            found.update((tuple(identity), (number, at)) for *identity, number, at in rows)
        return found

    def _write_interactions(
        self, pending: Mapping[Identity, tuple[int | None, float]], sequence: int, now: float
    ) -> None:
        """Those that are there in their places, the others with the next numbers after this one."""
        added: list[tuple[float | str, ...]] = []
        changed: list[tuple[float | str, ...]] = []
        for (user_id, bundle_id, kind, found_in), (place, at) in pending.items():
            sequence += place is None
            values = sequence if place is None else place, user_id, bundle_id, kind, at, found_in
            if place is None:
                added.append((*values, now, checksum(*values)))
            else:
                changed.append((at, now, checksum(*values), place))
        self._connection.executemany(
            f"INSERT INTO interactions ({form.INTERACTION}, written_at, checksum) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            added,
        )
        self._connection.executemany(
            "UPDATE interactions SET happened_at = ?, written_at = ?, checksum = ? WHERE sequence = ?",
            changed,
        )

    def remove_interactions(
        self,
        withdrawals: Sequence[Withdrawal],
        origin: Origin = UNKNOWN,  # noqa: ARG002 (nothing overtakes it)
    ) -> Withdrawn:
        found = {row.sequence: row for one in withdrawals for row in self._matching(one)}
        if not found:
            return Withdrawn(self.last_sequence(), [])
        with self._writing() as latest:
            self._connection.executemany(
                "DELETE FROM interactions WHERE sequence = ?", [(sequence,) for sequence in found]
            )
            self._connection.execute(
                "UPDATE state SET interactions = interactions - ?, withdrawn = ?", (len(found), latest)
            )
        pairs = dict.fromkeys((one.user_id, one.bundle_id) for one in found.values())
        still = frozenset((*pair, kind) for pair in pairs for kind in KINDS if self.has_taken(*pair, (kind,)))
        gone = Withdrawn(latest, [found[sequence] for sequence in sorted(found)], still)
        self._made(gone)
        return gone

    def _matching(self, one: Withdrawal) -> list[Interaction]:
        wanted = {
            "bundle_id": one.bundle_id,
            "user_id": one.user_id,
            "kind": one.kind,
            "recommendation_id": one.recommendation_id,
        }
        given = {column: value for column, value in wanted.items() if value is not None}
        condition = " AND ".join(f"{column} = ?" for column in given)
        query = f"SELECT {form.INTERACTION} FROM interactions WHERE {condition}"
        return [Interaction(*row) for row in self._read(query, *given.values())]

    # --- the latest changes ---------------------------------------------------------------------

    def _made(self, change: Change) -> int:
        if len(self._changes) == KEPT_CHANGES:
            self._complete_after = self._changes[0].sequence
        self._changes.append(change)
        self._newest = change.sequence
        return change.sequence

    def changes(self, after: int) -> list[Change]:
        if after < self._complete_after:
            raise Missed(f"{self.path}: not all changes after {after} are kept in memory")
        return list(takewhile(lambda change: change.sequence > after, reversed(self._changes)))[::-1]

    def wait(self, after: int, seconds: float) -> int:
        ends = time.monotonic() + seconds
        while self._newest <= after and time.monotonic() < ends:
            time.sleep(min(0.05, seconds))
        return self._newest

    def check_reachable(self) -> None:
        """Whether the disk takes it is known by trying only."""

    # --- the file -------------------------------------------------------------------------------

    def check(self) -> None:
        self._files.check()
        free = os.statvfs(self.path.parent)
        if free.f_bavail * free.f_frsize < LEAST_FREE:
            raise StoreError(f"{self.path}: the disk is nearly full; make room", "the disk is nearly full")
        if self._failed:  # whether it would still fail is known by trying only
            with self._writing(0):
                self._connection.execute(form.TOUCH)

    def close(self) -> None:
        with self._writer, self._reader:
            self._let_go()

    @contextlib.contextmanager
    def _writing(self, numbers: int = 1) -> Iterator[int]:
        """One durable transaction with the next sequence numbers, of which it gives the last; all of it
        happens, or nothing."""
        with self._writer, self._explained("written"):
            try:
                self._files.check()
                with form.all_or_nothing(self._connection):
                    [sequence] = self._connection.execute(
                        "UPDATE state SET latest = latest + ? RETURNING latest", (numbers,)
                    ).fetchone()
                    yield sequence
                    self._sum_up()
                self._check_arrival()
            except Overtaken:
                raise
            except BaseException:
                self._failed = True
                raise
            self._failed = False
            if sequence - numbers != self._newest:  # a write whose fate was uncertain has happened
                self._changes.clear()
                self._complete_after = self._newest = sequence - numbers

    def _check_arrival(self) -> None:
        """Whether what was written went into files that will be found again.

        They are looked at once: between two looks one could vanish, or another take its place.
        """
        try:
            self._files.seen = self._files.check()
        except StoreError as error:
            error.is_uncertain = True
            raise

    def _sum_up(self) -> None:
        counts = self._connection.execute(f"SELECT {form.STATE} FROM state").fetchone()
        self._connection.execute("UPDATE state SET checksum = ?", (checksum(*counts),))


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


def _let_go(path: Path, connection: sqlite3.Connection, reading: sqlite3.Connection) -> None:
    """Close a database; the mark of its use is taken away."""
    reading.close()
    marked = False
    with contextlib.suppress(sqlite3.Error):
        # Frees the log's room, in case that there is no other for the mark.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.execute("UPDATE state SET in_use = 0")
        marked = True
    connection.close()
    if not marked and not form.log_of(path).exists():
        with contextlib.suppress(OSError):  # all is in the file: an empty log says so
            form.log_of(path).touch(mode=0o600)


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
