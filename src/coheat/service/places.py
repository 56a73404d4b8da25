"""Where what was written is kept: a directory, or a PostgreSQL database by its address.

An address may hold a password. It is shown without it, everywhere.
"""

from __future__ import annotations

import re
from pathlib import Path

SCHEMES = ("postgresql://", "postgres://")
HOST = r"(?:\[[0-9A-Fa-f:.]*\]|[\w.%-]*)(?::\d+)?"
ADDRESS = re.compile(
    r"(?P<scheme>postgres(?:ql)?)://(?:(?P<user>[^:@/?#]*)(?::[^@/]*)?@)?"
    rf"(?P<hosts>{HOST}(?:,{HOST})*)(?P<database>/[^@/?#:]*)?(?:\?.*)?",
    re.DOTALL,
)
Place = Path | str
"""A directory, or the address of a database."""


def is_database(place: Place) -> bool:
    """Whether this is the address of a database."""
    return isinstance(place, str) and place.startswith(SCHEMES)


def place_of(given: str) -> Place:
    """A place as somebody typed it."""
    return given if is_database(given) else Path(given)


def shown(place: Place) -> str:
    """A place as people and logs may see it: of an address only user, host, port and database, and of one
    that is not quite an address nothing."""
    if not is_database(place):
        return str(place)
    found = ADDRESS.fullmatch(str(place))
    if found is None:
        return f"{str(place).partition('://')[0]}://..."
    user = f"{found['user']}@" if found["user"] else ""
    return f"{found['scheme']}://{user}{found['hosts']}{found['database'] or ''}"
