"""Curves over evidence: how much each part of a score counts, learned from choices that were held out.

A score is a sum of parts (learned views, overlaps, a bias), and the weight of each part is a curve over the
evidence of a bundle: n, how often it was taken, and its youth, 1 at launch and 0 once it is established,

    w(n, youth) = (1 - youth) * old(n) + youth * young(n),        both piecewise linear between a few counts.

The curves are learned from *choices*: a user, the bundles that were the best candidates for that user by
hand-set curves, some established and some young, and which of them the user turned out to take. These are
held out of the data that the parts were computed from (`coheat.models.stand_ins`). With s the score,

    loss = prior - sum over users u, mean over what u took, of log( exp s_ub / sum over candidates exp s_uc )

Only good candidates stand to choice because lists are made of those: over all bundles, most of the likelihood
is about telling the hopeless from the rest, and weights that do this best rank the best ones worse. Which
candidates stand to choice depends on the parts alone and not on what was taken, so nothing is skewed by it.

A bundle that stands in for a young one may be liked for a reason that no part knows, and all its takers are
then found or missed together. So each of these has an appeal of its own, which is fitted along and thrown
away: what is left for the curves is what holds for many bundles, not what made a few of them popular.

The prior is springs, each in units of choices, on the deviation from hand-set curves: towards none, weak in
the mean of an old line, of which much is known, and stronger in all else; between neighbouring counts, and
between young and old where many takers make youth irrelevant; and one that pulls each bundle's own appeal to
none. With few choices the hand-set curves stay; with many the data decide, also which of several overlaps
count at all. The bias of the old may be any straight line over the knots nearly for free: by hand, having
been taken often says nothing by itself, which is right only where the learned vectors already say it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg, optimize, sparse

from coheat.data.dataset import Indices
from coheat.served import Curve

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.float64]

COUNTS: tuple[float, ...] = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Between these numbers of takers a curve is straight, beyond the last it is constant."""
LEVEL = 20.0
"""Choices that the hand-set mean of an old line is worth: it is learned from thousands of bundles, a young
one from some dozens."""
SHRINK = 200.0
"""Choices that the hand-set shape of a line is worth, per weight."""
LINE = 1.0
"""Choices that it is worth that the old bias is no straight line but none at all. In a small shop vectors say
little of how popular a bundle is, and the bias has to."""
SMOOTH = 300.0
"""Choices that it is worth that neighbouring weights of an old line deviate alike."""
SMOOTHER = 10.0
"""As a multiple, the same for a young line: each of its counts has but a few bundles to learn from."""
TIE = 30.0
"""Choices that it is worth that weights of young and old deviate alike, where takers are many."""
MANY = 16.0
"""Takers at which half of `TIE` holds."""
APPEAL = 1.0
"""Choices that it is worth that a bundle has no appeal of its own."""
ITERATIONS = 20
SAMPLE = 100
"""Users who tell how much is known of each number."""


def by_knot(old: npt.ArrayLike, young: npt.ArrayLike | None = None) -> Curve:
    """From numbers per knot of COUNTS, or one for all of them; without `young`, youth makes no difference."""
    lines = [np.broadcast_to(line, len(COUNTS)) for line in (old, old if young is None else young)]
    return Curve.through(COUNTS, *lines)


@dataclass(frozen=True, eq=False)
class Choices:
    """What some users could choose from, and what they took of it.

    `parts` (n_users, n_candidates, n_parts) are the parts of the scores, without a bias; `bundles`
    (n_users, n_candidates) say whose; `taken` marks what the user took, -1 a place that is empty because
    there were fewer candidates.
    """

    parts: Floats
    bundles: Indices
    taken: npt.NDArray[np.int8]


def candidates(
    scores: Floats, groups: Sequence[npt.NDArray[np.bool_]], size: int
) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """The `size` best bundles of each group for each row of `scores` (n, n_bundles), and which are real.

    -inf marks what is no candidate, as do groups with fewer than `size` members: these places are not real.
    """
    chosen = []
    for members in groups:
        columns = np.flatnonzero(members)
        count = min(size, len(columns))
        if not count:
            continue
        best = np.argpartition(-scores[:, columns], count - 1, axis=1)[:, :count]
        chosen.append(columns[np.sort(best, axis=1)])
    bundles = np.concatenate(chosen, axis=1) if chosen else np.zeros((len(scores), 0), dtype=np.int64)
    return bundles, np.isfinite(np.take_along_axis(scores, bundles, axis=1))


