"""Curves: planted ones are found again, few choices leave the prior, and the fast loss equals a slow one."""

from __future__ import annotations

import numpy as np
import pytest

from coheat.data.dataset import Indices
from coheat.models import curves
from coheat.models.curves import COUNTS, Choices, Numbers, by_knot, candidates, learn, spread
from coheat.served import Curve

KNOTS = np.array(COUNTS)
ABSENT = -1
NOBODY = np.zeros(400, dtype=np.bool_)


def planted() -> dict[str, Curve]:
    """History counts the more the more is known, items the less; the young have a bonus that fades."""
    known = KNOTS / (KNOTS + 8)
    return {
        "history": by_knot(2 * known, 2 * known),
        "items": by_knot(0.5, 2.5 - 2 * known),
        "bias": by_knot(known, 1.0 - 0.5 * known),
    }


def world(n_bundles: int = 400) -> tuple[Indices, Numbers]:
    rng = np.random.default_rng(5)
    popularity = np.floor(2.0 ** rng.uniform(0, 8, n_bundles) - 1).astype(np.int64)
    return popularity, (rng.random(n_bundles) < 0.5).astype(np.float64)


def score(curves: dict[str, Curve], choices: Choices, popularity: Indices, youth: Numbers) -> Numbers:
    """The obvious way: every part times its curve's value for the bundle."""
    *parts, bias = (curve.at(popularity, youth)[choices.bundles] for curve in curves.values())
    return np.asarray(bias + sum(weight * choices.parts[:, :, at] for at, weight in enumerate(parts)))


def choose(
    curves: dict[str, Curve],
    n_users: int,
    seed: int = 0,
    n_candidates: int = 30,
    appeal: Numbers | float = 0.0,
) -> Choices:
    """Users who each take one or two of their candidates, as the curves say, and what a bundle has beyond."""
    rng = np.random.default_rng(seed)
    popularity, youth = world()
    bundles = np.stack([rng.permutation(len(popularity))[:n_candidates] for _ in range(n_users)])
    parts = rng.normal(size=(n_users, n_candidates, len(curves) - 1)).astype(np.float32)
    choices = Choices(parts, bundles, np.zeros(bundles.shape, dtype=np.int8))
    own = np.broadcast_to(appeal, len(popularity))
    chance = np.exp(score(curves, choices, popularity, youth) + own[bundles])
    for user in range(n_users):
        took = rng.choice(n_candidates, size=1 + user % 2, p=chance[user] / chance[user].sum())
        choices.taken[user, took] = 1
    return choices


def flat_prior() -> dict[str, Curve]:
    return {name: by_knot(0.0) for name in planted()}


def distance(found: dict[str, Curve], wanted: dict[str, Curve]) -> float:
    """Mean difference over the bundles of the world; a constant added to all biases changes no choice."""
    popularity, youth = world()
    gaps = []
    for name, curve in found.items():
        gap = curve.at(popularity, youth) - wanted[name].at(popularity, youth)
        gaps.append(np.abs(gap - gap.mean() if name == "bias" else gap).mean())
    return float(np.mean(gaps))


def test_shares_of_knots_are_the_curve() -> None:
    rng = np.random.default_rng(1)
    curve = by_knot(rng.normal(size=len(KNOTS)), rng.normal(size=len(KNOTS)))
    popularity, youth = rng.integers(0, 600, 200), rng.random(200)
    shares = spread(curve.counts, popularity, youth)
    numbers = np.concatenate([curve.old, curve.young])
    assert shares @ numbers == pytest.approx(curve.at(popularity, youth), abs=1e-5)


def test_planted_curves_are_found_again() -> None:
    choices, (popularity, youth) = choose(planted(), 6000), world()
    found = learn(
        choices, popularity, youth, flat_prior(), NOBODY, level=1.0, shrink=1.0, smooth=3.0, tie=1.0
    )
    assert distance(found, planted()) < 0.1
    assert distance(flat_prior(), planted()) > 0.6


def test_few_choices_leave_the_prior_and_many_leave_it_behind() -> None:
    popularity, youth = world()
    gaps = [
        distance(learn(choose(planted(), n), popularity, youth, flat_prior(), NOBODY), planted())
        for n in (5, 500, 5000)
    ]
    assert gaps[0] > 0.9 * distance(flat_prior(), planted())
    assert gaps[0] > gaps[1] > gaps[2]


