"""Run a compiled kernel over ranges of rows in a few threads.

Kernels are compiled with `nogil`, so plain Python threads run them side by side. This keeps numba's own
threading layers out of the process: nothing to configure, nothing that breaks after a fork, and each
kernel compiles in a fraction of the time that `parallel=True` needs. Every kernel writes only to its own
range, in a fixed order, so results do not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Result = TypeVar("Result")

SMALL = 60_000
"""Below this much work, counted in vector operations of some ten nanoseconds (an edge of `gather`, sixteen
edges of a mask), waking a second thread costs more than it saves."""


def n_threads() -> int:
    """Threads to use: all cores this process may run on."""
    return max(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 1)


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One pool per process, since threads do not survive a fork."""
    import torch  # here, so that evaluation without torch needs none

    # A thread that has not asked yet would take over the one core that the threads of the pool ask for.
    torch.get_num_threads()
    name = f"coheat-{process}"
    return ThreadPoolExecutor(n_threads(), thread_name_prefix=name, initializer=_use_one_torch_thread)


def _use_one_torch_thread() -> None:
    import torch

    torch.get_num_threads()  # a thread's first question sets its number, so it has to come first
    torch.set_num_threads(1)  # of this pool thread only


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Have the operations of torch run in the calling thread alone.

    Torch's threads go on spinning for a while after each operation, so as to be there for the next one. Where
    kernels share the cores, that takes a core away from them.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_tasks(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of independent tasks, run side by side in threads in which torch uses one core each."""
    results: dict[int, Result] = {}

    def run(place: int, task: Callable[[], Result]) -> None:
        results[place] = task()

    with one_torch_thread():
        _share([partial(run, place, task) for place, task in enumerate(tasks)])
    return [results[place] for place in range(len(tasks))]


Job = tuple[Callable[..., None], npt.NDArray[np.int64], tuple[Any, ...]]
"""A kernel, the boundaries of its ranges, and its other arguments: see `run_ranges`."""


def run_ranges(kernel: Callable[..., None], boundaries: npt.NDArray[np.int64], *arguments: Any) -> None:
    """Call kernel(start, stop, *arguments) for each range between neighbouring boundaries."""
    run_jobs([(kernel, boundaries, arguments)])


def run_jobs(jobs: Sequence[Job]) -> None:
    """Several jobs that do not depend on each other: a thread has to be woken only once for all of them.

    The threads take one range after the other, so that one which is held up, by the preparation of the next
    batch say, leaves more of them to the others.
    """
    calls = [
        partial(kernel, int(start), int(stop), *arguments)
        for kernel, boundaries, arguments in jobs
        for start, stop in pairwise(boundaries)
        if stop > start
    ]
    _share(calls)


def _share(calls: Sequence[Callable[[], None]]) -> None:
    """Run all, in this thread and in as many others as there are cores and calls for."""
    waiting = iter(calls)
    helpers = min(n_threads(), len(calls)) - 1
    futures = [_pool(os.getpid()).submit(_call_all, waiting) for _ in range(helpers)]
    _call_all(waiting)
    for future in futures:
        future.result()


def _call_all(calls: Iterator[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _n_parts(work: int) -> int:
    """How many ranges to cut this much work into: enough for threads that are held up, none too small."""
    return 1 if work < SMALL else max(min(2 * work // SMALL, 8 * n_threads()), n_threads())


def even_ranges(n: int, work: int | None = None) -> npt.NDArray[np.int64]:
    """Boundaries that cut range(n) into equal parts, or leave it whole where there is little work."""
    return np.linspace(0, n, _n_parts(n if work is None else work) + 1).astype(np.int64)


def balanced_ranges(indptr: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Boundaries between rows such that each part has about the same number of edges."""
    n_rows = len(indptr) - 1
    # A row costs about as much as four edges even when it has none.
    work = indptr + 4 * np.arange(n_rows + 1)
    inner = np.searchsorted(work, np.linspace(0, work[-1], _n_parts(int(work[-1])) + 1)[1:-1])
    return np.concatenate([[0], inner, [n_rows]]).astype(np.int64)
