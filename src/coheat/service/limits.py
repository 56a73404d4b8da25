"""How much is taken on, and for how long."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from coheat.errors import ConfigError
from coheat.service.schemas import MAX_BODY

RESERVED_FILES = 448
"""File descriptors for files, and for connections that are accepted before others are let go of."""
LEAST_CONNECTIONS = 32
MOST_FILES = 65_536


@dataclass(frozen=True)
class Limits:
    """Requests in progress, bytes and seconds of a request's parts, connections, refused keys."""

    requests: int = 64
    body_bytes: int = MAX_BODY
    body_seconds: float = 10.0
    """For the whole body."""
    all_bodies_bytes: int = 16 * MAX_BODY
    """Of all bodies that are arriving."""
    head_seconds: float = 10.0
    answer_seconds: float = 30.0
    """Until an answer is taken."""
    idle_seconds: float = 75.0
    """For a connection between two requests: longer than the minute that clients usually keep theirs."""
    connections: int = 1000
    connections_per_peer: int = 750
    refused_keys: int = 20
    """Wrong keys of one peer in a minute; after these it has to wait."""


def usable_connections(wanted: int) -> int:
    """As many connections as there can be file descriptors for; the soft limit of these is raised first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    usable = min(wanted, soft - RESERVED_FILES)
    if usable < LEAST_CONNECTIONS:
        raise ConfigError(
            f"{soft} open files are too few to serve: allow at least {RESERVED_FILES + LEAST_CONNECTIONS} "
            "(ulimit -n)"
        )
    return usable
