"""How sure a difference is: the bootstrap over users."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

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


def bootstrap(values: PerUser, seed: int = 0) -> Interval:
    """The mean of values per user, and its interval."""
    rng = np.random.default_rng(seed)
    n = len(values)
    # Drawing users with replacement is drawing how often each of them counts.
    means = np.array([rng.multinomial(n, np.full(n, 1 / n)) @ values for _ in range(DRAWS)]) / n
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(values.mean()), float(low), float(high))


def difference(ours: Evaluation, theirs: Evaluation, metric: str, seed: int = 0) -> Interval:
    """Ours minus theirs over the users whom both were judged on."""
    _, mine, other = np.intersect1d(ours.users, theirs.users, return_indices=True)
    return bootstrap(ours.per_user[metric][mine] - theirs.per_user[metric][other], seed)
