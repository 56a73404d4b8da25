"""The connections to a PostgreSQL database: opened when it is there, given up when it is not.

While the database is away every question is refused at once, and only whoever waits for changes tries to
reach it again: many that wait for a time limit would keep others from being answered. A server that takes
questions and does not answer them is away, too, after a while.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, LiteralString, TypeAlias

import psycopg
from psycopg import Connection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import ConnectionPool, PoolTimeout

from coheat.errors import ConfigError
from coheat.service.places import shown
from coheat.service.postgres_format import MIGRATIONS, OVERTAKEN
from coheat.service.store import Overtaken, StoreError

CONNECT_SECONDS = 3
ANSWER_SECONDS = 5.0
READ_SECONDS = 120.0
LATE_SECONDS = 1.0
"""A question that takes longer than this may be one to a server that is gone."""
AWAY = "the database cannot be reached; nothing was changed"
REFUSED = "the database does not take it now; nothing was changed"
UNANSWERED = "the database does not answer; nothing was changed"
UNCERTAIN = "the database went away while the service ran; it may be written or not"
OPTIONS = {
    "connect_timeout": str(CONNECT_SECONDS),
    "application_name": "coheat",
    "client_encoding": "UTF8",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
}
LOCK = 0x636F6865  # of the migrations
Row: TypeAlias = tuple[Any, ...]


class Database:
    """A database by its address, through a pool of connections; errors are sentences that name it."""

    def __init__(self, address: str):
        self.name = shown(address)
        self._conninfo = self._described(address)
        self._pool: ConnectionPool[Connection[Row]] | None = None
        self._away: str | None = None
        self.overdue = Overdue()
        self._opening = threading.Lock()
        self.reconnect()

    def _described(self, address: str) -> str:
        try:
            given = conninfo_to_dict(address)
            wanted = {name: str(value) for name, value in given.items() if value is not None}
            return make_conninfo("", **{**OPTIONS, **wanted})
        except psycopg.Error:
            raise ConfigError(  # what PostgreSQL says of it may hold the password
                f"{self.name}: not an address of a database; write it as "
                "postgresql://USER:PASSWORD@HOST:5432/DATABASE, special characters percent-encoded"
            ) from None

    # --- being there ----------------------------------------------------------------------------

    def reconnect(self) -> None:
        """Open the connections where there are none; `StoreError` where that cannot be done."""
        with self._opening:
            if self._pool is not None:
                return
            with self.connected():  # the pool would only say that it took too long
                pass
            pool = ConnectionPool[Connection[Row]](
                self._conninfo,
                kwargs={"autocommit": True},
                configure=_configure,
                min_size=1,
                max_size=5,
                timeout=CONNECT_SECONDS,
                reconnect_timeout=CONNECT_SECONDS,
                name="coheat",
                open=True,
            )
            self._pool, self._away = pool, None
            self.overdue.allowed = float("inf")

    def connect(self) -> Connection[Row]:
        """A connection of one's own, outside of the pool."""
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True)
            _configure(connection)
            return connection
        except psycopg.Error as error:
            raise StoreError(
                f"{self.name}: cannot be reached ({_short(error)}); is the server running, and is the "
                "address right?",
                AWAY,
            ) from None

    @contextlib.contextmanager
    def connected(self) -> Iterator[Connection[Row]]:
        """The same for a block."""
        connection = self.connect()
        try:
            with self._explained(connection, is_write=False):
                yield connection
        finally:
            connection.close()

    def check_reachable(self) -> None:
        """Raise where it is known that nobody would answer."""
        if self._pool is None:
            raise StoreError(f"{self.name}: {self._away or 'closed'}", AWAY)
        if self.overdue.longest() > LATE_SECONDS:
            raise StoreError(f"{self.name}: the server does not answer", UNANSWERED)

    def check_writable(self) -> None:
        """Raise where it answers, but would refuse to write."""
        with self._connection(ANSWER_SECONDS, is_write=False) as connection:
            found = connection.execute("SHOW transaction_read_only").fetchone()
        if found != ("off",):
            raise StoreError(
                f"{self.name}: it takes no writes: it is a standby; give the address of the primary",
                "the database takes no writes",
            )

    def _lost(self, pool: ConnectionPool[Connection[Row]], why: str) -> None:
        """Give all connections up: where one is lost the others are likely to be, too."""
        if self._pool is pool:
            self._pool, self._away = None, why
            self.overdue.allowed = (
                LATE_SECONDS  # a read may take minutes, and who waits for it holds up others
            )
        threading.Thread(target=pool.close, kwargs={"timeout": 0}, daemon=True).start()

    def give_up(self, why: str) -> None:
        """Refuse all questions until it is reached again."""
        if self._pool is not None:
            self._lost(self._pool, why)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        self.overdue.stop()

    # --- asking ---------------------------------------------------------------------------------

    def write(self, query: LiteralString, values: Sequence[object]) -> Row:
        """One call of a function that writes; its answer. It is one transaction, durable when it returns."""
        with self._connection(ANSWER_SECONDS, is_write=True) as connection:
            found = connection.execute(query, values).fetchone()
        assert found is not None
        return found

    def read(
        self,
        query: LiteralString | sql.Composed,
        values: Sequence[object] = (),
        seconds: float = READ_SECONDS,
    ) -> list[Row]:
        with self._connection(seconds, is_write=False) as connection:
            return connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection[Row]]:
        """A connection, for several statements that all happen or none."""
        with self._connection(3600.0, is_write=True) as connection, connection.transaction():
            yield connection

    @contextlib.contextmanager
    def _connection(self, seconds: float, is_write: bool) -> Iterator[Connection[Row]]:
        pool = self._pool
        if pool is None:
            raise StoreError(f"{self.name}: {self._away or 'closed'}", AWAY)
        try:
            connection = pool.getconn(timeout=CONNECT_SECONDS)
        except (PoolTimeout, psycopg.Error) as error:  # nothing was sent
            self._lost(pool, f"cannot be reached ({_short(error)})")
            raise StoreError(f"{self.name}: cannot be reached ({_short(error)})", AWAY) from None
        try:
            with (
                self._explained(connection, is_write),
                self.overdue.within(connection, seconds),
            ):
                yield connection
        finally:
            if connection.closed:
                self._lost(pool, "the connection was lost")
            with contextlib.suppress(psycopg.Error, ValueError):
                pool.putconn(connection)

    @contextlib.contextmanager
    def _explained(self, connection: Connection[Row], is_write: bool) -> Iterator[None]:
        """PostgreSQL's errors as a sentence that names the database and what to do."""
        try:
            yield
        except psycopg.Error as error:
            if error.sqlstate == OVERTAKEN:
                raise Overtaken("something newer was written meanwhile") from None
            if not connection.closed:
                raise StoreError(f"{self.name}: {_short(error)}; {_advice(error)}", REFUSED) from None
            found = StoreError(
                f"{self.name}: the connection was lost ({_short(error)})", UNCERTAIN if is_write else AWAY
            )
            found.is_uncertain = is_write
            raise found from None


