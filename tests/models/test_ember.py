"""Ember's score against a slow, obvious computation; its parts, its hand-set curves and its choices."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from coheat_oracle import two_views
from served_vectors import vectors_of

from coheat.contract import small_config
from coheat.data.dataset import DAY, BundleData
from coheat.data.synthetic import planted_world, realistic_world
from coheat.evaluation import evaluate
from coheat.models.base import Progress
from coheat.models.companions import companions
from coheat.models.curves import COUNTS
from coheat.models.ember import WELCOMES, Ember, EmberConfig, usual_welcome, youth_of
from coheat.models.two_views import Masks
from coheat.rng import Randomness
from coheat.served import Served
from coheat.training import TrainingSettings, fit

PARTS = (
    "history", "affiliation", "companions", "prospects",
    "overlap", "own items", "items of own bundles", "owned share", "bias",
)  # fmt: skip


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


def learned(data: BundleData, **settings: object) -> Ember:
    """With curves and lines that are all different, as if they had been learned."""
    model, rng = ember(data, **settings), np.random.default_rng(8)
    model.curves.copy_(torch.from_numpy(rng.normal(size=tuple(model.curves.shape))))
    model.lines.copy_(torch.from_numpy(np.sort(rng.normal(size=(len(WELCOMES), len(COUNTS))), axis=0)))
    return model


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


def height(line: np.ndarray, taken: int) -> float:
    """Of a line between knots, straight from the definition."""
    if taken >= COUNTS[-1]:
        return float(line[-1])
    right = next(place for place, count in enumerate(COUNTS) if count > taken)
    left, step = COUNTS[right - 1], COUNTS[right] - COUNTS[right - 1]
    return float(line[right - 1] + (line[right] - line[right - 1]) * (taken - left) / step)


def slow_scores(model: Ember, youth: np.ndarray) -> np.ndarray:
    """The score as the model's text has it: parts from data and parameters, weights from the curves."""
    data, half = model.data, len(COUNTS)
    relations = data.user_bundle, data.user_bundle, data.user_item, data.user_item, data.bundle_item
    everything = Masks(*(np.ones(matrix.nnz, dtype=np.uint8) for matrix in relations))
    tables = {name: p.detach().double() for name, p in model.named_parameters()}
    (h_users, h_bundles), (a_users, a_bundles) = two_views(data, model.config, tables, everything)
    h_bundles = h_bundles.clone()
    h_bundles[torch.from_numpy(data.popularity == 0)] = 0
    x, y, z = (m.toarray().astype(float) for m in (data.user_bundle, data.user_item, data.bundle_item))
    parts = {
        "history": (h_users @ h_bundles.T).numpy(),
        "affiliation": (a_users @ a_bundles.T).numpy(),
        "companions": x @ model.taken.double().numpy() @ model.wanted.double().numpy().T,
        "prospects": np.tile(model.prospects.bundles, (data.n_users, 1)),  # see test_prospects.py
        "overlap": np.log(1 + plain_profiles(data, 0.4) @ z.T / model.overlaps[0].scale),
        "own items": np.log(1 + y @ z.T),
        "items of own bundles": np.log(1 + x @ z @ z.T),
        "owned share": (y @ z.T / np.maximum(z.sum(axis=1), 1)) ** 4,
        "bias": np.ones((data.n_users, data.n_bundles)),
    }
    rows, welcome = model.curves.numpy(), float(model.knobs[0])
    above = next(place for place, value in enumerate(WELCOMES) if value >= welcome)
    low, high = WELCOMES[max(above - 1, 0)], WELCOMES[above]
    share = (welcome - low) / (high - low) if high > low else 1.0
    turned = (1 - share) * model.lines[max(above - 1, 0)].numpy() + share * model.lines[above].numpy()
    scores = np.zeros((data.n_users, data.n_bundles))
    for bundle, taken in enumerate(data.popularity.tolist()):
        young = float(youth[bundle])
        for name, row in zip(PARTS, rows, strict=True):
            weight = (1 - young) * height(row[:half], taken) + young * height(row[half:], taken)
            scores[:, bundle] += weight * parts[name][:, bundle]
        scores[:, bundle] += young * height(turned, taken)
    return scores


