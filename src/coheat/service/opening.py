"""Opening what was written, wherever it is kept: the store, the keys, or to read only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coheat.service import sqlite_reader
from coheat.service.keys import KeyRing, Keys
from coheat.service.locking import lock_directory, release
from coheat.service.places import Place, is_database
from coheat.service.sqlite_store import SqliteStore
from coheat.service.store import Records, Store

KEYS = "keys.json"


def open_store(place: Place) -> tuple[Store, Keys]:
    """The store at a place, and the keys beside it."""
    if is_database(place):
        from coheat.service.postgres_store import PostgresStore  # psycopg is an extra

        shared = PostgresStore(str(place))
        return shared, shared.keys
    return SqliteStore(Path(place) / sqlite_reader.STORE), KeyRing(Path(place) / KEYS)


@contextmanager
def alone_at(place: Place) -> Iterator[None]:
    """A directory belongs to one service at a time; a database is shared."""
    if is_database(place):
        yield
        return
    held = lock_directory(Path(place))
    try:
        yield
    finally:
        release(held)


@contextmanager
def keys_of(place: Place) -> Iterator[Keys]:
    """The keys alone, to be listed or changed."""
    if not is_database(place):
        yield KeyRing(Path(place) / KEYS)
        return
    store, keys = open_store(place)
    try:
        yield keys
    finally:
        store.close()


@contextmanager
def records_of(place: Place) -> Iterator[Records]:
    """What was written, to be read; services may be running."""
    if not is_database(place):
        with sqlite_reader.records_of(Path(place)) as records:
            yield records
        return
    from coheat.service.postgres_reader import opened

    reader = opened(str(place))
    try:
        yield reader
    finally:
        reader.close()
