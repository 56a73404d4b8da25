"""Two services on one PostgreSQL database, while processes of each kind are killed under writers and readers.

Writers and readers remember what they were told (see `service_history.py`) and go from one replica to the
other, naming the latest change that they know (`Coheat-Sequence`). Nothing that was acknowledged may be
missing afterwards, and both replicas have to say the same. Then: how fast one follows the other.

    python benchmarks/service_replicas.py                     # 6 kills of each kind; 300 writes a second
    python benchmarks/service_replicas.py --kills 1 --rate 100 --seconds 5
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isclose
from pathlib import Path
from typing import Any

from common import write_json
from postgres_server import PostgresServer, programs
from rich.console import Console
from rich.table import Table
from service_common import JSON, SMALL, Server, write_random_artifact
from service_history import History, Reader, Worker, Writer

WRITERS, READERS = 4, 2
SEQUENCE = "Coheat-Sequence"
LISTS = 20
"""Users whose lists are compared."""


@dataclass
class Shop:
    """A database, and the replicas that serve it."""

    run: Path
    postgres: PostgresServer
    address: str
    replicas: list[Server] = field(default_factory=list)

    def start(self, count: int = 2) -> None:
        for _ in range(count):
            self.replicas.append(Server(self.run, "--state", self.address))

    def restart(self, place: int) -> None:
        """Kill a replica, and start another in its place."""
        old = self.replicas[place]
        old.kill()
        self.replicas[place] = Server(self.run, "--state", self.address, "--port", str(old.port))

    def restart_postgres(self) -> None:
        self.postgres.kill()
        time.sleep(0.3)
        self.postgres.start()

    @property
    def ports(self) -> list[int]:
        return [replica.port for replica in self.replicas]

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        ends = time.monotonic() + seconds
        for replica in self.replicas:
            while True:
                try:
                    if replica.ask("GET", "/health/ready")[0] == 200:
                        break
                except OSError:
                    pass
                if time.monotonic() > ends:
                    raise RuntimeError(f"not ready again: {replica.said()[-2000:]}")
                time.sleep(0.05)

    def stop(self) -> None:
        for replica in self.replicas:
            if replica.process.poll() is None:
                replica.kill()
        self.postgres.remove()


class Roaming(Worker):
    """Asks now one replica, now the other, and wants to see all that it was told of."""

    ports: list[int]
    latest = 0

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.rng.choice(self.ports), timeout=30)
        try:
            status, found, sequence = asked(connection, method, path, body, self.known())
        except ConnectionRefusedError:  # it is being started again
            time.sleep(0.05)
            raise http.client.HTTPException from None
        finally:
            connection.close()
        self.history.answers[str(status)] += 1
        if sequence is not None:
            self.told(sequence)
        return status, found

    def known(self) -> int:
        return self.latest

    def told(self, sequence: int) -> None:
        self.latest = max(self.latest, sequence)


class RoamingWriter(Roaming, Writer):
    pass


class RoamingReader(Roaming, Reader):
    """Knows what all writers know at the moment when it asks."""

    writers: list[RoamingWriter]

    def known(self) -> int:
        return max(writer.latest for writer in self.writers)


def asked(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, known: int = 0
) -> tuple[int, Any, int | None]:
    """Status, JSON, and the sequence number of what was written."""
    headers = {SEQUENCE: str(known)} if known else {}
    payload = None if body is None else json.dumps(body)
    connection.request(method, path, payload, {**(JSON if body is not None else {}), **headers})
    answer = connection.getresponse()
    content = answer.read()
    number = answer.getheader(SEQUENCE)
    found = json.loads(content) if content else ""
    return answer.status, found, None if number is None else int(number)


class Traffic:
    """Writers and readers, from the beginning of a round to its end."""

    def __init__(self, shop: Shop, history: History, rng: random.Random, latest: int):
        self.ended = threading.Event()
        port, seed = shop.ports[0], rng.randrange(1 << 30)
        self.writers = [RoamingWriter(n, history, port, seed + n, self.ended) for n in range(WRITERS)]
        self.readers = [RoamingReader(history, port, seed - n, self.ended) for n in range(1, READERS + 1)]
        for worker in (*self.writers, *self.readers):
            worker.ports, worker.latest = shop.ports, latest
        for reader in self.readers:
            reader.writers = self.writers
        for worker in (*self.writers, *self.readers):
            worker.start()

    def stop(self) -> int:
        """The latest change that anybody was told of."""
        self.ended.set()
        for worker in (*self.writers, *self.readers):
            worker.join()
        return max(writer.latest for writer in self.writers)


KILLS: dict[str, Callable[[Shop], None]] = {
    "the first replica": lambda shop: shop.restart(0),
    "the second replica": lambda shop: shop.restart(1),
    "PostgreSQL, all of it": Shop.restart_postgres,
    "PostgreSQL, a process that serves a client": lambda shop: shop.postgres.kill_backend(),
}


def killed(shop: Shop, history: History, name: str, count: int, seed: int = 0) -> dict[str, Any]:
    """One kind of process, so many times; what was told, and what was not true.

    `history` is that of the shop, with what is known of it from before.
    """
    history = History(history.registers)
    rng, latest = random.Random(seed), 0
    for number in range(count):
        traffic = Traffic(shop, history, rng, latest)
        time.sleep(rng.uniform(0.3, 1.0))
        KILLS[name](shop)
        time.sleep(1.0)
        shop.wait_until_ready()
        time.sleep(0.3)
        latest = max(latest, traffic.stop())
        shop.wait_until_ready()
        try:
            latest = max(latest, reached(shop))
        except RuntimeError as error:
            history.faults.append(f"round {number}: {error}")
        for place, replica in enumerate(shop.replicas, 1):  # what the first says counts for the second, too
            history.compare(replica, f"round {number}, replica {place}")
        history.faults += [f"round {number}: {one}" for one in differing_lists(shop)]
    return {
        "killed": name,
        "kills": count,
        "acknowledged": history.acknowledged,
        "reads": history.reads,
        "answers": dict(sorted(history.answers.items())),
        "faults": history.faults,
    }


def reached(shop: Shop, seconds: float = 30.0) -> int:
    """Wait until all replicas have followed the latest change, and tell its number."""
    from coheat.service.postgres_reader import opened

    reader = opened(shop.address)
    latest = reader.last_sequence()
    reader.close()
    ends = time.monotonic() + seconds
    for replica in shop.replicas:
        while replica.ask("GET", "/v1/models", headers={SEQUENCE: str(latest)})[0] != 200:
            if time.monotonic() > ends:
                raise RuntimeError(f"a replica has not followed up to {latest}")
    return latest


def differing_lists(shop: Shop) -> list[str]:
    """Users whose lists are not the same on all replicas, but for the last bits of scores: whether bundles
    were placed one by one or together changes the order in which numbers are added."""
    faults = []
    for user in range(LISTS):
        path = f"/v1/recommendations/user-{user}?k=60"
        answers = (replica.ask("GET", path)[1]["recommendations"] for replica in shop.replicas)
        first, *others = ({row["bundle_id"]: row for row in rows} for rows in answers)
        for other in others:
            same = first.keys() == other.keys() and all(
                isclose(row["score"], other[name]["score"], abs_tol=1e-6)
                and row["is_new"] == other[name]["is_new"]
                for name, row in first.items()
            )
            if not first or not same:
                faults.append(f"the lists of user-{user} differ")
    return faults


def race(shop: Shop, count: int) -> dict[str, int]:
    """Two publish one bundle at the same moment, each at a replica; how that was answered."""
    answers: dict[str, int] = {}
    for number in range(count):
        body = {"bundle_id": f"race {number}", "item_ids": ["item-1"]}
        found: list[int] = []
        start = threading.Barrier(2)

        def publish(
            replica: Server, body: Any = body, found: list[int] = found, start: threading.Barrier = start
        ) -> None:
            start.wait()
            found.append(replica.ask("POST", "/v1/bundles", body)[0])

        threads = [threading.Thread(target=publish, args=(one,)) for one in shop.replicas]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = " and ".join(map(str, sorted(found)))
        answers[told] = answers.get(told, 0) + 1
    return answers


class Pace(threading.Thread):
    """Records interactions at one replica at a steady rate; of some it measures when the other has them."""

    def __init__(self, number: int, shop: Shop, rate: float, ends: float):
        super().__init__(daemon=True)
        self.number, self.rate, self.ends = number, rate, ends
        self.here, self.there = (
            http.client.HTTPConnection("127.0.0.1", shop.ports[(number + step) % 2], timeout=30)
            for step in (0, 1)
        )
        self.written, self.refused, self.followed = 0, 0, list[float]()

    def run(self) -> None:
        begun, step = time.monotonic(), 0
        while time.monotonic() < self.ends:
            time.sleep(max(0.0, begun + step / self.rate - time.monotonic()))
            body = {"user_id": f"pace {self.number} {step}", "bundle_id": f"bundle-{step % SMALL.n_bundles}"}
            status, _, sequence = asked(self.here, "POST", "/v1/interactions", body)
            self.written += status == 201
            self.refused += status != 201
            if step % 10 == 0 and sequence is not None:
                since = time.monotonic()
                status, _, _ = asked(self.there, "GET", "/v1/models", known=sequence)
                self.followed.append(time.monotonic() - since if status == 200 else float("inf"))
            step += 1


def following(shop: Shop, rate: float, seconds: float, clients: int = 24) -> dict[str, Any]:
    """Writes a second that were reached, and how long the other replica took to have them."""
    ends = time.monotonic() + seconds
    paces = [Pace(number, shop, rate / clients, ends) for number in range(clients)]
    begun = time.monotonic()
    for pace in paces:
        pace.start()
    for pace in paces:
        pace.join()
    took = sorted(second for pace in paces for second in pace.followed)
    return {
        "asked_per_second": rate,
        "written_per_second": sum(pace.written for pace in paces) / (time.monotonic() - begun),
        "refused": sum(pace.refused for pace in paces),
        "measured": len(took),
        "p50_ms": 1000 * took[len(took) // 2],
        "p99_ms": 1000 * took[min(len(took) - 1, int(0.99 * len(took)))],
    }


def measure(place: Path, kills: int, rate: float, seconds: float, only: str | None = None) -> dict[str, Any]:
    """All of it, on a database and two replicas of their own."""
    write_random_artifact(place / "run", SMALL)
    postgres = PostgresServer()
    shop = Shop(place / "run", postgres, postgres.address())
    try:
        shop.start()
        history, names = History(), [only] if only else list(KILLS)
        return {
            "kills": [killed(shop, history, name, kills, seed) for seed, name in enumerate(names) if kills],
            "race": race(shop, 5 * max(kills, 1)),
            "following": following(shop, rate, seconds),
        }
    finally:
        shop.stop()


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--kills", type=int, default=6, help="of each kind of process (default: 6)")
    options.add_argument("--only", choices=KILLS, help="kill only this kind")
    options.add_argument("--rate", type=float, default=300.0, help="writes a second (default: 300)")
    options.add_argument("--seconds", type=float, default=20.0, help="of writing at this rate (default: 20)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write what was found to this file")
    given = options.parse_args()
    if programs() is None:
        raise SystemExit("there is no PostgreSQL here (Debian's package: postgresql)")
    with tempfile.TemporaryDirectory(prefix="coheat-replicas-") as place:
        found = measure(Path(place), given.kills, given.rate, given.seconds, given.only)
    table = Table("killed", "kills", "acknowledged", "reads checked", "answers", "lost or untrue")
    for one in found["kills"]:
        told = ", ".join(f"{status}: {count}" for status, count in one["answers"].items())
        numbers = (str(one[key]) for key in ("kills", "acknowledged", "reads"))
        table.add_row(one["killed"], *numbers, told, str(len(one["faults"])))
    console = Console(width=140)
    console.print(table)
    for fault in (fault for one in found["kills"] for fault in one["faults"][:5]):
        print(f"  {fault}")
    print("two who publish one bundle at once:", ", ".join(f"{a}: {n}" for a, n in found["race"].items()))
    pace = found["following"]
    print(
        f"{pace['written_per_second']:.0f} of {pace['asked_per_second']:.0f} writes a second, "
        f"{pace['refused']} refused; followed after {pace['p50_ms']:.0f} ms (p50), "
        f"{pace['p99_ms']:.0f} ms (p99)"
    )
    write_json(given.json, "service_replicas", found)
    is_fine = set(found["race"]) == {"201 and 409"} and not any(one["faults"] for one in found["kills"])
    raise SystemExit(0 if is_fine else 1)


if __name__ == "__main__":
    main()
