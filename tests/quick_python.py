"""Commands without their seconds of imports: a Python that has torch and the like forks for each of them.

The commands are typed as ever and run in processes of their own, with their own directory, environment, input
and output. Only libraries of others are imported beforehand: whatever is ours, a command imports itself. For
commands that end by themselves; what is to be killed, signalled or measured is started in the ordinary way.

Run as a program this is the process that forks; those who ask it are the programs made from `CLIENT`.
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
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

LIBRARIES = (
    "matplotlib.figure",
    "numba",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pydantic",
    "rich.table",
    "scipy.sparse.linalg",
    "torch",
    "typer",
)
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
def programs() -> Path:
    """The directory of both, for a PATH; the process behind them ends with this one."""
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)
    assert server.stdout is not None
    return Path(server.stdout.readline().rstrip("\n"))


def serve() -> None:
    """Fork for everybody who connects, until the standard input is at its end."""
    for name in LIBRARIES:
        with suppress(ImportError):  # then a command that needs it says so
            importlib.import_module(name)
    gc.freeze()  # what is here already is shared, and not searched again by every command
    signal.signal(signal.SIGCHLD, lambda *_: reap())  # their time counts as that of the tests
    directory = Path(mkdtemp())
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
        if os.fork() == 0:
            server.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run(connection)
        connection.close()
    shutil.rmtree(directory)


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
    status = 1

    def tell() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
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
    except BaseException:
        traceback.print_exc()
    sys.exit(status)


def run_words(words: list[str]) -> None:
    """What Python does with `-c CODE ...` or `FILE ...`."""
    if words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    serve()