def learn(
    choices: Choices,
    popularity: Indices,
    youth: Numbers,
    prior: Mapping[str, Curve],
    stand_ins: npt.NDArray[np.bool_],
    level: float = LEVEL,
    shrink: float = SHRINK,
    smooth: float = SMOOTH,
    tie: float = TIE,
) -> dict[str, Curve]:
    """Curves of all parts, in the order of `prior`, whose last entry is the bias: see the module's text.

    `popularity` and `youth` (n_bundles,) are the evidence in the data that the parts were computed from;
    the bundles of the mask `stand_ins` have an appeal of their own. Without a single choice the prior comes
    back as it is.
    """
    counts = next(iter(prior.values())).counts
    expected = np.stack([np.concatenate([curve.old, curve.young]) for curve in prior.values()])
    problem = _Problem.of(choices, spread(counts, popularity, youth), stand_ins)
    if problem is None:
        return dict(prior)
    springs = _springs(counts, level, shrink, smooth, tie)
    of_bias = _springs(counts, level, shrink, smooth, tie, free_line=True)
    scales, size = problem.scales[:, None], expected.size

    def objective(moved: Numbers, appeals: Numbers) -> tuple[float, Numbers, Numbers]:
        value, by_curves, by_appeals = problem.loss(expected + moved / scales, appeals)
        pulled = np.concatenate([moved[:-1] @ springs, moved[-1:] @ of_bias])
        energy = 0.5 * float((pulled * moved).sum() + APPEAL * appeals @ appeals)
        return value + energy, by_curves / scales + pulled, by_appeals + APPEAL * appeals

    # Some numbers are known from thousands of choices and others from none, which takes hundreds of steps. In
    # units of what is known of each, twenty are as good.
    of_curves, of_appeals = problem.curvature(expected)
    unit = np.linalg.cholesky(of_curves + linalg.block_diag(*[springs] * (len(expected) - 1), of_bias))
    per_appeal = np.sqrt(of_appeals + APPEAL)

    def in_units(flat: Numbers) -> tuple[Numbers, Numbers]:
        moved = linalg.solve_triangular(unit, flat[:size], lower=True, trans=1)
        return moved.reshape(expected.shape), flat[size:] / per_appeal

    def in_units_too(flat: Numbers) -> tuple[float, Numbers]:
        value, by_moved, by_appeals = objective(*in_units(flat))
        by_units = linalg.solve_triangular(unit, by_moved.ravel(), lower=True)
        return value, np.concatenate([by_units, by_appeals / per_appeal])

    start = np.zeros(size + len(per_appeal))
    found = optimize.minimize(
        in_units_too, start, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS}
    )
    values = expected + in_units(found.x)[0] / scales
    half = len(counts)
    return {name: Curve(counts, line[:half], line[half:]) for name, line in zip(prior, values, strict=True)}


def spread(counts: Numbers, popularity: Indices, youth: Numbers) -> Floats:
    """How much of each knot, of the old curve and then of the young, a bundle's weight is made of:
    (n_bundles, 2 * n_knots)."""
    taken = np.minimum(popularity, counts[-1])
    above = np.clip(np.searchsorted(counts, taken, side="right"), 1, len(counts) - 1)
    share = (taken - counts[above - 1]) / (counts[above] - counts[above - 1])
    line = np.zeros((len(taken), len(counts)))
    rows = np.arange(len(taken))
    line[rows, above - 1], line[rows, above] = 1 - share, share
    return np.concatenate([(1 - youth)[:, None] * line, youth[:, None] * line], axis=1).astype(np.float32)


def _springs(
    counts: Numbers, level: float, shrink: float, smooth: float, tie: float, free_line: bool = False
) -> Numbers:
    """The quadratic form (2 * n_knots, 2 * n_knots) that pulls deviations to zero and to each other.

    With `free_line` the old may deviate by any straight line over the knots, and only what bends is pulled.
    """
    n = len(counts)
    steps = np.diff(np.eye(n), axis=0)
    degree, pull = (1, LINE) if free_line else (0, level)
    basis, _ = np.linalg.qr(np.vander(np.arange(n) - (n - 1) / 2, degree + 1))
    bends = np.diff(np.eye(n), degree + 1, axis=0)
    young = shrink * np.eye(n) + SMOOTHER * smooth * steps.T @ steps
    old = shrink * np.eye(n) + smooth * bends.T @ bends + (pull - shrink) * basis @ basis.T
    across = np.diag(tie * counts / (counts + MANY))
    return np.block([[old + across, -across], [-across, young + across]])


