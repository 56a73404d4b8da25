"""Real processes and real faults: killed, out of disk, damaged files, a clock that goes back."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from quick_python import quick
from service_chaos import rounds
from service_client import linked_run, publish, started, with_client, without_id
from service_common import SMALL, serving, write_random_artifact
from service_faults import kill_rounds
from service_load import measure
from service_reload import reload_rounds
from service_soak import soak

from coheat.service.metrics import Metrics
from coheat.service.sqlite_store import SqliteStore
from coheat.service.state import State
from coheat.service.store import BundleChange, Interaction, NewInteraction, StoreError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return linked_run(tmp_path)


def start(run: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Start a service that is expected not to start."""
    command = [quick("coheat"), "serve", str(run), "--port", "0", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_killed_at_random_moments_nothing_acknowledged_is_lost(run: Path) -> None:
    found = kill_rounds(run, kills=5, seed=1, longest=0.4)
    assert found["faults"] == []
    assert found["acknowledged"] > 20


@pytest.mark.parametrize("fault", ["disk full", "store removed", "store cut off", "reload storm"])
def test_faults_in_short(tmp_path: Path, fault: str) -> None:
    """The whole matrix: benchmarks/service_chaos.py."""
    found = rounds(tmp_path, fault, 2)
    assert found["faults"] == []
    assert found["acknowledged"] > 5


def test_reloads_under_load_fail_no_request(tmp_path: Path) -> None:
    write_random_artifact(tmp_path / "run", SMALL)
    found = reload_rounds(tmp_path / "run", SMALL, reloads=10)
    assert (found["failed"], found["faults"]) == ({}, [])
    assert found["requests"] > 20  # more on a machine with nothing else to do


def test_a_short_soak_and_a_little_load_fail_nothing(run: Path) -> None:
    found = soak(run, SMALL, seconds=3, every=0.1)
    assert found["failed"] == {}
    assert found["requests"] > 20
    assert found["last_mb"] < 1.2 * found["middle_mb"]
    with serving(run) as server:
        measured = measure(server.port, rate=30, seconds=2, n_users=SMALL.n_users)
    assert measured["errors"] == 0
    assert measured["requests"] > 20


def test_asked_to_end_it_finishes_what_it_began(run: Path) -> None:
    statuses: list[Any] = []
    with serving(run) as server:

        def write(number: int) -> None:
            try:
                for n in range(1000):
                    new = {"bundle_id": f"{number}-{n}", "item_ids": ["item-1"]}
                    statuses.append((server.ask("POST", "/v1/bundles", new)[0], new["bundle_id"]))
            except ConnectionRefusedError:
                pass  # it listens no more; an answer cut off would be another error, and fail the test
            except OSError as error:
                statuses.append((repr(error), None))

        threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        while not statuses and any(thread.is_alive() for thread in threads):
            time.sleep(0.01)
        time.sleep(0.2)
        server.process.terminate()
        for thread in threads:
            thread.join()
        assert server.process.wait(timeout=240) in (0, -15)
    store = SqliteStore(run.with_name("run.service") / "store.sqlite")
    kept = {change.bundle_id for change in store.bundles()}
    store.close()
    acknowledged = {name for status, name in statuses if status == 201}
    assert acknowledged
    assert acknowledged <= kept


def test_a_full_disk_is_told_and_loses_nothing(run: Path, tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))

    long = [f"{n}{'x' * 900}" for n in range(20)]
    acknowledged, refusals = [], []
    with serving(run, preexec_fn=small_files) as server:
        for n in range(40):
            new = {"bundle_id": f"big-{n}", "item_ids": ["item-1", *long]}
            status, document = server.ask("POST", "/v1/bundles", new)
            if status == 201:
                acknowledged.append(new["bundle_id"])
            else:
                assert (status, document["title"]) == (503, "Service Unavailable")
                assert "nothing was changed" in document["detail"]
                refusals.append(new["bundle_id"])
        assert acknowledged
        assert refusals
        for name in refusals:
            assert server.ask("GET", f"/v1/bundles/{name}")[0] == 404
        assert server.ask("GET", "/v1/recommendations/user-1")[0] == 200
    with serving(run) as server:
        for name in acknowledged:
            assert server.ask("GET", f"/v1/bundles/{name}")[0] == 200
        assert server.ask("POST", "/v1/bundles", {"bundle_id": "after", "item_ids": ["item-1"]})[0] == 201


def test_a_directory_that_cannot_be_written_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said = refused(start(run, "--state", str(tmp_path / "file" / "state")))
    assert "cannot be written" in said
    assert "--state" in said


