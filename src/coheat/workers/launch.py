"""Start the processes that train a model together, watch them, and start all again when one of them is lost.

Whoever starts them does not train: it can be asked to stop, and outlives any of them. On one machine it
starts all ranks. On several, each machine starts one of them, and all meet at the address of rank 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, NoReturn

from coheat.errors import CoheatError, ConfigError, TrainingError
from coheat.storage import read_json
from coheat.threads import n_threads
from coheat.workers.job import Job
from coheat.workers.rank import FAILED, INTERRUPTED, LOOK_EVERY, LOST, Place, instruction

LOOPBACK = "127.0.0.1"
PATIENCE = 600.0
"""Seconds that ranks wait for the others to come."""
RESTARTS = 3
"""How often all start again without a newer checkpoint, before it is given up."""
GRACE = 10.0
"""Seconds for the others to end by themselves after one did."""


def train_together(
    job: Job,
    size: int,
    rendezvous: str | None = None,
    rank: int | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """Train with `size` processes: all of them here or, where a `rank` is given, this one of them.

    Those of several machines meet at `rendezvous` (HOST:PORT), an address of the machine with rank 0. Returns
    when the run is finished; what went wrong in a rank is raised here.
    """
    if (rendezvous is None) != (rank is None):
        raise ConfigError("--rendezvous HOST:PORT and --rank K belong together: each machine starts one rank")
    if rank is not None and not 0 <= rank < size:
        raise ConfigError(f"--rank {rank}: {size} workers have the ranks 0 to {size - 1}")
    host, port = (LOOPBACK, 0) if rendezvous is None else parse_address(rendezvous)
    numbers = list(range(size)) if rank is None else [rank]
    record, failures = Path(job.out) / "run.json", 0
    before, epoch = _identity(record), _saved_epoch(job)
    with _stopped_by_sigterm():
        while True:
            lost = _Start(job, size, numbers, host, port, tell).run()
            if lost is None:
                return
            if _identity(record) != before:  # it was begun, so it goes on from what was saved
                job = replace(job, resume=True, overwrite=False)
            failures = failures + 1 if (now := _saved_epoch(job)) == epoch else 0
            epoch = now
            if failures > RESTARTS:
                raise TrainingError(
                    f"{lost}; {RESTARTS} restarts did not get past epoch {epoch}. Is there enough memory "
                    "for all of them? What was saved goes on with --resume"
                )
            tell(f"{lost}; all start again from epoch {epoch}")


def parse_address(text: str) -> tuple[str, int]:
    """
    >>> parse_address("10.0.0.5:29500")
    ('10.0.0.5', 29500)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigError(f"--rendezvous {text}: write the address as HOST:PORT, for example 10.0.0.5:29500")
    return host, int(port)


