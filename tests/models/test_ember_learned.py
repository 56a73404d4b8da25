"""Ember after its rehearsal, in a shop of whose new bundles we know what share of the places they deserve."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_artifact import save

from coheat.artifact import load_artifact
from coheat.contract import small_config
from coheat.data.dataset import BundleData, pairs, relation
from coheat.data.split import Split
from coheat.data.synthetic import realistic_world
from coheat.evaluation import top_bundles
from coheat.models.base import Model, Progress
from coheat.models.ember import Ember, EmberConfig
from coheat.recommender import Recommender
from coheat.rng import Randomness
from coheat.served import Bundles, Served
from coheat.training import TrainingInterrupted, TrainingSettings, Watcher, fit

SETTINGS = TrainingSettings(epochs=10, batch_size=512, evaluate_every=10, selection="last")


def untrained(data: BundleData, **settings: object) -> Ember:
    config = small_config(Ember, **{"rehearsal_epochs": 10, **settings})
    assert isinstance(config, EmberConfig)
    return Ember(data, config, Randomness(3))


def training_only(data: BundleData) -> Split:
    nothing = relation([], [], data.user_bundle.shape)
    return Split(data, nothing, nothing.copy())


@dataclass(frozen=True)
class Shop:
    model: Ember
    new: np.ndarray
    """Bundles whose interactions were all hidden."""
    share: float
    """Theirs of all interactions."""


@pytest.fixture(scope="module")
def shop() -> Shop:
    whole = realistic_world(400, 240, 150, 8000, 3000, 1000)
    new = np.random.default_rng(0).permutation(240)[:24]
    users, bundles = pairs(whole.user_bundle)
    seen = ~np.isin(bundles, new)
    known = relation(users[seen], bundles[seen], whole.user_bundle.shape)
    data = replace(whole, user_bundle=known, timestamps=None, launched=None)
    model = untrained(data)
    fit(model, training_only(data), SETTINGS)
    return Shop(model, new, float((~seen).mean()))


def test_welcome_is_the_multiple_of_the_fair_share(shop: Shop) -> None:
    """What these bundles deserve was not in the training data; only stand-ins could tell."""
    served, data = shop.model.served(), shop.model.data
    multiples = []
    for welcome in (0.0, 0.5, 1.0, 2.0, 3.0):
        lists, _ = top_bundles(served.turned(welcome=welcome), np.arange(400), data.user_bundle, 20)
        multiples.append(float(np.isin(lists, shop.new).mean()) / shop.share)
    assert multiples == pytest.approx([0.0, 0.5, 1.0, 2.0, 3.0], rel=0.4)


def along(served: Served, like: int, taken: np.ndarray, youth: np.ndarray) -> np.ndarray:
    """Scores (n_users, n) of a bundle as it would have them with this evidence, all else as it is."""
    moved, rows = moved_along(served, like, taken, youth)
    return served.score(served.people(np.arange(len(served.users))), moved, rows)


def moved_along(
    served: Served, like: int, taken: np.ndarray, youth: np.ndarray
) -> tuple[Bundles, np.ndarray]:
    """The bundles with one more for each piece of evidence, and the rows of these."""
    n, known = len(taken), served.bundles
    items = served.relations.bundle_item.row(like)
    rows = np.arange(len(known), len(known) + n)
    more = served.added(known, [items] * n)
    copies = np.repeat(known.plain.take(np.array([like])), n, axis=0)
    young = more.youth.copy()
    young[rows] = youth
    more = replace(more, youth=young, plain=more.plain.with_rows(rows, copies, len(more)))
    return served.recorded(more, rows, taken, [np.array([], dtype=np.int64)] * n), rows


def kinds_of_bundles(shop: Shop) -> list[int]:
    """A new one, and some with few and with many takers."""
    order = np.argsort(shop.model.data.popularity, kind="stable")
    return [int(shop.new[0]), *(int(order[place]) for place in (30, 120, 239))]


@pytest.mark.parametrize("welcome", [1.0, 2.0])
def test_learned_scores_have_no_jump_along_the_evidence(shop: Shop, welcome: float) -> None:
    """Neither the first interaction nor the twentieth, nor the last day of youth, is a threshold.

    Steps are in standard deviations of a user's scores, and the largest of all users counts.
    """
    served = shop.model.served().turned(welcome=welcome)
    spread = served.scores(np.arange(400)).std(axis=1, keepdims=True)
    counts, ages = np.arange(300), np.arange(360)
    for bundle in kinds_of_bundles(shop):
        for youth in (0.0, 0.5, 1.0):
            found = along(served, bundle, counts, np.full(300, youth))
            steps = (np.abs(np.diff(found, axis=1)) / spread).max(axis=0)
            assert steps[:4].max() < 1.3  # each of these counts has a weight of its own
            assert steps[4:].max() < 0.5
            assert steps[16:].max() < 0.15
            moved, rows = moved_along(served, bundle, counts[256:], np.full(44, youth))
            assert (moved.weighed.take(rows) == moved.weighed.take(rows[:1])).all()
            assert (moved.terms[:, rows] == moved.terms[:, rows[:1]]).all()
            assert steps[256:].max() < 1e-5  # the last bits of a product, which depend on the processor
        for taken in (0, 1, 20):
            found = along(served, bundle, np.full(360, taken), 1 / (1 + (ages / 90) ** 2))
            assert (np.abs(np.diff(found, axis=1)) / spread).max() < 0.1


def test_without_times_the_first_takers_end_youth_step_by_step(shop: Shop) -> None:
    """There, taken n times means a youth of 2^-n: steps halve, and after a few nothing is left to jump."""
    served = shop.model.served().turned(welcome=1.0)
    spread = served.scores(np.arange(400)).std(axis=1, keepdims=True)
    for bundle in kinds_of_bundles(shop)[:2]:
        found = along(served, bundle, np.arange(40), 2.0 ** -np.arange(40))
        steps = (np.abs(np.diff(found, axis=1)) / spread).max(axis=0)
        assert steps[0] < 1.5
        assert steps[1] < 0.8
        assert steps[2:].max() < 0.4
        assert steps[16:].max() < 0.1


@pytest.fixture(scope="module")
def directory(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ember") / "model"
    save(place, shop.model, "ember")
    return place


def by_curves(served: Served, user: int, bundle: int, taken: int, youth: float) -> float:
    """A score as the sum of its parts, each times its curve at this evidence."""
    parts = served.parts(np.array([user]))[:, 0, bundle]
    evidence = np.array([taken]), np.array([youth])
    curves = [block.curve for block in served.blocks] + [overlap.curve for overlap in served.overlaps]
    total = sum(float(curve.at(*evidence)[0]) * part for curve, part in zip(curves, parts, strict=True))
    added = (served.bias, served.knobs["welcome"].curve)
    return float(total + sum(float(curve.at(*evidence)[0]) for curve in added))


def test_recording_moves_a_bundle_along_its_curves_at_once(shop: Shop, directory: Path) -> None:
    recommender, data = Recommender.load(directory), shop.model.data
    served = shop.model.served()
    new, some = (int(shop.new[0]), int(np.flatnonzero((data.popularity > 2) & (data.popularity < 30))[0]))
    for bundle in (new, some):
        taken, youth = int(data.popularity[bundle]), float(2.0 ** -data.popularity[bundle])
        name, scores = data.bundles[bundle], []
        for more in range(25):
            assert recommender.bundle(name).popularity == taken + more
            for user in (0, 7):
                who = data.users[user]
                (row,) = recommender.recommend([who], 1, candidates=[name], exclude_seen=False)
                assert row.score == pytest.approx(
                    by_curves(served, user, bundle, taken + more, youth), abs=2e-3, rel=1e-4
                )
            scores.append(row.score)
            assert recommender.record(f"guest {more}", name).counted
        spread = served.scores(np.array([7])).std()
        assert np.abs(np.diff(scores)).max() < 1.3 * spread
        assert np.ptp(scores) > 0.05 * spread, "taken 24 times more often and scored the same"
        assert np.abs(np.diff(scores))[-5:].max() < 0.15 * spread


def test_an_explanation_names_history_items_and_youth(shop: Shop, directory: Path) -> None:
    recommender, data = Recommender.load(directory), shop.model.data
    user = data.users[3]
    parts = {
        "history": "history", "companions": "history", "popularity": "history", "affiliation": "items",
        "prospects": "items", "overlap": "items", "own items": "items", "items of own bundles": "items",
        "owned share": "items",
        "youth": "youth", "welcome": "youth",
    }  # fmt: skip
    for bundle in kinds_of_bundles(shop):
        name = data.bundles[bundle]
        found = recommender.explain(user, name)
        terms = {term.name: term for term in found.terms}
        is_young = data.popularity[bundle] < 20
        assert {term: parts[term] for term in terms} == {term: one.about for term, one in terms.items()}
        assert {"history", "companions", "affiliation", "overlap", "popularity"} <= set(terms)
        assert ({"youth", "welcome"} <= set(terms)) or not is_young
        (listed,) = recommender.recommend([user], 1, candidates=[name], exclude_seen=False)
        assert sum(term.share for term in found.terms) == pytest.approx(listed.score, abs=1e-4)
        for about in ("history", "items", "youth"):
            total = sum(term.share for term in found.terms if term.about == about)
            assert getattr(found, about) == pytest.approx(total, abs=1e-6)
        if data.popularity[bundle] == 0:
            assert terms["history"].share == terms["companions"].share == 0
            assert found.youth != 0


class Impatient(Watcher):
    """Stops everything in the middle of the rehearsal."""

    def rehearsal(self, model: Model) -> Watcher:
        return Impatient()

    def begin(self, model: Model, *_: object) -> None:
        if isinstance(model.config, EmberConfig) and not model.config.rehearsal_epochs:
            raise KeyboardInterrupt


def test_what_was_learned_is_saved_and_resumed_exactly(shop: Shop, directory: Path, tmp_path: Path) -> None:
    model = shop.model
    saved = load_artifact(directory).model()
    assert isinstance(saved, Ember)
    again = untrained(model.data)
    with pytest.raises(TrainingInterrupted, match="epoch 10 is saved"):
        fit(again, training_only(model.data), SETTINGS, tmp_path, watcher=Impatient())
    assert not torch.equal(again.lines, model.lines)
    again = untrained(model.data)
    fit(again, training_only(model.data), SETTINGS, tmp_path, resume=True)
    prior = untrained(model.data)
    assert not torch.equal(model.curves, prior.curves)
    assert not torch.equal(model.lines, prior.lines)
    for other in (saved, again):
        for name in ("curves", "lines", "knobs", "youth", "taken", "wanted"):
            assert torch.equal(getattr(other, name), getattr(model, name)), name
    users = np.arange(50)
    assert np.array_equal(saved.served().scores(users), model.served().scores(users))


def test_learning_takes_no_memory_of_users_times_bundles() -> None:
    """Not even a byte for each pair: some users are learned from and some judged, however many there are."""
    data = realistic_world(20_000, 3000, 400, 1500, 24_000, 6000, with_timestamps=False)
    model = untrained(data, companion_size=4, embedding_size=4)
    model.begin_epoch(Progress(1, 1))
    found = model.eval().rehearsal()
    assert found is not None
    inner, _ = found
    inner.begin_epoch(Progress(1, 1))
    tracemalloc.start()
    try:
        model.learn_from(inner.eval())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert model.lines.any()
    assert peak < data.n_users * data.n_bundles
