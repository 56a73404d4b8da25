"""Run a function over ranges of rows in a few threads. Needs numpy alone, so that serving can use it.

Compiled kernels release the interpreter's lock (`nogil`), as numpy does, so plain Python threads run them
side by side. This keeps numba's own threading layers out of the process: nothing to configure, nothing that
breaks after a fork, and each kernel compiles in a fraction of the time that `parallel=True` needs. Every
kernel writes only to its own range, in a fixed order, so results do not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

SMALL = 60_000
"""Below this much work, counted in vector operations of some ten nanoseconds (an edge of `gather`, sixteen
edges of a mask), waking a second thread costs more than it saves."""


def n_threads() -> int:
    """Threads to use: all cores this process may run on, or no more than COHEAT_THREADS says."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("COHEAT_THREADS", "")
    return max(min(cores, int(allowed)) if allowed.isdecimal() else cores, 1)


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """One pool per process, since threads do not survive a fork."""
    return ThreadPoolExecutor(n_threads(), thread_name_prefix=f"coheat-{process}")


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
    run_calls(calls)


def run_calls(calls: Sequence[Callable[[], None]]) -> None:
    """Run all of them, in this thread and in as many others as there are cores and calls for."""
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