class _Start:
    """The ranks of one start, from the first to the last of them that ends."""

    def __init__(
        self, job: Job, size: int, numbers: Sequence[int], host: str, port: int, tell: Callable[[str], None]
    ):
        self.job, self.size, self.numbers, self.host, self.port = job, size, numbers, host, port
        self.tell = tell
        self.processes: list[subprocess.Popen[str]] = []
        self.errors: list[IO[str]] = []
        self.files = contextlib.ExitStack()
        self.first_lost = 0
        self.asked = False

    def run(self) -> str | None:
        """None when all is done, else which rank was lost."""
        try:
            with self._address() as listening:
                for number in self.numbers:
                    self._begin(number, listening)
            return self._judge(self._wait())
        finally:
            self._kill()
            self.files.close()

    @contextlib.contextmanager
    def _address(self) -> Iterator[int | None]:
        """Take the address where ranks meet, for rank 0 to listen at; on one machine a new one every time."""
        if 0 not in self.numbers or self.size == 1:
            yield None
            return
        family = socket.getaddrinfo(self.host, self.port)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                taken.bind((self.host, self.port))
            except OSError as error:
                raise ConfigError(
                    f"--rendezvous {self.host}:{self.port}: rank 0 cannot listen there ({error.strerror}); "
                    "give a free port and an address of the machine with rank 0"
                ) from None
            self.port = taken.getsockname()[1]
            yield taken.fileno()

    def _begin(self, number: int, listening: int | None) -> None:
        own = listening if number == 0 else None
        place = Place(number, self.size, self.host, self.port, own, PATIENCE)
        threads = max(n_threads() // len(self.numbers), 1)  # of those that this machine has for all of them
        # All ranks end in the same way, so one of them is heard; what others say is shown if they crash.
        aside = None
        if self.processes:
            aside = self.files.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))  # noqa: SIM115
            self.errors.append(aside)
        # In a session of its own, so that Ctrl-C reaches it once, from us, and not twice.
        process = subprocess.Popen(
            [sys.executable, "-m", "coheat.workers.rank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=aside,
            # Torch would log every try to connect before the others are there.
            env={"TORCH_CPP_LOG_LEVEL": "FATAL", **os.environ, "COHEAT_THREADS": str(threads)},
            pass_fds=() if own is None else (own,),
            start_new_session=True,
            text=True,
        )
        self.processes.append(process)
        assert process.stdin is not None
        process.stdin.write(instruction(self.job, place))
        process.stdin.flush()

    def _wait(self) -> list[int]:
        """The statuses of all ranks. When one ends badly, the others have a moment to do so by themselves."""
        deadline = float("inf")
        while True:
            try:
                time.sleep(LOOK_EVERY)
                found = [process.poll() for process in self.processes]
                if None not in found:
                    return [process.returncode for process in self.processes]
                if deadline == float("inf") and any(found):
                    self.first_lost = next(place for place, status in enumerate(found) if status)
                    killed = (found[self.first_lost] or 0) < 0
                    deadline = time.monotonic() + (0 if killed and not self.asked else GRACE)
                if time.monotonic() > deadline:
                    self._kill()
            except KeyboardInterrupt:
                if self.asked:
                    self._kill()
                    raise Interrupted("stopped at once; what was saved last goes on with --resume") from None
                self.asked = True
                self.tell("stopping after this batch; Ctrl-C again stops at once, and keeps what was saved")
                for process in self.processes:
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(signal.SIGINT)

    def _judge(self, statuses: list[int]) -> str | None:
        """What the statuses mean together: an error of one outweighs that others lost it."""
        if not any(statuses):
            return None
        for status in (FAILED, INTERRUPTED):
            if status in statuses:
                _raise(status, self._message(statuses.index(status)))
        crashed = [place for place, status in enumerate(statuses) if status > 0 and status != LOST]
        if crashed:
            if crashed[0]:
                self._show_errors(crashed[0] - 1)
            raise CoheatError(f"rank {self.numbers[crashed[0]]} crashed; its last output is above")
        if self.asked:  # whoever was lost on the way out: nobody wants them to start again
            raise Interrupted(
                f"interrupted; everything up to epoch {_saved_epoch(self.job)} is saved. Go on with the same "
                f"command and --resume --workers {self.size}"
            )
        # Those that we killed because of another one count less than that one.
        place = next((place for place, status in enumerate(statuses) if status < 0), self.first_lost)
        place = self.first_lost if statuses[self.first_lost] < 0 else place
        if statuses[place] >= 0:
            return self._message(place)
        return f"rank {self.numbers[place]} was killed by signal {-statuses[place]}"

    def _message(self, place: int) -> str:
        stream = self.processes[place].stdout
        assert stream is not None
        lines = stream.read().splitlines()
        return str(json.loads(lines[-1])["message"]) if lines else "a rank ended without a word"

    def _show_errors(self, place: int) -> None:
        self.errors[place].seek(0)
        sys.stderr.write(self.errors[place].read())

    def _kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _raise(status: int, message: str) -> NoReturn:
    if status == FAILED:
        raise CoheatError(message)
    raise Interrupted(message)


class Interrupted(TrainingError):
    """Ctrl-C reached all ranks, and they stopped."""


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM, by which a container is stopped, ends a training like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells whether a file was replaced."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _saved_epoch(job: Job) -> int:
    """The epoch of the last checkpoint, 0 for none."""
    path = Path(job.out) / "checkpoint.json"
    return int(read_json(path)["standing"]["epoch"]) if path.exists() else 0
