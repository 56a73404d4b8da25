"""A block of learned vectors: the first kind of term in a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coheat.served.curves import Curve
from coheat.served.ranking import Floats

Aspect = Literal["history", "items", "youth"]
ZERO = Curve.constant(0.0)
ONE = Curve.constant(1.0)


@dataclass(frozen=True)
class Block:
    """Learned vectors, a part of the columns of `Served.users` and of the bundles' matrices.

    Where `items` (n_items, d) is given, a bundle is sum of its items / size ** size_exponent, in training
    and after; elsewhere one that was not in training is zero.
    """

    name: str
    about: Aspect
    width: int
    curve: Curve = ONE
    items: Floats | None = None
    size_exponent: float = 1.0
