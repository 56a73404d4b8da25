"""CoHeat served: weights, fold-in and explanations against dense, obvious computations from the model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coheat_served import serve, trained
from served_vectors import vectors_of

from coheat.data.split import Split
from coheat.models.coheat import CoHeat
from coheat.recommender import Explanation, Recommender

SETTINGS: list[dict[str, Any]] = [
    {},
    {"n_layers": 2},
    {"normalise_layers": False},
    {"n_layers": 3, "normalise_layers": False, "share_users": False},
    {"coalescence": "constant"},
    {"score_temperature": "maximum", "max_temperature": 50.0},
]


@pytest.fixture(params=SETTINGS, ids=str)
def model(request: pytest.FixtureRequest, planted: Split) -> CoHeat:
    return trained(planted.train, request.param)


@pytest.fixture
def recommender(model: CoHeat, tmp_path: Path) -> Recommender:
    return serve(model, tmp_path)


def table(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def propagated(edges: np.ndarray, sources0: np.ndarray, own0: np.ndarray, model: CoHeat) -> np.ndarray:
    """What training-time propagation adds to layer 0, for all rows: dense matrices, training's degrees."""
    scaled = edges / np.sqrt(edges.sum(1, keepdims=True).clip(1) * edges.sum(0, keepdims=True).clip(1))
    left, right = own0, sources0
    total = np.zeros_like(own0)
    for k in range(1, model.config.n_layers + 1):
        left, right = scaled @ right, scaled.T @ left
        lengths = np.linalg.norm(left, axis=1, keepdims=True)
        total += left / np.where(lengths > 0, lengths, 1) if model.config.normalise_layers else left / (k + 1)
    return total


def test_a_folded_in_copy_of_a_user_is_the_user_without_layer_0(
    model: CoHeat, recommender: Recommender, planted: Split
) -> None:
    data = planted.train
    item_users = model.users if model.affiliation_user_table is None else model.affiliation_user_table
    users, owners = table(model.users), table(item_users)
    history = propagated(data.user_bundle.toarray().astype(float), table(model.bundles), users, model)
    affiliation = propagated(data.user_item.toarray().astype(float), table(model.items), owners, model)
    served = table(vectors_of(model).bundles)
    for row in (0, 7, 31):
        info = recommender.user(data.users[row])
        found = recommender.recommend(
            ["copy"],
            1000,
            exclude_seen=False,
            items={"copy": info.item_ids},
            bundles={"copy": info.bundle_ids},
        )
        assert found.sources == {"copy": "folded-in"}
        expected = served @ np.concatenate([history[row], affiliation[row]])
        scores = {r.bundle_id: r.score for r in found}
        assert np.allclose([scores[name] for name in data.bundles.ids], expected, atol=1e-6)
        # With its layer 0 it is the trained user exactly.
        whole = np.concatenate([history[row] + users[row], affiliation[row] + owners[row]])
        assert np.allclose(recommender.vectors()["user"][1][row], whole, atol=1e-6)


def test_what_a_newcomer_gave_is_hidden_and_what_is_not_known_is_said(recommender: Recommender) -> None:
    found = recommender.recommend(
        ["guest"], 1000, items={"guest": ["item-0-0", "moon"]}, bundles={"guest": ["bundle-0-0"]}
    )
    assert "bundle-0-0" not in {row.bundle_id for row in found}
    assert any("'moon'" in sentence for sentence in found.notes)
    odd = recommender.recommend(["guest"], 1, bundles={"guest": ["bundle-0-0", "nothing"]})
    assert any("does not know the bundle 'nothing'; left out" in sentence for sentence in odd.notes)
    lost = recommender.recommend(["guest"], 1, items={"guest": ["moon"]})
    assert lost.sources == {"guest": "popular-and-new"}


def test_what_a_known_user_gives_comes_on_top_of_what_is_known(
    model: CoHeat, recommender: Recommender, planted: Split
) -> None:
    """The trained user, with what training would pass on along the edges of training and the given ones."""
    user, items, bundles = "user-0-0", ["item-1-0", "item-2-1"], ["bundle-1-0", "bundle-2-2"]
    info = recommender.user(user)
    assert not set(items) & set(info.item_ids)
    assert not set(bundles) & set(info.bundle_ids)

    def scores(name: str, items: list[str], bundles: list[str]) -> dict[str, float]:
        found = recommender.recommend(
            [name], 1000, exclude_seen=False, items={name: items}, bundles={name: bundles}
        )
        assert not found.notes or "instead of" in found.notes[0]
        return {row.bundle_id: row.score for row in found}

    trained_scores, copy = scores(user, [], []), scores("copy", info.item_ids, info.bundle_ids)
    both = scores("copy", [*info.item_ids, *items], [*info.bundle_ids, *bundles])
    expected = {name: trained_scores[name] - copy[name] + both[name] for name in copy}
    # What is known already says nothing new.
    found = scores(user, [*items, *info.item_ids[:1]], [*bundles, *info.bundle_ids[:1]])
    assert found == pytest.approx(expected, abs=1e-5)
    assert max(abs(found[name] - trained_scores[name]) for name in found) > 1e-4
    hidden = recommender.recommend([user], 1000, bundles={user: bundles})
    assert not {row.bundle_id for row in hidden} & set(bundles)
    for bundle in ("bundle-1-1", "bundle-0-0"):
        why = recommender.explain(user, bundle, items, bundles)
        assert why.score == pytest.approx(found[bundle], abs=1e-5)
        assert {part.item_id for part in why.user_items} == {*info.item_ids, *items}
        assert {part.bundle_id for part in why.user_bundles} == {*info.bundle_ids, *bundles}
        # What was learned of the user beyond what the user has is the same as ever.
        assert why.own == pytest.approx(recommender.explain(user, bundle).own, abs=1e-5)


