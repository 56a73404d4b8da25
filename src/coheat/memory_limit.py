"""How much memory reading may take: what was asked for (`--memory-limit`), or what the machine has free.

What a file declares is held against it before anything is read, so that a file of a few bytes cannot fill
the machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from coheat.errors import ConfigError

VARIABLE = "COHEAT_MEMORY_LIMIT"
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_MACHINE = Path("/proc/meminfo")
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CONTAINER_USED = Path("/sys/fs/cgroup/memory.current")


def memory_limit() -> int:
    """Bytes that one reading may take."""
    asked = os.environ.get(VARIABLE)
    return parse_size(asked) if asked else available_memory()


def limit_memory(size: str) -> None:
    """Hold this process, and those it starts, to this much memory beyond what it takes already.

    What is read is held against it beforehand (`memory_limit`); what cannot be known before is stopped by the
    system, where that can: then an allocation fails, which is told like any other fault.
    """
    wanted = parse_size(size)
    os.environ[VARIABLE] = str(wanted)
    taken = re.search(r"VmData:\s+(\d+) kB", _text(Path("/proc/self/status")))
    if taken is not None:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = int(taken[1]) * 1024 + wanted
        soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def available_memory() -> int:
    """Bytes this process may still take: the machine's, or the container's where that is less."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", _text(_MACHINE))
    if found is not None:
        available = int(found[1]) * 1024
    else:  # not Linux: all there is, for want of a better number
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most, used = _text(_CONTAINER_LIMIT).strip(), _text(_CONTAINER_USED).strip()
    return min(available, int(most) - int(used)) if most.isdigit() and used.isdigit() else available


def parse_size(text: str) -> int:
    """
    >>> parse_size("1.5 GB")
    1500000000
    """
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?b?)\s*", text.lower())
    unit = found and (found[2] if found[2].endswith("b") or not found[2] else f"{found[2]}b")
    size = int(float(found[1]) * UNITS[unit]) if found and unit is not None else 0
    if size <= 0:
        raise ConfigError(f"a size in memory of {text!r}: write for example 500MB or 4GB")
    return size


def readable(size: float) -> str:
    """
    >>> readable(34_500_000)
    '34.5 MB'
    """
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def shortage(needed: float) -> str | None:
    """What is to be said where this many bytes are more than reading may take; None where they are not."""
    limit = memory_limit()
    if needed <= limit:
        return None
    which = "the limit is" if os.environ.get(VARIABLE) else "free are"
    return f"reading it would take about {readable(needed)} of memory, and {which} {readable(limit)}"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