class Listener:
    """A connection that is woken when something was written; opened again after it was lost."""

    def __init__(self, database: Database, channel: LiteralString):
        self.database, self.channel = database, channel
        self._connection: Connection[Row] | None = None

    def ask(self, query: LiteralString) -> Row:
        """A short question."""
        with self._there() as connection, self.database.overdue.within(connection, ANSWER_SECONDS):
            found = connection.execute(query).fetchone()
        assert found is not None
        return found

    def sleep(self, seconds: float) -> None:
        """Until somebody writes, or so long."""
        with self._there() as connection:
            for _ in connection.notifies(timeout=seconds, stop_after=1):
                pass

    @contextlib.contextmanager
    def _there(self) -> Iterator[Connection[Row]]:
        try:
            if self._connection is None:
                self._connection = self.database.connect()
                self._connection.execute("LISTEN " + self.channel)
            yield self._connection
        except psycopg.Error as error:
            self.close()
            # Others would wait as long for the same server.
            self.database.give_up(f"the connection was lost ({_short(error)})")
            lost = f"{self.database.name}: the connection was lost ({_short(error)})"
            raise StoreError(lost, AWAY) from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Overdue:
    """Questions in progress; the connection of one that takes too long is cut, which wakes whoever waits."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[int, float, float]] = {}
        self.allowed = float("inf")
        """Seconds that any question may take: few while the database is away."""
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="overdue", daemon=True).start()

    @contextlib.contextmanager
    def within(self, connection: Connection[Row], seconds: float) -> Iterator[None]:
        """A question that may take so long."""
        now, mark = time.monotonic(), threading.get_ident()
        self._asked[mark] = connection.fileno(), now, now + seconds
        try:
            yield
        finally:
            self._asked.pop(mark, None)

    def longest(self) -> float:
        """Seconds since the oldest question that should be answered soon."""
        now = time.monotonic()
        asked = [since for _, since, until in list(self._asked.values()) if until - since <= ANSWER_SECONDS]
        return now - min(asked, default=now)

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(0.25):
            now = time.monotonic()
            for file, since, until in list(self._asked.values()):
                if now > until or now - since > self.allowed:
                    with contextlib.suppress(OSError):
                        copy = socket.socket(fileno=os.dup(file))
                        copy.shutdown(socket.SHUT_RDWR)
                        copy.close()


def _configure(connection: Connection[Row]) -> None:
    """What we rely on, whatever the server's defaults: acknowledged is on the disk, and each statement of a
    function sees what was committed before it."""
    connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
    )


def migrate(database: Database) -> None:
    """Bring the tables to this version, one migration after the other; only one service at a time does."""
    with database.connected() as connection, connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        found = connection.execute("SELECT to_regclass('coheat.format') IS NOT NULL").fetchone()
        if found == (False,):
            connection.execute("CREATE SCHEMA IF NOT EXISTS coheat")
            connection.execute("CREATE TABLE coheat.format (version integer NOT NULL)")
            connection.execute("INSERT INTO coheat.format VALUES (0)")
        row = connection.execute("SELECT version FROM coheat.format").fetchone()
        version = int(row[0]) if row else 0
        check_version(version, database.name)
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            connection.execute(sql.SQL(statements))
            connection.execute("UPDATE coheat.format SET version = %s", (number,))


def check_version(version: int, name: str) -> None:
    """Raise where the tables are newer than we are."""
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{name}: its tables have version {version}, this version of coheat knows {len(MIGRATIONS)}; use "
            "the version that made them"
        )


def _short(error: Exception) -> str:
    """The first line of what PostgreSQL says; it names user and host, never a password."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def _advice(error: psycopg.Error) -> str:
    state = error.sqlstate or ""
    if state.startswith("53"):
        return "make room, or allow more connections; nothing that was acknowledged is lost"
    if state == "25006":
        return "it takes no writes: it is a standby; give the address of the primary"
    if state in ("42501", "28000", "28P01"):
        return "the user needs the right to create and use the schema coheat"
    if state.startswith("42"):
        return "its tables are not ours, or were altered; restore them, or give another database"
    return "see the log of the server"
