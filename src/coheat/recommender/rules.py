"""Rules of a shop for its lists: pinned places, boosts, at most so many of a category, at most a share of the
young, no twins side by side.

They rearrange the top of a longer list; scores stay the model's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from coheat.attributes import Column, matching
from coheat.config import Settings
from coheat.errors import ConfigError
from coheat.ids import shortened
from coheat.recommender.catalogue import Catalogue
from coheat.served.ranking import Floats, Positions, Ration

LEAST_DEPTH = 200
TIMES_K = 10
"""Rules choose among the LEAST_DEPTH best bundles of a user, or among TIMES_K k where that is more."""
YOUNG = object()
"""Where young bundles are counted, beside categories."""
MOST = 0.5
"""Two bundles share most items where they share more than this part of the smaller one's."""


class Boost(Settings):
    """A factor for the bundles that are named or meet `where`."""

    factor: float = Field(gt=0, le=1000, description="above 1 lifts, below 1 lowers")
    bundles: tuple[str, ...] = Field((), description="ids of bundles")
    where: dict[str, dict[str, Any]] | None = Field(None, description="conditions by column, as in lists")


class Rules(Settings):
    """What a shop wants from the order of a list besides scores; docs/catalogue.md says how rules combine."""

    pin: dict[str, int] = Field({}, description="by bundle id: the place where it stands, from 1")
    boost: tuple[Boost, ...] = Field((), description="factors; where several fit a bundle, their product")
    at_most_per_category: int | None = Field(None, ge=1, description="so many bundles of one category")
    at_most_young: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of a list that young bundles fill at most, besides the model's limit",
    )
    diverse: bool = Field(False, strict=True, description="no two bundles side by side that share most items")

    @classmethod
    def of(cls, given: Rules | Mapping[str, Any] | None) -> Rules | None:
        """Rules from their JSON form; None if there are none."""
        if not isinstance(given, Rules | Mapping | None):
            raise ConfigError(f'rules is a mapping, such as {{"diverse": true}}, not {shortened(str(given))}')
        rules = given if given is None or isinstance(given, Rules) else cls.create(given, "rules")
        if rules is None or rules == cls():
            return None
        places = list(rules.pin.values())
        if min(places, default=1) < 1:
            raise ConfigError("rules: a pinned place is a number from 1 up")
        if len(set(places)) < len(places):
            twice = next(place for place in places if places.count(place) > 1)
            raise ConfigError(f"rules: two bundles are pinned to place {twice}; choose another for one")
        return rules

    def depth(self, k: int) -> int:
        """How many bundles of a list are looked at."""
        return max(LEAST_DEPTH, TIMES_K * k)

    def most_young(self, k: int) -> int | None:
        """How many bundles of a list may be young."""
        return None if self.at_most_young is None else math.floor(self.at_most_young * k + 1e-9)


