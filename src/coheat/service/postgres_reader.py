"""Reading a PostgreSQL store, in steps.

PostgreSQL's text holds every character but one: in ids a zero character is written `\\0`, and a backslash
twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import LiteralString

from coheat.attributes import Value
from coheat.service.online import Outcome
from coheat.service.postgres_database import Database, Row, check_version
from coheat.service.sides import MADE_HERE, TOKEN_CHARACTERS
from coheat.service.store import KINDS, TOOK, BundleChange, Details, Interaction, Kind, StoreError, Subject

STEP = 20_000
"""Rows read at once."""
LAST = (1 << 63) - 1
BUNDLE: LiteralString = (
    "SELECT sequence, bundle_id, item_ids, created_on, born, born_at, request FROM coheat.bundles "
)
INTERACTION: LiteralString = (
    "SELECT sequence, user_id, bundle_id, kind, happened_at, recommendation_id FROM coheat.interactions "
)
IN_STEPS: LiteralString = "sequence > %s AND sequence <= %s ORDER BY sequence LIMIT %s"


class PostgresReader:
    """`Records` of a database."""

    def __init__(self, database: Database):
        self.database = database

    def bundles(
        self, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> Iterator[BundleChange]:
        for rows in self._steps(BUNDLE + "WHERE " + IN_STEPS, (), after, until, limit):
            yield from map(_bundle, rows)

    def interactions(
        self,
        after: int = 0,
        until: int | None = None,
        kinds: Collection[Kind] = KINDS,
        limit: int | None = None,
    ) -> Iterator[Interaction]:
        query = INTERACTION + "WHERE kind = ANY (%s) AND " + IN_STEPS
        for rows in self._steps(query, (list(kinds),), after, until, limit):
            yield from map(interaction_of, rows)

    def pairs(
        self, after: int = 0, until: int | None = None, kinds: Collection[Kind] = TOOK
    ) -> Iterator[tuple[list[str], list[str]]]:
        query: LiteralString = (
            "SELECT sequence, user_id, bundle_id FROM coheat.interactions WHERE kind = ANY (%s) AND "
        )
        for rows in self._steps(query + IN_STEPS, (list(kinds),), after, until, None):
            yield [from_stored(row[1]) for row in rows], [from_stored(row[2]) for row in rows]

    def hashed_pairs(self) -> Iterator[list[tuple[bytes, str, str]]]:
        """Users and bundles of all interactions, with the hashes that stand beside them."""
        query: LiteralString = "SELECT sequence, pair, user_id, bundle_id FROM coheat.interactions WHERE "
        for rows in self._steps(query + IN_STEPS, (), 0, None, None):
            yield [(pair, from_stored(user), from_stored(bundle)) for _, pair, user, bundle in rows]

    def bundle(self, bundle_id: str) -> BundleChange | None:
        found = self.database.read(BUNDLE + "WHERE bundle_id = %s", (to_stored(bundle_id),))
        return _bundle(found[0]) if found else None

    def takers(self, bundle_id: str, kinds: Collection[Kind] = TOOK) -> list[str]:
        found = self.database.read(
            "SELECT user_id, min(sequence) AS first FROM coheat.interactions "
            "WHERE bundle_id = %s AND kind = ANY (%s) GROUP BY user_id ORDER BY first",
            (to_stored(bundle_id), list(kinds)),
        )
        return [from_stored(user_id) for user_id, _ in found]

    def has_taken(self, user_id: str, bundle_id: str, kinds: Collection[Kind] = TOOK) -> bool:
        found = self.database.read(
            "SELECT 1 FROM coheat.interactions WHERE pair = %s AND kind = ANY (%s) LIMIT 1",
            (pair_of(user_id, bundle_id), list(kinds)),
        )
        return bool(found)

    def details(
        self, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> Iterator[Details]:
        query: LiteralString = (
            "SELECT sequence, subject, id, columns::text, written_at FROM coheat.details WHERE "
        )
        for rows in self._steps(query + IN_STEPS, (), after, until, limit):
            for sequence, subject, name, columns, at in rows:
                yield Details(sequence, subject, from_stored(name), columns_from(columns), at)

    def columns_of(self, subject: Subject, name: str) -> dict[str, Value]:
        found = self.database.read(
            "SELECT columns::text FROM coheat.details WHERE subject = %s AND id = %s",
            (subject, to_stored(name)),
        )
        return columns_from(found[0][0]) if found else {}

    def shown_since(self, user_id: str, moment: float) -> list[str]:
        user = to_stored(user_id)
        found = self.database.read(
            "SELECT DISTINCT bundle_id FROM coheat.interactions WHERE kind = 'shown' "
            "AND md5(user_id) = md5(%s) AND user_id = %s AND happened_at >= %s",
            (user, user, moment),
        )
        return sorted(from_stored(name) for (name,) in found)

    def outcomes(self) -> list[Outcome]:
        found = self.database.read(
            "SELECT left(recommendation_id, -%s) AS made_by, count(DISTINCT recommendation_id), "
            "count(*) FILTER (WHERE kind = 'shown'), count(*) FILTER (WHERE kind = 'clicked'), "
            "count(*) FILTER (WHERE kind = 'took') "
            "FROM coheat.interactions WHERE recommendation_id <> '' GROUP BY made_by",
            (TOKEN_CHARACTERS + 1,),
        )
        return [
            Outcome(made[1], made[2], *counts)
            for name, *counts in sorted(found)
            if (made := MADE_HERE.fullmatch(name))
        ]

    def last_sequence(self) -> int:
        return int(self.database.read("SELECT latest FROM coheat.state")[0][0])

    def last_withdrawal(self) -> int:
        return int(self.database.read("SELECT withdrawn FROM coheat.state")[0][0])

    def close(self) -> None:
        self.database.close()

    def _steps(
        self, query: LiteralString, values: Sequence[object], after: int, until: int | None, limit: int | None
    ) -> Iterator[list[Row]]:
        """The rows of a table in the order of writing, some at a time; the number stands first in a row."""
        last, left = LAST if until is None else until, LAST if limit is None else limit
        while left > 0 and (rows := self.database.read(query, (*values, after, last, min(STEP, left)))):
            yield rows
            after = rows[-1][0]
            left -= len(rows)


def opened(address: str) -> PostgresReader:
    """The records of a database that a service has been on; nothing is changed in it."""
    database = Database(address)
    try:
        [(there,)] = database.read("SELECT to_regclass('coheat.format') IS NOT NULL")
        if not there:
            raise StoreError(
                f"{database.name}: there are no tables of coheat; start a service on it, or move one there "
                "with coheat state copy"
            )
        [(version,)] = database.read("SELECT version FROM coheat.format")
        check_version(int(version), database.name)
    except BaseException:
        database.close()
        raise
    return PostgresReader(database)


def to_stored(text: str) -> str:
    """An id as PostgreSQL can hold it."""
    return text.replace("\\", "\\\\").replace("\0", "\\0") if "\\" in text or "\0" in text else text


def from_stored(text: str) -> str:
    """An id as it was given."""
    if "\\" not in text:
        return text
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))


def pair_of(user_id: str, bundle_id: str) -> bytes:
    """A short name of a user and a bundle together, for an index."""
    text = f"{len(user_id)} {user_id}{bundle_id}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def columns_to(columns: Mapping[str, Value]) -> str:
    """Columns as JSON that PostgreSQL can merge."""
    kept = {
        to_stored(name): to_stored(value) if isinstance(value, str) else value
        for name, value in columns.items()
    }
    return json.dumps(kept)


def columns_from(text: str) -> dict[str, Value]:
    """Columns as they were given."""
    return {
        from_stored(name): from_stored(value) if isinstance(value, str) else value
        for name, value in json.loads(text).items()
    }


def interaction_of(row: Sequence[object]) -> Interaction:
    sequence, user, bundle, kind, at, found_in = row
    assert isinstance(sequence, int)
    assert isinstance(at, int | float)
    return Interaction(
        sequence,
        from_stored(str(user)),
        from_stored(str(bundle)),
        next(one for one in KINDS if one == kind),
        float(at),
        from_stored(str(found_in)),
    )


def _bundle(row: Row) -> BundleChange:
    sequence, name, items, created_on, born, born_at, request = row
    item_ids = None if items is None else tuple(json.loads(items))
    return BundleChange(sequence, from_stored(name), item_ids, created_on, born, born_at, request)
