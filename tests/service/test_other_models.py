"""Models other than CoHeat: what there is is served, what a model cannot do is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import torch
from factorisation import factorisation
from service_client import with_client, without_id
from test_artifact import save

from coheat.data.split import Split
from coheat.errors import ArtifactError
from coheat.models import MODELS
from coheat.models.ember import Ember
from coheat.rng import Randomness
from coheat.service.app import create_app


def test_a_model_without_vectors_is_served_as_far_as_it_goes(planted: Split, tmp_path: Path) -> None:
    model = MODELS["dam"](planted.train, MODELS["dam"].Config.create({}), Randomness(0))
    save(tmp_path / "model", model, "dam")

    async def check(client: httpx.AsyncClient) -> None:
        found = (await client.get("/v1/recommendations/user-0-0?k=3")).json()
        assert found["source"] == "model"
        first = found["recommendations"][0]["bundle_id"]
        taken = {"user_id": "user-0-0", "bundle_id": first}
        assert (await client.post("/v1/interactions", json=taken)).status_code == 201
        again = (await client.get("/v1/recommendations/user-0-0?k=3")).json()["recommendations"]
        assert [row["bundle_id"] for row in again[:2]] == [
            row["bundle_id"] for row in found["recommendations"][1:]
        ]
        audience = (await client.get("/v1/bundles/bundle-0-0/audience?k=4")).json()["audience"]
        assert [row["rank"] for row in audience] == [1, 2, 3, 4]
        new = {"bundle_id": "new", "item_ids": ["item-0-0"]}
        for answer in (
            await client.post("/v1/bundles", json=new),
            await client.put("/v1/bundles/bundle-0-0", json={"item_ids": ["item-0-0"]}),
            await client.post("/v1/previews", json={"item_ids": ["item-0-0"]}),
            await client.get("/v1/bundles/bundle-0-0/similar"),
            await client.get("/v1/explanations?user_id=user-0-0&bundle_id=bundle-0-0"),
        ):
            assert answer.status_code == 422
            assert "in a way of its own, without vectors" in answer.json()["detail"]
        assert (await client.delete("/v1/bundles/bundle-0-0")).status_code == 204
        assert (await client.post("/v1/models/reload")).status_code == 200
        assert (await client.get("/v1/bundles/bundle-0-0")).status_code == 404
        assert (await client.get("/v1/statistics")).status_code == 200

    with_client(tmp_path / "model", check)


def test_a_model_with_an_overlap_is_served_whole(planted: Split, tmp_path: Path) -> None:
    config = MODELS["ember"].Config.create({"embedding_size": 8, "companion_size": 4})
    model = MODELS["ember"](planted.train, config, Randomness(0))
    assert isinstance(model, Ember)
    model.lines[:, 0] = 1.0  # a welcome that ends with the first taker
    save(tmp_path / "model", model, "ember")
    learned = [
        "history",
        "affiliation",
        "companions",
        "prospects",
        "overlap",
        "own items",
        "items of own bundles",
        "owned share",
    ]

    async def check(client: httpx.AsyncClient) -> None:
        items = ["item-0-0", "item-0-1"]
        preview = (await client.post("/v1/previews", json={"item_ids": items, "k": 5})).json()
        new = {"bundle_id": "new", "item_ids": items}
        assert (await client.post("/v1/bundles", json=new)).status_code == 201
        assert (await client.get("/v1/bundles/new/audience?k=5")).json()["audience"] == preview["audience"]
        for bundle, names in (
            ("new", [*learned, "welcome"]),
            ("bundle-1-0", learned),
        ):
            why = (await client.get(f"/v1/explanations?user_id=user-0-0&bundle_id={bundle}")).json()
            assert [term["name"] for term in why["terms"]] == names
            assert why["history"] + why["items"] + why["youth"] == pytest.approx(why["score"], abs=1e-6)
            assert (why["youth"] != 0) == (bundle == "new")
        taken = {"user_id": "guest", "bundle_id": "new"}
        recorded = await client.post("/v1/interactions", json=taken)
        assert recorded.json()["history_weight"] is None
        before = without_id((await client.get("/v1/recommendations/guest?k=5")).json())
        assert before["source"] == "folded-in"
        assert (await client.post("/v1/models/reload")).status_code == 200
        assert without_id((await client.get("/v1/recommendations/guest?k=5")).json()) == before

    with_client(tmp_path / "model", check)


def test_scores_that_are_no_numbers_are_not_served(planted: Split, tmp_path: Path) -> None:
    model = factorisation(planted.train)
    with torch.no_grad():
        model.bundles[-1] = float("nan")  # one bundle of many: it would never be listed
    save(tmp_path / "model", model)
    with pytest.raises(ArtifactError, match="not a finite number"):
        create_app(tmp_path / "model", tmp_path / "state")
