"""How sure a figure or a difference is: the bootstrap over users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from coheat.evaluation.evaluate import Evaluation
from coheat.evaluation.metrics import PerUser

DRAWS = 2_000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds within which 95% of the means lie when users are drawn anew."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What may be said: better, worse, or level where 0 lies within the bounds."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "level"

    def __str__(self) -> str:
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"

    def to_dict(self) -> dict[str, float | str]:
        return {**asdict(self), "verdict": self.verdict}

    @classmethod
    def from_dict(cls, document: Mapping[str, float]) -> Interval:
        return cls(document["mean"], document["low"], document["high"])


Doubles = npt.NDArray[np.float64]


def resampled_means(values: Doubles, rng: np.random.Generator) -> Doubles:
    """(DRAWS, n): the means of the rows of `values` (n, n_users), users drawn anew, for all rows the same."""
    n = values.shape[1]
    # Drawing users with replacement is drawing how often each of them counts.
    sums = [values @ rng.multinomial(n, np.full(n, 1 / n)) for _ in range(DRAWS)]
    means: Doubles = np.array(sums) / n
    return means


def interval_of(mean: float, draws: Doubles) -> Interval:
    """A mean with the bounds within which 95% of its `draws` lie."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(mean), float(low), float(high))


def bootstrap(values: PerUser, seed: int = 0) -> Interval:
    """The mean of values per user, and its interval."""
    draws = resampled_means(values[None, :], np.random.default_rng(seed))[:, 0]
    return interval_of(values.mean(), draws)


def p_value(draws: Doubles) -> float:
    """Two-sided: how often a difference drawn anew is on the other side of 0, or at it."""
    other_side = min(int((draws <= 0).sum()), int((draws >= 0).sum()))
    return min(1.0, 2 * (1 + other_side) / (1 + len(draws)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of several p values: the smallest times their number, the next times one less, ...

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = list(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def difference(ours: Evaluation, theirs: Evaluation, metric: str, seed: int = 0) -> Interval:
    """Ours minus theirs over the users whom both were judged on."""
    _, mine, other = np.intersect1d(ours.users, theirs.users, return_indices=True)
    return bootstrap(ours.per_user[metric][mine] - theirs.per_user[metric][other], seed)
