"""Prepare the next batch in a second thread while the model learns from this one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _End:
    """Marks the end of the items, and carries the error that ended them, if one did."""

    def __init__(self, error: BaseException | None = None):
        self.error = error


class Prefetched(Generic[Item]):
    """The same items in the same order, each made one step ahead in a thread of its own.

    Dropping edges and choosing rows for a batch does not depend on the parameters, so the second core can
    do it in the meantime. An error in the making is raised where the item would have come. Leaving early
    is fine: `close` (or garbage collection) ends the thread after the item it is at.
    """

    def __init__(self, items: Iterable[Item]):
        self._ready: queue.Queue[Item | _End] = queue.Queue(maxsize=1)
        self._closed = threading.Event()
        arguments = (iter(items), self._ready, self._closed)
        threading.Thread(target=_make, args=arguments, name="coheat-prefetch", daemon=True).start()

    def __iter__(self) -> Iterator[Item]:
        try:
            while not isinstance(item := self._ready.get(), _End):
                yield item
            if item.error is not None:
                raise item.error
        finally:
            self.close()

    def close(self) -> None:
        self._closed.set()


def _make(items: Iterator[Item], ready: queue.Queue[Item | _End], closed: threading.Event) -> None:
    """Put the items into the queue until there are no more or nobody wants them."""
    end = _End()
    try:
        for item in items:
            if not _put(item, ready, closed):
                return
    except BaseException as error:
        end = _End(error)
    _put(end, ready, closed)


def _put(item: Item | _End, ready: queue.Queue[Item | _End], closed: threading.Event) -> bool:
    while not closed.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
