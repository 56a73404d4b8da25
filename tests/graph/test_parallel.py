"""Tasks shared by threads: results in their order, and torch's own threads left alone."""

from __future__ import annotations

import threading

import pytest
import torch

from coheat import threads
from coheat.graph.parallel import one_torch_thread, run_tasks


@pytest.mark.skipif(threads.n_threads() < 2, reason="needs two cores")
def test_tasks_run_side_by_side() -> None:
    met = threading.Barrier(2, timeout=240)  # breaks unless two of them wait at the same time
    assert sorted(run_tasks([met.wait, met.wait])) == [0, 1]  # each is told its place at the barrier


def test_torch_has_its_threads_back_afterwards() -> None:
    before = torch.get_num_threads()
    with one_torch_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    assert run_tasks([torch.get_num_threads] * 4) == [1] * 4
    assert torch.get_num_threads() == before


def test_an_error_in_a_task_is_raised_here_and_torch_has_its_threads_back() -> None:
    def fail() -> None:
        raise ValueError("broken")

    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="broken"):
        run_tasks([fail] * 4)
    assert torch.get_num_threads() == before
