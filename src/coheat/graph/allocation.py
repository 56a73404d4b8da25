"""Keep freed memory for the next batch instead of giving it back to the system."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_KEPT = 32 * 1024 * 1024
"""The largest block glibc lets us keep; larger ones still go back at once."""


@cache
def keep_freed_memory() -> bool:
    """Ask glibc not to return large freed blocks; whether it agreed.

    Every batch allocates the same gradients of some megabytes. By default glibc takes each from the system
    and gives it back, and the system hands out zeroed pages one fault at a time: that costs more than the
    arithmetic on them. Other C libraries have no such switch and are left alone.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
