"""Knobs turned while serving, and what is told of the time before a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from service_client import linked_run, publish, started, with_client, without_id
from service_common import SMALL, RandomEmber, write_random_artifact

LIST = "/v1/recommendations/user-1?k=30"


async def listed(client: httpx.AsyncClient) -> dict[str, Any]:
    return without_id((await client.get(LIST)).json())


async def stands_at(client: httpx.AsyncClient) -> float:
    [knob] = (await client.get("/v1/catalogue")).json()["knobs"]
    return float(knob["value"])


def test_a_knob_is_turned_and_stays_so_after_a_reload_and_a_restart(tmp_path: Path) -> None:
    """A service had to be started anew for it."""
    run = tmp_path / "run"
    write_random_artifact(run, SMALL, model_class=RandomEmber)
    found: dict[str, Any] = {}

    async def turn(client: httpx.AsyncClient) -> None:
        await publish(client, "new", ["item-1", "item-2"])
        found["before"], found["began at"] = await listed(client), await stands_at(client)
        turned = await client.patch("/v1/knobs/welcome", json={"value": 0})
        assert (turned.status_code, turned.json()["value"]) == (200, 0)
        found["hidden"] = await listed(client)
        assert found["hidden"] != found["before"]
        assert not any(row["is_new"] for row in found["hidden"]["recommendations"])
        await client.post("/v1/interactions", json={"user_id": "user-1", "bundle_id": "bundle-7"})
        found["hidden"] = await listed(client)  # changes go on with the knob turned
        assert "bundle-7" not in {row["bundle_id"] for row in found["hidden"]["recommendations"]}
        assert (await client.post("/v1/models/reload")).status_code == 200
        assert await listed(client) == found["hidden"]

    async def look(client: httpx.AsyncClient) -> None:
        assert await stands_at(client) == 0
        assert await listed(client) == found["hidden"]
        assert (await client.get("/v1/columns")).json() == {"columns": [], "next": None}
        back = await client.patch("/v1/knobs/welcome", json={"value": None})
        assert back.json()["value"] == found["began at"] == await stands_at(client)
        for name, body, status in (
            ("welcome", {"value": -1}, 422),
            ("welcome", {"value": "much"}, 422),
            ("welcome", {}, 422),
            ("volume", {"value": 1}, 404),
        ):
            assert (await client.patch(f"/v1/knobs/{name}", json=body)).status_code == status

    with_client(run, turn)
    with_client(run, look)


def test_what_happened_before_a_restart_is_told_as_far_as_it_is_stored(tmp_path: Path) -> None:
    """It was kept in memory alone."""
    run = linked_run(tmp_path)

    async def write(client: httpx.AsyncClient) -> None:
        await publish(client, "a", ["item-1"])
        await publish(client, "b", ["item-1"])
        rows = [{"user_id": f"user-{n}", "bundle_id": "a"} for n in range(5)]
        await client.post("/v1/interactions", json={"interactions": rows})
        await client.patch("/v1/bundles/b", json={"title": "B"})
        await client.patch("/v1/items/item-3", json={"title": "Three"})
        await client.delete("/v1/bundles/bundle-2")
        assert (await client.post("/v1/models/reload")).status_code == 200

    with_client(run, write)

    async def go() -> None:
        async with started(run, tmp_path / "state") as client:
            await client.post("/v1/interactions", json={"user_id": "user-9", "bundle_id": "a"})
            model = (await client.get("/v1/models")).json()["fingerprint"]
            found = (await client.get("/v1/happened")).json()
            told = [
                (
                    one["event"],
                    one.get("kind"),
                    one.get("bundle_id") or one.get("item_id") or one.get("model") or one.get("rows"),
                )
                for one in found["events"]
            ]
            assert told == [
                ("write", "interaction", "a"),
                ("reload", None, model),
                ("write", "removal", "bundle-2"),
                ("write", "columns of item", "item-3"),
                ("write", "columns of bundle", "b"),
                ("write", "interaction", 5),
                ("write", "bundle", "b"),
                ("write", "bundle", "a"),
            ]
            assert all(one["time"] for one in found["events"])
            assert all(one["time"] < found["since"] for one in found["events"][1:])
            assert not any("user" in str(one) for one in found["events"])
            few = (await client.get("/v1/happened?limit=3")).json()["events"]
            assert few == found["events"][:3]

    asyncio.run(go())
