"""A block of learned vectors: the first kind of term in a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coheat.served.curves import Curve
from coheat.served.forest import Forest, features
from coheat.served.ranking import Floats, Positions

Aspect = Literal["history", "items", "youth"]
ZERO = Curve.constant(0.0)
ONE = Curve.constant(1.0)


@dataclass(frozen=True)
class Block:
    """Learned vectors, a part of the columns of `Served.users` and of the bundles' matrices.

    Where `items` (n_items, d) is given, a bundle is sum of its items / size ** size_exponent, in training
    and after, or what `forest` makes of that sum; elsewhere one that was not in training is zero.
    """

    name: str
    about: Aspect
    width: int
    curve: Curve = ONE
    items: Floats | None = None
    size_exponent: float = 1.0
    forest: Forest | None = None

    def placed(self, sums: Floats, sizes: Positions) -> Floats:
        """Bundles (n, width) of these sizes, by the sums (n, d) of their items."""
        if self.forest is not None:
            return self.forest.at(features(sums, sizes))[:, None]
        return np.asarray(sums / sizes[:, None] ** self.size_exponent, dtype=np.float32)
