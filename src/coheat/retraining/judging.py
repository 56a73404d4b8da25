"""Is the new model any worse? Both are asked for lists, as a service would, and judged by what came later.

What came since the old model was trained is cut in two by time. The new model is trained without the newer
part (a tenth of all interactions at most); the old one is brought up to date as a service does it, by adding
bundles and recording what users took. Then both make lists for the users of the newer part. Neither has seen
that part, and both know all that was there before.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.artifact import Artifact
from coheat.data.dataset import BundleData, Indices, pairs, relation
from coheat.data.merging import Row
from coheat.errors import CoheatError
from coheat.evaluation import metrics
from coheat.evaluation.intervals import Interval, bootstrap
from coheat.recommender import Recommender
from coheat.rng import Randomness

K = 20
MOST_USERS = 2_000
FEWEST_USERS = 30
"""With fewer users than these nothing is called clearly worse."""
LARGEST_SHARE = 0.1
"""Of all interactions, that may be kept for judging."""
METRICS = {f"recall@{K}": metrics.recall, f"ndcg@{K}": metrics.ndcg}


@dataclass(frozen=True)
class Judgement:
    """How the new model stands beside the old one; None of both where there was nothing to judge by."""

    users: int
    interactions: int
    old: dict[str, float]
    new: dict[str, float]
    differences: dict[str, Interval]

    @property
    def is_worse(self) -> bool:
        """Whether the new one is clearly worse: a whole interval below zero, of enough users."""
        verdicts = {interval.verdict for interval in self.differences.values()}
        return self.users >= FEWEST_USERS and "worse" in verdicts

    def __str__(self) -> str:
        if not self.users:
            return "nothing came since the old model was trained that could judge the new one"
        said = ", ".join(
            f"{name} {self.new[name]:.4f} instead of {self.old[name]:.4f} ({interval})"
            for name, interval in self.differences.items()
        )
        few = "; too few users to tell" if self.users < FEWEST_USERS else ""
        return f"on {self.interactions} newer interactions of {self.users} users: {said}{few}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "users": self.users,
            "interactions": self.interactions,
            "old": self.old,
            "new": self.new,
            "differences": {name: interval.to_dict() for name, interval in self.differences.items()},
            "is_worse": self.is_worse,
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Judgement:
        differences = {name: Interval.from_dict(one) for name, one in document["differences"].items()}
        counts = document["users"], document["interactions"]
        return cls(*counts, document["old"], document["new"], differences)


@dataclass(frozen=True)
class Exam:
    """What both models may know, and what judges them."""

    known: BundleData
    users: Indices
    bundles: Indices
    """The pairs that judge."""
    offered: npt.NDArray[np.bool_]
    """(n_bundles,) what was on offer at any moment while they came, or taken; all where that is not known."""

    @property
    def is_possible(self) -> bool:
        return bool(len(self.users)) and bool(self.known.user_bundle.nnz)


def prepare(data: BundleData, old: Artifact, ledger: Sequence[Row]) -> Exam:
    """Cut what the old model was not trained with in two, by time; without times, as it was collected."""
    users, bundles = pairs(data.user_bundle)
    new = np.flatnonzero(~_trained(data, old, users, bundles))
    times = _times(data, ledger, users[new], bundles[new])
    count = min(len(new) // 2, int(LARGEST_SHARE * len(users)))
    order = np.lexsort((bundles[new], users[new], times))
    judging = np.sort(new[order[len(new) - count :]])
    left = np.ones(len(users), dtype=bool)
    left[judging] = False
    moments = None if data.timestamps is None else data.timestamps[left]
    known = data.with_user_bundle(relation(users[left], bundles[left], data.user_bundle.shape), moments)
    offered = np.ones(data.n_bundles, dtype=np.bool_)
    if count and data.timestamps is not None:
        first, last = (float(moment) for moment in np.quantile(data.timestamps[judging], [0, 1]))
        known, offered = _as_of(known, first), data.on_offer(first, last)
        offered[bundles[judging]] = True  # who took it was offered it, whatever the data say
    return Exam(known, users[judging], bundles[judging], offered)


def judge(exam: Exam, old: Recommender, new: Recommender, seed: int = 0) -> Judgement:
    """Both models' lists for the users of the exam, compared user by user."""
    data = exam.known
    chosen = np.unique(exam.users)
    chosen = np.sort(Randomness(seed).generator("judged").permutation(chosen)[:MOST_USERS])
    mine = np.isin(exam.users, chosen)
    place = np.searchsorted(chosen, exam.users[mine])
    relevant = relation(place, exam.bundles[mine], (len(chosen), data.n_bundles))
    names = [data.users[int(user)] for user in chosen]
    catch_up(old, data)
    found = {}
    for side, recommender in (("old", old), ("new", new)):
        ranked = _lists(recommender, names, data, exam.offered)
        found[side] = {name: metric(ranked, relevant, K) for name, metric in METRICS.items()}
    means = {side: {name: float(values.mean()) for name, values in of.items()} for side, of in found.items()}
    differences = {name: bootstrap(found["new"][name] - found["old"][name], seed) for name in METRICS}
    return Judgement(len(chosen), int(mine.sum()), means["old"], means["new"], differences)