def test_a_small_shop_finds_out_that_popular_is_popular() -> None:
    """Two hundred choices tell that what many took is taken; hand-set curves know nothing of it."""
    (popularity, youth), grows = world(), by_knot(0.5 * np.arange(len(KNOTS)), 0.0)
    planted_slope = {"history": by_knot(0.0), "items": by_knot(0.0), "bias": grows}
    old = np.zeros_like(youth)
    found = learn(choose(planted_slope, 200), popularity, youth, flat_prior(), NOBODY)["bias"]
    learned = found.at(popularity, old)
    assert np.corrcoef(learned, grows.at(popularity, old))[0, 1] > 0.95
    assert learned.std() > 0.5 * grows.at(popularity, old).std()


def test_what_makes_a_few_bundles_popular_is_not_taken_for_a_rule() -> None:
    """One bundle in four of the young is liked for a reason of its own."""
    popularity, youth = world()
    liked = np.where((youth > 0) & (np.arange(len(youth)) % 4 == 0), 3.0, 0.0)
    choices = choose(planted(), 3000, appeal=liked)
    gaps = [
        distance(learn(choices, popularity, youth, flat_prior(), whose, level=1.0, shrink=1.0), planted())
        for whose in (NOBODY, youth > 0)
    ]
    assert gaps[1] < 0.8 * gaps[0]


def test_without_choices_the_prior_comes_back() -> None:
    popularity, youth = world()
    choices = choose(planted(), 3)
    choices.taken[:] = 0
    for name, curve in learn(choices, popularity, youth, planted(), NOBODY).items():
        assert np.array_equal(curve.young, planted()[name].young)


def test_right_prior_is_not_left() -> None:
    popularity, youth = world()
    found = learn(choose(planted(), 3000), popularity, youth, planted(), NOBODY)
    assert distance(found, planted()) < 0.05


def test_learned_curves_minimise_the_obvious_loss() -> None:
    """Without a prior, no small change of any number makes the slow likelihood better."""
    choices, (popularity, youth) = choose(planted(), 300, n_candidates=10), world()
    choices.taken[::3, -1] = ABSENT

    def loss(curves: dict[str, Curve]) -> float:
        scores = np.where(choices.taken >= 0, score(curves, choices, popularity, youth), -np.inf)
        total, users = 0.0, 0
        for row, line in zip(scores, choices.taken, strict=True):
            if (line > 0).any():
                total -= float(np.mean(row[line > 0])) - float(np.logaddexp.reduce(row))
                users += 1
        return total / users

    found = learn(
        choices, popularity, youth, flat_prior(), NOBODY, level=0.0, shrink=1e-3, smooth=0.0, tie=0.0
    )
    for name, curve in found.items():
        for at in range(len(KNOTS)):
            for by in (-0.3, 0.3):
                moved = by_knot(curve.old + by * (np.arange(len(KNOTS)) == at), curve.young)
                assert loss(found | {name: moved}) > loss(found) - 1e-5


def test_a_few_steps_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Springs and choices tell some numbers thousands of times better than others; steps in plain units would
    still be under way."""
    choices, (popularity, youth) = choose(planted(), 2000), world()
    found = learn(choices, popularity, youth, flat_prior(), youth > 0)
    monkeypatch.setattr(curves, "ITERATIONS", 1000)
    assert distance(found, learn(choices, popularity, youth, flat_prior(), youth > 0)) < 0.003


def test_an_overlap_that_says_nothing_gets_no_weight() -> None:
    popularity, youth = world()
    choices = choose(planted(), 4000)
    noise = np.random.default_rng(9).normal(size=(*choices.bundles.shape, 1)).astype(np.float32)
    more = Choices(np.concatenate([choices.parts, noise], axis=2), choices.bundles, choices.taken)
    prior = {**flat_prior(), "noise": by_knot(0.0)}
    prior["bias"] = prior.pop("bias")  # the bias stays last
    found = learn(more, popularity, youth, prior, NOBODY, level=30.0, shrink=30.0, smooth=100.0)
    assert np.abs(found["noise"].at(popularity, youth)).max() < 0.15
    assert found["items"].at(popularity, youth).mean() > 0.6


def test_candidates_are_the_best_of_each_group() -> None:
    scores = np.random.default_rng(2).normal(size=(20, 50)).astype(np.float32)
    scores[:, 7] = -np.inf
    young = np.arange(50) < 12
    bundles, real = candidates(scores, [~young, young, np.zeros(50, dtype=bool)], 15)
    assert bundles.shape == (20, 27)
    for row, chosen, exists in zip(scores, bundles, real, strict=True):
        old = [b for b in np.argsort(-row, kind="stable") if not young[b]][:15]
        assert set(chosen[:15]) == set(old)
        assert set(chosen[15:]) == set(range(12))
        assert list(exists) == [b != 7 for b in chosen]
