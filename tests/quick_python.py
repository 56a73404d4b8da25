"""Commands without their seconds of imports: a Python that has torch and the like forks for each of them.

The commands are typed as ever and run in processes of their own, with their own directory, environment, input
and output. Only libraries of others are imported beforehand: whatever is ours, a command imports itself.
`quick` is for commands that end by themselves, `QuickProcess` for what is to be killed or signalled: a real
child of whoever starts it. Services are forked by a Python of their own, which has what serving needs and no
more, so that their memory is what it would be. What measures its own start is started in the ordinary way.

Run as a program this is the process that forks; who asks it are `QuickProcess` and the programs made from
`CLIENT`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import suppress
from ctypes import CDLL, get_errno
from functools import cache
from inspect import signature
from pathlib import Path
from threading import Lock
from typing import Any

LIBRARIES = {
    "training": (
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_svg",
        "matplotlib.figure",
        "numba",
        "pandas",
        "pyarrow.compute",
        "pyarrow.csv",
        "pyarrow.dataset",
        "pyarrow.parquet",
        "pydantic.json_schema",
        "pydantic.main",
        "rich.markdown",
        "rich.progress",
        "rich.table",
        "rich.traceback",
        "safetensors.numpy",
        "safetensors.torch",
        "scipy.linalg.interpolative",
        "scipy.optimize",
        "scipy.sparse.linalg",
        "torch",
        "typer.rich_utils",
    ),
    "serving": (
        "fastapi.openapi.utils",
        "fastapi.responses",
        "httptools",
        "numpy.typing",
        "pandas",
        "prometheus_client",
        "psycopg_pool",
        "pyarrow.compute",
        "pyarrow.dataset",
        "pyarrow.parquet",
        "pydantic.dataclasses",
        "pydantic.json_schema",
        "pydantic.main",
        "pydantic.v1",
        "rich.console",
        "rich.table",
        "safetensors.numpy",
        "sqlite3",
        "threadpoolctl",
        "typer",
        "uvicorn.protocols.http.httptools_impl",
    ),
}
PROGRAMS: dict[str, list[str]] = {"coheat": ["-c", "from coheat.cli import main; main()"], "python": []}

CLIENT = """#!{python} -IS
import json, os, socket, sys
words = [*{words}, *sys.argv[1:]]
if sys.argv[1:2] == ["serve"]:  # it is signalled
    os.execv({python!r}, [{python!r}, *words])
asked = {{"words": words, "directory": os.getcwd(), "environment": dict(os.environ)}}
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    socket.send_fds(connection, [b"0"], [0, 1, 2])
    connection.sendall(json.dumps(asked).encode())
    connection.shutdown(socket.SHUT_WR)
    status = connection.recv(1)
sys.exit(status[0] if status else "the command ended without saying how")
"""


def quick(program: str) -> str:
    """The path of a quick `coheat` or a quick `python`."""
    return str(programs() / program)


@cache
def programs(kind: str = "training") -> Path:
    """The directory of both, for a PATH; the process behind them ends with this one."""
    server = subprocess.Popen(
        [sys.executable, __file__, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)
    assert server.stdout is not None
    return Path(server.stdout.readline().rstrip("\n"))


class QuickProcess(subprocess.Popen[str]):
    """`subprocess.Popen` for commands of `sys.executable`, with all that it can do.

    Who forks for us forks twice, so that the process loses its parent; we adopt it, as Linux lets us.
    """

    _adopting = Lock()

    def _execute_child(self, *arguments: Any) -> None:
        """See `subprocess.Popen._execute_child`, the one step in which this differs."""
        asked = signature(subprocess.Popen._execute_child).bind(self, *arguments).arguments  # type: ignore[attr-defined]
        words, special = asked["args"], asked["shell"] or asked["pass_fds"] or asked["preexec_fn"]
        if sys.platform != "linux" or special or words[0] != sys.executable or words[1] == "-m":
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        told = {
            "words": words[1:],
            "directory": str(asked["cwd"] or Path.cwd()),
            "environment": dict(os.environ if asked["env"] is None else asked["env"]),
            "is_adopted": True,
            "is_leader": asked["start_new_session"],
        }
        given = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        own = [number if own == -1 else own for number, own in enumerate(given)]
        address = str(programs("serving" if "serve" in words else "training") / "socket")
        with self._adopting, socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            socket.send_fds(connection, [b"0"], own)
            adopt(True)
            try:
                connection.sendall(json.dumps(told).encode())
                connection.shutdown(socket.SHUT_WR)
                self.pid = int(connection.makefile().read())
            finally:
                adopt(False)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


def adopt(wanted: bool) -> None:
    """Whether processes below us that lose their parent become our children."""
    set_child_subreaper = 36
    if CDLL(None, use_errno=True).prctl(set_child_subreaper, int(wanted), 0, 0, 0) != 0:
        raise OSError(get_errno(), "prctl")


def serve(kind: str) -> None:
    """Fork for everybody who connects, until the standard input is at its end."""
    for name in LIBRARIES[kind]:
        with suppress(ImportError):  # then a command that needs it says so
            importlib.import_module(name)
    if "numba" in sys.modules:
        importlib.import_module("numba.core.registry").cpu_target.target_context.refresh()  # its other half
    gc.freeze()  # what is here already is shared, and not searched again by every command
    signal.signal(signal.SIGCHLD, lambda *_: reap())  # their time counts as that of the tests
    directory = Path(tempfile.mkdtemp())
    address = str(directory / "socket")
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    for name, words in PROGRAMS.items():
        program = directory / name
        program.write_text(CLIENT.format(python=sys.executable, words=words, address=address))
        program.chmod(0o755)
    print(directory, flush=True)
    while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
        connection, _ = server.accept()
        if fork() == 0:
            server.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run(connection)
        connection.close()
    shutil.rmtree(directory)


def fork() -> int:
    """Fork; Python 3.12 warns of threads. There is one, of pyarrow's allocator, which is made for that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def run(connection: socket.socket) -> None:
    """Be the command that is asked for; its status is told when everything else is done."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
    for own, given in enumerate(descriptors):
        os.dup2(given, own)
        os.close(given)
    with connection.makefile("rb") as file:
        asked = json.load(file)
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None  # it follows from the environment
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    known = sys.path[1:]  # the first is where this file is, and gives way to where the command's code is
    sys.path[1:1] = [place for place in places if place and place not in known]
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if is_adopted := asked.get("is_adopted", False):
        lose_parent(connection, asked["is_leader"])
    status = 1

    def tell() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        if not is_adopted:
            connection.sendall(bytes([status]))
        os._exit(status)  # taking leave of two thousand modules one by one takes longer than many a command

    atexit.register(tell)
    try:
        run_words(asked["words"])
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        if is_adopted:  # as Python ends then
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    sys.exit(status)


def lose_parent(connection: socket.socket, is_leader: bool) -> None:
    """Go on in a process whose parent has ended, and tell its id when somebody has adopted it."""
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0005)
    if is_leader:
        os.setsid()
    connection.sendall(str(os.getpid()).encode())
    connection.close()


def run_words(words: list[str]) -> None:
    """What Python does with `-c CODE ...` or `FILE ...`."""
    if words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
