"""What runs on the machines of a cluster. It knows nothing of Ray, and takes and gives only texts."""

from __future__ import annotations

import os
import platform
import traceback
from collections.abc import Sequence
from pathlib import Path

from coheat import __version__

Report = dict[str, str | list[str]]


def look_around(probe: str, paths: Sequence[str]) -> Report:
    """What a machine sees of what must be shared; it leaves a file of its own beside the probe."""
    missing = [path for path in (probe, *paths) if not Path(path).exists()]
    written = f"{probe}-{platform.node()}-{os.getpid()}"
    if probe not in missing:
        try:
            Path(written).touch()
        except OSError as error:
            written = ""
            missing.append(f"{Path(probe).parent} for writing ({error.strerror})")
    return {"host": platform.node(), "version": __version__, "missing": missing, "written": written}


def run_text(text: str, probe: str) -> str | None:
    """Do a task; None, or why it was not done."""
    os.environ["COHEAT_THREADS"] = "1"  # a task has one core, and beside it others have theirs
    from coheat.errors import CoheatError
    from coheat.tasks.task import from_text

    if not Path(probe).exists():  # this machine came later than the look around
        return f"{platform.node()} does not see {Path(probe).parent}, which all machines must share"
    try:
        from_text(text).run()
    except CoheatError as error:
        return str(error)
    except Exception:
        return f"on {platform.node()}\n{traceback.format_exc()}"
    return None
