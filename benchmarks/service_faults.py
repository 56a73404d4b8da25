"""Kill the service at random moments while it is written to: what it acknowledged must be there afterwards.

Several writers publish, replace and remove bundles and record interactions, each on bundles of its own,
so that each knows what must be there. The process is killed (SIGKILL) at a random moment, started again on
the same files, and asked for everything; then the next round begins.

    python benchmarks/service_faults.py                 # 200 kills
    python benchmarks/service_faults.py --kills 10
"""

from __future__ import annotations

import argparse
import http.client
import random
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import write_json
from service_common import SMALL, Server, ask, in_path, write_random_artifact

WRITERS = 4
Items = frozenset[str]


@dataclass
class Writer:
    """Writes to bundles of its own; `sure` is what was acknowledged, `maybe` what was not answered."""

    name: str
    rng: random.Random
    sure: dict[str, Items | None] = field(default_factory=dict)
    takers: dict[str, set[str]] = field(default_factory=dict)
    maybe: tuple[str, Items | None] | None = None
    maybe_taker: tuple[str, str] | None = None
    acknowledged: int = 0
    refused: list[Any] = field(default_factory=list)

    def write_until(self, port: int, ended: threading.Event) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            while not ended.is_set():
                self._write(connection)
        except (OSError, http.client.HTTPException):
            pass  # killed: what was on its way stays in `maybe`
        finally:
            connection.close()

    def _write(self, connection: http.client.HTTPConnection) -> None:
        bundle = f"{self.name}/{self.rng.randrange(30)}"
        there = self.sure.get(bundle)
        if there is not None and self.rng.random() < 0.3:
            user = f"user-{self.rng.randrange(SMALL.n_users)}"
            self.maybe_taker = (bundle, user)
            asked = {"user_id": user, "bundle_id": bundle}
            status, _ = ask(connection, "POST", "/v1/interactions", asked)
            self._check(status in (200, 201), status)
            self.takers.setdefault(bundle, set()).add(user)
            self.maybe_taker = None
        else:
            self._write_bundle(connection, bundle, there)
        self.acknowledged += 1

    def _write_bundle(self, connection: http.client.HTTPConnection, bundle: str, there: Items | None) -> None:
        path = f"/v1/bundles/{in_path(bundle)}"
        if there is not None and self.rng.random() < 0.3:
            self.maybe = (bundle, None)
            status, _ = ask(connection, "DELETE", path)
            self._check(status == 204, status)
            self.takers.pop(bundle, None)
        else:
            items = frozenset(f"item-{self.rng.randrange(SMALL.n_items)}" for _ in range(5))
            self.maybe = (bundle, items)
            if there is None:
                new = {"bundle_id": bundle, "item_ids": sorted(items)}
                status, _ = ask(connection, "POST", "/v1/bundles", new)
            else:
                status, _ = ask(connection, "PUT", path, {"item_ids": sorted(items)})
            self._check(status in (200, 201), status)
        self.sure[bundle] = self.maybe[1]
        self.maybe = None

    def _check(self, fine: bool, status: int) -> None:
        if not fine:
            self.refused.append((self.maybe, self.maybe_taker, status))

    def compare(self, server: Server) -> list[str]:
        """What is not as acknowledged, in sentences; what was open is settled by what is found."""
        faults = [f"refused: {one}" for one in self.refused]
        self.refused.clear()
        for bundle, items in {**dict([self.maybe] if self.maybe else []), **self.sure}.items():
            status, found = server.ask("GET", f"/v1/bundles/{in_path(bundle)}")
            present = frozenset(found["item_ids"]) if status == 200 else None
            allowed = [items]
            if self.maybe and self.maybe[0] == bundle:
                allowed = [self.sure.get(bundle), self.maybe[1]]
            if present not in allowed:
                faults.append(f"{bundle}: {present} instead of one of {allowed}")
            self._compare_takers(bundle, found if status == 200 else None, faults)
            self.sure[bundle] = present
        self.maybe = self.maybe_taker = None
        return faults

    def _compare_takers(self, bundle: str, found: Any, faults: list[str]) -> None:
        takers = self.takers.get(bundle, set())
        open_question = self.maybe_taker is not None and self.maybe_taker[0] == bundle
        if found is None:
            self.takers.pop(bundle, None)
            return
        most = len(takers | ({self.maybe_taker[1]} if open_question and self.maybe_taker else set()))
        if not len(takers) <= found["popularity"] <= most:
            faults.append(f"{bundle}: taken {found['popularity']} times instead of {len(takers)} to {most}")
        if open_question and self.maybe_taker and found["popularity"] > len(takers):
            takers.add(self.maybe_taker[1])
            self.takers[bundle] = takers


def kill_rounds(run: Path, kills: int, seed: int = 0, longest: float = 0.6) -> dict[str, Any]:
    """So many rounds of writing and killing; how many writes were acknowledged, and every fault found."""
    rng = random.Random(seed)
    writers = [Writer(f"writer {n}", random.Random(rng.random())) for n in range(WRITERS)]
    faults: list[str] = []
    server = Server(run)
    try:
        for number in range(kills):
            ended = threading.Event()
            threads = [threading.Thread(target=one.write_until, args=(server.port, ended)) for one in writers]
            for thread in threads:
                thread.start()
            time.sleep(rng.uniform(0.02, longest))
            deadline = time.monotonic() + 240  # where the machine is busy, little would be written so soon
            while sum(one.acknowledged for one in writers) <= 5 * number and time.monotonic() < deadline:
                time.sleep(0.005)
            server.kill()
            ended.set()
            for thread in threads:
                thread.join()
            server = Server(run)
            for one in writers:
                faults += one.compare(server)
    finally:
        server.kill()
    return {"kills": kills, "acknowledged": sum(one.acknowledged for one in writers), "faults": faults}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--kills", type=int, default=200, help="how many (default: 200)")
    options.add_argument("--seed", type=int, default=0, help="of the random moments (default: 0)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write what was found to this file")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="coheat-faults-") as place:
        write_random_artifact(Path(place) / "run", SMALL)
        found = kill_rounds(Path(place) / "run", given.kills, given.seed)
    faults = found["faults"]
    print(f"{found['kills']} kills, {found['acknowledged']} acknowledged writes, {len(faults)} faults")
    for fault in faults:
        print(fault)
    write_json(given.json, "service_faults", found)
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
