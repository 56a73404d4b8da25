"""Interactions over HTTP: kinds and times, one or many, taken back, paged through; live as replayed."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_client import linked_run, publish, started, with_client
from service_common import Size, write_random_artifact

from coheat.errors import CoheatError
from coheat.recommender import Recommender
from coheat.service.metrics import Metrics
from coheat.service.served import LoadedModel, load
from coheat.service.sides import Side
from coheat.service.sqlite_reader import records_of
from coheat.service.sqlite_store import SqliteStore
from coheat.service.state import State
from coheat.service.store import KINDS, UNKNOWN, Appended, NewInteraction, Origin, Withdrawal

NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return linked_run(tmp_path)


async def recorded(client: httpx.AsyncClient, **parameters: Any) -> list[dict[str, Any]]:
    """All pages of what was recorded."""
    rows: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = (
            await client.get("/v1/interactions", params={"after": after, "limit": 2, **parameters})
        ).json()
        assert len(page["interactions"]) <= 2
        rows += page["interactions"]
        after = page["next"]
    return rows


def test_times_and_kinds_come_back_and_only_taking_counts(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        await publish(client, "X", ["item-1"])
        for kind, timestamp, counted in (
            ("shown", "2024-05-01T14:00:00+02:00", False),
            ("clicked", 1714564801.25, False),
            ("took", "2024-05-01", True),
        ):
            row = {"user_id": "user-1", "bundle_id": "X", "kind": kind, "timestamp": timestamp}
            answer = await client.post("/v1/interactions", json={**row, "recommendation_id": "a-1"})
            assert (answer.status_code, answer.json()["counted"]) == (201, counted)
            assert (await client.post("/v1/interactions", json={**row, "recommendation_id": "a-1"})).json()[
                "popularity"
            ] == int(counted)
            shelf = (await client.get("/v1/recommendations/user-1?k=100")).json()["recommendations"]
            assert ("X" in {one["bundle_id"] for one in shelf}) is not counted
        rows = await recorded(client)
        assert [(row["kind"], row["timestamp"]) for row in rows] == [
            ("shown", "2024-05-01T12:00:00Z"),
            ("clicked", "2024-05-01T12:00:01.250Z"),
            ("took", "2024-05-01T00:00:00Z"),
        ]
        assert {(row["user_id"], row["bundle_id"], row["recommendation_id"]) for row in rows} == {
            ("user-1", "X", "a-1")
        }
        assert [row["kind"] for row in await recorded(client, kind="clicked")] == ["clicked"]
        again = {"user_id": "user-1", "bundle_id": "X", "recommendation_id": "a-1"}
        for kind in ("shown", "took"):  # later: a showing takes the later time, a taking stays
            sent = {**again, "kind": kind, "timestamp": 1750000000}
            assert (await client.post("/v1/interactions", json=sent)).status_code == 200
        assert [row["timestamp"][:4] for row in await recorded(client)] == ["2025", "2024", "2024"]

    with_client(run, check)


def test_without_a_time_it_is_the_servers(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        await client.post("/v1/interactions", json={"user_id": "u", "bundle_id": "bundle-1"})
        [row] = await recorded(client)
        assert (row["kind"], row["recommendation_id"]) == ("took", None)
        with records_of(run.parent / "state") as records:  # while the service runs
            [stored] = records.interactions()
        assert abs(time.time() - stored.timestamp) < 60

    with_client(run, check)


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_many_are_recorded_at_once_or_not_at_all(run: Path, form: str) -> None:
    rows = [
        {"user_id": f"u{n}", "bundle_id": f"bundle-{n % 7}", "timestamp": 1_700_000_000 + n, "kind": kind}
        for n in range(300)
        for kind in ("shown", "took")
    ]

    async def send(client: httpx.AsyncClient, sent: list[dict[str, Any]]) -> httpx.Response:
        if form == "json":
            return await client.post("/v1/interactions", json={"interactions": sent})
        text = "\n".join(json.dumps(row) for row in sent)
        return await client.post("/v1/interactions", content=text + "\n\n", headers=NDJSON)

    async def check(client: httpx.AsyncClient) -> None:
        before = (await client.get("/v1/bundles/bundle-3")).json()["popularity"]
        for place, wrong, said in (
            (17, {"bundle_id": "nothing"}, "unknown bundle id 'nothing'"),
            (299, {"kind": "bought"}, "kind: "),
            (5, {"timestamp": 1714564801250}, "seconds, not milliseconds"),
            (0, {"timestamp": "yesterday"}, "ISO 8601"),
            (3, {"timestamp": int(time.time()) + 3 * 86_400}, "in the future"),
            (8, {"colour": "red"}, "colour: "),
            (8, {"user_id": 7}, "user_id: "),
        ):
            bad = [*rows[:place], {**rows[place], **wrong}, *rows[place + 1 :]]
            refused = await send(client, bad)
            assert (refused.status_code, said in refused.json()["detail"]) == (422, True), refused.text
            place_said = f"interactions.{place}" if form == "json" else f" {place + 1}"
            assert place_said in refused.json()["detail"]
            assert await recorded(client) == []
            assert (await client.get("/v1/bundles/bundle-3")).json()["popularity"] == before
        done = await send(client, [*rows, rows[0]])
        assert done.status_code == 201
        assert done.json() == {"received": 601, "recorded": 600, "counted": 300}
        assert (await client.get("/v1/bundles/bundle-3")).json()["popularity"] == before + 43
        again = await send(client, rows)
        assert (again.status_code, again.json()["recorded"]) == (200, 0)
        page = (await client.get("/v1/interactions?limit=10000")).json()
        assert page["next"] is None
        keys = ("user_id", "bundle_id", "kind")
        assert [[row[key] for key in keys] for row in page["interactions"]] == [
            [row[key] for key in keys] for row in rows
        ]

    with_client(run, check)


def test_bodies_that_are_no_interactions_are_refused_in_a_sentence(run: Path) -> None:
    row = {"user_id": "u", "bundle_id": "bundle-1"}

    async def check(client: httpx.AsyncClient) -> None:
        many = [{**row, "user_id": f"u{n}"} for n in range(10_001)]
        lines = "\n".join(json.dumps(one) for one in many)
        for content, headers, said in (
            (b"{", {}, "not JSON"),
            (b"[" * 100_000, {}, "not JSON"),
            (b"[]", {}, "body: "),
            (b'{"interactions": []}', {}, "body.interactions: "),
            (json.dumps({"interactions": many}).encode(), {}, "at most 10000"),
            (b'{"user_id": "\\ud800", "bundle_id": "bundle-1"}', {}, "not JSON"),
            (b"", NDJSON, "0 lines"),
            (b"\n{}", NDJSON, "line 2.user_id: "),
            (b'{"user_id": "u", "bundle_id": "bundle-1"}\nx', NDJSON, "line 2: this is not JSON"),
            (lines.encode(), NDJSON, "10001 lines"),
        ):
            answer = await client.post("/v1/interactions", content=content, headers=headers)
            assert (answer.status_code, said in answer.json()["detail"]) == (422, True), answer.text
        most = await client.post("/v1/interactions", json={"interactions": many[:-1]})
        assert most.json() == {"received": 10_000, "recorded": 10_000, "counted": 10_000}

    with_client(run, check)


def test_what_was_recorded_can_be_withdrawn(run: Path) -> None:
    library = Recommender.load(run)

    async def check(client: httpx.AsyncClient) -> None:
        await publish(client, "X", ["item-1", "item-2"])
        before = [(await client.get(path)).json() for path in ("/v1/bundles/X", "/v1/bundles/X/audience")]
        row = {"user_id": "user-1", "bundle_id": "X"}
        for more in ({}, {"recommendation_id": "b-1"}, {"kind": "shown"}):
            await client.post("/v1/interactions", json={**row, **more})

        async def withdraw(body: Any, **parameters: Any) -> Any:
            answer = await client.request("DELETE", "/v1/interactions", json=body, params=parameters)
            assert answer.status_code == 200, answer.text
            return answer.json()["withdrawn"]

        assert await withdraw({**row, "recommendation_id": "b-1"}) == 1
        # Taken once more, so it still is.
        assert (await client.get("/v1/bundles/X")).json()["popularity"] == 1
        assert await withdraw({"interactions": [row, {"user_id": "nobody", "bundle_id": "X"}]}) == 1
        after = [(await client.get(path)).json() for path in ("/v1/bundles/X", "/v1/bundles/X/audience")]
        assert after == before
        shelf = (await client.get("/v1/recommendations/user-1?k=100")).json()["recommendations"]
        assert "X" in {one["bundle_id"] for one in shelf}
        assert [one["kind"] for one in await recorded(client)] == ["shown"]
        await client.post("/v1/interactions", json=row)
        gone = await client.delete("/v1/interactions", params=row)
        assert gone.json() == {"withdrawn": 2}
        assert (await client.delete("/v1/interactions", params=row)).json() == {"withdrawn": 0}
        taken = library.user("user-2").bundle_ids[0]
        trained = {"user_id": "user-2", "bundle_id": taken}
        await client.post("/v1/interactions", json=trained)  # known from training, and that stays
        popularity = (await client.get(f"/v1/bundles/{taken}")).json()["popularity"]
        assert await withdraw(trained) == 1
        assert (await client.get(f"/v1/bundles/{taken}")).json()["popularity"] == popularity
        for refused in ({"user_id": "user-1"}, {"bundle_id": "X"}, {"kind": "took"}):
            assert (await client.delete("/v1/interactions", params=refused)).status_code == 422
        assert (await client.request("DELETE", "/v1/interactions", json=row, params=row)).status_code == 422
        assert (await client.delete("/v1/interactions")).status_code == 422

    with_client(run, check)


def test_a_withdrawal_during_a_reload_is_not_forgotten(tmp_path: Path) -> None:
    run = linked_run(tmp_path)

    async def check(client: httpx.AsyncClient) -> None:
        row = {"user_id": "user-1", "bundle_id": "X"}
        await publish(client, "X", ["item-1"])
        for _ in range(5):
            await client.post("/v1/interactions", json=row)
            reloading = asyncio.create_task(client.post("/v1/models/reload"))
            await asyncio.sleep(0.01)
            await client.delete("/v1/interactions", params=row)
            assert (await reloading).status_code == 200
            assert (await client.get("/v1/bundles/X")).json()["popularity"] == 0

    with_client(run, check)


def test_the_service_says_what_counts(tmp_path: Path) -> None:
    run = linked_run(tmp_path)

    async def check() -> None:
        for _ in range(2):  # the second time from the store
            async with started(run, tmp_path / "state", positive=frozenset({"clicked", "took"})) as client:
                for n, kind in enumerate(KINDS):
                    row = {"user_id": f"u{n}", "bundle_id": "bundle-1", "kind": kind}
                    await client.post("/v1/interactions", json=row)
                found = (await client.get("/v1/bundles/bundle-1")).json()["popularity"]
                assert found == Recommender.load(run).bundle("bundle-1").popularity + 2

    asyncio.run(check())


def test_published_bundles_are_paged_through(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        for name in ("a", "b", "c"):
            await publish(client, name, ["item-1", "moon"])
        await client.put("/v1/bundles/bundle-3", json={"item_ids": ["item-9"]})
        await client.put("/v1/bundles/a", json={"item_ids": ["item-2"]})
        await client.delete("/v1/bundles/b")
        rows: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            page = (await client.get(f"/v1/bundles?after={after}&limit=3")).json()
            rows += page["bundles"]
            after = page["next"]
        assert [(row["bundle_id"], row["item_ids"]) for row in rows] == [
            ("c", ["item-1", "moon"]),
            ("bundle-3", ["item-9"]),
            ("a", ["item-2"]),
            ("b", None),
        ]
        assert [row["sequence"] for row in rows] == [3, 4, 5, 6]
        assert [row["published_at"] is None for row in rows] == [False, True, False, True]
        for wrong in ("after=0&query=x", "after=0&offset=1", "limit=101", "after=-1", "after=0&limit=10001"):
            assert (await client.get(f"/v1/bundles?{wrong}")).status_code == 422

    with_client(run, check)


# --- live as replayed ---------------------------------------------------------------------------

BUNDLES = st.sampled_from(["new", "newer", "bundle-1", "bundle-39"])
ITEMS = st.sampled_from([("item-1",), ("item-2", "moon"), ("item-3", "item-47"), ("item-48",)])
USERS = st.sampled_from(["user-1", "stranger"])
ROW = st.builds(
    NewInteraction, USERS, BUNDLES, st.sampled_from(KINDS), st.none(), st.sampled_from(["", "list"])
)
COLUMNS = st.sampled_from([{"price": 1.0}, {"price": None, "title": "x"}, {"available": False}])
STEP = st.one_of(
    st.tuples(st.just("put"), BUNDLES, ITEMS),
    st.tuples(st.just("remove"), BUNDLES),
    st.tuples(st.just("record"), st.lists(ROW, min_size=1, max_size=4)),
    st.tuples(st.just("withdraw"), st.builds(Withdrawal, USERS, BUNDLES, st.none() | st.sampled_from(KINDS))),
    st.tuples(st.just("describe"), BUNDLES, COLUMNS),
    st.tuples(st.just("describe item"), st.sampled_from(["item-1", "item-47"]), COLUMNS),
    st.tuples(st.just("reload")),
)


def known(values: dict[str, Any]) -> dict[str, Any]:
    """Without what is not known: whether a column that nobody has a value in is there may differ."""
    return {name: value for name, value in values.items() if value is not None}


def standing(loaded: LoadedModel) -> dict[str, Any]:
    """All that writes can change, and that can be asked for."""
    recommender = loaded.recommender
    names = sorted(recommender.bundle_ids)
    infos = {name: recommender.bundle(name) for name in names}
    scores = recommender.recommend(["user-1", "user-3"], 100, exclude_seen=False, only_on_offer=False)
    return {
        "bundles": {
            name: (sorted(one.item_ids), one.popularity, one.is_new, one.is_added)
            for name, one in infos.items()
        },
        "columns": {name: known(recommender.fields_of(name)) for name in names},
        "item columns": known(recommender.item_fields("item-1")),
        "users": {
            user: sorted(recommender.user(user).recorded_ids) for user in ("user-1", "user-2", "stranger")
        },
        "scores": {(row.user_id, row.bundle_id): pytest.approx(row.score, abs=1e-5) for row in scores},
        "unknown": loaded.unknown_items,
        "waiting": (loaded.waiting_bundles, +loaded.waiting_interactions),
        "sequence": loaded.sequence,
    }


@cache
def smaller_model() -> Path:
    """One that does not know the last items, nor all of the bundles."""
    place = tempfile.mkdtemp(prefix="coheat-smaller-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    write_random_artifact(Path(place) / "model", Size(60, 38, 45, 8, 3, 5, 3), seed=1)
    return Path(place) / "model"


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(STEP, max_size=15))
def test_models_that_followed_are_as_those_that_replayed(steps: list[Any]) -> None:
    async def go(place: Path) -> None:
        sides = Side("a", smaller_model(), 0.5), Side("b", linked_run(place), 0.5)
        state = State(sides, SqliteStore(place / "store.sqlite"), Metrics())
        await state.start()
        does: dict[str, Callable[..., Coroutine[Any, Any, object]]]
        does = {"put": state.replace_bundle, "remove": state.remove_bundle, "record": state.record,
                "withdraw": lambda one: state.withdraw([one]), "reload": state.reload,
                "describe": state.describe_bundle, "describe item": state.describe_item}  # fmt: skip
        try:
            for name, *arguments in steps:
                with contextlib.suppress(CoheatError):
                    await does[name](*arguments)
            for side in sides:
                replayed = load(side.run, 1)
                replayed.replay(state.store)
                followed = state.models[side.name]
                followed.reached(replayed.sequence)
                assert standing(replayed) == standing(followed)
        finally:
            state.close()

    with tempfile.TemporaryDirectory() as place:
        asyncio.run(go(Path(place)))


def test_what_comes_while_another_is_written_is_written_together(tmp_path: Path) -> None:
    class Slow(SqliteStore):
        sizes: ClassVar[list[int]] = []

        def add_interactions(
            self, interactions: Sequence[NewInteraction], origin: Origin = UNKNOWN
        ) -> Appended:
            self.sizes.append(len(interactions))
            time.sleep(0.05)
            return super().add_interactions(interactions, origin)

    async def go() -> None:
        store = Slow(tmp_path / "store.sqlite")
        async with started(linked_run(tmp_path), tmp_path / "state", store=store) as client:
            before = (await client.get("/v1/bundles/bundle-1")).json()["popularity"]
            bodies = [{"user_id": f"u{n % 15}", "bundle_id": "bundle-1"} for n in range(20)]
            bodies.append({"user_id": "u1", "bundle_id": "nowhere"})
            told = await asyncio.gather(*(client.post("/v1/interactions", json=body) for body in bodies))
            assert sorted(answer.status_code for answer in told) == [200] * 5 + [201] * 15 + [404]
            assert sum(answer.json().get("counted", False) for answer in told) == 15
            assert {answer.headers.get("Coheat-Sequence") is None for answer in told[:20]} == {False}
            after = (await client.get("/v1/bundles/bundle-1")).json()["popularity"]
            assert after == before + 15
        assert sum(store.sizes) == 20
        assert len(store.sizes) <= 4

    asyncio.run(go())
