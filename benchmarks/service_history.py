"""Writers and readers that remember what they were told, and notice when it was not true.

Each bundle is written by one writer only, so what may be read of it is known at every moment: the latest
acknowledged write, or one that was sent later. A write that was answered 503 must never be seen; one that was
not answered may have happened or not. Readers check every answer while it all goes on; in the end all is
compared.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from service_common import SMALL, Server, ask, in_path

Items = frozenset[str] | None
Outcome = Literal["open", "acknowledged", "refused"]
BUNDLES = 12
"""Of each writer."""


@dataclass
class Write:
    """What a bundle was to become, None for removed, and how that was answered."""

    items: Items
    outcome: Outcome = "open"


@dataclass
class Register:
    """One bundle: all writes to it, and who surely or possibly took it since it was made."""

    writes: list[Write] = field(default_factory=lambda: [Write(None, "acknowledged")])
    takers: set[str] = field(default_factory=set)
    possible_takers: set[str] = field(default_factory=set)
    takers_known: bool = True

    def latest(self) -> int:
        """The place of the latest acknowledged write."""
        return max(n for n, write in enumerate(self.writes) if write.outcome == "acknowledged")

    def allows(self, items: Items, first: int, last: int) -> bool:
        """Whether this may be read at a moment between two writes."""
        possible = self.writes[first : last + 1]
        return any(write.items == items and write.outcome != "refused" for write in possible)

    def forget(self) -> None:
        """It is gone, or new: nobody took it."""
        self.takers.clear()
        self.possible_takers.clear()
        self.takers_known = True

    def may_be_another(self) -> bool:
        """Whether it may have been removed and made anew by writes that were not answered."""
        since = [write.items for write in self.writes[self.latest() :] if write.outcome == "open"]
        return None in since and any(items is not None for items in since[since.index(None) :])

    def surely_there(self) -> bool:
        return all(write.items is not None for write in self.writes[self.latest() :])


@dataclass
class History:
    """The state of everything as far as its writers know, shared by all threads."""

    registers: dict[str, Register] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    reads: int = 0

    def compare(self, server: Server, when: str) -> None:
        """Hold everything that is there against everything that was acknowledged; then that counts."""
        for name, register in self.registers.items():
            status, found = server.ask("GET", f"/v1/bundles/{in_path(name)}")
            items = frozenset(found["item_ids"]) if status == 200 else None
            if status not in (200, 404):
                self.faults.append(f"{when}: {name}: {status}")
                continue
            if not register.allows(items, register.latest(), len(register.writes)):
                known = register.writes[register.latest() :]
                self.faults.append(f"{when}: {name}: {items and sorted(items)}, known of it is {known}")
            if items is not None and register.takers_known:
                least, most = len(register.takers), len(register.takers | register.possible_takers)
                if not least <= found["popularity"] <= most:
                    self.faults.append(
                        f"{when}: {name}: taken {found['popularity']} times, not {least}-{most}"
                    )
            register.writes = [Write(items, "acknowledged")]
            if items is None:
                register.forget()


class Worker(threading.Thread):
    """Asks until it is told to end, over one connection as long as that lives."""

    def __init__(self, history: History, port: int, seed: int, ended: threading.Event):
        super().__init__(daemon=True)
        self.history, self.port, self.ended = history, port, ended
        self.rng = random.Random(seed)
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                self.step()
            except ConnectionRefusedError:
                return  # it listens elsewhere now
            except (OSError, http.client.HTTPException):
                self.history.answers["none"] += 1
                self.connection.close()
                time.sleep(0.02)
        self.connection.close()

    def step(self) -> None:
        raise NotImplementedError

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        status, found = ask(self.connection, method, path, body)
        self.history.answers[str(status)] += 1
        return status, found


class Writer(Worker):
    """Publishes, replaces and removes bundles of its own, and records who took them."""

    def __init__(self, number: int, *arguments: Any):
        super().__init__(*arguments)
        self.number = number

    def step(self) -> None:
        name = f"writer {self.number}/{self.rng.randrange(BUNDLES)}"
        register = self.history.registers.setdefault(name, Register())
        if register.surely_there() and self.rng.random() < 0.4:
            self._record(name, register)
        elif register.surely_there() and self.rng.random() < 0.3:
            self._remove(name, register)
        else:
            self._put(name, register)

    def _record(self, name: str, register: Register) -> None:
        user = f"user-{self.rng.randrange(SMALL.n_users)}"
        register.possible_takers.add(user)
        status, found = self.ask("POST", "/v1/interactions", {"user_id": user, "bundle_id": name})
        if status in (200, 201):
            register.takers.add(user)
            self.history.acknowledged += 1
        elif status != 503:
            self.history.faults.append(f"{name}: taken by {user}: {status} {found}")

    def _remove(self, name: str, register: Register) -> None:
        write = self._written(register, None)
        status, found = self.ask("DELETE", f"/v1/bundles/{in_path(name)}")
        if self._settle(name, write, status, found, (204,)):
            register.forget()

    def _put(self, name: str, register: Register) -> None:
        may_be_another = register.may_be_another()
        items = frozenset(f"item-{self.rng.randrange(SMALL.n_items)}" for _ in range(5))
        write = self._written(register, items)
        path = f"/v1/bundles/{in_path(name)}"
        status, found = self.ask("PUT", path, {"item_ids": sorted(items)})
        if not self._settle(name, write, status, found, (200, 201)):
            return
        if status == 201:  # whatever was there before is gone, with its takers
            register.forget()
        elif may_be_another:
            register.takers_known = False

    @staticmethod
    def _written(register: Register, items: Items) -> Write:
        register.writes.append(Write(items))
        return register.writes[-1]

    def _settle(self, name: str, write: Write, status: int, found: Any, fine: tuple[int, ...]) -> bool:
        if status in fine:
            write.outcome = "acknowledged"
            self.history.acknowledged += 1
            return True
        if status == 503:
            # "Nothing was changed": unless its file was taken away at that very moment.
            write.outcome = "open" if "while the service ran" in str(found) else "refused"
        else:
            self.history.faults.append(f"{name}: {status} {found}")
        return False


class Reader(Worker):
    """Reads bundles and lists; what it is told must be what somebody wrote, and nothing older than known."""

    def step(self) -> None:
        names = list(self.history.registers)
        if not names or self.rng.random() < 0.3:
            status, found = self.ask("GET", f"/v1/recommendations/user-{self.rng.randrange(60)}?k=20")
            if status not in (200, 503):
                self.history.faults.append(f"a list: {status} {found}")
            return
        name = self.rng.choice(names)
        register = self.history.registers[name]
        first = register.latest()
        status, found = self.ask("GET", f"/v1/bundles/{in_path(name)}")
        if status not in (200, 404):
            if status != 503:
                self.history.faults.append(f"{name}: {status} {found}")
            return
        last = len(register.writes)
        items = frozenset(found["item_ids"]) if status == 200 else None
        self.history.reads += 1
        if not register.allows(items, first, last):
            self.history.faults.append(
                f"read {name}: {items and sorted(items)}, not one of {register.writes[first : last + 1]}"
            )
