"""Tasks on the machines of a Ray cluster, one core each.

Ray finds a free core and says when a machine has died; everything else is ours. What a task needs goes there
as one line of JSON, what it makes are files on a file system that all machines share, and whether it is done
is seen in these files: a result that Ray lost with a machine may well have been written before.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coheat import __version__
from coheat.errors import ConfigError
from coheat.tasks.places import LOOK_EVERY, Ended, Place
from coheat.tasks.remote import Report, look_around, run_text
from coheat.tasks.task import Task, to_text

if TYPE_CHECKING:
    import ray

OBJECT_STORE = 80 * 2**20
"""Bytes that a Ray started here shares between processes; ours pass texts. Ray asks for at least 75 MB."""
REACHED_WITHIN = 10.0
LOOKED_WITHIN = 120.0
STOPPED_WITHIN = 60.0
"""Seconds: for an address to answer, for every machine to look around, for tasks to save where they stand."""
PAGE = "docs/cluster.md"


class Cluster(Place):
    """The cluster at an address; `ray` is that of RAY_ADDRESS, or one of this machine for this command."""

    elsewhere = True

    def __init__(self, on: str, out: Path, reads: Sequence[Path]):
        if importlib.util.find_spec("ray") is None:  # before there is anything to tidy up
            raise ModuleNotFoundError("there is no module ray", name="ray")
        self.private: Path | None = None
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = os.environ.get("RAY_ADDRESS") if on == "ray" else on
        if address is None:
            self._make_token()
        else:
            _check_answers(address)
        import ray

        self.ray = ray
        self.running: dict[ray.ObjectRef[str | None], Task] = {}
        self.done = 0
        self.n_nodes = self.n_cores = 0
        # Ray prints what it hears of its nodes to standard output, which belongs to our results.
        self.diverted = redirect_stdout(sys.stderr)
        self.diverted.__enter__()
        out.mkdir(parents=True, exist_ok=True)
        self.probe = out.resolve() / f".coheat-probe-{secrets.token_hex(6)}"
        try:
            self._connect(address)
            self._look_around([str(path.resolve()) for path in reads])
        except BaseException:
            self.close()
            raise
        self.remote = ray.remote(num_cpus=1, max_retries=0)(run_text)

    def _make_token(self) -> None:
        """The token of a Ray that is ours alone, readable by nobody else; it goes with it.

        Without it Ray would write one to the home directory that all may read, and ask every later cluster of
        this user for it. Ray reads these variables when it is imported.
        """
        self.private = Path(tempfile.mkdtemp(prefix="coheat-ray-"))
        token = self.private / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))

    def _connect(self, address: str | None) -> None:
        """Reach the cluster, or start one of this machine that ends with us."""
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            if address is not None:
                self.ray.init(address=address, log_to_driver=False, configure_logging=False)
                return
            self.ray.init(
                address="local",
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=OBJECT_STORE,
                include_dashboard=False,
                _temp_dir=f"{self.private}/ray",
            )
        except Exception as error:  # Ray raises errors of a dozen kinds here
            raise ConfigError(
                f"{address or 'a Ray of this machine'}: {_first_line(error)}. Where its nodes were started "
                f"with a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH here too ({PAGE})"
            ) from None

    def _look_around(self, reads: Sequence[str]) -> None:
        """Have every machine say whether it sees what is shared, and look whether we see what it writes."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.probe.touch()
        look = self.ray.remote(num_cpus=0, max_retries=0)(look_around)
        asked = {}
        for node in self._nodes():
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[look.options(scheduling_strategy=there).remote(str(self.probe), reads)] = node
        if not asked:
            raise ConfigError(f"the cluster has no machine with a core to work on; start one ({PAGE})")
        self.ray.wait(list(asked), num_returns=len(asked), timeout=LOOKED_WITHIN)
        for reference, node in asked.items():
            self._check(reference, f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})")
        self._count()

    def _check(self, reference: ray.ObjectRef[Report], name: str) -> None:
        """Judge what one machine has said."""
        errors = self.ray.exceptions
        try:
            report = self.ray.get(reference, timeout=0.1)
        except errors.GetTimeoutError:
            raise ConfigError(
                f"{name} did not answer within {LOOKED_WITHIN:.0f} seconds; is it up, and not out of memory?"
            ) from None
        except errors.RayTaskError as error:
            raise ConfigError(
                f"{name} cannot run coheat: {error.cause}. Install coheat {__version__} there, with the same "
                f"Python ({PAGE})"
            ) from None
        except errors.RayError:
            return  # it died meanwhile, and there are others
        if report["version"] != __version__:
            raise ConfigError(f"{name} has coheat {report['version']}, this machine {__version__}; use one")
        written = Path(str(report["written"]))
        missing = [*report["missing"]]
        if not missing and not _appears(written):
            missing = [f"{self.probe.parent} as this machine does: what it wrote there is not here"]
        if missing:
            raise ConfigError(
                f"{name} does not see {', '.join(missing)}. Every machine must have the same files under the "
                f"same path, on a file system that all share ({PAGE})"
            )

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]

    def _count(self) -> None:
        nodes = self._nodes()
        self.n_nodes = len(nodes)
        self.n_cores = sum(int(node["Resources"]["CPU"]) for node in nodes)

    @property
    def slots(self) -> int:
        return max(self.n_cores, 1)

    def start(self, task: Task) -> None:
        self.running[self.remote.remote(to_text(task), str(self.probe))] = task

    def wait(self) -> list[Ended]:
        ready, _ = self.ray.wait(list(self.running), timeout=LOOK_EVERY)
        self._count()
        ended = [self._ended(reference) for reference in ready]
        self.done += sum(one.error is None for one in ended)
        return ended

    def _ended(self, reference: ray.ObjectRef[str | None]) -> Ended:
        task = self.running.pop(reference)
        errors = self.ray.exceptions
        try:
            return Ended(task, self.ray.get(reference))
        except errors.OutOfMemoryError:
            return Ended(task, "its machine ran out of memory", lost=True)
        except errors.RayTaskError as error:
            return Ended(task, str(error))
        except errors.RayError as error:
            return Ended(task, f"its machine or process died ({type(error).__name__})", lost=True)

    def describe(self) -> str:
        nodes = f"{self.n_nodes} node{'' if self.n_nodes == 1 else 's'}"
        return f"{nodes}, {len(self.running)} of {self.n_cores} cores at work, {self.done} done"

    def stop(self) -> None:
        running = list(self.running)
        for reference in running:
            self.ray.cancel(reference)
        if running:
            self.ray.wait(running, num_returns=len(running), timeout=STOPPED_WITHIN)
        self.running.clear()

    def close(self) -> None:
        for path in self.probe.parent.glob(f"{self.probe.name}*"):
            path.unlink(missing_ok=True)
        if self.ray.is_initialized():
            self.ray.shutdown()
        self.diverted.__exit__(None, None, None)
        if self.private is not None:
            shutil.rmtree(self.private, ignore_errors=True)
            for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
                os.environ.pop(name, None)


def _check_answers(address: str) -> None:
    """Ray waits long for an address at which nobody listens; we do not."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACHED_WITHIN).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--on {address}: nothing answers there ({error}); is the cluster up? ({PAGE})"
        ) from None


def _appears(path: Path) -> bool:
    """Whether a file is seen; network file systems look again only after some seconds."""
    deadline = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY)
    return True


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")
