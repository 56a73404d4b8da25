"""The OpenAPI document is true: a client made from it alone does everything, and every answer fits it."""

from __future__ import annotations

from pathlib import Path

import httpx
from openapi_client import Client
from service_client import linked_run, with_client


def test_a_client_made_from_the_document_does_everything(tmp_path: Path) -> None:
    async def check(transport: httpx.AsyncClient) -> None:
        client = Client((await transport.get("/openapi.json")).json(), transport)
        new = {"bundle_id": "X", "item_ids": ["item-1", "moon"], "columns": {"title": "Ten", "price": 5}}
        await client.create_bundle(new)
        assert (await client.create_bundle(new))["status"] == 409
        await client.describe_bundle({"available": True}, bundle_id="X")
        await client.describe_item({"title": "Tent"}, item_id="item-1")
        assert (await client.item(item_id="item-1"))["columns"] == {"title": "Tent"}
        await client.replace_bundle({"item_ids": ["item-1"]}, bundle_id="X")
        await client.bundle(bundle_id="X")
        await client.audience(bundle_id="X", k=3)
        await client.similar(bundle_id="X", k=3)
        await client.preview({"item_ids": ["item-2"], "k": 2})
        await client.bundles(query="X")
        await client.bundles(after=0, limit=5)
        found = await client.recommendations(user_id="user-1", k=3, fields="title")
        assert set(found["recommendations"][0]["fields"]) == {"title"}
        asked = {"user_id": "user-1", "k": 3, "where": {"price": {"at_most": 9}}, "rules": {"diverse": True}}
        found = await client.recommendations_by_belongings({**asked, "fields": ["title"]})
        assert [row["bundle_id"] for row in found["recommendations"]] == ["X"]
        row = {"user_id": "user-1", "bundle_id": "X", "recommendation_id": found["recommendation_id"]}
        await client.record(row)
        await client.record(
            {"interactions": [{**row, "kind": kind} for kind in ("shown", "clicked", "took")]}
        )
        await client.interactions(after=0, limit=2, kind="shown")
        await client.columns()
        await client.search(q="ten")
        await client.explanation(user_id="user-1", bundle_id="X")
        await client.users(query="user")
        await client.user(user_id="user-1")
        await client.items()
        await client.model()
        await client.catalogue()
        await client.descriptions({"bundle_ids": ["X"], "item_ids": ["item-1"]})
        await client.standing(bundle_id="X")
        assert (await client.knob(name="welcome", value=2))["status"] == 404  # this model has none
        assert (await client.turn({"value": 2}, name="welcome"))["status"] == 404
        await client.parts()
        await client.happened(limit=5)
        [side] = (await client.statistics())["sides"]
        assert (side["lists"], side["shown"], side["took"]) == (1, 1, 1)
        assert (await client.withdraw({"interactions": [row]}))["withdrawn"] == 1
        await client.withdraw(user_id="user-1", bundle_id="X", kind="shown")
        await client.reload_model()
        await client.remove_bundle(bundle_id="X")
        assert (await client.bundle(bundle_id="X"))["status"] == 404
        assert (await client.recommendations(user_id="user-1", k=0))["status"] == 422
        assert client.statuses.keys() == client.operations, client.operations - client.statuses.keys()

    with_client(linked_run(tmp_path), check)
