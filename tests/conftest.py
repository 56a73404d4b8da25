"""Fixtures for everybody: small worlds with known answers, guarded against being changed by a test."""

from __future__ import annotations

import os

# Small worlds gain nothing from several torch threads, and tests that run side by side crowd each other out
# with them. Set before torch is imported, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests keep nothing in the home of whoever runs them; the few about the cache choose a place of their own.
os.environ["COHEAT_CACHE"] = "off"
# Where Python is told to keep no bytecode, each of hundreds of commands would compile our sources again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from guard import digest
from hypothesis import settings
from quick_python import QuickProcess

from coheat.data.split import Split
from coheat.data.synthetic import planted_world
from coheat.data.writing import write_tables

sys.dont_write_bytecode = False
# Who is started in the background of a script ignores Ctrl-C, and so do all whom they start; not so in tests.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("coheat", deadline=None)
settings.load_profile("coheat")


FIRST = (
    "test_docs",
    "test_ray",
    "test_explorer",
    "test_faults",
    "test_workers",
    "test_contract",
    "test_demo",
    "test_reproduce",
    "test_runs",
    "test_light_install",
    "test_door",
    "test_replicas",
    "test_security",
    "test_benchmarks",
    "test_merchandiser",
    "test_retraining",
    "test_api",
    "test_tuning",
)
"""The longest files are begun first, so that at the end nobody waits for a worker that has just begun one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(FIRST)))


@pytest.fixture(scope="session", autouse=True)
def _quick_services() -> None:
    """Services that the benchmarks start for tests are quick ones."""
    if common := sys.modules.get("service_common"):
        common.PROCESS = QuickProcess  # type: ignore[attr-defined]


@pytest.fixture
def ends_here() -> Iterator[Callable[[Popen[Any]], None]]:
    """Told of a process that would go on for hours: it ends with the test, also where that fails."""
    processes: list[Popen[Any]] = []
    yield processes.append
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def _planted() -> Split:
    return planted_world()


@pytest.fixture
def planted(_planted: Split) -> Iterator[Split]:
    """The planted world, the same object for all tests; a test that changes it fails."""
    before = digest(_planted)
    yield _planted
    assert digest(_planted) == before, "this test changed the data it was given"


@pytest.fixture
def planted_directory(planted: Split, tmp_path: Path) -> Path:
    """The planted world as files, with its split."""
    write_tables(planted, tmp_path / "planted")
    return tmp_path / "planted"
