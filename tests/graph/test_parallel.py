"""Jobs shared by threads: every range once, errors where they belong, torch's own threads left alone."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import pytest
import torch

from coheat.graph import parallel
from coheat.graph.parallel import even_ranges, one_torch_thread, run_jobs, run_tasks


def count(start: int, stop: int, times: int, found: npt.NDArray[np.int64]) -> None:
    found[start:stop] += times


@pytest.mark.parametrize("small", [1, 10**9], ids=["cut", "whole"])
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_every_range_of_every_job_is_run_once(
    small: int, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "SMALL", small)
    monkeypatch.setattr(parallel, "n_threads", lambda: n_threads)
    found = [np.zeros(n, dtype=np.int64) for n in (0, 1, 7, 100)]
    run_jobs([(count, even_ranges(len(array)), (place + 1, array)) for place, array in enumerate(found)])
    for place, array in enumerate(found):
        assert (array == place + 1).all()


@pytest.mark.skipif(parallel.n_threads() < 2, reason="needs two cores")
def test_jobs_run_side_by_side() -> None:
    met = threading.Barrier(2, timeout=10)

    def meet(start: int, stop: int) -> None:
        met.wait()  # breaks unless two of them run at the same time

    run_jobs([(meet, np.array([0, 1]), ()), (meet, np.array([0, 1]), ())])
    assert sorted(run_tasks([met.wait, met.wait])) == [0, 1]  # each is told its place at the barrier


def test_ranges_left_by_a_thread_that_is_held_up_go_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "n_threads", lambda: 2)
    all_others_done, found = threading.Event(), []

    def run(start: int, stop: int) -> None:
        if start == 0:
            assert all_others_done.wait(timeout=10)
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


def test_torch_has_its_threads_back_afterwards() -> None:
    before = torch.get_num_threads()
    with one_torch_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    assert run_tasks([torch.get_num_threads] * 4) == [1] * 4
    assert torch.get_num_threads() == before