def test_a_newcomers_recorded_bundles_fold_in(recommender: Recommender) -> None:
    given = recommender.recommend(["one"], 5, bundles={"one": ["bundle-0-0"]})
    recommender.record("two", "bundle-0-0")
    recorded = recommender.recommend(["two"], 5, exclude_seen=True)
    assert recorded.sources == {"two": "folded-in"}
    assert "bundle-0-0" not in {row.bundle_id for row in [*given, *recorded]}


def weight(model: CoHeat, popularity: int) -> float:
    if model.config.coalescence == "constant":
        return 0.5
    maximum = model.config.score_temperature == "maximum"
    return math.tanh(popularity / (model.config.max_temperature if maximum else float(model.temperature)))


def test_recording_weighs_a_known_bundle_anew(
    model: CoHeat, recommender: Recommender, planted: Split
) -> None:
    data, plain = planted.train, model.served().bundles.plain.base.astype(float)
    row = int(np.argmax(data.popularity))
    name, before = data.bundles[row], int(data.popularity[row])
    takers = {data.users[int(user)] for user in np.flatnonzero(data.user_bundle.toarray()[:, row])}
    assert not recommender.record(next(iter(takers)), name).counted, "a pair from training counts once"
    fresh = [*[name for name in data.users.ids if name not in takers][:2], "stranger"]
    for n, user in enumerate(fresh, start=1):
        recorded = recommender.record(user, name)
        assert (recorded.counted, recorded.popularity) == (True, before + n)
        assert recorded.history_weight == pytest.approx(weight(model, before + n), abs=1e-6)
        assert not recommender.record(user, name).counted
    g = weight(model, before + 3)
    history, affiliation = np.split(plain[row], 2)
    expected = table(vectors_of(model).users) @ np.concatenate([g * history, (1 - g) * affiliation])
    found = {r.user_id: r.score for r in recommender.audience(name, 1000, exclude_seen=False)}
    assert np.allclose([found[user] for user in data.users.ids], expected, atol=1e-5)
    assert not takers & {r.user_id for r in recommender.audience(name, 1000)}
    assert name not in {r.bundle_id for r in recommender.recommend([fresh[0]], 1000)}


def test_a_new_bundle_gets_a_history_from_its_takers(
    model: CoHeat, recommender: Recommender, planted: Split
) -> None:
    """As one more column of the graph with layer 0 = 0, the takers' layers and degrees being training's."""
    data, items = planted.train, ["item-0-0", "item-1-1"]
    recommender.add_bundles({"new": items})
    takers = [3, 20, 41]
    recommender.record_many([(data.users[row], "new") for row in takers] + [("stranger", "new")])
    edges = data.user_bundle.toarray().astype(float)
    scaled = edges / np.sqrt(edges.sum(1, keepdims=True).clip(1) * edges.sum(0, keepdims=True).clip(1))
    left, right = table(model.users), table(model.bundles)
    history = np.zeros(left.shape[1])
    for k in range(1, model.config.n_layers + 1):
        layer = sum(left[row] / math.sqrt(4 * max(edges[row].sum(), 1)) for row in takers)
        history += layer / np.linalg.norm(layer) if model.config.normalise_layers else layer / (k + 1)
        left, right = scaled @ right, scaled.T @ left
    g = weight(model, 4)
    item_vectors = model.affiliation_view(model.affiliation.full, model.pooling.full)[2]
    affiliation = table(item_vectors)[[data.items.position(i) for i in items]].mean(0)
    expected = table(vectors_of(model).users) @ np.concatenate([g * history, (1 - g) * affiliation])
    found = {r.user_id: r.score for r in recommender.audience("new", 1000, exclude_seen=False)}
    assert np.allclose([found[user] for user in data.users.ids], expected, atol=1e-5)


