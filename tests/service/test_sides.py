"""Several models side by side: who falls where, ids of lists, and what came of them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import httpx
import pytest
from quick_python import quick
from service_client import linked_run, publish, started, with_client
from service_common import SMALL, serving, write_random_artifact

from coheat.errors import ConfigError
from coheat.recommender import Recommender
from coheat.service.online import Outcome, difference, report, wilson
from coheat.service.sides import ONLY, Side, side_of, sides_of


def test_users_fall_on_sides_by_their_shares_and_stay_there() -> None:
    runs = {name: Path(name) for name in "cab"}
    sides = sides_of(runs, {"a": 0.7, "b": 0.2})
    assert [(side.name, round(side.share, 6)) for side in sides] == [("a", 0.7), ("b", 0.2), ("c", 0.1)]
    users = [f"user-{n}" for n in range(20_000)]
    found = {user: side_of(sides, user).name for user in users}
    for side in sides:
        assert sum(name == side.name for name in found.values()) / len(users) == pytest.approx(
            side.share, abs=0.01
        )
    # As documented: another implementation, or another day, finds the same.
    assert [found[user] for user in ("user-0", "user-1", "user-14", "user-16")] == ["a", "a", "c", "a"]
    more = sides_of(runs, {"a": 0.8, "b": 0.1})
    assert all(side_of(more, user).name == "a" for user in users if found[user] == "a")
    nobody = sides_of(runs, {"a": 0.0, "b": 1.0})
    assert {side_of(nobody, user).name for user in users[:1000]} == {"b"}


@pytest.mark.parametrize(
    "shares", [{"a": 0.5, "b": 0.6}, {"a": 0.5, "b": 0.4}, {"a": -0.1}, {"c": 0.5}, {"a": float("nan")}]
)
def test_shares_that_do_not_add_up_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="--share"):
        sides_of({"a": Path("a"), "b": Path("b")}, shares)


def test_rates_have_wilsons_intervals() -> None:
    rate = wilson(15, 100)
    assert rate is not None
    # Newcombe 1998, table I: 81 of 263, 15 of 148.
    one, other = wilson(81, 263), wilson(15, 148)
    assert one is not None
    assert other is not None
    assert (round(one.low, 4), round(one.high, 4)) == (0.2553, 0.3662)
    assert (round(other.low, 4), round(other.high, 4)) == (0.0624, 0.1605)
    # Newcombe 1998 (differences), 56 of 70 and 48 of 80, method 10.
    gap = difference(wilson(56, 70), wilson(48, 80))
    assert gap is not None
    assert (round(gap.low, 4), round(gap.high, 4), gap.verdict) == (0.0524, 0.3339, "better")
    assert wilson(0, 0) is None
    assert difference(None, rate) is None
    sides = report([Outcome("b", "m2", 5, 100, 9, 3), Outcome("a", "m1", 4, 80, 8, 4),
                    Outcome("a", "m0", 1, 20, 2, 1)])  # fmt: skip
    assert [(side.side, side.lists, side.shown, side.took) for side in sides] == [
        ("a", 5, 100, 5),
        ("b", 5, 100, 3),
    ]
    assert sides[0].take_difference is None
    assert sides[1].take_difference is not None
    assert sides[1].take_difference.verdict == "level"


def two_sides(tmp_path: Path) -> tuple[Side, Side]:
    write_random_artifact(tmp_path / "other", SMALL, seed=7)
    return Side("a", linked_run(tmp_path), 0.5), Side("b", tmp_path / "other", 0.5)


def test_each_side_answers_its_users_and_what_came_of_it_is_counted(tmp_path: Path) -> None:
    sides = two_sides(tmp_path)
    models = {side.name: Recommender.load(side.run) for side in sides}
    users = [f"user-{n}" for n in range(40)]

    async def go() -> None:
        ids: dict[str, str] = {}
        for turn in range(2):
            async with started(sides, tmp_path / "state") as client:
                prints = {
                    one["side"]: one["fingerprint"]
                    for one in (await client.get("/v1/models")).json()["sides"]
                }
                lists = [(await client.get(f"/v1/recommendations/{user}?k=3")).json() for user in users]
                if not turn:
                    for user, found in zip(users, lists, strict=True):
                        side = side_of(sides, user).name
                        ids[user] = found["recommendation_id"]
                        assert ids[user].startswith(f"{side}-{prints[side][:8]}-")
                        assert found["model"] == prints[side]
                        assert [row["bundle_id"] for row in found["recommendations"]] == [
                            row.bundle_id for row in models[side].recommend([user], 3)
                        ]
                    assert len(set(ids.values())) == len(users)
                    rows = [
                        {"user_id": user, "bundle_id": row["bundle_id"], "kind": kind,
                         "recommendation_id": found["recommendation_id"]}
                        for user, found in zip(users, lists, strict=True)
                        for row in found["recommendations"]
                        for kind in ("shown", *(["took"] if row["rank"] == 1 else []))
                    ]  # fmt: skip
                    rows[0]["recommendation_id"] = "of-somebody-else"  # in no side's count
                    done = await client.post("/v1/interactions", json={"interactions": rows})
                    assert done.json()["recorded"] == 160
                found = (await client.get("/v1/statistics")).json()["sides"]
                on = {side.name: sum(side_of(sides, user) == side for user in users) for side in sides}
                first = side_of(sides, users[0]).name
                assert [(one["side"], one["lists"], one["shown"], one["took"]) for one in found] == [
                    (name, n, 3 * n - (name == first), n) for name, n in on.items()
                ]
                assert found[0]["take_rate"]["mean"] == pytest.approx(1 / 3, abs=0.02)
                assert found[1]["take_difference"]["verdict"] == "level"

    asyncio.run(go())


def test_both_models_get_all_changes(tmp_path: Path) -> None:
    sides = two_sides(tmp_path)

    async def go() -> None:
        for turn in range(2):
            async with started(sides, tmp_path / "state") as client:
                if not turn:
                    await publish(client, "X", ["item-1"])
                    await client.delete("/v1/bundles/bundle-7")
                    row = {"user_id": "user-1", "bundle_id": "X"}
                    await client.post("/v1/interactions", json=row)
                    await client.post("/v1/models/reload")
                for n in range(20):
                    asked = f"/v1/recommendations/user-{n}?k=100&exclude_seen=false"
                    rows = (await client.get(asked)).json()["recommendations"]
                    listed = {one["bundle_id"] for one in rows}
                    assert "X" in listed
                    assert "bundle-7" not in listed
                    seen = (await client.get(f"/v1/recommendations/user-{n}?k=100")).json()
                    names = {one["bundle_id"] for one in seen["recommendations"]}
                    assert ("X" in names) is (n != 1)
                    why = (await client.get(f"/v1/explanations?user_id=user-{n}&bundle_id=X")).json()
                    [score] = [one["score"] for one in rows if one["bundle_id"] == "X"]
                    assert why["score"] == pytest.approx(score, abs=1e-5)

    asyncio.run(go())


def test_one_model_is_a_side_of_its_own(tmp_path: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        found = (await client.post("/v1/recommendations", json={"item_ids": ["item-1"], "k": 1})).json()
        assert found["recommendation_id"].startswith(f"{ONLY}-{found['model'][:8]}-")

    with_client(linked_run(tmp_path), check)


def run_coheat(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [quick("coheat"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_two_runs_are_served_and_compared_from_the_command_line(tmp_path: Path) -> None:
    a, b = two_sides(tmp_path)
    options = "--run", f"b={b.run}", "--share", "a=0.9", "--state", str(tmp_path / "state")
    with serving(Path(f"--run=a={a.run}"), *options) as server:
        shares = {one["side"]: one["share"] for one in server.ask("GET", "/v1/models")[1]["sides"]}
        assert shares == {"a": 0.9, "b": pytest.approx(0.1)}
        for n in range(30):
            _, found = server.ask("GET", f"/v1/recommendations/user-{n}?k=2")
            for kind in ("shown", "clicked"):
                row = {"user_id": f"user-{n}", "bundle_id": found["recommendations"][0]["bundle_id"]}
                server.ask(
                    "POST",
                    "/v1/interactions",
                    {**row, "kind": kind, "recommendation_id": found["recommendation_id"]},
                )
        told = [
            json.loads(run_coheat("compare", "--online", source, "--json").stdout)
            for source in (str(tmp_path / "state"), f"http://127.0.0.1:{server.port}")
        ]
        assert told[0] == told[1]
        assert [one["side"] for one in told[0]["sides"]] == ["a", "b"]
        assert sum(one["lists"] for one in told[0]["sides"]) == 30
        assert told[0]["sides"][0]["click_rate"]["mean"] == 1.0
        table = run_coheat("compare", "--online", str(tmp_path / "state"))
        assert (table.returncode, "100.0% [" in table.stdout) == (0, True), table.stderr
    for wrong in (
        ["serve"],
        ["serve", str(a.run), "--run", f"b={b.run}"],
        ["serve", "--run", f"a={a.run}", "--run", f"a={b.run}"],
        ["serve", "--run", str(a.run)],
        ["serve", "--run", f"a={a.run}", "--share", "a=most"],
        ["compare", "--online", str(tmp_path / "nowhere")],
        ["compare", str(a.run), "--online", str(tmp_path / "state")],
        ["compare", "--online", "http://127.0.0.1:9"],
    ):
        done = run_coheat(*wrong)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), (wrong, done.stderr)
