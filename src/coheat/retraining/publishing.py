"""Making a running service take a new run: the path that it serves becomes a link to it, then it reloads.

A service serves a path. Where that is a link, the link is moved, in one step. Where it is a directory, it is
first kept beside itself under another name, so that the old model can be put back.
"""

from __future__ import annotations

import os
from pathlib import Path

from coheat.artifact import open_artifact
from coheat.errors import ArtifactError, ConfigError
from coheat.retraining.client import Client

KEPT = ".before"


def kept_of(served: Path) -> Path:
    """Where the directory at a served path is kept when a link takes its place."""
    return served.with_name(served.name + KEPT)


def recover(served: Path) -> None:
    """Finish what was begun when a directory was to become a link and the process was killed in between."""
    if not os.path.lexists(served) and kept_of(served).is_dir():
        _link(served, kept_of(served))


def publish(served: Path, run: Path) -> Path | None:
    """Make `served` a link to `run`; where the directory that was there is kept now, if it was one."""
    if served.resolve() == run.resolve():
        return None
    kept = None
    if not served.is_symlink():
        kept = kept_of(served)
        if os.path.lexists(kept):
            raise ConfigError(
                f"{kept}: exists already, so {served} cannot be kept there; move it away, then try again"
            )
        served.rename(kept)
    _link(served, run)
    return kept


def _link(place: Path, target: Path) -> None:
    """A link, relative so that both can be moved together, put in place in one step."""
    aside = place.with_name(f".{place.name}.{os.getpid()}.link")
    aside.unlink(missing_ok=True)
    aside.symlink_to(os.path.relpath(target.resolve(), place.parent.resolve()), target_is_directory=True)
    aside.replace(place)


def reload(address: str, run: Path, key: str | None = None) -> str:
    """Ask the service to load its run anew, and make sure that it is this one; the model's fingerprint."""
    wanted = open_artifact(run).fingerprint
    answer = Client(address, key).post("/v1/models/reload")
    if wanted not in str(answer):
        raise ArtifactError(
            f"{address}: reloaded, but it answers with another model than that of {run}; does it serve the "
            "path that was given as RUN?"
        )
    return wanted
