"""Bringing a model up to date: in any number of steps it comes to the same, and nothing written is lost."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_client import linked_run, publish, started, with_client
from test_artifact import save

from coheat.data.split import Split
from coheat.models import MODELS
from coheat.rng import Randomness
from coheat.service.served import LoadedModel, Outdated, load
from coheat.service.sqlite_store import SqliteStore
from coheat.service.store import KINDS, BundleChange, NewInteraction, Withdrawal

BUNDLES = st.sampled_from(["new", "newer", "bundle-1", "bundle-2"])
ITEMS = st.sampled_from([("item-1",), ("item-2", "moon"), ("moon",), ("item-3", "item-4")])
USERS = st.sampled_from(["user-1", "user-2", "stranger"])
STEP = st.one_of(
    st.tuples(st.just("put"), BUNDLES, ITEMS),
    st.tuples(st.just("remove"), BUNDLES),
    st.tuples(st.just("describe"), BUNDLES, st.sampled_from(["TEA", "MOONS", None])),
    st.tuples(st.just("record"), USERS, BUNDLES, st.sampled_from(KINDS), st.sampled_from(["", "list"])),
    st.tuples(st.just("withdraw"), USERS, BUNDLES, st.sampled_from(KINDS)),
    st.tuples(st.just("replay")),
)


def standing(model: LoadedModel) -> dict[str, Any]:
    """All that writes can change of a model, and that can be asked for."""
    recommender = model.recommender
    return {
        "bundles": {name: vars_of(recommender.bundle(name)) for name in sorted(recommender.bundle_ids)},
        "users": {
            user: sorted(recommender.user(user).recorded_ids) for user in ("user-1", "user-2", "stranger")
        },
        "scores": {
            row.bundle_id: round(row.score, 4)
            for row in recommender.recommend(["user-3"], k=100, exclude_seen=False, only_on_offer=False)
        },
        "unknown": model.unknown_items,
        "waiting": (model.waiting_bundles, +model.waiting_interactions),
        "sequence": model.sequence,
    }


def vars_of(info: Any) -> tuple[Any, ...]:
    return tuple(sorted(info.item_ids)), info.popularity, info.is_new, info.is_added, info.placed_by


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEP, max_size=25), served_by=st.sampled_from(["this", "another"]))
def test_in_steps_or_at_once_it_comes_to_the_same(steps: list[Any], served_by: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        run = linked_run(Path(place))
        store = SqliteStore(Path(place) / "store.sqlite")
        by_steps = load(run, 1)
        fingerprint = by_steps.fingerprint if served_by == "this" else "another"
        shelf = set(by_steps.recommender.bundle_ids)
        outdated = withdrawn = False
        for step in [*steps, ("replay",)]:
            if step[0] == "put":
                store.put_bundle(step[1], step[2], None if step[1] in shelf else fingerprint)
                shelf.add(step[1])
            elif step[0] == "remove":
                store.remove_bundle(step[1])
                shelf.discard(step[1])
            elif step[0] == "describe" and step[1] in shelf:
                store.put_columns("bundle", step[1], {"category": step[2]})
            elif step[0] == "record" and step[2] in shelf:
                store.add_interactions([NewInteraction(step[1], step[2], step[3], 1.0, step[4])])
            elif step[0] == "withdraw":
                withdrawn = bool(store.remove_interactions([Withdrawal(*step[1:])]).interactions) or withdrawn
            elif step[0] == "replay" and not outdated:
                try:
                    by_steps.replay(store)
                except Outdated:
                    outdated = True
        at_once = load(run, 1)
        at_once.replay(store)
        store.close()
        assert not outdated or served_by == "another" or withdrawn
        assert outdated or standing(by_steps) == standing(at_once)


def test_a_bundle_replaced_during_a_reload_keeps_who_took_it(tmp_path: Path) -> None:
    run = linked_run(tmp_path)

    class Interrupted(SqliteStore):
        """Pauses between two steps of a replay, as long as somebody wants to write."""

        reading, written = threading.Event(), threading.Event()

        def bundles(
            self, after: int = 0, until: int | None = None, limit: int | None = None
        ) -> Iterator[BundleChange]:
            yield from list(super().bundles(after, until, limit))
            if after == 0 and self.last_sequence() >= 6:
                self.reading.set()
                assert self.written.wait(30)

    async def go() -> None:
        store = Interrupted(tmp_path / "store.sqlite")
        async with started(run, tmp_path / "state", store=store) as client:
            await publish(client, "X", ["item-1"])
            for n in range(5):
                await client.post("/v1/interactions", json={"user_id": f"user-{n}", "bundle_id": "X"})
            reloading = asyncio.create_task(client.post("/v1/models/reload"))
            await asyncio.to_thread(store.reading.wait, 30)
            assert (await client.put("/v1/bundles/X", json={"item_ids": ["item-2"]})).status_code == 200
            store.written.set()
            assert (await reloading).status_code == 200
            found = (await client.get("/v1/bundles/X")).json()
            assert (found["popularity"], found["item_ids"]) == (5, ["item-2"])
            rows = (await client.get("/v1/recommendations/user-1?k=100")).json()["recommendations"]
            assert "X" not in {row["bundle_id"] for row in rows}

    asyncio.run(go())


def test_a_write_whose_fate_is_uncertain_is_seen_by_all_or_by_nobody(tmp_path: Path) -> None:
    run = linked_run(tmp_path)

    class Vanishing(SqliteStore):
        """Its file is removed between two moments: after a write was checked, and before it is written."""

        vanishes = False

        def _sum_up(self) -> None:
            super()._sum_up()
            if self.vanishes:
                os.link(self.path, tmp_path / "kept")
                self.path.unlink()

    async def go() -> None:
        store = Vanishing(tmp_path / "store.sqlite")
        async with started(run, tmp_path / "state", store=store) as client:
            await publish(client, "before", ["item-1"])
            store.vanishes = True
            refused = await publish(client, "uncertain", ["item-1"])
            assert (refused.status_code, "store.sqlite was removed" in refused.json()["detail"]) == (
                503,
                True,
            )
            store.vanishes = False
            assert (await publish(client, "during", ["item-1"])).status_code == 503
            assert (await client.get("/v1/bundles/uncertain")).status_code == 404
            (tmp_path / "kept").replace(store.path)
            assert (await publish(client, "after", ["item-1"])).status_code == 201
            there = [(await client.get(f"/v1/bundles/{name}")).status_code for name in names]
        assert there == [200, 200, 404, 200]
        async with started(run, tmp_path / "state", store=SqliteStore(tmp_path / "store.sqlite")) as client:
            assert [(await client.get(f"/v1/bundles/{name}")).status_code for name in names] == there

    names = ("before", "uncertain", "during", "after")
    asyncio.run(go())


def test_what_waits_can_be_withdrawn_or_finds_its_place_with_the_next_model(
    planted: Split, tmp_path: Path
) -> None:
    run = linked_run(tmp_path)
    dam = MODELS["dam"](planted.train, MODELS["dam"].Config.create({}), Randomness(0))
    save(tmp_path / "dam", dam, "dam")  # which cannot place any bundle that it was not trained with

    async def check(client: httpx.AsyncClient) -> None:
        able = run.resolve()
        for name in ("late", "later"):
            await publish(client, name, ["item-48"])
            await client.post("/v1/interactions", json={"user_id": "user-1", "bundle_id": name})
        relink(run, tmp_path / "dam")
        assert (await client.post("/v1/models/reload")).json()["waiting"] == 4
        found = await client.get("/v1/bundles/late")
        assert (found.status_code, "waits for a model" in found.json()["detail"]) == (404, True)
        again = await publish(client, "late", ["item-1"])
        assert (again.status_code, "waits" in again.json()["detail"]) == (409, True)
        assert (await client.delete("/v1/bundles/later")).status_code == 204
        assert (await client.delete("/v1/bundles/later")).status_code == 404
        assert (await client.get("/v1/models")).json()["waiting"] == 2
        relink(run, able)
        assert (await client.post("/v1/models/reload")).json()["waiting"] == 0

    async def look(client: httpx.AsyncClient) -> None:
        found = (await client.get("/v1/bundles/late")).json()
        assert (found["popularity"], found["item_ids"], found["placed_by"]) == (1, ["item-48"], None)
        assert (await client.get("/v1/bundles/later")).status_code == 404

    with_client(run, check)
    with_client(run, look)


def relink(run: Path, target: Path) -> None:
    run.unlink()
    run.symlink_to(target)


def test_a_bundle_of_unknown_items_has_one_place_at_once_after_a_reload_and_after_a_restart(
    tmp_path: Path,
) -> None:
    """It was refused, while the library placed it."""
    run = linked_run(tmp_path)
    lists: list[Any] = []

    async def asked(client: httpx.AsyncClient) -> None:
        found = (await client.get("/v1/recommendations/user-1?k=100&exclude_seen=false")).json()
        about = (await client.get("/v1/bundles/odd")).json()
        lists.append((found["recommendations"], found["note"], about))

    async def check(client: httpx.AsyncClient) -> None:
        made = await publish(client, "odd", ["moon", "sun"])
        assert made.status_code == 201
        assert made.json()["placed_by"] == "catalogue"
        assert (made.json()["item_ids"], made.json()["unknown_item_ids"]) == ([], ["moon", "sun"])
        await client.patch("/v1/bundles/bundle-3", json={"category": "TEA"})
        await client.patch("/v1/bundles/odd", json={"category": "TEA"})
        replaced = await client.put("/v1/bundles/bundle-5", json={"item_ids": ["mars"]})
        assert (replaced.status_code, replaced.json()["placed_by"]) == (200, "catalogue")
        await client.post("/v1/interactions", json={"user_id": "user-2", "bundle_id": "odd"})
        await asked(client)
        assert "'odd': the model knows none of its items, so it is placed like" in lists[0][1]
        one = {"user_id": "user-1", "k": 1, "candidates": ["bundle-3"], "exclude_seen": False}
        assert (await client.post("/v1/recommendations", json=one)).json()["note"] is None
        assert (await client.post("/v1/models/reload")).json()["waiting"] == 0
        await asked(client)
        audience = (await client.get("/v1/bundles/odd/audience?k=2")).json()
        assert "placed like an average" in audience["note"]
        preview = (await client.post("/v1/previews", json={"item_ids": ["moon"]})).json()
        assert "none of these items" in preview["note"]
        assert len(preview["audience"]) == 10

    with_client(run, check)
    with_client(run, asked)
    assert len(lists) == 3
    assert lists[0] == lists[1] == lists[2]
    assert lists[0][2]["popularity"] == 1


def test_it_answers_while_it_catches_up_and_says_that_it_is_not_ready(tmp_path: Path) -> None:
    run = linked_run(tmp_path)

    class Slow(SqliteStore):
        free = threading.Event()

        def bundles(
            self, after: int = 0, until: int | None = None, limit: int | None = None
        ) -> Iterator[BundleChange]:
            assert self.free.wait(30)
            return super().bundles(after, until, limit)

    async def go() -> None:
        from coheat.service.app import create_app

        store = Slow(tmp_path / "store.sqlite")
        app = create_app(run, tmp_path / "state", store)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            assert (await client.get("/health/live")).status_code == 200
            assert (await client.get("/health/ready")).status_code == 503
            early = await client.get("/v1/recommendations/user-1")
            assert (early.status_code, early.headers["retry-after"]) == (503, "1")
            assert "catching up" in early.json()["detail"]
            assert (await publish(client, "new", ["item-1"])).status_code == 503
            store.free.set()
            for _ in range(1000):
                if (await client.get("/health/ready")).status_code == 200:
                    break
                await asyncio.sleep(0.01)
            assert (await client.get("/v1/recommendations/user-1")).status_code == 200

    asyncio.run(go())


@pytest.mark.parametrize("count", [0, 1])
def test_a_large_history_is_replayed_bundle_by_bundle(tmp_path: Path, count: int) -> None:
    run = linked_run(tmp_path)
    store = SqliteStore(tmp_path / "store.sqlite")
    users = [f"u{n}" for n in range(30 * count)]
    for user in users:
        for bundle in ("bundle-1", "nowhere", "bundle-2"):
            store.add_interactions([NewInteraction(user, bundle)])
    model = load(run, 1)
    before = model.recommender.bundle("bundle-1").popularity
    model.replay(store)
    store.close()
    assert model.recommender.bundle("bundle-1").popularity == before + len(users)
    assert model.waiting == model.waiting_interactions["nowhere"] == len(users)
