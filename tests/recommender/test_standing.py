"""How a bundle would stand with more takers, against one that has them; knobs turned to be asked about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coheat.data.split import Split
from coheat.recommender import Recommender
from coheat.recommender.standing import counts_around
from coheat.runs import fit_recommender

SMALL: dict[str, Any] = {"epochs": 2, "evaluate_every": 2, "embedding_size": 8, "batch_size": 64}
EMBER: dict[str, Any] = {**SMALL, "companion_size": 4, "choose": "fixed"}
K = 4


@pytest.fixture(scope="module", params=["ember", "coheat", "popularity"])
def saved(request: pytest.FixtureRequest, _planted: Split, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"ember": EMBER, "coheat": SMALL}.get(request.param, {})
    place: Path = tmp_path_factory.mktemp(request.param) / "model"
    fit_recommender(_planted.train, model=request.param, **settings).save(place)
    return place


def test_counts_go_past_the_most_popular_in_growing_steps() -> None:
    assert counts_around(4, 30) == (0, 1, 2, 3, 4, 5, 8, 13, 21, 34, 55)


def test_a_bundle_stands_as_one_that_was_really_taken_so_often(saved: Path) -> None:
    """Strangers take it, who are in nobody's history: all that changes is how often it was taken."""
    recommender = Recommender.load(saved)
    recommender.add_bundles({"new": ["item-0-0", "item-1-1"]})
    recommender.record("user-0-0", "new")
    users = list(recommender.user_ids)
    for bundle in ("new", "bundle-2-1"):
        found = recommender.standing(bundle, users, K)
        before = recommender.bundle(bundle).popularity
        strangers = [user for user in users if user not in recommender.takers(bundle)]
        assert found.users == len(strangers)
        assert before in found.taken
        for taken, in_lists in zip(found.taken, found.in_lists, strict=True):
            if not before <= taken <= before + 40:
                continue
            other = Recommender.load(saved)
            other.add_bundles({"new": ["item-0-0", "item-1-1"]})
            other.record("user-0-0", "new")
            other.record_many([(f"stranger {n}", bundle) for n in range(taken - before)])
            assert other.bundle(bundle).popularity == taken
            rows = other.recommend(strangers, K)
            assert in_lists == sum(row.bundle_id == bundle for row in rows), (bundle, taken)


def test_users_are_counted_in_blocks_as_at_once(saved: Path) -> None:
    recommender = Recommender.load(saved)
    users = list(recommender.user_ids)
    one, other = (recommender.standing("bundle-1-1", some, K) for some in (users[:10], users[10:]))
    assert one + other == recommender.standing("bundle-1-1", users, K)


def test_takers_are_those_of_training_and_since(saved: Path, planted: Split) -> None:
    recommender = Recommender.load(saved)
    recommender.record("somebody", "bundle-1-1")
    data, row = planted.train, planted.train.bundles.index["bundle-1-1"]
    trained = [user for n, user in enumerate(data.users.ids) if row in data.user_bundle[[n]].indices]
    assert recommender.takers("bundle-1-1") == [*trained, "somebody"]


def test_a_turned_knob_answers_as_a_recommender_loaded_with_it(planted: Split, tmp_path: Path) -> None:
    fit_recommender(planted.train, model="ember", **EMBER).save(tmp_path / "model")
    recommender, loaded = (
        Recommender.load(tmp_path / "model"),
        Recommender.load(tmp_path / "model", welcome=9),
    )
    for one in (recommender, loaded):
        one.add_bundles({"new": ["item-0-0", "item-1-1"]})
        one.record("user-0-0", "new")
    users = list(recommender.user_ids)
    before = recommender.recommend(users, K)
    turned = recommender.turned(welcome=9)
    assert turned.recommend(users, K) == loaded.recommend(users, K)
    assert recommender.recommend(users, K) == before
    assert recommender.knobs != turned.knobs == loaded.knobs
