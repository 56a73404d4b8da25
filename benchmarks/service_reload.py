"""Exchange the model under load: no request may fail, and what was written is there in every generation.

python benchmarks/service_reload.py                 # 100 reloads
python benchmarks/service_reload.py --reloads 10
"""

from __future__ import annotations

import argparse
import http.client
import random
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from common import write_json
from service_common import Server, Size, ask, in_path, serving, write_random_artifact

READERS = 3


def reload_rounds(run: Path, size: Size, reloads: int) -> dict[str, Any]:
    """Replace the artifact and reload, so many times, while readers read and a writer writes."""
    ended = threading.Event()
    statuses: Counter[str] = Counter()
    published: list[str] = []
    faults: list[str] = []
    with serving(run) as server:
        threads = [
            threading.Thread(target=_read, args=(server, size, seed, ended, statuses))
            for seed in range(READERS)
        ]
        threads.append(threading.Thread(target=_write, args=(server, ended, statuses, published)))
        for thread in threads:
            thread.start()
        try:
            for number in range(1, reloads + 1):
                write_random_artifact(run, size, seed=number)
                before = len(published)
                status, model = server.ask("POST", "/v1/models/reload")
                if status != 200 or model["generation"] != number + 1:
                    faults.append(f"reload {number}: {status} {model}")
                faults += _missing(server, published[max(0, before - 20) : before])
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        faults += _missing(server, published)
    failed = {status: count for status, count in statuses.items() if not status.startswith("2")}
    return {"reloads": reloads, "requests": sum(statuses.values()), "failed": failed, "faults": faults}


def _read(server: Server, size: Size, seed: int, ended: threading.Event, statuses: Counter[str]) -> None:
    rng = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    while not ended.is_set():
        user, bundle = rng.randrange(size.n_users), rng.randrange(size.n_bundles)
        path = rng.choice(
            (
                f"/v1/recommendations/user-{user}?k=20",
                f"/v1/bundles/bundle-{bundle}/audience?k=5",
                f"/v1/explanations?user_id=user-{user}&bundle_id=bundle-{bundle}",
            )
        )
        try:
            statuses[str(ask(connection, "GET", path)[0])] += 1
        except (OSError, http.client.HTTPException) as error:
            statuses[f"{path}: {error!r}"] += 1
    connection.close()


def _write(server: Server, ended: threading.Event, statuses: Counter[str], published: list[str]) -> None:
    while not ended.wait(0.02):
        name = f"new/{len(published)}"
        status, _ = server.ask("POST", "/v1/bundles", {"bundle_id": name, "item_ids": ["item-1", "item-2"]})
        statuses[str(status)] += 1
        published.append(name)


def _missing(server: Server, names: list[str]) -> list[str]:
    paths = {name: f"/v1/bundles/{in_path(name)}" for name in names}
    return [f"{name} is gone" for name, path in paths.items() if server.ask("GET", path)[0] != 200]


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--reloads", type=int, default=100, help="how many (default: 100)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write what was found to this file")
    given = options.parse_args()
    size = Size(5000, 3000, 4000, 128)
    with tempfile.TemporaryDirectory(prefix="coheat-reload-") as place:
        write_random_artifact(Path(place) / "run", size)
        found = reload_rounds(Path(place) / "run", size, given.reloads)
    print(
        f"{found['reloads']} reloads, {found['requests']} requests, {sum(found['failed'].values())} failed "
        f"{found['failed'] or ''}, {len(found['faults'])} faults"
    )
    for fault in found["faults"][:20]:
        print(fault)
    write_json(given.json, "service_reload", found)
    raise SystemExit(1 if found["faults"] or found["failed"] else 0)


if __name__ == "__main__":
    main()