@dataclass(frozen=True)
class Arrangement:
    """Rules as they apply to one catalogue."""

    rules: Rules
    pins: Mapping[int, int]
    """Places (from 0) of pinned bundles, by row."""
    factors: npt.NDArray[np.float64] | None
    category: Column | None
    young: npt.NDArray[np.bool_]
    """Which bundles are young (`Bundles.is_young`)."""
    items_of: Callable[[int], Positions]
    notes: tuple[str, ...] = ()
    sets: dict[int, frozenset[int]] = field(default_factory=dict)
    """Items of the bundles that were looked at."""

    @staticmethod
    def of(
        given: Rules | Mapping[str, Any] | None, catalogue: Catalogue, allowed: npt.NDArray[np.bool_], k: int
    ) -> Arrangement | None:
        """Rules as they apply to lists of k of what may be listed; None where there are no rules."""
        rules = Rules.of(given)
        if rules is None:
            return None
        notes, pins = [], {}
        for name, place in rules.pin.items():
            row = catalogue.find(name)
            if row is None or not allowed[row]:
                why = "is not in the catalogue" if row is None else "is not among what may be listed"
                notes.append(f"the pinned bundle {shortened(name)} {why}; left out")
            else:
                pins[row] = place - 1
        factors = _factors(rules, catalogue) if rules.boost else None
        category = catalogue.described.bundles.get("category")
        young = catalogue.bundles.is_young
        if category is not None and rules.at_most_per_category is not None:
            pinned = Counter(category.value(row) for row, place in pins.items() if place < k)
            notes += [
                f"{count} pinned bundles are of the category {shortened(str(value))}, more than "
                f"at_most_per_category = {rules.at_most_per_category}; pins come first, so all of them stand"
                for value, count in pinned.items()
                if value is not None and count > rules.at_most_per_category
            ]
        return Arrangement(rules, pins, factors, category, young, catalogue.items_of, tuple(notes))

    def ration(self, own: Ration | None) -> Ration | None:
        """What the bundles to choose among hold of young ones, where the model's own limit is this one."""
        share = self.rules.at_most_young
        return own if share is None or (own and own.share < share) else Ration(self.young, share)

    def arranged(
        self,
        rows: Positions,
        scores: Floats,
        pinned: Mapping[int, float],
        k: int,
        ration: Ration | None = None,
    ) -> list[tuple[int, float]]:
        """At most k bundles of a list, with their scores, in the order of the rules.

        `rows` and `scores` are the best of somebody's list; `pinned` are the scores of those pinned bundles
        that may be listed to them. `ration` is the model's own limit of young ones, which holds as long as
        there are others.
        """
        limits = [self.rules.most_young(k)]
        if ration is not None:
            limits.insert(0, min(round(ration.share * k), k if limits[0] is None else limits[0]))
        order = self._boosted(rows, scores)
        free = [(int(rows[place]), float(scores[place])) for place in order if int(rows[place]) not in pinned]
        fixed = {self.pins[row]: row for row in pinned}
        counts: Counter[object] = Counter()
        for row in pinned:
            self._count(row, counts)
        found: list[tuple[int, float]] = []
        while len(found) < k and (free or fixed):
            if len(found) not in fixed:
                after = fixed.get(len(found) + 1)
                before = found[-1][0] if found else None
                fitting = (self._next(free, before, after, counts, limit) for limit in limits)
                place = next((place for place in fitting if place is not None), None)
                if place is not None:
                    found.append(free.pop(place))
                    self._count(found[-1][0], counts)
                    continue
                if not fixed:
                    break
            # Its turn, or nothing else fits and the next pinned one moves up.
            row = fixed.pop(len(found) if len(found) in fixed else min(fixed))
            found.append((row, pinned[row]))
        return found

    def _boosted(self, rows: Positions, scores: Floats) -> list[int]:
        """Places of a list, best first: a factor stretches the lead over the last of the list."""
        if self.factors is None or not len(rows):
            return list(range(len(rows)))
        lead = scores.astype(np.float64) - float(scores.min())
        order: list[int] = np.argsort(-lead * self.factors[rows], kind="stable").tolist()
        return order

    def _next(
        self,
        free: Sequence[tuple[int, float]],
        before: int | None,
        after: int | None,
        counts: Mapping[object, int],
        most_young: int | None,
    ) -> int | None:
        """The place in `free` of the first bundle that may stand between these two."""
        no_young = most_young is not None and counts[YOUNG] >= most_young
        most = self.rules.at_most_per_category
        for place, (row, _) in enumerate(free):
            if no_young and self.young[row]:
                continue
            if most is not None and counts[self._category(row)] >= most:
                continue
            if self.rules.diverse and any(
                other is not None and self._alike(row, other) for other in (before, after)
            ):
                continue
            return place
        return None

    def _category(self, row: int) -> object:
        return None if self.category is None else self.category.value(row)

    def _count(self, row: int, counts: Counter[object]) -> None:
        category = self._category(row)
        if category is not None:  # what is not known is no category
            counts[category] += 1
        counts[YOUNG] += int(self.young[row])

    def _alike(self, one: int, other: int) -> bool:
        """Whether two bundles share most items."""
        first, second = self._items(one), self._items(other)
        return len(first & second) > MOST * min(len(first), len(second))

    def _items(self, row: int) -> frozenset[int]:
        found = self.sets.get(row)
        if found is None:
            found = self.sets[row] = frozenset(self.items_of(row).tolist())
        return found


def _factors(rules: Rules, catalogue: Catalogue) -> npt.NDArray[np.float64]:
    factors = np.ones(len(catalogue))
    for boost in rules.boost:
        if not boost.bundles and not boost.where:
            raise ConfigError("rules: a boost needs `bundles` or `where` to say which bundles it is for")
        rows = [row for row in map(catalogue.find, boost.bundles) if row is not None]
        meant = np.zeros(len(catalogue), dtype=np.bool_)
        meant[rows] = True
        if boost.where:
            meant |= matching(catalogue.described.bundles, boost.where, len(catalogue))
        factors[meant] *= boost.factor
    return factors
