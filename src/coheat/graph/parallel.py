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
    """Results of independent tasks, run side by side in threads in which torch uses one core each.

    The calling thread only waits: its own torch operations would spread over all cores and crowd the tasks.
    """
    futures = [_pool(os.getpid()).submit(task) for task in tasks]
    return [future.result() for future in futures]


Job = tuple[Callable[..., None], npt.NDArray[np.int64], tuple[Any, ...]]
"""A kernel, the boundaries of its ranges, and its other arguments: see `run_ranges`."""


def run_ranges(kernel: Callable[..., None], boundaries: npt.NDArray[np.int64], *arguments: Any) -> None:
    """Call kernel(start, stop, *arguments) for each range between neighbouring boundaries."""
    run_jobs([(kernel, boundaries, arguments)])


def run_jobs(jobs: Sequence[Job]) -> None:
    """Several jobs that do not depend on each other: a thread has to be woken only once for all of them.

    Each thread takes a range of every job; jobs that are not cut go to one thread each, in turn.
    """
    shares: list[list[Callable[[], None]]] = [[] for _ in range(n_threads())]
    for number, (kernel, boundaries, arguments) in enumerate(jobs):
        for part, (start, stop) in enumerate(pairwise(boundaries)):
            if stop > start:
                call = partial(kernel, int(start), int(stop), *arguments)
                shares[(number + part) % len(shares)].append(call)
    busy = [share for share in shares if share]
    futures = [_pool(os.getpid()).submit(_call_all, share) for share in busy[1:]]
    for share in busy[:1]:
        _call_all(share)  # this thread works too
    for future in futures:
        future.result()


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def even_ranges(n: int, work: int | None = None) -> npt.NDArray[np.int64]:
    """Boundaries that cut range(n) into equal parts, or leave it whole where there is little work."""
    parts = 1 if (n if work is None else work) < SMALL else n_threads()
    return np.linspace(0, n, parts + 1).astype(np.int64)


def balanced_ranges(indptr: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Boundaries between rows such that each part has about the same number of edges."""
    n_rows = len(indptr) - 1
    # A row costs about as much as four edges even when it has none.
    work = indptr + 4 * np.arange(n_rows + 1)
    if work[-1] < SMALL:
        return np.array([0, n_rows])
    parts = n_threads()
    inner = np.searchsorted(work, np.linspace(0, work[-1], parts + 1)[1:-1])
    return np.concatenate([[0], inner, [n_rows]]).astype(np.int64)
