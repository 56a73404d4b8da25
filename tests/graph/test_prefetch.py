"""Items made ahead: the same ones, in order, errors in their place, and no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from coheat.graph.prefetch import AHEAD, prefetched


def test_same_items_in_the_same_order() -> None:
    assert list(prefetched(range(100))) == list(range(100))
    assert list(prefetched([])) == []
    assert list(prefetched([None, None])) == [None, None]


def test_items_are_made_ahead_in_another_thread() -> None:
    makers: list[threading.Thread] = []
    made: list[int] = []
    full = threading.Event()

    def items() -> Iterator[int]:
        for n in range(100):
            makers.append(threading.current_thread())
            made.append(n)
            if n == AHEAD:
                full.set()
            yield n

    running = prefetched(items())
    assert next(running) == 0
    assert full.wait(10)
    assert len(made) <= 1 + AHEAD  # and no further than that
    assert list(running) == list(range(1, 100))
    assert made == list(range(100))
    assert threading.current_thread() not in makers


def test_an_error_comes_where_the_item_would_have_come() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    running = prefetched(items())
    assert next(running) == 1
    with pytest.raises(ValueError, match="broken"):
        next(running)


def test_leaving_early_leaves_no_thread() -> None:
    running = prefetched(iter(range(10**9)))
    assert next(running) == 0
    running.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("coheat-prefetch")]
