"""Made-up worlds: the planted answer is the only one, the realistic ones are what they claim to be."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coheat.data import LIKE, BundleData, Split, pairs, planted_world, realistic_world
from coheat.data.split import split
from coheat.data.stats import stats
from coheat.errors import DataError


def group(name: str) -> str:
    return name.split("-")[1]


@settings(deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 7),
    st.integers(2, 6),
    st.integers(0, 3),
    st.integers(0, 9),
)
def test_everybody_wants_exactly_the_bundles_of_their_group(
    n_groups: int, users: int, items: int, warm: int, cold: int, seed: int
) -> None:
    world = planted_world(n_groups, users, items, warm + cold, cold, seed)
    data = world.train
    train, validation, test = (part.toarray() for part in world.parts.values())
    wanted = train + validation + test
    for u, user in enumerate(data.users.ids):
        assert {data.bundles[int(b)] for b in np.flatnonzero(wanted[u])} == {
            name for name in data.bundles.ids if group(name) == group(user)
        }
    for matrix, rows, columns in (
        (data.user_item, data.users, data.items),
        (data.bundle_item, data.bundles, data.items),
    ):
        assert all(group(rows[r]) == group(columns[c]) for r, c in zip(*pairs(matrix), strict=True))
        assert np.diff(matrix.indptr).min() > 0
    if users >= 2:  # otherwise the one user holds out what nobody else has
        assert world.cold_bundles.sum() == n_groups * cold


def test_the_planted_world_has_cold_and_warm_answers_in_both_parts(planted: Split) -> None:
    report = planted.report()
    for part in ("validation", "test"):
        assert report[part]["users"] == planted.train.n_users
        assert report[part]["cold_bundles"] == 4
        assert 0 < report[part]["cold_interaction_share"] < 1


def test_the_order_of_ids_says_nothing_about_groups() -> None:
    orders = {tuple(group(name) for name in planted_world(seed=seed).train.bundles.ids) for seed in range(4)}
    assert len(orders) == 4
    assert all(list(order) != sorted(order) for order in orders)


def test_a_planted_world_needs_two_warm_bundles() -> None:
    with pytest.raises(ValueError, match="two warm bundles"):
        planted_world(bundles_per_group=3, cold_per_group=2)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(0, 9))
def test_the_counts_are_exact_and_nothing_is_empty(
    draws: st.DataObject, users: int, bundles: int, items: int, seed: int
) -> None:
    user_bundle = draws.draw(st.integers(0, users * bundles))
    user_item = draws.draw(st.integers(users, users * items))
    bundle_item = draws.draw(st.integers(bundles, bundles * items))
    data = realistic_world(users, bundles, items, user_bundle, user_item, bundle_item, seed)
    assert (data.n_users, data.n_bundles, data.n_items) == (users, bundles, items)
    assert (data.user_bundle.nnz, data.user_item.nnz, data.bundle_item.nnz) == (
        user_bundle,
        user_item,
        bundle_item,
    )
    assert data.bundle_sizes.min() >= 1
    assert np.diff(data.user_item.indptr).min() >= 1


@pytest.mark.parametrize("name", ["demo", "small-bundles", "large-bundles", "youshu"])
def test_presets_have_their_counts(name: str) -> None:
    counts = LIKE[name]
    found = stats(realistic_world(**counts))
    for kind, count in counts.items():
        assert getattr(found, kind.removeprefix("n_")) == count


def test_the_published_sizes_are_those_of_table_1() -> None:
    sizes = {name: (c["n_bundle_item"] / c["n_bundles"]) for name, c in LIKE.items()}
    assert sizes["youshu"] == pytest.approx(37.03, abs=0.01)
    assert sizes["netease"] == pytest.approx(77.80, abs=0.01)
    assert sizes["ifashion"] == pytest.approx(3.86, abs=0.01)


@pytest.mark.slow
def test_a_world_of_neteases_size_takes_seconds() -> None:
    start = time.process_time()  # of this process alone, so that busy neighbours do not count
    data = realistic_world(**LIKE["netease"])
    assert time.process_time() - start < 15  # about four
    assert data.bundle_item.nnz == LIKE["netease"]["n_bundle_item"]


DEMO = realistic_world(**LIKE["demo"])


def test_the_same_seed_gives_the_same_world_and_another_seed_another() -> None:
    again, other = (realistic_world(**LIKE["demo"], seed=seed) for seed in (0, 1))
    assert again.fingerprint == DEMO.fingerprint
    assert again.timestamps is not None
    assert DEMO.timestamps is not None
    assert np.array_equal(again.timestamps, DEMO.timestamps)
    assert other.fingerprint != DEMO.fingerprint


def test_ids_are_readable() -> None:
    assert DEMO.users.ids[17] == "user-0017"
    assert DEMO.bundles.ids[-1] == "bundle-999"
    assert list(DEMO.items.ids) == sorted(DEMO.items.ids)


def test_few_bundles_have_most_interactions() -> None:
    found = stats(DEMO)
    assert found.top_20_percent_share > 0.5
    assert found.gini > 0.5
    owners = np.bincount(DEMO.user_item.indices, minlength=DEMO.n_items)
    assert np.sort(owners)[-DEMO.n_items // 10 :].sum() > 0.3 * owners.sum()


def recall_by_overlap(made: Split, shuffle: bool = False) -> float:
    """Recall@20 when bundles are ranked by how many of their items the user has."""
    data: BundleData = made.train
    items = data.bundle_item
    if shuffle:
        items = items[np.random.default_rng(0).permutation(data.n_bundles)]
    scores = (data.user_item @ items.T).toarray()
    scores[data.user_bundle.toarray() > 0] = -1
    top = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    wanted = made.test.toarray()
    users = np.flatnonzero(wanted.sum(1))
    hits = np.take_along_axis(wanted, top, axis=1).sum(1)
    return float((hits[users] / wanted[users].sum(1)).mean())


def test_bundles_are_taken_for_their_items() -> None:
    shared = (DEMO.user_item @ DEMO.bundle_item.T).toarray()
    users, bundles = pairs(DEMO.user_bundle)
    assert (shared[users, bundles] > 0).mean() > 0.9
    assert (shared > 0).mean() < 0.25


def test_bundles_that_nobody_has_taken_are_predictable_from_their_items() -> None:
    made = split(DEMO, "cold")
    assert recall_by_overlap(made) > 0.2
    assert recall_by_overlap(made, shuffle=True) < 0.05


def test_bundles_appear_over_time_and_are_taken_most_when_new() -> None:
    assert DEMO.timestamps is not None
    _, bundles = pairs(DEMO.user_bundle)
    first = np.full(DEMO.n_bundles, np.iinfo(np.int64).max)
    np.minimum.at(first, bundles, DEMO.timestamps)
    seen = first[DEMO.popularity > 0]
    span = DEMO.timestamps.max() - DEMO.timestamps.min()
    launched = (seen - DEMO.timestamps.min()) / span
    assert 0.2 < np.mean(launched > 0.5) < 0.6
    age = (DEMO.timestamps - first[bundles]) / (DEMO.timestamps.max() - first[bundles] + 1)
    assert np.median(age[DEMO.popularity[bundles] > 5]) < 0.4
    assert realistic_world(**LIKE["demo"], with_timestamps=False).timestamps is None


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((0, 1, 1, 0, 0, 1), "at least one user"),
        ((2, 2, 2, 5, 2, 2), r"5 user-bundle pairs are impossible with 2 x 2: ask for 0 to 4"),
        ((2, 2, 2, 1, 1, 2), r"1 user-item pairs are impossible with 2 x 2: ask for 2 to 4"),
        ((2, 2, 2, 1, 2, 1), r"1 bundle-item pairs are impossible with 2 x 2: ask for 2 to 4"),
    ],
)
def test_impossible_counts_are_a_sentence(counts: tuple[int, int, int, int, int, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        realistic_world(*counts)
