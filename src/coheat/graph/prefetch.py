"""Prepare the next batches in a second thread while the model is trained on this one."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

Item = TypeVar("Item")


AHEAD = 3
"""Items that are kept ready. With a few of them, the thread that makes them can work when the one that trains
leaves a core idle, and a single slow item delays nothing."""


class _End:
    """Marks the end of the items."""


def prefetched(items: Iterable[Item]) -> Iterator[Item]:
    """The same items in the same order, each made ahead of its turn in a thread of its own.

    Dropping edges and choosing rows for a batch does not depend on the parameters, so the second core can
    do it in the meantime. An error while making an item is raised where the item would have come.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="coheat-prefetch", initializer=_lower_priority) as thread:
        coming = deque(thread.submit(next, iterator, _End()) for _ in range(AHEAD))
        try:
            while not isinstance(item := coming.popleft().result(), _End):
                coming.append(thread.submit(next, iterator, _End()))
                yield item
        finally:
            thread.shutdown(wait=False, cancel_futures=True)


def _lower_priority() -> None:
    """Let the thread that trains go first: this one's work is needed only for later batches."""
    if hasattr(os, "setpriority"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