@dataclass(frozen=True, eq=False)
class _Problem:
    """The likelihood of choices as a function of the numbers of all curves, (n_parts, width)."""

    parts: Floats
    """(n_entries, n_parts): a candidate's parts, and a 1 for the bias."""
    bundles: Indices
    """Whose they are."""
    shares: Floats
    """(n_bundles, width) what a bundle's weights are made of."""
    starts: Indices
    """Where each user's candidates begin."""
    user: Indices
    weights: Numbers
    """What an entry counts as taken; together as much as there are choices, for each user the same."""
    per_user: Numbers
    scales: Numbers
    """Spread of every part, 1 for the bias, so that a spring pulls all parts alike."""
    entries: Indices
    """Entries whose bundle has an appeal of its own."""
    whose: Indices
    """Which appeal that is."""
    n_appeals: int

    @staticmethod
    def of(choices: Choices, shares: Floats, stand_ins: npt.NDArray[np.bool_]) -> _Problem | None:
        took = choices.taken > 0
        rows = np.flatnonzero(took.any(axis=1))
        if not len(rows):
            return None
        real = choices.taken[rows] >= 0
        parts, bundles, took = choices.parts[rows][real], choices.bundles[rows][real], took[rows][real]
        user = np.repeat(np.arange(len(rows)), real.sum(axis=1))
        starts = np.flatnonzero(np.r_[True, np.diff(user) > 0])
        each = np.add.reduceat(took.astype(np.float64), starts)
        weights = np.where(took, (1 / each)[user], 0.0) * (each.sum() / len(rows))
        return _Problem(
            np.concatenate([parts, np.ones((len(parts), 1), dtype=np.float32)], axis=1),
            bundles,
            shares,
            starts,
            user,
            weights,
            np.add.reduceat(weights, starts),
            np.append(np.maximum(parts.std(axis=0, dtype=np.float64), 1e-6), 1.0),
            np.flatnonzero(stand_ins[bundles]),
            (np.cumsum(stand_ins) - 1)[bundles[stand_ins[bundles]]],
            int(stand_ins.sum()),
        )

    def loss(self, numbers: Numbers, appeals: Numbers) -> tuple[float, Numbers, Numbers]:
        """Negative log likelihood and its gradients by the numbers and by the appeals."""
        scores = self._scores(numbers)
        scores[self.entries] += appeals[self.whose]
        value, chances = self._chances(scores)
        surplus = chances - self.weights
        shape = len(self.shares), len(scores)
        by_bundle = sparse.csc_array(
            (surplus.astype(np.float32), self.bundles, np.arange(len(scores) + 1)), shape=shape
        )
        by_numbers: Numbers = ((by_bundle @ self.parts).T @ self.shares).astype(np.float64)
        return value - float(self.weights @ scores), by_numbers, self._by_appeal(surplus)

    def curvature(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Second derivatives of the loss without appeals: by all numbers, each in the scale of its part, as
        some of the users tell them, and by each appeal."""
        _, chances = self._chances(self._scores(numbers))
        found = np.zeros((numbers.size, numbers.size))
        ends = np.append(self.starts, len(self.user))
        some = range(0, len(self.starts), max(len(self.starts) // SAMPLE, 1))
        for user in some:
            rows = slice(ends[user], ends[user + 1])
            scaled, shares = self.parts[rows] / self.scales, self.shares[self.bundles[rows]]
            each = (scaled[:, :, None] * shares[:, None, :]).reshape(len(shares), -1)
            weighed = each.T * chances[rows]
            mean = weighed.sum(axis=1)
            found += weighed @ each - np.outer(mean, mean) / self.per_user[user]
        found *= len(self.starts) / len(some)
        spread = chances * (1 - chances / self.per_user[self.user])
        return found, self._by_appeal(spread)

    def _by_appeal(self, values: Numbers) -> Numbers:
        """Values of entries (n_entries,) added up for each appeal."""
        return np.bincount(self.whose, values[self.entries], minlength=self.n_appeals).astype(np.float64)

    def _scores(self, numbers: Numbers) -> Numbers:
        weights = self.shares @ numbers.T.astype(np.float32)
        found: Numbers = np.einsum("ep,ep->e", self.parts, weights[self.bundles]).astype(np.float64)
        return found

    def _chances(self, scores: Numbers) -> tuple[float, Numbers]:
        """The logs of the users' sums over candidates, added up; and how often to expect each entry."""
        best = np.maximum.reduceat(scores, self.starts)
        odds = np.exp(scores - best[self.user])
        total = np.add.reduceat(odds, self.starts)
        return float(self.per_user @ (best + np.log(total))), odds * (self.per_user / total)[self.user]
