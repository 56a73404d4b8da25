"""Several services on one database: what one is told all know, whatever ends meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from postgres import database, needs_postgres, server
from postgres_server import PASSWORD, QUOTED
from quick_python import quick
from service_client import linked_run, publish, started, without_id
from service_history import History
from service_replicas import Shop, killed, race
from test_replay import standing

from coheat.errors import CoheatError
from coheat.service.keys import KeyRing
from coheat.service.metrics import Metrics
from coheat.service.opening import keys_of
from coheat.service.places import shown
from coheat.service.postgres_format import KEPT_CHANGES
from coheat.service.postgres_store import PostgresStore
from coheat.service.served import load
from coheat.service.sqlite_store import SqliteStore
from coheat.service.state import State
from coheat.service.store import Missed, NewInteraction, Store, StoreError, Withdrawal

pytestmark = needs_postgres
START = "from coheat.cli import main; main()"
Two = tuple[httpx.AsyncClient, httpx.AsyncClient]


@contextlib.asynccontextmanager
async def two(run: Path, address: str) -> AsyncIterator[Two]:
    """Two replicas in this process, each with connections of its own."""
    async with started(run, address) as one, started(run, address) as other:
        yield one, other


async def got(client: httpx.AsyncClient, path: str, written: httpx.Response) -> httpx.Response:
    """Asked so that a write is seen; again as long as it has not arrived (the machine may be busy)."""
    headers = {"Coheat-Sequence": written.headers["Coheat-Sequence"]}
    for _ in range(30):
        found = await client.get(path, headers=headers)
        if found.status_code != 503:
            break
    return found


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = [quick("coheat"), *words]
    found = subprocess.run(
        done, capture_output=True, text=True, timeout=240, env={**os.environ, **environment}
    )
    assert "Traceback" not in found.stderr, found.stderr
    assert PASSWORD not in found.stdout + found.stderr
    assert QUOTED not in found.stdout + found.stderr
    return found


def test_what_one_is_told_the_other_knows(tmp_path: Path) -> None:
    run, address = linked_run(tmp_path), database()

    async def go() -> None:
        async with two(run, address) as (one, other):
            made = await publish(one, "new", ["item-1", "item-2"])
            assert (await got(other, "/v1/bundles/new", made)).json() == made.json()
            taken = await other.post("/v1/interactions", json={"user_id": "user-1", "bundle_id": "new"})
            assert (taken.status_code, taken.json()["popularity"]) == (201, 1)
            again = await one.post("/v1/interactions", json={"user_id": "user-1", "bundle_id": "new"})
            assert (again.status_code, again.json()["popularity"]) == (200, 1)
            lists = [await got(each, "/v1/recommendations/user-1?k=60", taken) for each in (one, other)]
            assert without_id(lists[0].json()) == without_id(lists[1].json())
            assert "new" not in {row["bundle_id"] for row in lists[0].json()["recommendations"]}
            await other.patch("/v1/bundles/new", json={"title": "Feast", "available": False})
            stale = await one.put(
                "/v1/bundles/new", json={"item_ids": ["item-3"]}, headers={"If-Match": made.headers["ETag"]}
            )
            assert stale.status_code == 412  # although the first may not have followed the second yet
            withdrawn = await one.delete("/v1/interactions?user_id=user-1&bundle_id=new")
            assert withdrawn.json() == {"withdrawn": 1}
            gone = await one.delete("/v1/bundles/new")
            assert gone.status_code == 204
            assert (await got(other, "/v1/bundles/new", gone)).status_code == 404
            later = {"Coheat-Sequence": "1000000"}
            refused = await other.get("/v1/recommendations/user-1", headers=later)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert "has not arrived" in refused.json()["detail"]
            wrong = await other.get("/v1/recommendations/user-1", headers={"Coheat-Sequence": "x"})
            assert wrong.status_code == 422

    asyncio.run(go())


def test_of_two_who_publish_one_bundle_one_is_refused(tmp_path: Path) -> None:
    run, address = linked_run(tmp_path), database()

    async def go() -> None:
        async with two(run, address) as both:
            for number in range(20):
                told = await asyncio.gather(*(publish(one, f"b{number}", ["item-1"]) for one in both))
                assert sorted(answer.status_code for answer in told) == [201, 409]
            told = await asyncio.gather(
                *(one.delete("/v1/bundles/b1") for one in both),
                *(one.delete("/v1/bundles/b2") for one in both),
            )
            assert sorted(answer.status_code for answer in told) == [204, 204, 404, 404]

    asyncio.run(go())


def test_replicas_that_followed_are_as_one_that_replayed(tmp_path: Path) -> None:
    run, address, rng = linked_run(tmp_path), database(), random.Random(1)
    bundles, users = ["new", "newer", "bundle-1", "bundle-2"], ["user-1", "user-2", "stranger"]

    def step(state: State) -> Coroutine[Any, Any, object]:
        name, user = rng.choice(bundles), rng.choice(users)
        steps: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: state.replace_bundle(name, [f"item-{rng.randrange(9)}", "moon"]),
            lambda: state.create_bundle(name, ["item-7"], None, {"title": "x", "price": 1.5}),
            lambda: state.remove_bundle(name),
            lambda: state.record([NewInteraction(user, name), NewInteraction(user, "bundle-3", "shown")]),
            lambda: state.withdraw([Withdrawal(user, name)]),
            lambda: state.describe_bundle(name, {"title": user}),
        ]
        return rng.choice(steps)()

    async def go() -> None:
        states = [State(run, PostgresStore(address), Metrics()) for _ in range(2)]
        try:
            for state in states:
                await state.start()
            for _ in range(60):
                both = [step(state) for state in states]
                for found in await asyncio.gather(*both, return_exceptions=True):
                    assert not isinstance(found, Exception) or isinstance(found, CoheatError), found
                    assert not isinstance(found, StoreError), found
            latest = states[0].store.last_sequence()
            assert latest > 30
            assert [await state.follower.reach(latest) for state in states] == [True, True]
            replayed = load(run, 1)
            replayed.replay(states[0].store)
            assert standing(replayed) == standing(states[0].served) == standing(states[1].served)
            assert all(state.served.generation == 1 for state in states)
        finally:
            for state in states:
                await state.follower.stop_watching()
                state.close()

    asyncio.run(go())


@pytest.mark.parametrize("how", ["stopped", "hanging"])
def test_while_the_database_is_away_lists_go_on_and_nothing_is_lost(tmp_path: Path, how: str) -> None:
    run, address, postgres = linked_run(tmp_path), database(), server()

    async def settled(client: httpx.AsyncClient, wanted: int) -> httpx.Response:
        ends = time.monotonic() + 240
        while (found := await client.get("/health/ready")).status_code != wanted:
            assert time.monotonic() < ends, found.json()
            await asyncio.sleep(0.05)
        return found

    async def go() -> None:
        async with two(run, address) as both:
            await publish(both[0], "before", ["item-1"])
            postgres.stop() if how == "stopped" else postgres.pause()
            first = asyncio.create_task(publish(both[0], "uncertain", ["item-1"]))
            ready = await settled(both[0], 503)
            assert "database" in ready.json()["store"] or "answer" in ready.json()["store"]
            for client in both:
                assert (await client.get("/v1/recommendations/user-1")).status_code == 200
            begun = time.monotonic()
            refused = await asyncio.gather(*(publish(both[0], f"r{n}", ["item-1"]) for n in range(20)))
            assert {answer.status_code for answer in refused} == {503}
            assert {"nothing was changed" in answer.json()["detail"] for answer in refused} == {True}
            assert time.monotonic() - begun < 40  # one after the other it would be a minute
            assert PASSWORD not in refused[0].text
            postgres.start() if how == "stopped" else postgres.pause(stopped=False)
            # Asked when nobody knew that it is away: refused, or answered in the end.
            assert (await first).status_code in ({503} if how == "stopped" else {201, 503})
            for client in both:
                await settled(client, 200)
            made = await publish(both[1], "after", ["item-1"])
            assert made.status_code == 201
            for client in both:
                there = [
                    (await got(client, f"/v1/bundles/{name}", made)).status_code
                    for name in ("before", "after", "r0", "r19")
                ]
                assert there == [200, 200, 404, 404]

    try:
        asyncio.run(go())
    finally:
        postgres.pause(stopped=False)
        if postgres.process.poll() is not None:
            postgres.start()


def test_where_whoever_waits_is_not_answered_nobody_else_asks() -> None:
    """A read may take minutes, and that of somebody who writes would then hold up all others."""
    store, postgres = PostgresStore(database()), server()
    assert store.wait(0, 0) == 0
    postgres.pause()
    ends: list[float] = []

    def read() -> None:
        with pytest.raises(StoreError):
            store.changes(0)
        ends.append(time.monotonic())

    reading = threading.Thread(target=read)
    reading.start()
    try:
        with pytest.raises(StoreError, match="the connection was lost"):
            store.wait(0, 0)
        begun = time.monotonic()
        for question in (
            store.check_reachable,
            store.last_sequence,
            lambda: store.put_bundle("b", ["i"], "m"),
        ):
            with pytest.raises(StoreError, match="the connection was lost"):
                question()
        assert time.monotonic() - begun < 2
        reading.join(60)
        assert ends, "what waits already is not left waiting"
    finally:
        postgres.pause(stopped=False)
        reading.join()
    assert store.wait(0, 0) == 0
    store.put_bundle("b", ["i"], "m")
    store.close()


def test_who_missed_too_many_changes_replays_the_net_state(tmp_path: Path) -> None:
    store = PostgresStore(database())
    store.put_bundle("first", ["item-1"], "model")
    with psycopg.connect(store.database._conninfo, autocommit=True) as connection:
        connection.execute("UPDATE coheat.state SET latest = %s", (KEPT_CHANGES + 998,))
    store.put_bundle("second", ["item-1"], "model")
    assert [change.sequence for change in store.changes(0)] == [1, KEPT_CHANGES + 999]
    store.put_bundle("third", ["item-1"], "model")
    assert len(store.changes(KEPT_CHANGES)) == 2
    with pytest.raises(Missed):
        store.changes(999)
    store.close()


def test_a_database_that_was_set_back_is_followed_there(tmp_path: Path) -> None:
    run, address = linked_run(tmp_path), database()

    async def go() -> None:
        async with started(run, address) as client:
            for name in ("kept", "lost"):
                assert (await publish(client, name, ["item-1"])).status_code == 201
            with psycopg.connect(address) as connection:
                connection.execute("DELETE FROM coheat.bundles WHERE sequence = 2")
                connection.execute("DELETE FROM coheat.changes WHERE sequence = 2")
                connection.execute("UPDATE coheat.state SET latest = 1")
            ends = time.monotonic() + 240
            while (await client.get("/v1/bundles/lost")).status_code != 404:
                assert time.monotonic() < ends
                await asyncio.sleep(0.05)
            assert (await client.get("/v1/bundles/kept")).status_code == 200
            assert (await publish(client, "lost", ["item-2"])).headers["Coheat-Sequence"] == "2"

    asyncio.run(go())


def test_newer_tables_are_refused_and_a_wrong_address_is_told_without_its_password(tmp_path: Path) -> None:
    address = database()
    PostgresStore(address).close()
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE coheat.format SET version = 99")
    with pytest.raises(StoreError, match="have version 99, this version of coheat knows"):
        PostgresStore(address)
    run = str(linked_run(tmp_path))
    for wrong, said in (
        (server().address("nowhere"), 'database "nowhere" does not exist'),
        (server().address(password="s3cret"), "password authentication failed"),
        ("postgresql://u:s3cret/x@h%zz/db", "special characters percent-encoded"),
        ("postgresql://127.0.0.1:1/db?password=s3cret", "is the server running"),
    ):
        with pytest.raises(CoheatError, match=said) as caught:
            PostgresStore(wrong)
        assert "s3cret" not in str(caught.value)
    found = command("keys", "list", run, "--state", server().address("nowhere"))
    assert (found.returncode, "does not exist" in " ".join(found.stderr.split())) == (2, True)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://ann:pass@db:5432/shop?sslmode=require", "postgresql://ann@db:5432/shop"),
        ("postgresql://db/shop?password=pass@x", "postgresql://db/shop"),
        ("postgres://ann:pa:ss@[::1]:1,other/shop", "postgres://ann@[::1]:1,other/shop"),
        ("postgresql://ann:pa/ss@db/shop", "postgresql://..."),
        ("postgresql://ann:pa?ss@db/shop", "postgresql://ann@db/shop"),
        ("postgresql://ann:pass", "postgresql://..."),
        ("postgresql:///shop", "postgresql:///shop"),
        ("runs/shop.service", "runs/shop.service"),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, said: str) -> None:
    assert shown(address) == said


def all_of(store: Store) -> tuple[object, ...]:
    rows = list(store.bundles()), list(store.interactions()), list(store.details())
    return *rows, store.last_sequence(), store.last_withdrawal()


def test_a_shop_moves_over_with_its_keys(tmp_path: Path) -> None:
    state, address = tmp_path / "state", database()
    run = linked_run(tmp_path)
    store = SqliteStore(state / "store.sqlite")
    store.put_bundle("ä\\/\0", ["item-1", "\0"], "model", "key:body", {"title": "x\0"})
    store.put_bundle("gone", ["item-1"], "model")
    store.remove_bundle("gone")
    times = [NewInteraction(f"u{n}", "ä\\/\0", "took", n + 0.5, "list") for n in range(50)]
    store.add_interactions(times)
    store.remove_interactions([Withdrawal("u3", "ä\\/\0")])
    expected = all_of(store)
    store.close()
    secret = KeyRing(state / "keys.json").create("shop", "write")
    moved = command("state", "copy", str(state), address, "--json")
    assert (moved.returncode, json.loads(moved.stdout)["interactions"]) == (0, 49), moved.stderr
    there = PostgresStore(address)
    assert all_of(there) == expected
    key = there.keys.find(secret)
    assert key is not None
    assert key.name == "shop"
    assert there.put_bundle("next", ["item-1"], None) == 55
    there.close()
    again = command("state", "copy", str(state), address)
    assert (again.returncode, "give an empty database" in " ".join(again.stderr.split())) == (2, True)
    assert json.loads(command("state", "check", address, "--json").stdout) == {
        "file": shown(address), "latest": 55, "bundles": 3, "interactions": 49,
    }  # fmt: skip
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE coheat.interactions SET user_id = 'w' WHERE user_id = 'u7'")
    damaged = command("state", "check", address)
    assert (damaged.returncode, "is not as written" in damaged.stderr) == (2, True)
    collected = json.loads(command("compare", "--online", address, "--json").stdout)
    assert collected == {"sides": []}
    assert run.exists()


def test_keys_are_made_for_all_replicas_and_revoked_in_a_moment(tmp_path: Path) -> None:
    run, address = linked_run(tmp_path), database()
    made = command("keys", "create", str(run), "--scope", "write", "--name", "shop", COHEAT_STATE=address)
    key = {"X-API-Key": made.stdout.strip()}

    async def go() -> None:
        async with two(run, address) as both:
            for client in both:
                assert (await client.get("/v1/models")).status_code == 401
                assert (await client.get("/v1/models", headers=key)).status_code == 200
            await both[0].put("/v1/bundles/new", json={"item_ids": ["item-1"]}, headers=key)
            with keys_of(address) as ring:
                ring.revoke("shop")
            ends = time.monotonic() + 240
            while {(await client.get("/v1/models", headers=key)).status_code for client in both} != {401}:
                assert time.monotonic() < ends
                await asyncio.sleep(0.05)

    asyncio.run(go())
    with psycopg.connect(address) as connection:
        audit = connection.execute("SELECT key, what, about FROM coheat.audit ORDER BY number").fetchall()
    assert audit == [(None, "key made", "shop"), ("shop", "bundle", "new"), (None, "key revoked", "shop")]


def test_without_psycopg_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = f"import sys; sys.modules['psycopg'] = None; {START}"
    words = [quick("python"), "-c", hidden, "keys", "list", str(tmp_path), "--state", "postgresql://h/d"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert found.returncode == 2
    assert "coheat[postgres]" in " ".join(found.stderr.split())


def test_killed_under_four_writers_nothing_is_lost_and_no_log_holds_the_password(tmp_path: Path) -> None:
    """All kinds, six times each: benchmarks/service_replicas.py."""
    shop, history = Shop(linked_run(tmp_path), server(), address=database()), History()
    try:
        shop.start()
        for name in ("the first replica", "PostgreSQL, all of it"):
            found = killed(shop, history, name, 1)
            assert found["faults"] == []
            assert found["acknowledged"] > 10
        assert race(shop, 3) == {"201 and 409": 3}
        for replica in shop.replicas:
            said = replica.said()
            assert '"event": "write"' in said
            assert PASSWORD not in said
            assert QUOTED not in said
    finally:
        for replica in shop.replicas:
            replica.kill()
