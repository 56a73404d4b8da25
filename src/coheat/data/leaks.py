"""Whether held-out bundles give themselves away: where taking a bundle also writes its items to `user_item`.

Then "this user has all of its items" means "this user took it", and a model that sees as much looks better
than it is, for nobody has the items of a bundle before taking it. How large the fault is shows in the share
of held-out pairs all of whose items the user has, beside the same share for pairs put together at random.
What the user's training bundles hold anyway is no fault: bundles that share items do tell of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from coheat.data.dataset import BundleData, Indices, Sparse, pairs, relation
from coheat.data.split import Split
from coheat.rng import Randomness

SUSPICIOUS = 0.2
"""How far the share may lie above chance and above what training bundles explain: people do take bundles of
things that they have, but not so often of nothing else.
"""
FEWEST_PAIRS = 20
MOST_PAIRS = 20_000
"""So many pairs, drawn at random, tell the share to within a percent."""
BLOCK = 2_000_000  # pairs of user and item looked up at a time
USERS_AT_ONCE = 500
REMEDY = (
    "user_item probably holds the items of bundles that users took: take them out of it, divide or train "
    "with --without-leaks, or divide by time where user_item has timestamps"
)


@dataclass(frozen=True)
class Leakage:
    """`pairs`: how many were looked at; `given_away`: the share all of whose items the user has; `by_chance`:
    the same of pairs put together at random; `explained`: the share all of whose items are in other bundles
    that the user took in training.
    """

    pairs: int
    given_away: float
    by_chance: float
    explained: float

    @property
    def is_suspicious(self) -> bool:
        """Whether results on these data should not be believed."""
        excess = self.given_away - max(self.by_chance, self.explained)
        return self.pairs >= FEWEST_PAIRS and excess > SUSPICIOUS

    def __str__(self) -> str:
        return (
            f"users already have all items of {self.given_away:.1%} of the bundles to be found "
            f"({self.explained:.1%} through their other bundles), against {self.by_chance:.1%} at random"
        )

    def to_dict(self) -> dict[str, float | int | bool]:
        return {**asdict(self), "suspicious": self.is_suspicious}


def leakage(split: Split, seed: int = 0) -> Leakage:
    """How far held-out interactions give themselves away; of many, a sample is looked at."""
    held_out = (split.validation + split.test).tocsr()
    return _measure(split.train, held_out, (held_out + split.train.user_bundle).tocsr(), seed)


def leakage_before_division(data: BundleData, seed: int = 0) -> Leakage:
    """The same for data that are not divided, where any interaction may come to be held out."""
    return _measure(data, data.user_bundle, data.user_bundle, seed)


def _measure(data: BundleData, looked_for: Sparse, known: Sparse, seed: int) -> Leakage:
    """The shares for interactions that are `looked_for`; pairs at random are none of those `known`."""
    rng = Randomness(seed).generator("leaks")
    users, bundles = pairs(looked_for)
    some = data.bundle_sizes[bundles] > 0
    users, bundles = users[some], bundles[some]
    if len(users) > MOST_PAIRS:
        drawn = rng.choice(len(users), MOST_PAIRS, replace=False)
        users, bundles = users[drawn], bundles[drawn]
    given_away = has_all_items(data.user_item, data.bundle_item, users, bundles)
    shuffled = rng.permutation(bundles)
    held, taken = pairs(known)
    width = known.shape[1]
    strange = ~np.isin(users * width + shuffled, held * width + taken)
    by_chance = has_all_items(data.user_item, data.bundle_item, users[strange], shuffled[strange])
    # A bundle that is itself among those to learn from holds its own items; another one has to hold them too.
    times = 2 if looked_for is data.user_bundle else 1
    explained = _explained(data, users[given_away], bundles[given_away], times)
    share = float(explained.sum() / len(users)) if len(users) else 0.0
    return Leakage(len(users), _share(given_away), _share(by_chance), share)


def _explained(data: BundleData, users: Indices, bundles: Indices, times: int) -> npt.NDArray[np.bool_]:
    """Of each pair whether all items are in at least so many bundles that the user took in training."""
    found = np.zeros(len(users), dtype=bool)
    distinct, place = np.unique(users, return_inverse=True)
    for begin in range(0, len(distinct), USERS_AT_ONCE):
        block = distinct[begin : begin + USERS_AT_ONCE]
        held = (data.user_bundle[block] @ data.bundle_item).tocsr()
        rows, items = (np.asarray(part) for part in pairs(held))
        enough = held.data >= times
        owned = relation(rows[enough], items[enough], held.shape)
        inside = (place >= begin) & (place < begin + len(block))
        found[inside] = has_all_items(owned, data.bundle_item, place[inside] - begin, bundles[inside])
    return found


def _share(found: npt.NDArray[np.bool_]) -> float:
    return float(found.mean()) if len(found) else 0.0


def has_all_items(
    owned: Sparse, bundle_item: Sparse, users: Indices, bundles: Indices
) -> npt.NDArray[np.bool_]:
    """Of each pair of user and bundle whether the user has (in `owned`) every item of the bundle."""
    count = np.zeros(len(users), dtype=np.int64)
    for pair, entry in _items_of_pairs(owned, bundle_item, users, bundles):
        count += np.bincount(pair[entry >= 0], minlength=len(users))
    found: npt.NDArray[np.bool_] = count == np.diff(bundle_item.indptr)[bundles]
    return found


def without_leaks(split: Split) -> Split:
    """The same split without the user-item pairs that only held-out bundles explain.

    An item of a user goes if it is in one of the user's held-out bundles and in none of the training ones.
    """
    data = split.train
    in_held_out, in_training = (np.zeros(data.user_item.nnz, dtype=bool) for _ in range(2))
    for marked, matrices in (
        (in_held_out, (split.validation, split.test)),
        (in_training, (data.user_bundle,)),
    ):
        for matrix in matrices:
            for _, entry in _items_of_pairs(data.user_item, data.bundle_item, *pairs(matrix)):
                marked[entry[entry >= 0]] = True
    return replace(split, train=data.with_user_item(~in_held_out | in_training))


def _items_of_pairs(
    owned: Sparse, bundle_item: Sparse, users: Indices, bundles: Indices
) -> Iterator[tuple[Indices, Indices]]:
    """For each item of the bundle of each pair: the pair's number, and the item's entry among the user's.

    The entry is a position in `owned` in CSR order, -1 where the user does not have the item. They come in
    blocks, so that memory does not grow with the sizes of bundles.
    """
    owners, items = pairs(owned)
    width = max(owned.shape[1], 1)
    keys = owners * width + items  # ascending, as entries in CSR order are
    sizes = np.diff(bundle_item.indptr)[bundles].astype(np.int64)
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(users):
        done = int(ends[begin - 1]) if begin else 0
        stop = max(int(np.searchsorted(ends, done + BLOCK, side="right")), begin + 1)
        part = slice(begin, stop)
        pair = np.repeat(np.arange(begin, stop), sizes[part])
        within = np.arange(len(pair)) - np.repeat(ends[part] - sizes[part] - done, sizes[part])
        wanted = users[pair] * width + bundle_item.indices[bundle_item.indptr[bundles[pair]] + within]
        entry = np.searchsorted(keys, wanted)
        there = np.append(keys, -1)[entry] == wanted
        yield pair, np.where(there, entry, -1)
        begin = stop
