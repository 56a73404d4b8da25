"""A second kind of overlap costs one entry in one table: scored, explained, saved, loaded and served."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from by_hand import recommender_of, relations

from coheat.batch import recommend_all
from coheat.recommender import Recommender
from coheat.served import Curve, Overlap, Served
from coheat.served import overlap as overlap_module
from coheat.served.ranking import Floats

sys.path.insert(0, str(Path(__file__).parents[1] / "service"))

from service_client import with_client


def saturating(shared: Floats) -> Floats:
    """o / (1 + o): the first item in common says most."""
    return shared / (1 + shared)


USER_BUNDLE = [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
USER_ITEM = [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]]
BUNDLE_ITEM = [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


@pytest.fixture
def recommender(monkeypatch: pytest.MonkeyPatch) -> Recommender:
    monkeypatch.setitem(overlap_module.KINDS, "saturating", saturating)
    overlap = Overlap("in common", "saturating", Curve.through([0, 2], [2, 4]), taken_exponent=1.0)
    return recommender_of(Served.create(relations(USER_BUNDLE, USER_ITEM, BUNDLE_ITEM), overlaps=(overlap,)))


def slow_score(user: int, items: list[int], taken: int) -> float:
    """One pair, by loops: an item counts 1 where the user has it, 1 / |c| for each bundle c that holds it."""
    shared = 0.0
    for item in items:
        shared += USER_ITEM[user][item]
        for bundle, held in enumerate(BUNDLE_ITEM):
            shared += USER_BUNDLE[user][bundle] * held[item] / sum(held)
    return (2 + min(taken, 2)) * shared / (1 + shared)


def expected(user: int) -> dict[str, float]:
    counts = np.sum(USER_BUNDLE, axis=0)
    return {
        f"b{bundle}": slow_score(user, np.flatnonzero(held).tolist(), int(counts[bundle]))
        for bundle, held in enumerate(BUNDLE_ITEM)
    }


def scores(recommender: Recommender, user: str) -> dict[str, float]:
    return {row.bundle_id: row.score for row in recommender.recommend([user], 9, exclude_seen=False)}


def test_it_scores(recommender: Recommender) -> None:
    for user in range(3):
        assert scores(recommender, f"u{user}") == pytest.approx(expected(user), abs=1e-6)
    audience = {row.user_id: row.score for row in recommender.audience("b1", exclude_seen=False)}
    assert audience == pytest.approx({f"u{user}": expected(user)["b1"] for user in range(3)}, abs=1e-6)
    recommender.add_bundles({"new": ["i0", "i3"]})
    assert scores(recommender, "u0")["new"] == pytest.approx(slow_score(0, [0, 3], 0), abs=1e-6)


def test_it_explains_itself(recommender: Recommender) -> None:
    for user in range(3):
        for bundle, score in expected(user).items():
            found = recommender.explain(f"u{user}", bundle)
            assert found.score == pytest.approx(score, abs=1e-6)
            assert [(term.name, term.share) for term in found.terms] == [("in common", found.score)]
            assert sum(part.share for part in found.bundle_items) == pytest.approx(score, abs=1e-6)
            own = sum(part.share for part in found.user_items)
            own += sum(part.share for part in found.user_bundles)
            assert own == pytest.approx(score, abs=1e-6)
            assert found.own == pytest.approx(0, abs=1e-6)


def test_it_is_saved_loaded_and_served(recommender: Recommender, tmp_path: Path) -> None:
    recommender.add_bundles({"new": ["i0", "i3"]})
    recommender.save(tmp_path / "shop")
    again = Recommender.load(tmp_path / "shop")
    assert scores(again, "u0") == scores(recommender, "u0")
    assert again.explain("u0", "new") == recommender.explain("u0", "new")
    assert recommend_all(again, tmp_path / "lists", 2).rows == 6

    async def check(client: httpx.AsyncClient) -> None:
        found = (await client.get("/v1/recommendations/u2?k=4")).json()["recommendations"]
        served = {row["bundle_id"]: row["score"] for row in found}
        assert served == pytest.approx(scores(recommender, "u2"), abs=1e-6)
        why = (await client.get("/v1/explanations?user_id=u0&bundle_id=new")).json()
        assert [term["name"] for term in why["terms"]] == ["in common"]

    with_client(tmp_path / "shop", check)
