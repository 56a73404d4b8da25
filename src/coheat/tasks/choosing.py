"""Which place does the tasks, as the command line says it: --on and --jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coheat.errors import ConfigError
from coheat.tasks.places import Here, Place, Processes

HERE = "here"


def place_for(on: str | Place, parallel: int = 1, *, out: Path, reads: Sequence[Path] = ()) -> Place:
    """The place called `on`: here, ray, or the address of a Ray cluster, ray://HOST:PORT or HOST:PORT.

    `out` is the directory that the tasks write to, `reads` are what they read: all machines must see them.
    """
    if isinstance(on, Place):
        return on
    if on == HERE:
        return Here() if parallel == 1 else Processes(parallel)
    host, _, port = on.removeprefix("ray://").rpartition(":")
    if on != "ray" and not (host and port.isdecimal()):
        raise ConfigError(f"--on {on!r}: write here, ray, or the address of a Ray cluster: 10.0.0.1:6379")
    from coheat.tasks.cluster import Cluster

    return Cluster(on, out, reads)
