"""Judge a scorer by what users took in the held-out part: the paper's protocol, and a little more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coheat.data.dataset import BundleData, Indices, Sparse
from coheat.display import html_facts
from coheat.errors import ConfigError, DataError
from coheat.evaluation import metrics
from coheat.evaluation.exposure import exposure
from coheat.evaluation.metrics import Mask, PerUser
from coheat.evaluation.ranking import Scorer, top_bundles, top_shifted
from coheat.served.ranking import Ration

Candidates = Literal["all", "cold", "offered"]

POPULARITY_GROUPS = {"0": (0, 0), "1-4": (1, 4), "5-19": (5, 19), "20-99": (20, 99), "100+": (100, None)}
"""Groups of bundles by training interactions, from and to. Fixed bounds rather than quantiles, so that
a group means the same in every data set and split, and the cold bundles are a group of their own."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of `evaluate`. `metrics` has keys such as "recall@20"; means over the `n_users` evaluated
    users.

    `by_popularity` has, for each group of POPULARITY_GROUPS that has positives, the number of bundles, users
    and positives in it and the recall of these positives, averaged over those users. `warm_up` has, for the
    bundles thinned to each number of takers and for the others, the number of positives and the share of them
    that was found, over all users together. `exposure` says which bundles the lists show: see
    `coheat.evaluation.exposure`. `users` (n_users,) and `per_user` (each (n_users,), float64) are for tests
    of significance.
    """

    n_users: int
    candidates: Candidates
    metrics: dict[str, float]
    by_popularity: dict[str, dict[str, float]]
    seconds: float
    users: Indices = field(repr=False)
    per_user: dict[str, PerUser] = field(repr=False)
    warm_up: dict[str, dict[str, float]] = field(default_factory=dict)
    exposure: dict[str, float | None] = field(default_factory=dict)

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"Evaluation of {self.n_users:,} users, {self.candidates} candidates: {values}"

    def _repr_html_(self) -> str:
        return html_facts({"users": self.n_users, "candidates": self.candidates, **self.metrics})

    def to_arrow(self) -> Any:
        """A pyarrow.Table with a row for each evaluated user: the user's position and metrics."""
        import pyarrow

        return pyarrow.table({"user": self.users, **self.per_user})

    def to_pandas(self) -> Any:
        return self.to_arrow().to_pandas()

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; without the values per user."""
        return {
            "n_users": self.n_users,
            "candidates": self.candidates,
            "metrics": dict(self.metrics),
            "by_popularity": {group: dict(values) for group, values in self.by_popularity.items()},
            "exposure": dict(self.exposure),
            "seconds": self.seconds,
        }


def evaluate(
    scorer: Scorer,
    train: BundleData,
    held_out: Sparse,
    ks: Sequence[int] = (20,),
    candidates: Candidates = "all",
    offered: Mask | None = None,
    levels: Indices | None = None,
) -> Evaluation:
    """Rank bundles for every user with positives in `held_out` (n_users, n_bundles) and measure.

    The paper's protocol: all bundles are ranked except the user's own training bundles (those of
    another held-out part are not masked), and users without positives are left out. With candidates
    "cold", only bundles without training interactions are ranked and only positives among them count:
    a shelf of new arrivals. With "offered", the same holds for the bundles of the mask `offered`.

    `levels` (n_bundles,) of the warm-up scenario, -1 for bundles that were not thinned, divide the positives
    in `warm_up`.
    """
    started = time.perf_counter()
    mask = _candidate_mask(train, candidates, offered)
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
        warm_up={} if levels is None else _by_level(ranked, relevant, levels, ks),
        exposure=exposure(ranked, train.user_bundle[users], train.popularity, mask, ks),
    )


def evaluate_shifted(
    scorer: Scorer,
    train: BundleData,
    held_out: Sparse,
    k: int,
    shifts: npt.NDArray[np.float32],
    rations: Sequence[Ration | None],
    established: Mask | None = None,
    offered: Mask | None = None,
) -> tuple[list[dict[str, float]], npt.NDArray[np.float64]]:
    """Recall and nDCG at k with each row of `shifts` (n, n_bundles) added to all scores, and lists rationed
    as the same one of `rations` says: scored only once. And what each bundle adds to their sum
    (n, n_bundles).

    With a mask of `established` bundles also which share of all positives is found and among them; with one
    of `offered` bundles only these are candidates and positives.
    """
    relevant, users = _judged(held_out, _candidate_mask(train, "all", None) if offered is None else offered)
    known = None if established is None else metrics.restrict(relevant, established)
    found: list[dict[str, float]] = []
    added: list[metrics.PerBundle] = []
    for ranked in top_shifted(scorer, users, train.user_bundle, k, shifts, rations, offered):
        added.append(metrics.by_bundle(ranked, relevant, k))
        recall, ndcg = metrics.recall(ranked, relevant, k), metrics.ndcg(ranked, relevant, k)
        found.append({f"recall@{k}": float(recall.mean()), f"ndcg@{k}": float(ndcg.mean())})
        if known is not None and known.nnz:
            found[-1]["established"] = float(metrics.hits(ranked, known, k).sum() / relevant.nnz)
    return found, np.stack(added)


def _candidate_mask(train: BundleData, candidates: Candidates, offered: Mask | None) -> Mask:
    if candidates == "offered":
        if offered is None:
            raise ConfigError("candidates = 'offered' needs to know what was on offer")
        return offered
    if candidates == "all":
        return np.ones(train.n_bundles, dtype=np.bool_)
    if candidates != "cold":
        raise ConfigError(f"candidates = {candidates!r}: choose 'all', 'cold' or 'offered'")
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
    ranked: npt.NDArray[np.int32], relevant: Sparse, popularity: Indices, ks: Sequence[int]
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


def _by_level(
    ranked: npt.NDArray[np.int32], relevant: Sparse, levels: Indices, ks: Sequence[int]
) -> dict[str, dict[str, float]]:
    """The share of positives found, by how many takers a bundle kept."""
    found: dict[str, dict[str, float]] = {}
    for level in (*np.unique(levels[levels >= 0]).tolist(), -1):
        positives = metrics.restrict(relevant, levels == level)
        hits = {f"recall@{k}": float(metrics.hits(ranked, positives, k).sum()) for k in ks}
        shares = {name: count / max(positives.nnz, 1) for name, count in hits.items()}
        found["others" if level < 0 else str(level)] = {"positives": int(positives.nnz), **shares}
    return found
