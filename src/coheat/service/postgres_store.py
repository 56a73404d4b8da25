"""The store in a PostgreSQL database that several services share.

A write is one call of a function in the database (see `postgres_format.py`), committed when it returns.
Changes are heard of by LISTEN, which only wakes; what there is to follow is read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

from coheat.attributes import Value
from coheat.service.postgres_database import ANSWER_SECONDS, Database, Listener, migrate
from coheat.service.postgres_format import CHANNEL
from coheat.service.postgres_keys import PostgresKeys
from coheat.service.postgres_reader import (
    PostgresReader,
    columns_to,
    from_stored,
    interaction_of,
    pair_of,
    to_stored,
)
from coheat.service.store import (
    UNKNOWN,
    Appended,
    BundleChange,
    Change,
    Details,
    Kind,
    Missed,
    NewInteraction,
    Origin,
    Recorded,
    Subject,
    Withdrawal,
    Withdrawn,
)

POLL_SECONDS = 0.2
"""Between two looks at the counter, where nobody wakes us."""
STEP = 1000
"""Changes read at once."""
Identity = tuple[str, str, Kind, str]
"""Of an interaction: user, bundle, kind, list."""


class PostgresStore(PostgresReader):
    """`Store` in a database. Opening it makes the tables, or brings them to this version."""

    is_shared = True

    def __init__(self, address: str, clock: Callable[[], float] = time.time):
        super().__init__(Database(address))
        self.clock = clock
        self._listener = Listener(self.database, CHANNEL)
        try:
            migrate(self.database)
            self.keys = PostgresKeys(self.database)
        except BaseException:
            self.close()
            raise

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
        [number] = self.database.write(
            "SELECT coheat.put_bundle(%s::text, %s::text, %s::text, %s::text, %s::jsonb, "
            "%s::double precision, %s::text, %s::bigint, %s::text)",
            (
                to_stored(bundle_id),
                json.dumps(list(item_ids)),
                created_on,
                request,
                columns_to(columns) if columns else None,
                self.clock(),
                json.dumps([bundle_id, list(item_ids)]),
                origin.seen,
                origin.key,
            ),
        )
        return int(number)

    def remove_bundle(self, bundle_id: str, origin: Origin = UNKNOWN) -> int:
        [number] = self.database.write(
            "SELECT coheat.remove_bundle(%s::text, %s::double precision, %s::text, %s::bigint, %s::text)",
            (to_stored(bundle_id), self.clock(), json.dumps([bundle_id, None]), origin.seen, origin.key),
        )
        return int(number)

    def put_columns(
        self, subject: Subject, name: str, columns: Mapping[str, Value], origin: Origin = UNKNOWN
    ) -> int:
        [number] = self.database.write(
            "SELECT coheat.put_columns(%s::text, %s::text, %s::jsonb, %s::double precision, %s::text, "
            "%s::bigint, %s::text)",
            (
                subject,
                to_stored(name),
                columns_to(columns),
                self.clock(),
                json.dumps([subject, name, dict(columns)]),
                origin.seen,
                origin.key,
            ),
        )
        return int(number)

    def add_interactions(self, interactions: Sequence[NewInteraction], origin: Origin = UNKNOWN) -> Appended:
        now = self.clock()
        first: dict[Identity, int] = {}
        times: dict[Identity, float] = {}
        for place, one in enumerate(interactions):
            at = round(float(now if one.timestamp is None else one.timestamp), 3)
            identity = one.user_id, one.bundle_id, one.kind, one.recommendation_id
            first.setdefault(identity, place)
            known = times.setdefault(identity, at)
            if one.kind != "took" and at > known:
                times[identity] = at
        users, bundles, kinds, lists = map(list, zip(*first, strict=True)) if first else ([], [], [], [])
        number, fresh = self.database.write(
            "SELECT * FROM coheat.add_interactions(%s::bytea[], %s::text[], %s::text[], %s::text[], "
            "%s::double precision[], %s::text[], %s::double precision, %s::text, %s::bigint)",
            (
                [pair_of(user, bundle) for user, bundle in zip(users, bundles, strict=True)],
                [to_stored(user) for user in users],
                [to_stored(bundle) for bundle in bundles],
                kinds,
                list(times.values()),
                [to_stored(one) for one in lists],
                now,
                json.dumps(list(first)),
                origin.seen,
            ),
        )
        places = list(first.values())
        is_new = [False] * len(interactions)
        for place in fresh:
            is_new[places[place - 1]] = True
        return Appended(number, is_new)

    def remove_interactions(self, withdrawals: Sequence[Withdrawal], origin: Origin = UNKNOWN) -> Withdrawn:
        number, found = self.database.write(
            "SELECT * FROM coheat.remove_interactions(%s::bytea[], %s::text[], %s::text[], %s::text)",
            (
                [pair_of(one.user_id, one.bundle_id) for one in withdrawals],
                [one.kind for one in withdrawals],
                [
                    None if one.recommendation_id is None else to_stored(one.recommendation_id)
                    for one in withdrawals
                ],
                origin.key,
            ),
        )
        return _withdrawn(number, found)

    # --- following ------------------------------------------------------------------------------

    def changes(self, after: int) -> list[Change]:
        rows = self.database.read(
            "SELECT s.dropped, c.sequence, c.kind, c.asked, c.outcome FROM coheat.state s LEFT JOIN LATERAL "
            "(SELECT * FROM coheat.changes WHERE sequence > %s ORDER BY sequence LIMIT %s) c ON true "
            "ORDER BY c.sequence",
            (after, STEP),
            ANSWER_SECONDS,  # while it waits nothing else is written
        )
        if rows[0][0] > after:
            raise Missed(f"{self.database.name}: changes up to {rows[0][0]} are not kept any more")
        return [_change(*row) for _, *row in rows if row[0] is not None]

    def wait(self, after: int, seconds: float) -> int:
        ends = time.monotonic() + seconds
        while True:
            self.database.reconnect()
            latest, key_changes = self._listener.ask("SELECT latest, key_changes FROM coheat.state")
            self.keys.refresh(key_changes)
            left = ends - time.monotonic()
            if latest > after or left <= 0:
                return int(latest)
            self._listener.sleep(min(POLL_SECONDS, left))

    # --- being there ----------------------------------------------------------------------------

    def check_reachable(self) -> None:
        self.database.check_reachable()

    def check(self) -> None:
        self.database.check_reachable()
        self.database.check_writable()

    def close(self) -> None:
        self._listener.close()
        super().close()


def _change(sequence: int, kind: str, asked: str, found: str) -> Change:
    if kind == "bundle":
        name, items = json.loads(asked)
        created_on, born, born_at, request = json.loads(found)
        item_ids = None if items is None else tuple(items)
        return BundleChange(sequence, name, item_ids, created_on, born, float(born_at), request)
    if kind == "details":
        subject, name, columns = json.loads(asked)
        return Details(sequence, subject, name, columns)
    if kind == "interactions":
        rows, fresh = json.loads(asked), json.loads(found)
        new = (rows[place - 1] for place in fresh)
        return Recorded(sequence, tuple(NewInteraction(u, b, k, None, where) for u, b, k, where in new))
    return _withdrawn(sequence, found)


def _withdrawn(sequence: int, found: str) -> Withdrawn:
    gone, remaining = json.loads(found)
    still = frozenset((from_stored(user), from_stored(bundle), kind) for user, bundle, kind in remaining)
    return Withdrawn(sequence, [interaction_of(row) for row in gone], still)
