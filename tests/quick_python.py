"""Commands without their seconds of imports: a Python that has torch and the like, and forks for every command.

The commands are typed as ever and run in processes of their own, with their own directory, environment, input and
output. Only libraries of others are imported beforehand: whatever is ours, a command imports itself. For commands
that end by themselves; what is to be killed or signalled is started as a process in the ordinary way.

Run as a program this is the process that forks; what it is asked by is the program in `CLIENT`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

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
COHEAT = "from coheat.cli import main; main()"

CLIENT = """#!{python} -IS
import json, os, socket, sys
asked = {{"words": [*{words}, *sys.argv[1:]], "directory": os.getcwd(), "environment": dict(os.environ)}}
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({place!r})
    socket.send_fds(connection, [b"0"], [0, 1, 2])
    connection.sendall(json.dumps(asked).encode())
    connection.shutdown(socket.SHUT_WR)
    status = connection.recv(1)
if not status:
    sys.exit("the command ended without saying how")
sys.exit(status[0])
"""


@contextmanager
def quick_python() -> Iterator[Path]:
    """A directory with two programs, `coheat` and `python`, for as long as the context lasts."""
    with (
        TemporaryDirectory() as directory
    ):  # not pytest's, whose names are too long for a socket on some systems
        place = str(Path(directory) / "socket")
        for name, words in {"coheat": ["-c", COHEAT], "python": []}.items():
            program = Path(directory) / name
            program.write_text(CLIENT.format(python=sys.executable, words=words, place=place))
            program.chmod(0o755)
        with subprocess.Popen([sys.executable, __file__, place], stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                assert server.stdout.readline() == b"ready\n"
                yield Path(directory)
            finally:
                server.kill()


def serve(place: str) -> None:
    """Fork for everybody who connects, until killed."""
    for name in LIBRARIES:
        with suppress(ImportError):  # then a command that needs it says so
            importlib.import_module(name)
    gc.freeze()  # what is here already is shared, and not searched again by every command
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for these processes here
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                run(connection)
            connection.close()


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
        sys.argv = ["-c", *words[2:]]
        sys.path[0] = ""
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
