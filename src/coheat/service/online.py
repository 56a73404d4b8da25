"""What came of the lists of each side, by what was recorded of them; rates with their intervals (95%).

Intervals are Wilson's for a rate and Newcombe's for a difference. They take one showing of a bundle as
independent of the next; as those of one list are not quite, the true intervals are somewhat wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, sqrt

Z = 1.959964


@dataclass(frozen=True)
class Outcome:
    """Of the lists that one model made on one side: how many were heard of, and what was recorded of them."""

    side: str
    model: str
    """The beginning of its fingerprint."""
    lists: int
    shown: int
    clicked: int
    took: int


@dataclass(frozen=True)
class Rate:
    """A share, with its bounds."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Rate):
    """The rate of a side minus that of the first one; `level` where 0 lies within the bounds."""

    verdict: str


@dataclass(frozen=True)
class SideOutcome:
    """What came of the lists of one side, by interactions that name them; `lists` counts those heard of.

    Rates are shares of what was shown, with intervals (95%); differences are those to the first side.
    """

    side: str
    lists: int
    shown: int
    clicked: int
    took: int
    click_rate: Rate | None
    take_rate: Rate | None
    click_difference: Difference | None
    take_difference: Difference | None
    models: list[Outcome]


def wilson(hits: int, trials: int) -> Rate | None:
    """The share of hits; None without trials."""
    if not trials:
        return None
    share = min(hits, trials) / trials
    middle = share + Z * Z / (2 * trials)
    around = Z * sqrt(share * (1 - share) / trials + Z * Z / (4 * trials * trials))
    scale = 1 + Z * Z / trials
    return Rate(share, max(0.0, (middle - around) / scale), min(1.0, (middle + around) / scale))


def difference(ours: Rate | None, theirs: Rate | None) -> Difference | None:
    """Ours minus theirs."""
    if ours is None or theirs is None:
        return None
    gap = ours.mean - theirs.mean
    low = gap - hypot(ours.mean - ours.low, theirs.high - theirs.mean)
    high = gap + hypot(ours.high - ours.mean, theirs.mean - theirs.low)
    return Difference(gap, low, high, "better" if low > 0 else "worse" if high < 0 else "level")


def report(outcomes: Sequence[Outcome]) -> list[SideOutcome]:
    """For each side: counts, rates of what was shown, differences to the first side, and its models."""
    sides: list[SideOutcome] = []
    for name in sorted({one.side for one in outcomes}):
        models = [one for one in outcomes if one.side == name]
        shown, clicked, took = (
            sum(counts)
            for counts in zip(*((one.shown, one.clicked, one.took) for one in models), strict=True)
        )
        click_rate, take_rate = wilson(clicked, shown), wilson(took, shown)
        sides.append(
            SideOutcome(
                name,
                sum(one.lists for one in models),
                shown,
                clicked,
                took,
                click_rate,
                take_rate,
                difference(click_rate, sides[0].click_rate) if sides else None,
                difference(take_rate, sides[0].take_rate) if sides else None,
                models,
            )
        )
    return sides
