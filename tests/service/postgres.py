"""A PostgreSQL server for the tests of one process, started when the first of them wants a database."""

from __future__ import annotations

import atexit
import itertools
from functools import cache

import pytest
from postgres_server import PostgresServer, programs

NUMBERS = itertools.count()
needs_postgres = pytest.mark.skipif(
    programs() is None, reason="there is no PostgreSQL here (Debian's package: postgresql)"
)


@cache
def server() -> PostgresServer:
    started = PostgresServer(fsync="off")
    atexit.register(started.remove)
    return started


def database() -> str:
    """The address of an empty database."""
    import psycopg

    name = f"shop{next(NUMBERS)}"
    with psycopg.connect(server().address(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server().address(name)
