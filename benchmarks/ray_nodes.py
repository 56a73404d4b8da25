"""Nodes of a Ray cluster on this machine, each a process group that can be ended or killed on its own.

`ray stop` ends every Ray of a machine, also those of others. So each node is a process that stays in the
foreground (`ray start --block`) in a session of its own, and ending that session ends the node.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

STARTED_WITHIN = 120.0
"""Seconds for a node to come up; a busy machine takes its time."""
OBJECT_STORE = 80 * 2**20


class Nodes:
    """A head and further nodes; `environment` is what a driver has to have set to be let in."""

    def __init__(self, directory: Path):
        self.directory = directory
        token = directory / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.address = ""
        self.client = ""
        self.processes: list[subprocess.Popen[bytes]] = []

    def start_head(self, cores: int = 1) -> None:
        port, client = _free_port(), _free_port()
        self._start(cores, "--head", f"--port={port}", f"--ray-client-server-port={client}",
                    "--include-dashboard=false", f"--temp-dir={self.directory / 'ray'}")  # fmt: skip
        # Ray chooses the address of this machine, and says which.
        host = str(re.findall(r"Local node IP: (\S+)", (self.directory / "node-0.log").read_text())[0])
        self.address, self.client = f"{host}:{port}", f"ray://{host}:{client}"

    def start_node(self, cores: int = 1) -> subprocess.Popen[bytes]:
        """One more; a node that gives up because the machine is busy is started a second time."""
        try:
            return self._start(cores, f"--address={self.address}")
        except RuntimeError:
            return self._start(cores, f"--address={self.address}")

    def halted_in_a_task(self, node: subprocess.Popen[bytes]) -> bool:
        """Stop its workers and look whether one is doing a task; if so they stay as they are, else go on."""
        with self.halted([node]) as workers:
            if is_busy := any(title.startswith("ray::run_text") for title in map(_title, workers)):
                workers.clear()
        return is_busy

    @contextmanager
    def halted(self, nodes: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[psutil.Process]]:
        """The workers of these nodes, which rest until the block ends; those still listed then go on."""
        found = [one for node in nodes for one in psutil.Process(node.pid).children(recursive=True)]
        workers = [one for one in found if _title(one).startswith("ray::")]
        for one in workers:
            with suppress(psutil.NoSuchProcess):
                one.suspend()
        try:
            yield workers
        finally:
            for one in workers:
                with suppress(psutil.NoSuchProcess):
                    one.resume()

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """As if its power was cut: no process of the node has time for anything."""
        with suppress(psutil.NoSuchProcess):
            # Workers have groups of their own, and would still have time to end what they do.
            for process in psutil.Process(node.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()
        self.processes.remove(node)

    def close(self) -> None:
        for node in reversed(self.processes[:]):
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                node.wait(3)
            self.kill(node)

    def _start(self, cores: int, *options: str) -> subprocess.Popen[bytes]:
        log = self.directory / f"node-{len(self.processes)}.log"
        command = [str(Path(sys.executable).parent / "ray"), "start", "--block", f"--num-cpus={cores}"]
        command += [f"--object-store-memory={OBJECT_STORE}", *options]
        with log.open("wb") as file:
            node = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(node)
        deadline = time.monotonic() + STARTED_WITHIN
        while b"Ray runtime started" not in log.read_bytes():
            if node.poll() is not None or time.monotonic() > deadline:
                self.kill(node)
                raise RuntimeError(f"a node of Ray did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        return node


@contextmanager
def nodes() -> Iterator[Nodes]:
    """A cluster that is gone afterwards, with everything it wrote."""
    # In a short path: names of sockets may not be longer than 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="ray-"))
    found = Nodes(directory)
    try:
        yield found
    finally:
        found.close()
        shutil.rmtree(directory, ignore_errors=True)


def _title(process: psutil.Process) -> str:
    """What a process calls itself: workers of Ray say there what they do."""
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return "".join(process.cmdline())
    return ""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
