"""Keys in the database that replicas share: made or revoked once, known to all of them within a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple

from coheat.service.keys import Key, Keys
from coheat.service.postgres_database import Database


class PostgresKeys(Keys):
    """The keys of a database, kept in memory: requests are answered while it is away, too."""

    def __init__(self, database: Database):
        super().__init__()
        self.database = database
        [(version,)] = database.read("SELECT key_changes FROM coheat.state")
        self._version = -1
        self.refresh(int(version))

    def keys(self) -> tuple[Key, ...]:
        return self._keys

    def refresh(self, version: int) -> None:
        """Read them again where they have changed since."""
        if version != self._version:
            rows = self.database.read(
                "SELECT name, scope, sha256, created FROM coheat.keys ORDER BY created, name"
            )
            self._keys, self._version = tuple(Key(*row) for row in rows), version

    @contextmanager
    def _changing(self) -> Iterator[list[Key]]:
        """The keys to change; a second command waits for the counter's row, as every writer does."""
        with self.database.transaction() as connection:
            connection.execute("SELECT latest FROM coheat.state FOR UPDATE")
            rows = connection.execute("SELECT name, scope, sha256, created FROM coheat.keys ORDER BY created")
            before = [Key(*row) for row in rows.fetchall()]
            after = list(before)
            yield after
            for key in before:
                if key not in after:
                    connection.execute("DELETE FROM coheat.keys WHERE name = %s", (key.name,))
            for key in after:
                if key not in before:
                    connection.execute("INSERT INTO coheat.keys VALUES (%s, %s, %s, %s)", astuple(key))
            changed = [("key made", key.name) for key in after if key not in before]
            changed += [("key revoked", key.name) for key in before if key not in after]
            for what, name in changed:
                connection.execute(
                    "INSERT INTO coheat.audit (at, what, about) VALUES (clock_timestamp(), %s, %s)",
                    (what, name),
                )
            found = connection.execute(
                "UPDATE coheat.state SET key_changes = key_changes + 1 RETURNING key_changes"
            ).fetchone()
        if found is not None:
            self.refresh(int(found[0]))
