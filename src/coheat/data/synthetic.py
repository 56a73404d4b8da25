"""Made-up worlds: small ones whose right answer is known, and realistic ones of any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from coheat.data.dataset import BundleData, Indices, Moments, Sparse, first_of_runs, pairs, relation
from coheat.data.split import Split
from coheat.errors import DataError
from coheat.ids import Vocabulary
from coheat.rng import Randomness

Floats = npt.NDArray[np.float64]
YEAR = 365 * 24 * 3600
BEGINNING = 1_672_531_200  # 2023-01-01, when the made-up shops open


class Counts(TypedDict):
    """How many of everything a realistic world has."""

    n_users: int
    n_bundles: int
    n_items: int
    n_user_bundle: int
    n_user_item: int
    n_bundle_item: int


def _counts(*counts: int) -> Counts:
    users, bundles, items, user_bundle, user_item, bundle_item = counts
    return Counts(
        n_users=users,
        n_bundles=bundles,
        n_items=items,
        n_user_bundle=user_bundle,
        n_user_item=user_item,
        n_bundle_item=bundle_item,
    )


LIKE = {
    "demo": _counts(3_000, 1_000, 3_500, 24_000, 75_000, 14_000),
    "small-bundles": _counts(3_000, 1_000, 3_500, 24_000, 75_000, 4_000),
    "large-bundles": _counts(3_000, 1_000, 3_500, 24_000, 75_000, 80_000),
    # Table 1 of the paper.
    "youshu": _counts(8_039, 4_771, 32_770, 51_377, 138_515, 176_667),
    "netease": _counts(18_528, 22_864, 123_628, 302_303, 1_128_065, 1_778_838),
    "ifashion": _counts(53_897, 27_694, 42_563, 1_679_708, 2_290_645, 106_916),
}
"""Sizes for `realistic_world(**LIKE["netease"])`."""


def planted_world(
    n_groups: int = 4,
    users_per_group: int = 12,
    items_per_group: int = 6,
    bundles_per_group: int = 6,
    cold_per_group: int = 2,
    seed: int = 0,
) -> Split:
    """A small world with a known answer: everybody wants exactly the bundles of their own group.

    Users of a group have two thirds of the group's items, bundles hold half of one group's items, and
    a user's bundles over all three parts are exactly those of the user's group. Per group,
    `cold_per_group` bundles have no training interactions (they are shared out to validation and
    test); of the others each user holds out one. So a perfect model ranks all bundles of the user's
    group first, cold ones included. Ids tell the group: "user-2-11" is user 11 of group 2. Their
    order is shuffled by `seed`, so that a model cannot win by order.
    """
    warm = bundles_per_group - cold_per_group
    if min(n_groups, users_per_group, items_per_group, cold_per_group + 1) < 1 or warm < 2:
        raise ValueError("a planted world needs a group, a user, an item and two warm bundles per group")
    rng = Randomness(seed).generator("planted world")
    sizes = {"user": users_per_group, "bundle": bundles_per_group, "item": items_per_group}
    vocabularies, places = {}, {}
    for kind, size in sizes.items():
        order = rng.permutation(n_groups * size)
        vocabularies[kind] = Vocabulary((f"{kind}-{n // size}-{n % size}" for n in order), kind)
        places[kind] = np.argsort(order).reshape(n_groups, size)

    def ring(rows: int, columns: int, width: int) -> tuple[Indices, Indices]:
        """Row r takes `width` neighbouring columns from r on: all are taken about equally often."""
        taken = (np.arange(rows)[:, None] + np.arange(width)) % columns
        return np.repeat(np.arange(rows), width), taken.ravel()

    def link(one: str, other: str, rows: Indices, columns: Indices) -> tuple[Indices, Indices]:
        """The same links within every group, as positions in the two vocabularies."""
        return places[one][:, rows].ravel(), places[other][:, columns].ravel()

    def shape(one: str, other: str) -> tuple[int, int]:
        return n_groups * sizes[one], n_groups * sizes[other]

    users, items = ring(users_per_group, items_per_group, -(-2 * items_per_group // 3))
    user_item = relation(*link("user", "item", users, items), shape("user", "item"))
    bundles, items = ring(bundles_per_group, items_per_group, -(-items_per_group // 2))
    bundle_item = relation(*link("bundle", "item", bundles, items), shape("bundle", "item"))

    # Bundles 0..warm-1 of a group are warm, the rest cold.
    users, bundles = ring(users_per_group, bundles_per_group, bundles_per_group)
    held_out = bundles == users % warm
    cold = bundles >= warm
    turn = np.where(cold, bundles - warm, users // warm)
    part = np.where(cold | held_out, np.where(turn % 2 == 0, 2, 1), 0)
    train, validation, test = (
        relation(*link("user", "bundle", users[part == p], bundles[part == p]), shape("user", "bundle"))
        for p in range(3)
    )
    data = BundleData(
        vocabularies["user"], vocabularies["bundle"], vocabularies["item"], train, user_item, bundle_item
    )
    return Split(data, validation, test, scenario="planted", seed=seed)


def realistic_world(
    n_users: int,
    n_bundles: int,
    n_items: int,
    n_user_bundle: int,
    n_user_item: int,
    n_bundle_item: int,
    seed: int = 0,
    with_timestamps: bool = True,
) -> BundleData:
    """A shop that could exist: topics, few popular and many rare things, and bundles taken for their items.

    Items belong to topics that lie on a ring; within a topic their popularity follows Zipf's law. A
    bundle takes most items from one topic, some from the next. A user likes a topic, the next one and
    one elsewhere, and takes items accordingly. A bundle is mostly found by way of an item that the user
    has, sometimes by topic, sometimes because everybody takes it; the more attractive of an item's
    bundles wins more often. So a bundle that nobody has taken yet is predictable from its items.

    The numbers of pairs are exactly those asked for; every bundle holds an item and every user has
    one. With timestamps (two years), bundles are launched over time and taken most when they are new.
    """
    _check_counts(n_users, n_bundles, n_items, n_user_bundle, n_user_item, n_bundle_item)
    rng = Randomness(seed).generator("realistic world")
    topics = _Topics(n_items, rng)
    bundle_topic = rng.integers(topics.count, size=n_bundles)
    bundle_item = _draw_relation(
        (n_bundles, n_items),
        n_bundle_item,
        _by_topic(
            rng.lognormal(0, 0.6, n_bundles), (bundle_topic, bundle_topic + 1), (0.8, 0.15), topics, rng
        ),
        rng,
    )
    taste = rng.integers(topics.count, size=n_users)
    elsewhere = rng.integers(topics.count, size=n_users)
    activity = rng.lognormal(0, 0.8, n_users)
    user_item = _draw_relation(
        (n_users, n_items),
        n_user_item,
        _by_topic(activity, (taste, taste + 1, elsewhere), (0.55, 0.2, 0.2), topics, rng),
        rng,
    )
    found = _bundle_finder(activity, user_item, bundle_item, bundle_topic, taste, topics.count, rng)
    user_bundle = _draw_relation((n_users, n_bundles), n_user_bundle, found, rng, every_row=False)
    timestamps, launched = _times(user_bundle, rng) if with_timestamps else (None, None)
    users, bundles, items = (
        Vocabulary((f"{kind}-{n:0{len(str(size - 1))}}" for n in range(size)), kind)
        for kind, size in (("user", n_users), ("bundle", n_bundles), ("item", n_items))
    )
    return BundleData(users, bundles, items, user_bundle, user_item, bundle_item, timestamps, launched)


def _check_counts(
    n_users: int, n_bundles: int, n_items: int, n_user_bundle: int, n_user_item: int, n_bundle_item: int
) -> None:
    for name, pair_count, rows, columns, least in (
        ("user-bundle", n_user_bundle, n_users, n_bundles, 0),
        ("user-item", n_user_item, n_users, n_items, n_users),
        ("bundle-item", n_bundle_item, n_bundles, n_items, n_bundles),
    ):
        if rows < 1 or columns < 1:
            raise DataError("a world needs at least one user, one bundle and one item")
        if not least <= pair_count <= rows * columns:
            raise DataError(
                f"{pair_count} {name} pairs are impossible with {rows} x {columns}: "
                f"ask for {least} to {rows * columns}"
            )


def _zipf(count: int, exponent: float, rng: np.random.Generator) -> Floats:
    """Zipf weights in random order: the k-th largest is (k + 3) ** -exponent."""
    weights: Floats = rng.permutation(np.arange(1, count + 1) + 3.0) ** -exponent
    return weights


def _choose(weights: Floats, size: int, rng: np.random.Generator) -> Indices:
    """`size` positions in ascending order, each with probability in proportion to its weight."""
    return np.repeat(np.arange(len(weights)), rng.multinomial(size, weights / weights.sum()))


@dataclass(frozen=True)
class _Rows:
    """For each row some weighted entries, stored one row after the other, to draw from row by row."""

    starts: Indices
    entries: Indices
    cumulated: Floats

    @classmethod
    def of(cls, rows: Indices, n_rows: int, entries: Indices, weights: Floats) -> _Rows:
        order = np.argsort(rows, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_rows))])
        return cls(starts, entries[order], np.concatenate([[0.0], np.cumsum(weights[order])]))

    def draw(self, rows: Indices, rng: np.random.Generator) -> Indices:
        """One entry for each of `rows`; -1 where a row has none."""
        start, stop = self.starts[rows], self.starts[rows + 1]
        low, high = self.cumulated[start], self.cumulated[stop]
        place = np.searchsorted(self.cumulated, low + rng.random(len(rows)) * (high - low), side="right") - 1
        drawn = np.full(len(rows), -1, dtype=np.int64)
        some = stop > start
        drawn[some] = self.entries[np.clip(place, start, stop - 1)[some]]
        return drawn


class _Topics:
    """Topics of unequal size on a ring; every topic has an item while there are enough of them."""

    def __init__(self, n_items: int, rng: np.random.Generator):
        self.count = int(np.clip(np.sqrt(n_items) / 1.5, 1, 300))
        extra = _choose(rng.lognormal(0, 0.5, self.count), n_items - self.count, rng)
        of_item = rng.permutation(np.concatenate([np.arange(self.count), extra]))
        self.items = _Rows.of(of_item, self.count, np.arange(n_items), _zipf(n_items, 0.9, rng))


def _by_topic(
    row_weights: Floats,
    topics_of_row: tuple[Indices, ...],
    shares: tuple[float, ...],
    topics: _Topics,
    rng: np.random.Generator,
) -> Callable[[int], tuple[Indices, Indices]]:
    """Draws (row, item): rows by weight, one of the row's topics (or any), one of the topic's items."""

    def draw(size: int) -> tuple[Indices, Indices]:
        rows = _choose(row_weights, size, rng)
        which = np.searchsorted(np.cumsum(shares), rng.random(size), side="right")
        options = np.stack(
            [*(of_row[rows] for of_row in topics_of_row), rng.integers(topics.count, size=size)]
        )
        topic = options[which, np.arange(size)] % topics.count
        return rows, topics.items.draw(topic, rng)

    return draw


def _bundle_finder(
    activity: Floats,
    user_item: Sparse,
    bundle_item: Sparse,
    bundle_topic: Indices,
    taste: Indices,
    n_topics: int,
    rng: np.random.Generator,
) -> Callable[[int], tuple[Indices, Indices]]:
    """Draws (user, bundle): by way of an item the user has (80%), by topic (15%), or by fame alone."""
    n_bundles, n_items = bundle_item.shape
    fame = _zipf(n_bundles, 1.4, rng)
    holders, held = pairs(bundle_item)
    owners, owned = pairs(user_item)
    bundles_of_item = _Rows.of(held, n_items, holders, fame[holders])
    items_of_user = _Rows.of(owners, user_item.shape[0], owned, np.ones(len(owned)))
    bundles_of_topic = _Rows.of(bundle_topic, n_topics, np.arange(n_bundles), fame)

    def draw(size: int) -> tuple[Indices, Indices]:
        users = _choose(activity, size, rng)
        ways = rng.random(size)
        by_item = bundles_of_item.draw(items_of_user.draw(users, rng), rng)
        by_topic = bundles_of_topic.draw(taste[users], rng)
        by_fame = rng.permutation(_choose(fame, size, rng))
        bundles = np.where(ways < 0.8, by_item, np.where(ways < 0.95, by_topic, by_fame))
        found = bundles >= 0  # an item may be in no bundle, a topic may have none
        return users[found], bundles[found]

    return draw


def _draw_relation(
    shape: tuple[int, int],
    n_pairs: int,
    draw: Callable[[int], tuple[Indices, Indices]],
    rng: np.random.Generator,
    every_row: bool = True,
) -> Sparse:
    """Exactly `n_pairs` distinct pairs from repeated draws; with `every_row`, each row has at least one."""
    keys = np.zeros(0, dtype=np.int64)
    for _ in range(60):
        missing = n_pairs - len(keys)
        if not missing:
            break
        rows, columns = draw(int(1.2 * missing) + 100)
        if every_row and not len(keys):
            # Every row begins with its first draw; rows not drawn at all get any column.
            first = first_of_runs(rows)
            start = rng.integers(shape[1], size=shape[0])
            start[rows[first]] = columns[first]
            keys = np.arange(shape[0]) * shape[1] + start
        keys = _with_some_of(keys, rows * shape[1] + columns, n_pairs, rng)
    # What the world's habits do not give (a tiny or crowded world) is filled up with any other pairs.
    while len(keys) < n_pairs:
        spare = shape[0] * shape[1] - len(keys)
        if spare < 4 * (n_pairs - len(keys)) or spare < 100_000:
            free = np.setdiff1d(np.arange(shape[0] * shape[1]), keys, assume_unique=True)
            keys = np.concatenate([keys, rng.permutation(free)[: n_pairs - len(keys)]])
        else:
            more = rng.integers(shape[0] * shape[1], size=2 * (n_pairs - len(keys)))
            keys = _with_some_of(keys, more, n_pairs, rng)
    return relation(keys // shape[1], keys % shape[1], shape)


def _with_some_of(keys: Indices, more: Indices, wanted: int, rng: np.random.Generator) -> Indices:
    """`keys` (sorted) and as many of the new ones in `more` as are wanted, sorted."""
    more = np.sort(more)
    more = more[first_of_runs(more)]
    if len(keys):
        more = more[keys[np.minimum(np.searchsorted(keys, more), len(keys) - 1)] != more]
    if len(more) > wanted - len(keys):
        more = rng.permutation(more)[: wanted - len(keys)]
    merged: Indices = np.sort(np.concatenate([keys, more]))
    return merged


def _times(user_bundle: Sparse, rng: np.random.Generator) -> tuple[Indices, Moments]:
    """Unix seconds over two years: a bundle is launched, taken often at first and more rarely later."""
    bundles = user_bundle.indices
    launch = rng.uniform(-0.3, 0.95, user_bundle.shape[1]).clip(0)
    moment = launch[bundles] + (1 - launch[bundles]) * rng.beta(1, 3, len(bundles))
    seconds: Indices = (BEGINNING + moment * 2 * YEAR).astype(np.int64)
    return seconds, np.floor(BEGINNING + launch * 2 * YEAR)
