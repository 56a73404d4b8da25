from __future__ import annotations

import numpy as np
import pytest
from test_artifact import describe

from coheat.data import BundleData, Vocabulary, relation
from coheat.errors import ConfigError
from coheat.models.popularity import Popularity, PopularityConfig
from coheat.recommender import Recommender
from coheat.rng import Randomness
from coheat.runs import contents_of


def popularity() -> Popularity:
    data = BundleData(
        users=Vocabulary(["a", "b", "c"], "user"),
        bundles=Vocabulary(["w", "x", "y", "z"], "bundle"),
        items=Vocabulary(["i"], "item"),
        user_bundle=relation([0, 0, 1, 2], [0, 2, 2, 2], (3, 4)),
        user_item=relation([], [], (3, 1)),
        bundle_item=relation([0, 1, 2, 3], [0, 0, 0, 0], (4, 1)),
    )
    return Popularity(data, PopularityConfig(), Randomness(0))


def listed(recommender: Recommender, user: str) -> dict[str, float]:
    return {r.bundle_id: r.score for r in recommender.recommend([user], 99, exclude_seen=False)}


def test_every_user_gets_the_training_counts() -> None:
    model = popularity()
    assert model.served().scores(np.array([2, 0])).tolist() == [[1, 0, 3, 0]] * 2
    assert list(model.batches(8)) == []
    assert model.optimizers() == []


def test_recording_moves_a_bundle_up_for_everybody() -> None:
    """It is a bias over evidence: a bundle that came since begins at 0 and counts like any other."""
    recommender = Recommender(contents_of(model := popularity(), describe(model, "popularity")))
    recommender.add_bundles({"new": ["i"]})
    assert listed(recommender, "c") == {"y": 3, "w": 1, "x": 0, "z": 0, "new": 0}
    recommender.record_many([("a", "new"), ("stranger", "new"), ("b", "x")])
    assert listed(recommender, "c") == {"y": 3, "new": 2, "w": 1, "x": 1, "z": 0}
    assert recommender.audience("new", exclude_seen=False)[0].score == 2
    found = recommender.explain("c", "new")
    assert [(term.name, term.about, term.share) for term in found.terms] == [("popularity", "history", 2.0)]
    assert (found.score, found.history, found.items, found.youth) == (2, 2, 0, 0)
    with pytest.raises(ConfigError, match="no vectors, so there is nothing to compare"):
        recommender.similar_bundles("new")
