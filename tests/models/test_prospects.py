"""Prospects: planted popularity is found, nobody is an example for itself, a new bundle is as a cold one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coheat.data.dataset import BundleData, relation
from coheat.ids import Vocabulary
from coheat.models import prospects as module
from coheat.models.prospects import RIDGE, grown, prospects
from coheat.served.blocks import Block
from coheat.served.forest import Forest, features

USERS, BUNDLES, ITEMS = 300, 400, 500


def shop(seed: int = 0) -> BundleData:
    """Bundles of 10 to 19 items are taken by many, smaller and larger ones by few."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 30, BUNDLES)
    held = [rng.choice(ITEMS, size, replace=False) for size in sizes]
    takers = [rng.choice(USERS, rng.integers(30, 50) if 10 <= size < 20 else 3) for size in sizes]
    taken = np.repeat(np.arange(BUNDLES), [len(one) for one in takers])
    owned = rng.integers(0, ITEMS, (USERS, 5))

    def names(kind: str, n: int) -> Vocabulary:
        return Vocabulary([f"{kind}-{place}" for place in range(n)], kind)

    return BundleData(
        names("user", USERS),
        names("bundle", BUNDLES),
        names("item", ITEMS),
        relation(np.concatenate(takers), taken, (USERS, BUNDLES)),
        relation(np.repeat(np.arange(USERS), 5), owned.ravel(), (USERS, ITEMS)),
        relation(np.repeat(np.arange(BUNDLES), sizes), np.concatenate(held), (BUNDLES, ITEMS)),
    )


def without_takers(data: BundleData, bundles: np.ndarray) -> BundleData:
    users, columns = data.user_bundle.nonzero()
    stays = ~np.isin(columns, bundles)
    return replace(data, user_bundle=relation(users[stays], columns[stays], data.user_bundle.shape))


def test_what_makes_bundles_popular_is_found_though_no_straight_line_tells_it() -> None:
    data = shop()
    cold = np.arange(0, BUNDLES, 7)
    youth = np.zeros(BUNDLES)
    youth[cold] = 1
    found = prospects(without_takers(data, cold), youth).bundles
    popular = (data.bundle_sizes >= 10) & (data.bundle_sizes < 20)
    usual = np.log1p(data.popularity).mean()
    for some in (cold, np.setdiff1d(np.arange(BUNDLES), cold)):
        many, few = (found[some][which[some]] + usual for which in (popular, ~popular))
        assert np.median(many) > 3
        assert np.median(few) < 2
        assert (many > few.max()).mean() > 0.9


def test_nobody_is_an_example_for_itself() -> None:
    data, nobody = shop(), np.zeros(BUNDLES)
    bundle = int(np.argmax(data.popularity))
    before, after = (
        prospects(one, nobody).bundles for one in (data, without_takers(data, np.array([bundle])))
    )
    assert before[bundle] == pytest.approx(after[bundle], abs=0.01)  # through what others learn from it
    assert data.popularity[bundle] > 40


def test_takers_of_the_young_do_not_count() -> None:
    data = shop()
    young = np.arange(0, BUNDLES, 3)
    youth = np.zeros(BUNDLES)
    youth[young] = 1
    some, none = (prospects(one, youth) for one in (data, without_takers(data, young)))
    np.testing.assert_allclose(some.bundles, none.bundles, atol=1e-6)
    np.testing.assert_allclose(some.items, none.items, atol=1e-6)


def test_a_new_bundle_is_told_like_a_cold_one() -> None:
    data = shop()
    cold = np.arange(0, BUNDLES, 9)
    youth = np.zeros(BUNDLES)
    youth[cold] = 1
    found = prospects(data, youth)
    block = Block("prospects", "items", 1, items=found.items, forest=found.forest)
    sums = np.stack([found.items[data.bundle_item[[row]].indices].sum(axis=0) for row in cold])
    np.testing.assert_allclose(
        block.placed(sums, data.bundle_sizes[cold])[:, 0], found.bundles[cold], atol=1e-6
    )


def test_the_first_tree_is_the_best_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against every question in turn, straight from the definition, one question a tree."""
    monkeypatch.setattr(module, "DEPTH", 1)
    monkeypatch.setattr(module, "TREES", 1)
    rng = np.random.default_rng(5)
    points, wanted, weights = rng.normal(size=(60, 3)), rng.normal(size=60), rng.random(60)
    forest = grown(points, wanted, weights)
    left = wanted - weights @ wanted / weights.sum()

    def explained(feature: int, threshold: float) -> float:
        sides = (points[:, feature] > threshold, points[:, feature] <= threshold)
        return float(sum((weights[s] @ left[s]) ** 2 / (weights[s].sum() + RIDGE) for s in sides))

    best = max(explained(f, t) for f in range(3) for t in np.unique(points[:, f]))
    assert explained(int(forest.asked[0, 0]), float(forest.thresholds[0, 0])) > 0.95 * best
    above = points[:, forest.asked[0, 0]] > forest.thresholds[0, 0]
    value = module.RATE * float(weights[above] @ left[above]) / (weights[above].sum() + RIDGE)
    assert forest.values[0, 1] == pytest.approx(value)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_few_bundles_or_none_tell_nothing_and_do_no_harm(n: int) -> None:
    points = np.ones((n, 5))
    forest = grown(points, np.full(n, 2.0), np.ones(n))
    np.testing.assert_allclose(forest.at(np.zeros((3, 5))), 0.0, atol=1e-6)
    everyone_young = prospects(shop(), np.ones(BUNDLES)).bundles
    assert np.isfinite(everyone_young).all()
    assert np.ptp(everyone_young) == 0


def test_a_feature_that_is_the_same_everywhere_asks_nothing() -> None:
    """Nor does a border that a feature does not have, however much is left to explain."""
    rng = np.random.default_rng(3)
    points = np.stack([np.ones(40), np.repeat([0.0, 1.0], 20)], axis=1)
    forest = grown(points, points[:, 1] + rng.normal(size=40), np.ones(40))
    asked = np.isfinite(forest.thresholds) & (forest.thresholds < np.finfo(np.float64).max)
    assert asked.any()
    assert set(forest.asked[asked]) == {1}
    assert set(forest.thresholds[asked]) == {0.5}
    np.testing.assert_allclose(grown(points[:, :1], points[:, 1], np.ones(40)).at(points[:, :1]), 0.0)


def test_the_mean_of_forests_is_a_forest() -> None:
    rng = np.random.default_rng(2)
    forests = [
        Forest(rng.integers(0, 5, (4, 3)), rng.normal(size=(4, 3)), rng.normal(size=(4, 8))) for _ in range(3)
    ]
    points = features(rng.random((20, 4)) * 5, np.arange(1, 21))
    expected = np.mean([one.at(points) for one in forests], axis=0)
    np.testing.assert_allclose(Forest.mean(forests).at(points), expected, atol=1e-5)
