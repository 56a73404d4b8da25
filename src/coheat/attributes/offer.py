"""What is on offer at a moment: launched, not ended, available."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coheat.attributes.column import DAY
from coheat.attributes.table import Attributes


def on_offer(table: Attributes, n: int, now: float) -> tuple[npt.NDArray[np.bool_], float]:
    """Which of the first n rows are on offer `now` (Unix seconds), and the moment at which that may change.

    What is not known speaks against nothing. An end that is a date without a time includes that day.
    """
    offered, until = np.ones(n, dtype=np.bool_), np.inf
    available, launched, ends = (table.get(name) for name in ("available", "launched", "ends"))
    if available is not None:
        offered &= available.resized(n) != 0
    if launched is not None:
        begins = launched.resized(n)
        later = begins > now  # NaN is not above anything
        offered &= ~later
        until = min(until, float(begins[later].min(initial=np.inf)))
    if ends is not None:
        last = ends.resized(n)
        last = np.where(last % DAY == 0, last + DAY - 1, last)
        over = last < now
        offered &= ~over
        until = min(until, float(np.fmin.reduce(last[~over], initial=np.inf)))
    return offered, until