@pytest.mark.parametrize("welcome", [0.0, 1.0, 1.75, 100.0])
def test_scores_are_those_of_the_formula(welcome: float) -> None:
    model = learned(world(), welcome=welcome)
    youth = np.array([2.0**-n for n in model.data.popularity])
    found = model.served().scores(np.arange(model.data.n_users))
    np.testing.assert_allclose(found, slow_scores(model, youth), rtol=1e-4, atol=1e-4)


def test_without_a_rehearsal_curves_are_the_hand_set_ones() -> None:
    split = planted_world()
    model = untrained(split.train, rehearsal_epochs=0, welcome=1.0, companion_weight=4.0)
    fit(model, split, TrainingSettings(epochs=2, batch_size=64, evaluate_every=2))
    curves = dict(zip(PARTS, model.curves.numpy(), strict=True))
    counts, half = np.array(COUNTS), len(COUNTS)
    known = counts / (counts + 8)  # of 8 takers, half is known
    expected = {
        "history": (np.ones(half), known),
        "affiliation": (np.ones(half), np.ones(half)),
        "companions": (np.full(half, 4.0), 4 * known),
        "prospects": (np.zeros(half), np.full(half, 0.5)),
        "overlap": (np.full(half, 0.6), 3.0 - 2.4 * known),
    }
    for name, row in curves.items():
        old, young = expected.get(name, (np.zeros(half), np.zeros(half)))
        np.testing.assert_allclose(row, [*old, *young], atol=1e-12)
    # Nothing tells how far to lift new bundles; hiding them takes no measurement.
    assert not model.lines[1:].any()
    hidden = evaluate(model.served().turned(welcome=0), split.train, split.test, ks=(3,)).metrics
    assert hidden["cold_share@3"] == 0


def test_overlaps_are_those_of_the_formula() -> None:
    data = world()
    expected = plain_profiles(data, 0.4) @ data.bundle_item.toarray().T
    model = untrained(data)
    overlap = replace(model.overlaps[0], kind="linear", scale=1.0)
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