def catch_up(recommender: Recommender, data: BundleData) -> None:
    """What a service would have done since: bundles added or changed, and everything taken recorded."""
    matrix = data.bundle_item
    new, changed = dict[str, list[str]](), dict[str, list[str]]()
    for row, name in enumerate(data.bundles.ids):
        items = [data.items[int(at)] for at in matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]]
        if not recommender.has_bundle(name):
            new[name] = items
        elif set(items) != set(recommender.bundle(name).item_ids):
            changed[name] = items
    _place(recommender, new, is_known=False)
    _place(recommender, changed, is_known=True)
    users, bundles = pairs(data.user_bundle)
    taken = (
        (data.users[user], data.bundles[bundle])
        for user, bundle in zip(users.tolist(), bundles.tolist(), strict=True)
    )
    recommender.record_many(pair for pair in taken if recommender.has_bundle(pair[1]))


def _place(recommender: Recommender, bundles: dict[str, list[str]], is_known: bool) -> None:
    """Add or replace all of these at once; where that is refused, each of them that is not."""
    change = recommender.replace_bundles if is_known else recommender.add_bundles
    try:
        change(bundles)
    except CoheatError:
        for name, items in bundles.items():
            with suppress(CoheatError):  # none of its items is known: a service would let it wait, too
                change({name: items})


def _lists(
    recommender: Recommender, names: Sequence[str], data: BundleData, offered: npt.NDArray[np.bool_]
) -> Indices:
    """(n, K) positions of the recommended bundles among those on offer, -1 where a list has ended."""
    candidates = [data.bundles[int(row)] for row in np.flatnonzero(offered)]
    known = [name for name in candidates if recommender.has_bundle(name)]
    ranked = np.full((len(names), K), -1, dtype=np.int64)
    if not known:  # an old model that can place none of the bundles that are new
        return ranked
    # What is on offer by the clock is another matter: they are judged by what was on offer then.
    found = recommender.recommend(names, K, known, only_on_offer=False)
    row_of = {name: row for row, name in enumerate(names)}
    for one in found:
        ranked[row_of[one.user_id], one.rank - 1] = data.bundles.index[one.bundle_id]
    return ranked


def _trained(data: BundleData, old: Artifact, users: Indices, bundles: Indices) -> np.ndarray[Any, Any]:
    """Which pairs the old model was trained with."""
    before = old.training_data()
    rows = np.array([before.users.index.get(name, -1) for name in data.users.ids], dtype=np.int64)
    columns = np.array([before.bundles.index.get(name, -1) for name in data.bundles.ids], dtype=np.int64)
    old_users, old_bundles = pairs(before.user_bundle)
    keys = old_users * max(before.n_bundles, 1) + old_bundles
    asked = rows[users] * max(before.n_bundles, 1) + columns[bundles]
    return np.isin(asked, keys) & (rows[users] >= 0) & (columns[bundles] >= 0)


def _times(data: BundleData, ledger: Sequence[Row], users: Indices, bundles: Indices) -> Indices:
    """When each of these pairs was, as far as that is known; 0 where it is not."""
    if data.timestamps is not None:
        known = pairs(data.user_bundle)
        keys = known[0] * data.n_bundles + known[1]
        return data.timestamps[np.searchsorted(keys, users * data.n_bundles + bundles)]
    moments = {(row.user_id, row.bundle_id): row.timestamp for row in ledger}
    names = zip(users.tolist(), bundles.tolist(), strict=True)
    return np.array(
        [moments.get((data.users[user], data.bundles[bundle]), 0) for user, bundle in names], dtype=np.int64
    )


def _as_of(data: BundleData, moment: float) -> BundleData:
    """Without what users got and were shown from this moment on, where that has times."""
    data = replace(data, as_of=moment)
    if data.item_timestamps is not None:
        data = data.with_user_item(data.item_timestamps < moment)
    if data.shown is not None and data.shown.timestamps is not None:
        data = replace(data, shown=data.shown.keep(data.shown.timestamps < moment))
    return data
