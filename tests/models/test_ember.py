"""Ember: companions, overlap and the knob, each against a slow, obvious computation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from served_vectors import vectors_of

from coheat.contract import small_config
from coheat.data.dataset import DAY, BundleData
from coheat.data.synthetic import planted_world
from coheat.evaluation import evaluate
from coheat.models.base import Progress
from coheat.models.companions import companions
from coheat.models.ember import Ember, EmberConfig, offset_for_share
from coheat.rng import Randomness
from coheat.served import Served
from coheat.training import TrainingSettings, fit


def world() -> BundleData:
    return planted_world().train


def untrained(data: BundleData, **settings: object) -> Ember:
    config = small_config(Ember, **settings)
    assert isinstance(config, EmberConfig)
    return Ember(data, config, Randomness(3))


def ember(data: BundleData, **settings: object) -> Ember:
    model = untrained(data, **settings)
    model.begin_epoch(Progress(1, 1))
    return model.eval()


def plain_profiles(data: BundleData, own: float) -> np.ndarray:
    """p_ui by loops, straight from the formula."""
    x, y, z = (m.toarray() for m in (data.user_bundle, data.user_item, data.bundle_item))
    found = np.zeros((data.n_users, data.n_items))
    for user in range(data.n_users):
        for item in range(data.n_items):
            worth = own * y[user, item]
            for bundle in range(data.n_bundles):
                if x[user, bundle] and z[bundle, item]:
                    worth += 1 / np.sqrt(z[bundle].sum())
            found[user, item] = worth / np.sqrt(max(z[:, item].sum(), 1))
    return found


def test_overlaps_are_those_of_the_formula() -> None:
    data = world()
    expected = plain_profiles(data, 0.4) @ data.bundle_item.toarray().T
    model = untrained(data)
    overlap = replace(model.overlap, kind="linear", scale=1.0)
    served = Served.create(model.relations, overlaps=(overlap,))
    users = np.array([3, 0, 3])
    np.testing.assert_allclose(served.scores(users), expected[users], rtol=1e-5)
    for bundle in (0, 7):
        items = model.relations.bundle_item.row(bundle)
        found = served.scores_of_bundle(served.bundles, bundle, items)
        np.testing.assert_allclose(found, expected[:, bundle], rtol=1e-5)


def test_companions_are_the_leading_directions_of_a_ridge_regression() -> None:
    data = world()
    warm = np.flatnonzero(data.popularity)
    found = companions(data, 4, 2.0, 0.0, 10_000, np.random.default_rng(0))
    x = data.user_bundle.toarray()[:, warm].astype(np.float64)
    expected = np.zeros((len(warm), len(warm)))
    for b in range(len(warm)):  # each bundle from all the others, which is what EASE solves at once
        others = np.delete(np.arange(len(warm)), b)
        gram = x[:, others].T @ x[:, others] + 2.0 * np.eye(len(others))
        expected[others, b] = np.linalg.solve(gram, x[:, others].T @ x[:, b])
    u, s, v = np.linalg.svd(x @ expected, full_matrices=False)
    scores = data.user_bundle @ found.taken @ found.wanted.T
    np.testing.assert_allclose(scores[:, warm], (u[:, :4] * s[:4]) @ v[:4], atol=1e-3)
    assert not found.wanted[data.popularity == 0].any()


def test_companions_are_sought_among_the_most_popular_only() -> None:
    data = world()
    found = companions(data, 3, 2.0, 1.0, 5, np.random.default_rng(0))
    placed = np.flatnonzero(found.wanted.any(axis=1))
    assert len(placed) <= 5
    assert data.popularity[placed].min() >= np.sort(data.popularity)[-5]


@given(
    known=arrays.arrays(np.float32, (7, 5), elements=st.floats(-3, 3, width=32)),
    new=arrays.arrays(np.float32, (7, 5), elements=st.floats(-3, 3, width=32)),
    places=st.integers(0, 35),
)
def test_the_offset_gives_new_bundles_their_places(known: np.ndarray, new: np.ndarray, places: int) -> None:
    rng = np.random.default_rng(0)  # so that no two scores are equal
    known = -np.sort(-(known + rng.uniform(0, 1e-2, known.shape).astype(np.float32)), axis=1)
    new = -np.sort(-(new + rng.uniform(0, 1e-2, new.shape).astype(np.float32)), axis=1)
    offset = offset_for_share(known, new, places / 35)
    both = np.concatenate([known, new + offset + 1e-6], axis=1)
    lists = np.argsort(-both, axis=1, kind="stable")[:, :5]
    assert abs(int((lists >= 5).sum()) - places) <= 1  # one entry may turn within the rounding


def test_the_knob_turns_from_none_to_all() -> None:
    split = planted_world()
    model = ember(split.train, choose="fixed")
    shares = []
    for welcome in (0.0, 1.0, 100.0):
        model.knobs[0] = welcome
        found = evaluate(model.served(), split.train, split.test, ks=(3,)).metrics
        shares.append(found["cold_share@3"])
    assert shares[0] == 0
    assert shares[0] <= shares[1] <= shares[2]
    assert shares[2] > 0.5


def test_a_bundle_without_history_is_scored_by_its_items() -> None:
    data = world()
    model = ember(data)
    cold = data.popularity == 0
    vectors = vectors_of(model)
    users, _, items = model.affiliation_view(model.affiliation.full, model.pooling.full)
    z = data.bundle_item.toarray()[cold]
    pooled = z @ items.detach().numpy() / z.sum(1, keepdims=True)
    matched = plain_profiles(data, 0.4) @ z.T / model.overlap.scale
    expected = (
        users.detach().numpy() @ pooled.T + 3.0 * np.log1p(matched) + vectors.served.knobs["welcome"].offset
    )
    found = model.served().scores(np.arange(data.n_users))
    np.testing.assert_allclose(found[:, cold], expected, rtol=1e-4, atol=1e-4)
    # and a bundle that did not exist in training gets the same vector from the same items
    np.testing.assert_allclose(
        vectors.new_bundles(data.bundle_item[np.flatnonzero(cold)]).numpy(),
        vectors.bundles.detach().numpy()[cold],
        atol=1e-5,
    )


def test_the_scale_leaves_the_bundle_itself_out() -> None:
    data = world()
    model = ember(data)
    x, z = data.user_bundle.toarray(), data.bundle_item.toarray()
    found: list[tuple[int, int, float]] = []
    for user, bundle in zip(*data.user_bundle.nonzero(), strict=True):
        without = x.copy()
        without[user, bundle] = 0
        relations = type(data.user_bundle)(without), data.user_item, data.bundle_item
        rest = BundleData(data.users, data.bundles, data.items, *relations)
        if len(found) < 20:
            found.append((user, bundle, float(plain_profiles(rest, 0.4)[user] @ z[bundle])))
    profile = plain_profiles(data, 0.4)
    sizes, held = z.sum(1), np.maximum(z.sum(0), 1)
    for user, bundle, expected in found:
        own = (z[bundle] / np.sqrt(held)).sum() / np.sqrt(sizes[bundle])
        assert profile[user] @ z[bundle] - own == pytest.approx(expected, abs=1e-5)
    users, bundles = data.user_bundle.nonzero()
    own = (z / np.sqrt(held)).sum(1) / np.sqrt(sizes)
    mean = np.mean([profile[u] @ z[b] - own[b] for u, b in zip(users, bundles, strict=True)])
    assert model.overlap.scale == pytest.approx(mean, rel=1e-4)


def test_validation_chooses_where_asked_and_only_there() -> None:
    split = planted_world()
    settings = TrainingSettings(epochs=4, batch_size=64, evaluate_every=2, selection="last")
    fixed = untrained(split.train, choose="fixed")
    left = fit(fixed, split, settings)
    asked_for = [getattr(fixed.config, n) for n in ("welcome", "overlap_weight", "companion_weight")]
    np.testing.assert_allclose(fixed.knobs[:3].numpy(), asked_for)
    chosen = untrained(split.train, choose="validation")
    result = fit(chosen, split, settings)
    assert result.best_epoch == left.best_epoch == 4
    assert sum(result.best_metrics.values()) >= sum(left.best_metrics.values())
    found = evaluate(chosen.served(), split.train, split.validation, ks=(20,)).metrics
    assert found["recall@20"] == pytest.approx(result.best_metrics["recall@20"])


def test_where_launch_times_are_known_new_means_young() -> None:
    data = world()
    untaken = np.flatnonzero(data.popularity == 0)
    assert len(untaken) >= 2
    old, young = untaken[:2]
    launched = np.full(data.n_bundles, np.nan)
    launched[[old, young]] = 0, 170 * DAY
    moments = np.full(data.user_bundle.nnz, 200 * DAY)
    data = replace(data, timestamps=moments, launched=launched)
    model = ember(data, young_days=90)
    vectors = vectors_of(model)
    served = vectors.served
    expected = data.popularity == 0
    expected[old] = False
    np.testing.assert_array_equal(served.bundles.is_new, expected)

    # The old one is scored from its items, but neither lifted nor weighed as a new one.
    shared = plain_profiles(data, 0.4) @ data.bundle_item.toarray().T
    matched = np.log1p(shared / model.overlap.scale)
    plain = (vectors.users @ vectors.bundles.T).numpy()
    scores = served.scores(np.arange(data.n_users))
    config, offset = model.config, served.knobs["welcome"].offset
    np.testing.assert_allclose(
        scores[:, old], plain[:, old] + config.overlap_weight * matched[:, old], rtol=1e-4, atol=1e-5
    )
    as_new = plain[:, young] + config.new_overlap_weight * matched[:, young] + offset
    np.testing.assert_allclose(scores[:, young], as_new, rtol=1e-4, atol=1e-5)
    assert offset != 0
    assert ember(data, young_days=201).is_new[old]