def test_companions_take_one_matrix_of_memory() -> None:
    """It is the largest thing in a training of Ember: limit x limit."""
    data = realistic_world(800, 1200, 900, 12_000, 3_000, 4_000, seed=0)
    tracemalloc.start()
    try:
        companions(data, 4, 2.0, 1.0, 1000, np.random.default_rng(0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    n = min(int((data.popularity > 0).sum()), 1000)
    assert n > 700
    assert peak < 2.5 * 4 * n**2, f"{peak / (4 * n**2):.1f} matrices"


def test_companions_are_sought_among_the_most_popular_only() -> None:
    data = world()
    found = companions(data, 3, 2.0, 1.0, 5, np.random.default_rng(0))
    placed = np.flatnonzero(found.wanted.any(axis=1))
    assert len(placed) <= 5
    assert data.popularity[placed].min() >= np.sort(data.popularity)[-5]


def test_a_bundle_without_history_is_scored_by_its_items() -> None:
    """One that did not exist in training gets the same vector and score from the same items."""
    data = world()
    model = learned(data)
    cold = np.flatnonzero(data.popularity == 0)
    vectors = vectors_of(model)
    np.testing.assert_allclose(
        vectors.new_bundles(data.bundle_item[cold]).numpy(), vectors.bundles.numpy()[cold], atol=1e-5
    )
    served, users = vectors.served, np.arange(data.n_users)
    items = [served.relations.bundle_item.row(int(bundle)) for bundle in cold]
    added = served.score(served.people(users), served.added(served.bundles, items))[:, data.n_bundles :]
    np.testing.assert_allclose(added, served.scores(users)[:, cold], rtol=1e-4, atol=1e-4)


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
            found.append((int(user), int(bundle), float(plain_profiles(rest, 0.4)[user] @ z[bundle])))
    profile = plain_profiles(data, 0.4)
    sizes, held = z.sum(1), np.maximum(z.sum(0), 1)
    for taker, taken, expected in found:
        own = (z[taken] / np.sqrt(held)).sum() / np.sqrt(sizes[taken])
        assert profile[taker] @ z[taken] - own == pytest.approx(expected, abs=1e-5)
    users, bundles = data.user_bundle.nonzero()
    own = (z / np.sqrt(held)).sum(1) / np.sqrt(sizes)
    mean = np.mean([profile[u] @ z[b] - own[b] for u, b in zip(users, bundles, strict=True)])
    assert model.overlaps[0].scale == pytest.approx(mean, rel=1e-4)


def test_validation_chooses_where_asked_and_only_there() -> None:
    split = planted_world()
    settings = TrainingSettings(epochs=4, batch_size=64, evaluate_every=2, selection="last")
    fixed = untrained(split.train, choose="fixed", rehearsal_epochs=4, welcome=0.25)
    left = fit(fixed, split, settings)
    assert float(fixed.knobs[0]) == 0.25
    chosen = untrained(split.train, choose="validation", rehearsal_epochs=4, welcome=0.25)
    result = fit(chosen, split, settings)
    between = [(low + high) / 2 for low, high in pairwise(WELCOMES[:-1])]
    assert float(chosen.knobs[0]) in {*WELCOMES, *between}
    torch.testing.assert_close(chosen.curves, fixed.curves, rtol=0, atol=0)
    assert result.best_epoch == left.best_epoch == 4
    assert sum(result.best_metrics.values()) >= sum(left.best_metrics.values())
    for model, metrics in ((fixed, left.best_metrics), (chosen, result.best_metrics)):
        found = evaluate(model.served(), split.train, split.validation, ks=(20,)).metrics
        assert metrics == pytest.approx({name: found[name] for name in metrics})
    # It is the best one by validation, or between that and the usual one.
    totals = []
    for welcome in WELCOMES:
        served = chosen.served().turned(welcome=welcome)
        found = evaluate(served, split.train, split.validation, ks=(20,)).metrics
        totals.append(found["recall@20"] + found["ndcg@20"])
    best = WELCOMES[int(np.argmax(totals))]
    assert min(best, 0.25) < float(chosen.knobs[0]) <= max(best, 0.25)


def test_where_launch_times_are_known_new_means_young() -> None:
    data = world()
    untaken = np.flatnonzero(data.popularity == 0)
    old, young = untaken[:2]
    launched = np.full(data.n_bundles, np.nan)
    launched[[old, young]] = 0, 170 * DAY
    moments = np.full(data.user_bundle.nnz, 200 * DAY)
    data = replace(data, timestamps=moments, launched=launched)
    model = learned(data, young_days=90)
    expected = data.popularity == 0
    expected[old] = False
    np.testing.assert_array_equal(model.served().bundles.is_new, expected)
    assert ember(data, young_days=201).is_new[old]

    # 1 / (1 + (age / 90 days) ** 2); first seen today is of age 0; of unknown age and untaken is young.
    youth = np.ones(data.n_bundles)
    youth[[old, young]] = 1 / (1 + (200 / 90) ** 2), 1 / (1 + (30 / 90) ** 2)
    found = model.served().scores(np.arange(data.n_users))
    np.testing.assert_allclose(found, slow_scores(model, youth), rtol=1e-4, atol=1e-4)


def test_youth_falls_smoothly_with_age() -> None:
    """Neither the first day nor `young_days` is a threshold."""
    data = planted_world(bundles_per_group=60, cold_per_group=2).train
    launched = (400.0 - np.arange(data.n_bundles, dtype=np.float64)) * DAY
    dated = replace(data, timestamps=np.full(data.user_bundle.nnz, 400.0 * DAY), launched=launched)
    youth = youth_of(dated, 90.0)
    assert youth[[0, 90]] == pytest.approx([1.0, 0.5])
    steps = -np.diff(youth)
    assert (steps > 0).all()
    assert steps.max() < 0.0075  # the steepest day, of 90, takes less than one part in 130
    assert np.abs(np.diff(steps)).max() < 3e-4
    none = youth_of(dated, 0.0)  # without a time of youth, only what is launched today is young
    assert none[0] == 1
    assert none[1:].max() < 1e-12


def test_the_more_of_what_is_on_offer_is_young_the_less_it_is_favoured() -> None:
    data = world()
    none, half = np.zeros(data.n_bundles), (np.arange(data.n_bundles) % 2).astype(float)
    assert usual_welcome(data, none) == 4.0
    assert usual_welcome(data, np.ones(data.n_bundles)) == 1.0
    assert usual_welcome(data, half) == pytest.approx(4 - 3 * half.mean(), abs=0.01)
    over = replace(data, ends=np.where(half > 0, 1.0, np.nan), as_of=2.0)  # what is young has ended
    assert usual_welcome(over, half) == 4.0
    assert float(untrained(data).knobs[0]) == usual_welcome(data, youth_of(data, 90.0))
    assert float(untrained(data, welcome=2.5).knobs[0]) == 2.5
