"""A PostgreSQL server of one's own, for tests and measurements: in a directory of its own, on a free port.

It is started from Debian's package `postgresql` (or whatever else `pg_config` or the path finds). PostgreSQL
refuses to run as root, so root starts it as the user `postgres`, whom the package has made.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

USER, PASSWORD = "shop", "s3cret/of@the shop"
QUOTED = "s3cret%2Fof%40the%20shop"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "logging_collector": "off",
    "log_min_messages": "fatal",
}


def programs() -> Path | None:
    """Where `initdb` and `postgres` are; None where there is no PostgreSQL that can be started."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda one: float(one.parent.name))
    if found := shutil.which("initdb"):
        places.insert(0, Path(found).parent)
    needed = "initdb", "postgres", "pg_isready"
    usable = [place for place in places if all((place / name).exists() for name in needed)]
    if not usable or (os.geteuid() == 0 and not _has_user()):
        return None
    return usable[-1]


def _has_user() -> bool:
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        return False
    return True


class PostgresServer:
    """Started when it is made; `stop` or `kill` and `start` again keep what was written."""

    def __init__(self, **settings: str):
        """`fsync="off"` makes tests faster; what survives the end of a process does so all the same."""
        place = programs()
        assert place is not None
        self.programs = place
        self.user = "postgres" if os.geteuid() == 0 else None
        self.directory = Path(tempfile.mkdtemp(prefix="coheat-postgres-"))
        password = self.directory / "password"
        password.write_text(PASSWORD)
        if self.user:
            shutil.chown(self.directory, self.user)
            shutil.chown(password, self.user)
        initdb = [str(place / "initdb"), "--pgdata", str(self.data), "--username", USER, "--no-sync"]
        self._run(
            *initdb,
            "--auth",
            "scram-sha-256",
            "--pwfile",
            str(password),
            "--encoding",
            "UTF8",
            "--locale",
            "C",
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.settings = {
            **SETTINGS,
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            **settings,
        }
        self.start()

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def address(self, database: str = "postgres", password: str = QUOTED) -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.programs / "postgres"), "-D", str(self.data), *options],
                user=self.user,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        ends = time.monotonic() + 60
        ready = [
            str(self.programs / "pg_isready"),
            "--quiet",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        while subprocess.run(ready, check=False).returncode:
            if self.process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(
                    f"PostgreSQL did not start: {(self.directory / 'log').read_text()[-2000:]}"
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """An orderly end that does not wait for clients."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)

    def kill(self) -> None:
        """End all of its processes without a word, as a power cut would."""
        for one in (self.process.pid, *self.children()):
            self._signal(one, signal.SIGKILL)
        self.process.wait(60)
        ends = time.monotonic() + 30
        while any(Path(f"/proc/{child}").exists() for child in self.children()) and time.monotonic() < ends:
            time.sleep(0.01)

    def pause(self, stopped: bool = True) -> None:
        """Let it hang: connections stay open and nobody answers; and go on."""
        for one in (self.process.pid, *self.children()):
            self._signal(one, signal.SIGSTOP if stopped else signal.SIGCONT)

    def kill_backend(self) -> None:
        """Kill one process that serves a client; the server then ends all others and recovers by itself."""
        serving = [one for one in self.children() if b"127.0.0.1" in self._title(one)]
        for one in serving[:1]:
            self._signal(one, signal.SIGKILL)

    def children(self) -> list[int]:
        """The processes of the session that it leads."""
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    fields = (place / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[1]) == self.process.pid:
                    found.append(int(place.name))
        return found

    def remove(self) -> None:
        self.pause(stopped=False)
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _run(self, *words: str) -> None:
        subprocess.run(words, check=True, user=self.user, capture_output=True, cwd="/", timeout=120)

    @staticmethod
    def _title(process: int) -> bytes:
        try:
            return Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            return b""

    @staticmethod
    def _signal(process: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
