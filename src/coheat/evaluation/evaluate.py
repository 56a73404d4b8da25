"""Judge a scorer by what users took in the held-out part: the paper's protocol, and a little more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from coheat.data.dataset import BundleData, Indices, Sparse
from coheat.errors import ConfigError, DataError
from coheat.evaluation import metrics
from coheat.evaluation.metrics import Mask, PerUser
from coheat.evaluation.ranking import Scorer, top_bundles

Candidates = Literal["all", "cold"]

POPULARITY_GROUPS = {"0": (0, 0), "1-4": (1, 4), "5-19": (5, 19), "20-99": (20, 99), "100+": (100, None)}
"""Groups of bundles by training interactions, from and to. Fixed bounds rather than quantiles, so that
a group means the same in every data set and split, and the cold bundles are a group of their own."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What came out. `metrics` has keys such as "recall@20"; means over the `n_users` judged users.

    `by_popularity` has, for each group of POPULARITY_GROUPS that has positives, the number of bundles,
    users and positives in it and the recall of these positives, averaged over those users.
    `users` (n_users,) and `per_user` (each (n_users,), float64) are for tests of significance.
    """

    n_users: int
    candidates: Candidates
    metrics: dict[str, float]
    by_popularity: dict[str, dict[str, float]]
    seconds: float
    users: Indices = field(repr=False)
    per_user: dict[str, PerUser] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; without the values per user."""
        return {
            "n_users": self.n_users,
            "candidates": self.candidates,
            "metrics": dict(self.metrics),
            "by_popularity": {group: dict(values) for group, values in self.by_popularity.items()},
            "seconds": self.seconds,
        }


def evaluate(
    scorer: Scorer,
    train: BundleData,
    held_out: Sparse,
    ks: Sequence[int] = (20,),
    candidates: Candidates = "all",
) -> Evaluation:
    """Rank bundles for every user with positives in `held_out` (n_users, n_bundles) and measure.

    The paper's protocol: all bundles are ranked except the user's own training bundles (those of
    another held-out part are not masked), and users without positives are left out. With candidates
    "cold", only bundles without training interactions are ranked and only positives among them count:
    a shelf of new arrivals.
    """
    started = time.perf_counter()
    mask = _candidate_mask(train, candidates)
    relevant, users = _judged(held_out, mask)
    depth = max(_check_ks(ks))
    ranked, _ = top_bundles(scorer, users, train.user_bundle, depth, mask)

    means: dict[str, float] = {}
    per_user: dict[str, PerUser] = {}
    for k in ks:
        per_user[f"recall@{k}"] = metrics.recall(ranked, relevant, k)
        per_user[f"ndcg@{k}"] = metrics.ndcg(ranked, relevant, k)
        for name in (f"recall@{k}", f"ndcg@{k}"):
            means[name] = float(per_user[name].mean())
        means[f"coverage@{k}"] = metrics.coverage(ranked, mask, k)
        means[f"cold_share@{k}"] = metrics.cold_share(ranked, train.popularity, k)
    return Evaluation(
        n_users=len(users),
        candidates=candidates,
        metrics=means,
        by_popularity=_by_popularity(ranked, relevant, train.popularity, ks),
        seconds=time.perf_counter() - started,
        users=users,
        per_user=per_user,
    )


def _candidate_mask(train: BundleData, candidates: Candidates) -> Mask:
    if candidates == "all":
        return np.ones(train.n_bundles, dtype=np.bool_)
    if candidates != "cold":
        raise ConfigError(f"candidates = {candidates!r}: choose 'all' or 'cold'")
    mask: Mask = train.popularity == 0
    if not mask.any():
        raise DataError(
            "every bundle has training interactions, so there are no cold candidates to rank; "
            "evaluate with candidates='all', or split the data with cold bundles"
        )
    return mask


def _judged(held_out: Sparse, mask: Mask) -> tuple[Sparse, Indices]:
    """The positives among the candidates, one row per user who has any, and these users."""
    positives = metrics.restrict(held_out, mask)
    users = np.flatnonzero(np.diff(positives.indptr)).astype(np.int64)
    if not len(users):
        raise DataError(
            "no user has a held-out bundle among the candidates, so there is nothing to measure; "
            "use a split whose held-out part is not empty"
        )
    return positives[users], users


def _check_ks(ks: Sequence[int]) -> Sequence[int]:
    if not ks or min(ks) < 1:
        raise ConfigError(f"ks = {list(ks)}: give one or more list lengths from 1 up, for example 20")
    return ks


def _by_popularity(
    ranked: Any, relevant: Sparse, popularity: Indices, ks: Sequence[int]
) -> dict[str, dict[str, float]]:
    groups: dict[str, dict[str, float]] = {}
    for name, (low, high) in POPULARITY_GROUPS.items():
        members: Mask = (popularity >= low) & (popularity <= (np.inf if high is None else high))
        positives = metrics.restrict(relevant, members)
        if not positives.nnz:
            continue
        groups[name] = {
            "bundles": int(members.sum()),
            "users": int((np.diff(positives.indptr) > 0).sum()),
            "positives": int(positives.nnz),
        }
        for k in ks:
            groups[name][f"recall@{k}"] = float(np.nanmean(metrics.recall(ranked, positives, k)))
    return groups
