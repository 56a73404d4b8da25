"""Arrays that are mapped from the disk: what was read of them stays in memory until it is let go."""

from __future__ import annotations

import mmap
from typing import Any

import numpy.typing as npt


def let_go(array: npt.NDArray[Any]) -> None:
    """Let the system take back the memory of a mapped array; it is read again where it is needed.

    For whoever goes through a large array once: otherwise all of it would be held in the end.
    """
    base: Any = array
    while getattr(base, "base", None) is not None:
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
