"""One of the processes that train a model together: `python -m coheat.workers.rank`, told what to do.

Standard input stays open as long as whoever started it is alive; when it closes, it stops as after Ctrl-C.
What went wrong it says in a line of JSON on standard output, for whoever started it to tell.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from coheat.workers.job import Job

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

FAILED, INTERRUPTED, LOST = 2, 130, 75
"""How a rank ends that met an error of the user's, was interrupted, or lost another one."""
LOOK_EVERY = 0.1
LONGEST_WAIT = timedelta(hours=2)
"""For a rank that is alive and says nothing: as long as the leading one may take to validate."""
LAST_SECONDS = 60.0
"""How long a rank whose starter is gone may take to stop by itself."""


@dataclass(frozen=True)
class Place:
    """Which rank this is, and where all meet. `listening` is the open socket of the leading one.

    `patience` is how many seconds to wait for the others to come.
    """

    rank: int
    size: int
    host: str
    port: int
    listening: int | None
    patience: float


def main() -> None:
    line = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    status = run(Job(**line["job"]), Place(**line["place"]))
    # Without Python's own end, in which torch's threads abort when others have closed their connections.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def instruction(job: Job, place: Place) -> str:
    """The line that `main` reads."""
    return json.dumps({"job": asdict(job), "place": asdict(place)}) + "\n"


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(LAST_SECONDS)
    os._exit(LOST)


def run(job: Job, place: Place) -> int:
    """Take part in a training; the status to end with."""
    from coheat.errors import CoheatError
    from coheat.graph.ranks import PeerLost, Ranks
    from coheat.training import TrainingInterrupted
    from coheat.workers.job import train_job

    warnings.showwarning = _show_warning  # type: ignore[assignment]
    ranks = Ranks(place.rank, place.size)
    signal.signal(signal.SIGINT, lambda *_: ranks.interrupt())
    try:
        if place.size > 1:
            meet(place)
        train_job(job, ranks)
    except TrainingInterrupted as error:
        return _end(INTERRUPTED, f"{error} --workers {place.size}")
    except KeyboardInterrupt:
        return _end(INTERRUPTED, "interrupted; training had not begun, or was just done")
    except PeerLost as error:
        return _end(LOST, str(error))
    except CoheatError as error:
        return _end(FAILED, str(error))
    except OSError as error:  # no space, no permission
        return _end(FAILED, f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}")
    return 0


def _end(status: int, message: str) -> int:
    print(json.dumps({"message": message}), flush=True)
    return status


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Our own warnings become notes, as in every command."""
    if category.__module__.startswith("coheat"):
        print(f"note: {message}", file=sys.stderr)


def meet(place: Place) -> None:
    """Wait until all ranks are there, and connect each with each.

    Every start has a store of its own, in the process of rank 0. Whoever is started again before the others
    have noticed that it was killed finds its place in the old store taken, and waits for the next.
    """
    import torch.distributed as dist

    from coheat.errors import TrainingError
    from coheat.graph.ranks import PeerLost

    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_towards(place.host, place.port))
    deadline, name = time.monotonic() + place.patience, uuid.uuid4().hex
    places = [f"rank {rank}" for rank in range(place.size)]
    store = None
    while time.monotonic() < deadline:
        try:
            store = store or _enter(place, name)
            if store is not None and store.check(places):
                break
        except RuntimeError as error:  # nobody listens there yet, or no longer
            if place.rank == 0:
                raise PeerLost(str(error).splitlines()[0]) from None
            store = None
        time.sleep(LOOK_EVERY)
    else:
        raise TrainingError(
            f"rank {place.rank}: not all {place.size} ranks came to {place.host}:{place.port} within "
            f"{place.patience:.0f} s; start each of them, and see that they can reach each other"
        )
    try:
        dist.init_process_group(
            "gloo", store=store, rank=place.rank, world_size=place.size, timeout=LONGEST_WAIT
        )
    except RuntimeError as error:
        raise PeerLost(f"rank {place.rank} could not connect ({str(error).splitlines()[0]})") from None


def _enter(place: Place, name: str) -> TCPStore | None:
    """The store of this start with our name at our place; None where an earlier process has it."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(
        place.host,
        place.port,
        is_master=place.rank == 0,
        timeout=timedelta(seconds=5),
        wait_for_workers=False,
        master_listen_fd=place.listening,
    )
    return store if store.compare_set(f"rank {place.rank}", "", name) == name.encode() else None


def interface_towards(host: str, port: int) -> str:
    """The name of the network interface through which a host is reached; torch would guess it."""
    import psutil

    address = "127.0.0.1"
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing, but chooses the way
        address = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return str(name)
    return "lo"


if __name__ == "__main__":
    main()
