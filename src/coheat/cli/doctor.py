"""coheat doctor: is this machine ready, and if not, what to do."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import typer

from coheat import __version__
from coheat.cli import app
from coheat.cli.output import console, print_json

PACKAGES = (
    *("torch", "numba", "numpy", "scipy", "pyarrow", "pydantic"),
    *("safetensors", "psutil", "rich", "typer", "matplotlib"),
)


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and, where it is not well, what to do."""

    name: str
    ok: bool
    found: str
    hint: str = ""


@app.command()
def doctor(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Check Python, packages, threads, compiled kernels, memory and disk, and say what is wrong.

    Exits with status 1 if something is wrong.

    Example:

        coheat doctor
    """
    checks = [
        _run(check)
        for check in (_python, _system, _packages, _threads, _kernels, _memory, _cache, _temporary)
    ]
    ok = all(check.ok for check in checks)
    if as_json:
        print_json({"coheat": __version__, "ok": ok, "checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            mark = "[green]ok  [/]" if check.ok else "[yellow]warn[/]"
            console.print(mark, f"{check.name}: {check.found}", highlight=False, soft_wrap=True)
            if not check.ok:
                console.print("     ", check.hint, markup=False, highlight=False, soft_wrap=True)
    if not ok:
        raise typer.Exit(1)


def _run(check: Callable[[], Check]) -> Check:
    """A check that fails in a way nobody foresaw is a finding too."""
    try:
        return check()
    except Exception as error:
        name = check.__name__.strip("_")
        return Check(name, False, f"{type(error).__name__}: {error}", "install again with: make clean demo")


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("python", sys.version_info >= (3, 11), found, "coheat needs Python 3.11 or newer")


def _system() -> Check:
    from coheat.errors import ConfigError
    from coheat.storage import check_system

    try:
        check_system()
    except ConfigError as error:
        return Check("system", False, platform.system(), str(error))
    return Check("system", True, f"{platform.system()} has the file locks that runs and the service need")


def _packages() -> Check:
    versions, missing = [], []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    hint = f"not installed: {', '.join(missing)}; install with: pip install coheat"
    return Check("packages", not missing, ", ".join(versions), hint)


def _threads() -> Check:
    import torch

    affinity = getattr(os, "sched_getaffinity", None)  # a container may be given fewer; not on macOS
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    threads = torch.get_num_threads()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    hint = f"torch uses {threads} threads on {cores} cores; set OMP_NUM_THREADS={cores}"
    return Check("threads", threads <= cores, f"{threads} of torch, {cores} cores, GPU: {gpu}", hint)


def _kernels() -> Check:
    import numpy as np

    from coheat.data.dataset import relation
    from coheat.data.sampling import contains

    matrix = relation([0, 1], [1, 0], (2, 2))
    answer = contains(matrix, np.array([0, 0, 1]), np.array([0, 1, 0])).tolist()
    works = answer == [False, True, True]
    return Check("kernels", works, "compiled and right" if works else f"wrong: {answer}", "reinstall numba")


def _memory() -> Check:
    from coheat.memory_limit import memory_limit, readable

    available = memory_limit()
    hint = "training Youshu takes about 1 GB; close other programs or use a larger machine"
    return Check("memory", available > 1e9, f"{readable(available)} available", hint)


def _cache() -> Check:
    """Where numba keeps compiled kernels; without a place to write, every start compiles anew."""
    import coheat

    places = [Path(coheat.__file__).parent, Path.home() / ".cache"]
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        places = [Path(chosen)]
    writable = [place for place in places if os.access(place, os.W_OK)]
    found = f"{writable[0]} is writable" if writable else "no writable place"
    return Check("kernel cache", bool(writable), found, "set NUMBA_CACHE_DIR to a writable directory")


def _temporary() -> Check:
    with tempfile.TemporaryFile() as file:
        file.write(b"coheat")
    return Check("temporary files", True, f"{tempfile.gettempdir()} is writable")
