"""Whether the service can do its work: what load balancers ask, and what operators read."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from coheat.errors import CoheatError
from coheat.service.keys import Keys
from coheat.service.state import State
from coheat.service.store import StoreError

KEPT_SECONDS = 0.2
"""Anybody may ask, so the disk is not looked at for everybody anew."""
DISK_SECONDS = 2.0
OK = "ok"


@dataclass
class Readiness:
    """Model, store (with its disk) and keys, each `ok` or what is wrong with it."""

    state: State
    keys: Keys
    draining: bool = False
    _found: dict[str, str] = field(default_factory=dict)
    _looked_at: float = -KEPT_SECONDS

    async def checks(self) -> dict[str, str]:
        """The name of each part, and how it is."""
        if time.monotonic() - self._looked_at >= KEPT_SECONDS:
            self._looked_at = time.monotonic()
            self._found = {"store": await self._store(), "keys": self._keys()}
        return {"model": self._model(), **self._found, "service": "ending" if self.draining else OK}

    def _model(self) -> str:
        if self.state.ready:
            return OK
        return "warming up" if self.state.caught_up else "catching up with what was written"

    async def _store(self) -> str:
        try:
            async with asyncio.timeout(DISK_SECONDS):
                await self.state.check_store()
        except StoreError as error:
            return error.reason
        except TimeoutError:
            return "the store does not answer"
        return OK

    def _keys(self) -> str:
        try:
            self.keys.required()
        except (CoheatError, OSError):
            return "the keys cannot be read; nobody is let in"
        return OK
