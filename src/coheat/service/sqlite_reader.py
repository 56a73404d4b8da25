"""Reading the store's SQLite file: in short steps, so that reading millions of rows makes no writer wait."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

from coheat.attributes import Value
from coheat.errors import ConfigError
from coheat.service import sqlite_format as form
from coheat.service.online import Outcome
from coheat.service.sides import MADE_HERE, TOKEN_CHARACTERS
from coheat.service.sqlite_format import ADVICE, checksum, damaged
from coheat.service.store import (
    KINDS,
    NOT_NOW,
    TOOK,
    BundleChange,
    Details,
    Interaction,
    Kind,
    StoreError,
    Subject,
)

STORE = "store.sqlite"
STEP = 20_000
"""Rows read at once."""
LAST = (1 << 63) - 1


class SqliteReader:
    """`Records` of one SQLite file, through a connection that is for reading only."""

    def __init__(self, path: Path, connection: sqlite3.Connection):
        self.path, self._reading = path, connection
        self._reader = threading.Lock()

    def bundles(
        self, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> Iterator[BundleChange]:
        query = f"SELECT {form.BUNDLE}, checksum FROM bundles WHERE"
        for rows in self._steps(query, after, until, limit, place=1):
            for row in rows:
                yield self._change(row)

    def interactions(
        self,
        after: int = 0,
        until: int | None = None,
        kinds: Collection[Kind] = KINDS,
        limit: int | None = None,
    ) -> Iterator[Interaction]:
        for rows in self._interactions(after, until, kinds, limit):
            for *values, _ in rows:
                yield Interaction(*values)

    def pairs(
        self, after: int = 0, until: int | None = None, kinds: Collection[Kind] = TOOK
    ) -> Iterator[tuple[list[str], list[str]]]:
        for rows in self._interactions(after, until, kinds):
            yield [row[1] for row in rows], [row[2] for row in rows]

    def _interactions(
        self, after: int, until: int | None, kinds: Collection[Kind], limit: int | None = None
    ) -> Iterator[list[Any]]:
        query = f"SELECT {form.INTERACTION}, checksum FROM interactions WHERE {_among(kinds)} AND"
        for rows in self._steps(query, after, until, limit, place=0):
            for sequence, user, bundle, kind, at, found_in, expected in rows:
                # As `checksum` does it, written out: there may be millions of rows. What SQLite reads is
                # UTF-8, so no surrogates need be let pass, which takes twice as long.
                if crc32(f"{sequence}\0{user}\0{bundle}\0{kind}\0{at}\0{found_in}".encode()) != expected:
                    raise damaged(self.path, f"the interaction with bundle {bundle!r} is not as written")
            yield rows

    def bundle(self, bundle_id: str) -> BundleChange | None:
        with self._reader, self._explained("read"):
            return self._stored(self._reading, bundle_id)

    def takers(self, bundle_id: str, kinds: Collection[Kind] = TOOK) -> list[str]:
        query = (
            "SELECT user_id, min(sequence) AS first FROM interactions "
            f"WHERE bundle_id = ? AND {_among(kinds)} GROUP BY user_id ORDER BY first"
        )
        return [user_id for user_id, _ in self._read(query, bundle_id)]

    def has_taken(self, user_id: str, bundle_id: str, kinds: Collection[Kind] = TOOK) -> bool:
        query = f"SELECT 1 FROM interactions WHERE bundle_id = ? AND user_id = ? AND {_among(kinds)} LIMIT 1"
        return bool(self._read(query, bundle_id, user_id))

    def details(
        self, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> Iterator[Details]:
        query = f"SELECT {form.DETAILS}, written_at, checksum FROM details WHERE"
        for rows in self._steps(query, after, until, limit, place=2):
            for row in rows:
                yield self._details(row)

    def columns_of(self, subject: Subject, name: str) -> dict[str, Value]:
        with self._reader, self._explained("read"):
            return self._columns(self._reading, subject, name)

    def _columns(self, connection: sqlite3.Connection, subject: Subject, name: str) -> dict[str, Value]:
        query = f"SELECT {form.DETAILS}, written_at, checksum FROM details WHERE subject = ? AND id = ?"
        row = connection.execute(query, (subject, name)).fetchone()
        return {} if row is None else dict(self._details(row).columns)

    def _details(self, row: tuple[Any, ...]) -> Details:
        subject, name, sequence, columns, written_at, expected = row
        if checksum(subject, name, sequence, columns) != expected:
            raise damaged(self.path, f"the columns of the {subject} {name!r} are not as written")
        return Details(sequence, subject, name, json.loads(columns), written_at)

    def shown_since(self, user_id: str, moment: float) -> list[str]:
        query = "SELECT bundle_id FROM interactions WHERE kind = 'shown' AND user_id = ? AND happened_at >= ?"
        return sorted({name for (name,) in self._read(query, user_id, moment)})

    def outcomes(self) -> list[Outcome]:
        query = (
            "SELECT substr(recommendation_id, 1, length(recommendation_id) - ?) AS made_by, "
            "count(DISTINCT recommendation_id), sum(kind = 'shown'), sum(kind = 'clicked'), "
            "sum(kind = 'took') FROM interactions WHERE recommendation_id <> '' GROUP BY made_by"
        )
        return [
            Outcome(made[1], made[2], *counts)
            for name, *counts in sorted(self._read(query, TOKEN_CHARACTERS + 1))
            if (made := MADE_HERE.fullmatch(name))
        ]

    def last_sequence(self) -> int:
        return int(self._read("SELECT latest FROM state")[0][0])

    def last_withdrawal(self) -> int:
        return int(self._read("SELECT withdrawn FROM state")[0][0])

    def close(self) -> None:
        with self._reader:
            self._reading.close()

    def _steps(
        self, query: str, after: int, until: int | None, limit: int | None, place: int
    ) -> Iterator[list[Any]]:
        """The rows of a table in the order of writing, some at a time; nobody is kept waiting between.

        `place` is that of the sequence number in a row.
        """
        query = f"{query} sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?"
        last = LAST if until is None else until
        left = LAST if limit is None else limit
        while left > 0 and (rows := self._read(query, after, last, min(STEP, left))):
            yield rows
            after = rows[-1][place]
            left -= len(rows)

    def _read(self, query: str, *values: float | str) -> list[Any]:
        with self._reader, self._explained("read"):
            return self._reading.execute(query, values).fetchall()

    def _stored(self, connection: sqlite3.Connection, bundle_id: str) -> BundleChange | None:
        query = f"SELECT {form.BUNDLE}, checksum FROM bundles WHERE bundle_id = ?"
        row = connection.execute(query, (bundle_id,)).fetchone()
        return None if row is None else self._change(row)

    def _change(self, row: tuple[Any, ...]) -> BundleChange:
        *values, expected = row
        bundle_id, sequence, born, born_at, items, created_on, request = values
        if checksum(*values) != expected:
            raise damaged(self.path, f"the bundle {bundle_id!r} is not as written")
        item_ids = None if items is None else tuple(json.loads(items))
        return BundleChange(sequence, bundle_id, item_ids, created_on, born, born_at, request)

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


@contextlib.contextmanager
def records_of(place: Path) -> Iterator[SqliteReader]:
    """What was written to a service, from its state directory or a backup; the service may be running."""
    file = file_of(place)
    with read_only(file) as connection:
        yield SqliteReader(file, connection)


def file_of(place: Path) -> Path:
    """The store's file in a state directory, or the file itself."""
    file = place / STORE if place.is_dir() else place
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file; a state directory is RUN.service, or --state")
    return file


@contextlib.contextmanager
def read_only(file: Path) -> Iterator[sqlite3.Connection]:
    """A store's file, to be read only; errors of SQLite's name it."""
    has_log = form.log_of(file).exists()
    try:
        address = f"file:{quote(str(file.absolute()))}?mode=ro"
        connection = sqlite3.connect(address, uri=True, check_same_thread=False)
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


def _among(kinds: Collection[Kind]) -> str:
    """A condition on the kind; the words are our own."""
    wanted = [kind for kind in KINDS if kind in kinds]
    return "1" if len(wanted) == len(KINDS) else f"kind IN ({', '.join(map(repr, wanted))})"


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
