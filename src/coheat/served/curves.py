"""Weights as functions of evidence: how often a bundle was taken, and how young it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.errors import ConfigError
from coheat.served.ranking import Doubles, Floats


@dataclass(frozen=True)
class Curve:
    """Straight lines between knots, for bundles whose youth is over (`old`) and for the youngest (`young`):

        value = (1 - youth) * old(taken) + youth * young(taken)

    Beyond the last of `counts` (rising, from 0) a line goes on level.
    """

    counts: Doubles
    old: Doubles
    young: Doubles

    @staticmethod
    def constant(old: float, young: float | None = None) -> Curve:
        """The same for every count; `young`, where given, for young bundles."""
        return Curve.through([0], [old], [old if young is None else young])

    @staticmethod
    def through(counts: npt.ArrayLike, old: npt.ArrayLike, young: npt.ArrayLike | None = None) -> Curve:
        lines = [np.asarray(line, np.float64) for line in (counts, old, old if young is None else young)]
        return Curve(*lines)

    @staticmethod
    def tabulated(value: Callable[[Floats], npt.ArrayLike], up_to: int) -> Curve:
        """Exact at every whole number up to `up_to`, level beyond."""
        counts = np.arange(up_to + 1)
        return Curve.through(counts, value(counts.astype(np.float32)))

    def at(self, taken: npt.NDArray[Any], youth: npt.NDArray[Any]) -> Floats:
        """Values (n,) for bundles taken so often, of such youth."""
        found: Doubles = np.interp(taken, self.counts, self.old)
        if self.young is not self.old and not np.array_equal(self.young, self.old):
            found += youth * (np.interp(taken, self.counts, self.young) - found)
        return found.astype(np.float32)

    @property
    def is_zero(self) -> bool:
        return not (self.old.any() or self.young.any())


@dataclass(frozen=True)
class Knob:
    """A number that may be turned while serving; it adds to the score of young bundles.

    `lines[k]` is what it adds at each of `counts` when it stands at `values[k]` (rising), and `shares[k]` how
    much of one list young bundles may fill then; between them both are interpolated.
    """

    value: float
    values: tuple[float, ...]
    counts: tuple[float, ...]
    lines: tuple[tuple[float, ...], ...]
    shares: tuple[float, ...]
    meaning: str
    """What the values mean, for whoever turns it wrongly."""

    @cached_property
    def curve(self) -> Curve:
        """What it adds as it stands."""
        line = [np.interp(self.value, self.values, column) for column in zip(*self.lines, strict=True)]
        return Curve.through(self.counts, np.zeros(len(line)), line)

    @cached_property
    def share(self) -> float:
        """How much of one list young bundles may fill, as it stands."""
        return float(np.interp(self.value, self.values, self.shares))

    def turned(self, name: str, value: float) -> Knob:
        if not (np.isfinite(value) and value >= 0):
            raise ConfigError(f"{name} = {value}: {self.meaning}")
        return replace(self, value=float(value))
