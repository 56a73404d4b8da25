"""Jobs shared by threads: every range once, errors where they belong, and nothing but numpy needed."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import numpy.typing as npt
import pytest

from coheat import threads
from coheat.threads import even_ranges, run_jobs


def count(start: int, stop: int, times: int, found: npt.NDArray[np.int64]) -> None:
    found[start:stop] += times


@pytest.mark.parametrize("small", [1, 10**9], ids=["cut", "whole"])
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_every_range_of_every_job_is_run_once(
    small: int, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "SMALL", small)
    monkeypatch.setattr(threads, "n_threads", lambda: n_threads)
    found = [np.zeros(n, dtype=np.int64) for n in (0, 1, 7, 100)]
    run_jobs([(count, even_ranges(len(array)), (place + 1, array)) for place, array in enumerate(found)])
    for place, array in enumerate(found):
        assert (array == place + 1).all()


@pytest.mark.skipif(threads.n_threads() < 2, reason="needs two cores")
def test_jobs_run_side_by_side() -> None:
    met = threading.Barrier(2, timeout=240)

    def meet(start: int, stop: int) -> None:
        met.wait()  # breaks unless two of them run at the same time

    run_jobs([(meet, np.array([0, 1]), ()), (meet, np.array([0, 1]), ())])


def test_ranges_left_by_a_thread_that_is_held_up_go_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "n_threads", lambda: 2)
    all_others_done, found = threading.Event(), []

    def run(start: int, stop: int) -> None:
        if start == 0:
            assert all_others_done.wait(timeout=240)
        else:
            found.append(start)
            if len(found) == 9:
                all_others_done.set()

    run_jobs([(run, np.arange(11), ())])
    assert sorted(found) == list(range(1, 10))


def test_an_error_in_another_thread_is_raised_here() -> None:
    def fail(start: int, stop: int) -> None:
        if start > 0:
            raise ValueError(f"range {start} to {stop}")

    with pytest.raises(ValueError, match="range 5 to 9"):
        run_jobs([(fail, np.array([0, 5, 9]), ())])


WITHOUT_HEAVY_PACKAGES = """
import sys

for name in ("torch", "numba", "scipy"):
    sys.modules[name] = None  # importing it is an ImportError from now on

import numpy as np
from coheat import threads

threads.n_threads = lambda: 2
found = np.zeros(1000)

def add(start, stop, number):
    found[start:stop] += number

threads.run_ranges(add, threads.even_ranges(1000, 10**9), 7)
threads.run_ranges(add, threads.balanced_ranges(np.arange(0, 1001 * 1000, 1000)), 1)
assert (found == 8).all()
"""


def test_threads_need_neither_torch_nor_numba_nor_scipy() -> None:
    """As in an installation for serving; the second thread is started too, not only imported."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HEAVY_PACKAGES], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