def test_two_services_do_not_share_a_state(run: Path) -> None:
    with serving(run):
        assert "another service works on it" in refused(start(run))


def test_what_cannot_be_served_is_refused_at_the_start(tmp_path: Path) -> None:
    assert "does not exist; give a run" in refused(start(tmp_path / "nothing"))
    write_random_artifact(tmp_path / "run", SMALL)
    vectors = tmp_path / "run" / "served.safetensors"
    content = bytearray(vectors.read_bytes())
    content[-1] ^= 1
    vectors.write_bytes(content)
    assert "served.safetensors: altered" in refused(start(tmp_path / "run"))


def test_a_bad_artifact_leaves_the_old_model_at_work(run: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(run.resolve(), broken)
    (broken / "served.safetensors").write_bytes(b"short")

    async def check(client: httpx.AsyncClient) -> None:
        await publish(client, "new", ["item-1"])
        before = without_id((await client.get("/v1/recommendations/user-1?k=30")).json())
        good = run.resolve()
        for target in (broken, tmp_path / "nothing"):
            run.unlink()
            run.symlink_to(target)
            answer = await client.post("/v1/models/reload")
            assert answer.status_code == 422
            assert "the old model goes on" in answer.json()["detail"]
            assert without_id((await client.get("/v1/recommendations/user-1?k=30")).json()) == before
            assert (await client.get("/v1/models")).json()["generation"] == 1
        run.unlink()
        run.symlink_to(good)
        assert (await client.post("/v1/models/reload")).json()["generation"] == 2
        assert without_id((await client.get("/v1/recommendations/user-1?k=30")).json()) == before

    with_client(run, check)


def test_what_a_new_model_knows_no_item_of_is_placed_by_an_average_until_the_next(
    run: Path, tmp_path: Path
) -> None:
    smaller = tmp_path / "smaller"
    write_random_artifact(smaller, SMALL.__class__(60, 40, 45, 8, 3, 5, 3))

    async def check(client: httpx.AsyncClient) -> None:
        await publish(client, "late", ["item-48"])
        await client.post("/v1/interactions", json={"user_id": "user-1", "bundle_id": "late"})
        larger = run.resolve()
        for target, placed_by in ((smaller, "catalogue"), (larger, None)):
            run.unlink()
            run.symlink_to(target)
            assert (await client.post("/v1/models/reload")).json()["waiting"] == 0
            found = (await client.get("/v1/bundles/late")).json()
            assert (found["popularity"], found["placed_by"]) == (1, placed_by)

    with_client(run, check)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A store with a hundred bundles, closed."""
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path)
    for n in range(100):
        store.put_bundle(f"bundle {n}", [f"item {n}", "é" * 50], None)
    store.close()
    return path


def test_a_damaged_database_is_refused_and_left_as_it_is(stored: Path) -> None:
    whole = stored.read_bytes()
    for damaged in (
        b"not a database" * 100,
        whole[:2000] + b"\xff" * 4000 + whole[6000:],
        whole[: len(whole) // 2],
    ):
        stored.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"store.sqlite: .*(restore it from a backup|move it away)"):
            list(SqliteStore(stored).bundles())
        assert stored.read_bytes() == damaged
        stored.with_name("store.sqlite-wal").unlink(missing_ok=True)


def test_a_process_that_ends_without_closing_leaves_a_whole_store(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    leave = "import sys, pathlib; from coheat.service.sqlite_store import SqliteStore\n"
    leave += "store = SqliteStore(pathlib.Path(sys.argv[1])); store.put_bundle('a', ['item'], None); 1 / 0"
    done = subprocess.run(
        [quick("python"), "-c", leave, str(path)], capture_output=True, text=True, check=False
    )
    assert "ZeroDivisionError" in done.stderr
    store = SqliteStore(path)
    assert [change.bundle_id for change in store.bundles()] == ["a"]
    store.close()
    store.close()  # again, it does nothing


def test_a_single_altered_letter_is_noticed(stored: Path) -> None:
    content = stored.read_bytes()
    assert content.count(b'["item 7"') == 1
    stored.write_bytes(content.replace(b'["item 7"', b'["item 8"'))
    with pytest.raises(StoreError, match="the bundle 'bundle 7' is not as written"):
        list(SqliteStore(stored).bundles())


@pytest.mark.parametrize("exchange", [False, True])
def test_taken_away_at_any_moment_what_is_refused_is_not_there(tmp_path: Path, exchange: bool) -> None:
    """The file goes and comes back hundreds of times a second: between any two steps of a write."""
    path, kept = tmp_path / "store.sqlite", tmp_path / "kept"
    store, told, ended = SqliteStore(path), dict[str, str](), threading.Event()

    def take_away() -> None:
        rng = random.Random(0)
        while not ended.is_set():
            os.link(path, kept)
            if exchange:
                shutil.copy(path, tmp_path / "other")
                (tmp_path / "other").replace(path)
            else:
                path.unlink()
            time.sleep(0.0003 * rng.random())
            kept.replace(path)
            time.sleep(0.002 * rng.random())

    thief = threading.Thread(target=take_away)
    thief.start()
    # A second and a half, or on a busy machine as long as it takes until it was both there and not there.
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < 1.5 or (
        passed < 240 and not {"acknowledged", "refused"} <= set(told.values())
    ):
        name = f"bundle {len(told)}"
        try:
            store.put_bundle(name, ["item"], None)
            told[name] = "acknowledged"
        except StoreError as error:
            told[name] = "uncertain" if error.is_uncertain else "refused"
    ended.set()
    thief.join()
    store.put_bundle("afterwards", ["item"], None)  # the file that is remembered is the one that was there
    there = {change.bundle_id for change in store.bundles()}
    store.close()
    by_answer = {answer: {n for n, a in told.items() if a == answer} for answer in set(told.values())}
    assert by_answer["acknowledged"] <= there
    assert not by_answer["refused"] & there


def test_a_disk_that_fails_to_sync_leaves_it_open_whether_it_is_written(tmp_path: Path) -> None:
    class Failing(SqliteStore):
        def _sum_up(self) -> None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
            raise error

    store = Failing(tmp_path / "store.sqlite")
    with pytest.raises(StoreError, match="see whether the disk fails") as caught:
        store.put_bundle("a", ["item"], None)
    assert caught.value.is_uncertain
    store.close()


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE orders (n INTEGER)")
    other.commit()
    other.close()
    with pytest.raises(StoreError, match="a database of something else"):
        SqliteStore(path)


def test_a_clock_that_goes_back_changes_nothing(run: Path, tmp_path: Path) -> None:
    times = iter(range(1_000_000, 0, -1000))
    store = SqliteStore(tmp_path / "store.sqlite", clock=lambda: float(next(times)))
    store.put_bundle("a", ["item-1"], None)
    store.put_bundle("b", ["item-2"], "x")
    store.put_bundle("a", ["item-3"], None)
    store.add_interactions([NewInteraction("user-1", "a")])
    store.add_interactions([NewInteraction("user-1", "b")])
    store.remove_bundle("b")
    assert [(c.bundle_id, c.item_ids) for c in store.bundles()] == [("a", ("item-3",)), ("b", None)]
    assert [(i.user_id, i.bundle_id) for i in store.interactions()] == [("user-1", "a")]
    state = State(run, store, Metrics())
    state.catch_up()
    assert state.served.recommender.bundle("a").popularity == 1
    state.close()


def test_the_store_gives_back_what_it_got(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite", clock=lambda: 1.5)
    first = store.put_bundle("ä/🧺\0", ["'; DROP TABLE bundles", "\n"], "model")
    second = store.add_interactions([NewInteraction("u", "ä/🧺\0", "took", 2.0625, "é")]).sequence
    assert store.last_sequence() == second > first
    assert store.takers("ä/🧺\0") == ["u"]
    written = BundleChange(first, "ä/🧺\0", ("'; DROP TABLE bundles", "\n"), "model", first, 1.5)
    assert list(store.bundles()) == [written] == [store.bundle("ä/🧺\0")]
    assert list(store.bundles(first)) == []
    assert list(store.interactions(first)) == [Interaction(second, "u", "ä/🧺\0", "took", 2.062, "é")]
    store.close()


def test_writes_wait_for_the_disk_and_lists_do_not(run: Path, tmp_path: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(SqliteStore):
        def put_bundle(self, *arguments: Any) -> int:
            begun.set()
            assert goes_on.wait(240)
            return super().put_bundle(*arguments)

    async def go() -> None:
        store = Slow(tmp_path / "slow.sqlite")
        async with started(run, tmp_path / "state", store=store) as client:
            writing = asyncio.create_task(publish(client, "new", ["item-1"]))
            assert await asyncio.to_thread(begun.wait, 240)
            rows = (await client.get("/v1/recommendations/user-1?k=100")).json()["recommendations"]
            assert not writing.done()
            assert "new" not in {row["bundle_id"] for row in rows}
            goes_on.set()
            assert (await writing).status_code == 201

    asyncio.run(go())
