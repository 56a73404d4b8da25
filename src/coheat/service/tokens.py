"""Random names that nobody can guess, without asking the system for each: that lets go of Python's lock."""

from __future__ import annotations

import os

BLOCK = 4096


class Tokens:
    """Random bytes, fetched in blocks; for one thread."""

    def __init__(self) -> None:
        self._bytes, self._used = b"", 0

    def take(self, n: int) -> bytes:
        """n bytes (at most a block) that were never handed out before."""
        if self._used + n > len(self._bytes):
            self._bytes, self._used = os.urandom(BLOCK), 0
        self._used += n
        return self._bytes[self._used - n : self._used]