def adds_up(explanation: Explanation, tolerance: float = 1e-6) -> bool:
    """All ways of taking the score apart give it back, and the items give the share that is about items."""
    e = explanation
    terms = sum(term.share for term in e.terms)
    user = sum(p.share for p in e.user_items) + sum(p.share for p in e.user_bundles) + e.own
    items = sum(part.share for part in e.bundle_items)
    about = e.history + e.items + e.youth
    whole = (terms, e.score), (about, e.score), (user, e.score), (items, e.items)
    return all(math.isclose(found, wanted, abs_tol=tolerance) for found, wanted in whole)


def test_explanations_add_up(model: CoHeat, recommender: Recommender, planted: Split) -> None:
    data = planted.train
    recommender.add_bundles({"new": ["item-0-0", "item-2-1"]})
    recommender.replace_bundles({"bundle-1-0": ["item-0-3"]})
    recommender.record_many([(data.users[0], "new"), ("guest", "new"), ("guest", "bundle-0-1")])
    for user in (data.users[0], data.users[30], "guest"):
        listed = {r.bundle_id: r.score for r in recommender.recommend([user], 1000, exclude_seen=False)}
        for bundle in ("new", "bundle-1-0", data.bundles[0], data.bundles[5]):
            found = recommender.explain(user, bundle, items=["item-1-1"] if user == "guest" else [])
            assert adds_up(found), (user, bundle)
            if user == "guest":
                assert found.own == pytest.approx(0, abs=1e-6)
            else:
                assert found.score == pytest.approx(listed[bundle], abs=1e-5)
            assert {part.item_id for part in found.bundle_items} == set(recommender.bundle(bundle).item_ids)
            assert found.history_weight == recommender.bundle(bundle).history_weight
            assert [(term.name, term.about) for term in found.terms] == [
                ("history", "history"), ("affiliation", "items")
            ]  # fmt: skip
            weights = [found.history_weight, 1 - (found.history_weight or 0)]
            assert [term.weight for term in found.terms] == pytest.approx(weights, abs=1e-6)


def test_what_is_the_users_own_is_layer_0(model: CoHeat, recommender: Recommender, planted: Split) -> None:
    item_users = model.users if model.affiliation_user_table is None else model.affiliation_user_table
    own = np.concatenate([table(model.users), table(item_users)], axis=1)
    served = table(vectors_of(model).bundles)
    for user, bundle in ((0, 3), (17, 8)):
        found = recommender.explain(planted.train.users[user], planted.train.bundles[bundle])
        assert found.own == pytest.approx(own[user] @ served[bundle], abs=1e-6)
        assert {part.item_id for part in found.user_items} == set(recommender.user(found.user_id).item_ids)
        assert {part.bundle_id for part in found.user_bundles} == set(
            recommender.user(found.user_id).bundle_ids
        )


@pytest.mark.parametrize(
    "part", ["terms", "history", "items", "youth", "user_items", "user_bundles", "bundle_items", "own"]
)
def test_the_check_of_additivity_notices_a_wrong_share(part: str, planted: Split, tmp_path: Path) -> None:
    """The test of the test: a share that is off by a hundredth of the largest does not pass."""
    from dataclasses import replace

    recommender = serve(trained(planted.train, {}), tmp_path)
    found = recommender.explain(planted.train.users[0], planted.train.bundles[0])
    assert adds_up(found)
    off = max(abs(found.score) / 100, 1e-4)
    value = getattr(found, part)
    wrong = (
        value + off
        if isinstance(value, float | int)
        else [replace(value[0], share=value[0].share + off), *value[1:]]
    )
    change: dict[str, Any] = {part: wrong}
    assert not adds_up(replace(found, **change))


def test_a_model_with_one_view_is_explained_by_its_score(planted: Split, tmp_path: Path) -> None:
    from factorisation import factorisation

    model = factorisation(planted.train)
    recommender = serve(model, tmp_path)
    recommender.add_bundles({"new": ["item-0-0", "item-2-1"]})
    for bundle in ("new", "bundle-0-0"):
        found = recommender.explain("user-0-0", bundle)
        assert [(term.name, term.weight, term.share) for term in found.terms] == [("score", 1, found.score)]
        assert (found.items, found.history, found.youth) == (found.score, 0, 0)
        assert (found.own, found.history_weight) == (found.score, None)
    assert sum(part.share for part in recommender.explain("user-0-0", "new").bundle_items) == pytest.approx(
        recommender.explain("user-0-0", "new").score, abs=1e-6
    )
    recommender.record("user-0-0", "new")
    assert recommender.bundle("new").popularity == 1
    given = recommender.recommend(["guest"], 2, items={"guest": ["item-0-0"]})
    assert given.sources == {"guest": "popular-and-new"}
    assert any("no vector can be made" in sentence for sentence in given.notes)
