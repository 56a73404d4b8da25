"""Torch in several threads of our own: each uses one core, whatever torch would take by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from coheat.graph.ranks import Floats, sharing
from coheat.threads import run_calls

Result = TypeVar("Result")


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Have the operations of torch run in the calling thread alone.

    Torch's threads go on spinning for a while after each operation, so as to be there for the next one. Where
    kernels share the cores, that takes a core away from them.
    """
    # Every thread has a number of its own. The first question sets it, so the question has to come first.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Have the linear algebra of numpy and scipy run in the calling thread alone.

    Their threads wait for each other by asking again and again. Beside other work most of the time goes into
    that, also for matrices that are too small to be worth sharing. And how many threads there are shows in
    the last bits of the result.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield


Filling = tuple[Callable[[], None], Sequence[Floats | Tensor]]
"""A task, and the contiguous arrays of floats on the CPU that it fills."""


def share_tasks(tasks: Sequence[Filling]) -> None:
    """Run independent tasks like `run_tasks`. Several ranks deal them out, and get what the others filled."""
    ranks = sharing()
    run_tasks([task for number, (task, _) in enumerate(tasks) if number % ranks.size == ranks.rank])
    if ranks.size > 1:
        ranks.exchange(
            *(
                (array, ranks.all_of(len(array), number % ranks.size))
                for number, (_, filled) in enumerate(tasks)
                for array in map(np.asarray, filled)
            )
        )


def run_tasks(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of independent tasks, run side by side in threads in which torch uses one core each."""
    results: dict[int, Result] = {}

    def run(position: int, task: Callable[[], Result]) -> None:
        with one_torch_thread():
            results[position] = task()

    with one_torch_thread():
        run_calls([partial(run, position, task) for position, task in enumerate(tasks)])
    return [results[position] for position in range(len(tasks))]
