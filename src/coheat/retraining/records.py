"""Where what was recorded comes from: a state directory or a backup of one, a database, a running service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coheat.data.merging import Recorded, Row, WrittenBundle
from coheat.data.said_columns import SaidColumns
from coheat.errors import ConfigError
from coheat.retraining.client import Client, is_address
from coheat.service.places import Place, place_of

PAGE = 1000
"""Rows asked for at once."""


def read_recorded(source: str, key: str | None = None) -> Recorded:
    """All that was written to a service; it may be running meanwhile."""
    return _from_service(Client(source, key)) if is_address(source) else _from_state(place_of(source))


def _from_state(place: Place) -> Recorded:
    from coheat.service.opening import records_of

    if isinstance(place, Path) and not place.exists():
        raise ConfigError(
            f"{place}: there is nothing to collect from; give a state directory (RUN.service, or the --state "
            "of the service), a backup of one, a database (postgresql://...), or the address of a running "
            "service"
        )
    with records_of(place) as records:
        # The number first: interactions that come meanwhile are left for the next time. Bundles last: so that
        # none is missing that interactions are with.
        until = records.last_sequence()
        rows = [
            Row(row.sequence, row.user_id, row.bundle_id, row.kind, int(row.timestamp // 1))
            for row in records.interactions(until=until)
        ]
        bundles = [
            WrittenBundle(
                one.bundle_id,
                one.item_ids,
                one.born_at if one.created_on else None,
                (one.born_at or None) if one.item_ids is None else None,
            )
            for one in records.bundles()
        ]
        said = [
            SaidColumns(one.subject, one.id, one.columns)
            for one in records.details()
            if one.subject == "bundle" or one.subject == "item"
        ]
    return Recorded(rows, bundles, until, said)


def _from_service(client: Client) -> Recorded:
    rows = [
        Row(
            int(row["sequence"]),
            str(row["user_id"]),
            str(row["bundle_id"]),
            str(row["kind"]),
            int(_seconds(row["timestamp"]) // 1),
        )
        for row in _pages(client, "/v1/interactions", "interactions")
    ]
    bundles = list(_pages(client, "/v1/bundles", "bundles"))
    written = [
        WrittenBundle(
            str(row["bundle_id"]),
            None if row["item_ids"] is None else tuple(map(str, row["item_ids"])),
            None if row["published_at"] is None else _seconds(row["published_at"]),
            _seconds(at) if (at := row.get("removed_at")) else None,
        )
        for row in bundles
    ]
    columns = list(_pages(client, "/v1/columns", "columns"))
    said = [SaidColumns(row["subject"], str(row["id"]), row["columns"]) for row in columns]
    numbers = [row.sequence for row in rows] + [int(row["sequence"]) for row in (*bundles, *columns)]
    return Recorded(rows, written, max(numbers, default=0), said)


def _pages(client: Client, path: str, name: str) -> Iterator[dict[str, Any]]:
    after: int | None = 0
    while after is not None:
        page = client.get(path, after=after, limit=PAGE)
        try:
            yield from page[name]
            after = page["next"]
        except KeyError:
            raise ConfigError(
                f"{client.address}{path}: does not return pages of what was written; is it a service of this "
                "version of coheat?"
            ) from None


def _seconds(moment: str) -> float:
    from coheat.service.times import seconds_of

    return seconds_of(moment)
