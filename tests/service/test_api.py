"""The routes: right answers, kept promises, ids of every kind, sentences for every mistake."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from service_client import linked_run, publish, with_client

from coheat.recommender import Recommender
from coheat.service.limits import Limits


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return linked_run(tmp_path)


AWKWARD = [
    "a/b",
    "a/b/audience",
    "?q=1",
    "100%",
    "%2F",
    "#top",
    "two words",
    "\"quoted' `it`",
    "🧺 été",
    "..x",
]
LONG = "🧺" * 1000


def test_lists_are_the_library_s(run: Path) -> None:
    library = Recommender.load(run)

    async def check(client: httpx.AsyncClient) -> None:
        for candidates in ("all", "new"):
            answers = await asyncio.gather(
                *(client.get(f"/v1/recommendations/user-{n}?k=5&candidates={candidates}") for n in range(20))
            )
            for n, answer in enumerate(answers):
                document = answer.json()
                expected = library.recommend([f"user-{n}"], 5, candidates)
                assert list(document) == [
                    "user_id", "source", "recommendations", "note", "recommendation_id", "model",
                ]  # fmt: skip
                assert (document["user_id"], document["source"]) == (f"user-{n}", "model")
                rows = document["recommendations"]
                assert [list(row) for row in rows] == [["bundle_id", "score", "rank", "is_new"]] * len(rows)
                assert [row["bundle_id"] for row in rows] == [row.bundle_id for row in expected]
                assert np.allclose([row["score"] for row in rows], [row.score for row in expected], rtol=1e-5)
                assert [row["is_new"] for row in rows] == [row.is_new for row in expected]

    with_client(run, check)


def test_a_published_bundle_is_in_the_next_answer(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        answer = await publish(client, "new", ["item-1", "moon", "item-2"])
        assert answer.status_code == 201
        assert answer.json()["unknown_item_ids"] == ["moon"]
        assert (await client.get("/v1/bundles/new")).json()["unknown_item_ids"] == ["moon"]
        rows = (await client.get("/v1/recommendations/user-1?k=1000")).json()
        assert "new" in [row["bundle_id"] for row in rows["recommendations"] if row["is_new"]]
        assert rows["note"].endswith("instead of 1000: there are no more candidates")
        for part in ("audience", "similar"):
            found = (await client.get(f"/v1/bundles/new/{part}?k=3")).json()
            assert [row["rank"] for row in found[part]] == [1, 2, 3]
        why = (await client.get("/v1/explanations?user_id=user-1&bundle_id=new")).json()
        assert why["history"] + why["items"] == pytest.approx(why["score"], abs=1e-6)
        assert sum(share["share"] for share in why["bundle_items"]) == pytest.approx(why["items"], abs=1e-6)
        assert [
            row["bundle_id"] for row in (await client.get("/v1/bundles?query=NEW")).json()["bundles"]
        ] == ["new"]

    with_client(run, check)


def test_bundles_are_made_once_replaced_and_removed(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        assert (await publish(client, "a", ["item-1"])).status_code == 201
        again = await publish(client, "a", ["item-1"])
        assert again.status_code == 409
        assert "PUT replaces" in again.json()["detail"]
        replaced = await client.put("/v1/bundles/a", json={"item_ids": ["item-3", "item-2"]})
        assert (replaced.status_code, replaced.json()["item_ids"]) == (200, ["item-2", "item-3"])
        made = await client.put("/v1/bundles/b", json={"item_ids": ["item-3"]})
        assert made.status_code == 201
        for name in ("a", "bundle-7"):  # an added one, and one of training
            assert (await client.delete(f"/v1/bundles/{name}")).status_code == 204
            assert (await client.get(f"/v1/bundles/{name}")).status_code == 404
            assert (await client.delete(f"/v1/bundles/{name}")).status_code == 404
        rows = (await client.get("/v1/recommendations/user-1?k=1000&exclude_seen=false")).json()
        listed = {row["bundle_id"] for row in rows["recommendations"]}
        assert "b" in listed
        assert not {"a", "bundle-7"} & listed

    with_client(run, check)


def test_what_is_written_is_there_after_a_restart(run: Path) -> None:
    answers: list[Any] = []

    async def write(client: httpx.AsyncClient) -> None:
        for name in ("a", "b", "c"):
            await publish(client, name, ["item-1", "item-5", "moon"])
        await client.delete("/v1/bundles/b")
        await client.put("/v1/bundles/c", json={"item_ids": ["item-9"]})
        await client.put("/v1/bundles/bundle-3", json={"item_ids": ["item-9"]})
        await client.delete("/v1/bundles/bundle-4")
        # Removed with its history and made anew without.
        await client.delete("/v1/bundles/bundle-10")
        await publish(client, "bundle-10", ["item-2"])
        for user, bundle, status in (
            ("user-1", "a", 201), ("user-1", "a", 200), ("stranger", "a", 201), ("user-2", "bundle-3", 201),
            ("user-2", "bundle-4", 404),
        ):  # fmt: skip
            answer = await client.post("/v1/interactions", json={"user_id": user, "bundle_id": bundle})
            assert answer.status_code == status

    async def look(client: httpx.AsyncClient) -> None:
        answers.append(
            [
                (await client.get(path)).json()
                for path in (
                    "/v1/bundles?limit=100", "/v1/bundles/a", "/v1/bundles/c", "/v1/bundles/bundle-3",
                    "/v1/bundles/bundle-10", "/v1/users/user-1", "/v1/users/stranger",
                    "/v1/recommendations/user-1?k=100", "/v1/recommendations/stranger?k=100",
                )
            ]
        )  # fmt: skip

    async def write_and_look(client: httpx.AsyncClient) -> None:
        await write(client)
        await look(client)
        assert (await client.post("/v1/models/reload")).status_code == 200
        await look(client)

    with_client(run, write_and_look)
    with_client(run, look)

    def settled(document: Any) -> Any:
        """Rows of bundles by id (new rows may stand in another order), scores rounded."""
        text = json.dumps(document, sort_keys=True)
        plain = json.loads(text, parse_float=lambda number: round(float(number), 5))
        for part in plain:
            part.pop("recommendation_id", None)  # every list has its own
            for key in ("bundles", "recommendations"):
                if key in part:
                    part[key].sort(key=lambda row: row["bundle_id"])
                    for row in part[key]:
                        row.pop("rank", None)
        return plain

    live, reloaded, restarted = map(settled, answers)
    assert live[1]["popularity"] == 2
    assert live[4]["popularity"] == 0
    assert live[4]["is_added"]
    assert reloaded == live
    assert restarted == live


@pytest.mark.parametrize("name", [*AWKWARD, LONG], ids=[*AWKWARD, "long"])
def test_any_id_goes_through_unharmed(run: Path, name: str) -> None:
    place = f"/v1/bundles/{quote(name, safe='')}"

    async def check(client: httpx.AsyncClient) -> None:
        assert (await publish(client, name, ["item-1"])).json()["bundle_id"] == name
        assert (await client.get(place)).json()["bundle_id"] == name
        assert (await client.get(f"{place}/audience?k=1")).json()["bundle_id"] == name
        assert (await client.get(f"{place}/similar?k=1")).json()["bundle_id"] == name
        taken = await client.post("/v1/interactions", json={"user_id": name, "bundle_id": name})
        assert taken.status_code == 201
        user = (await client.get(f"/v1/users/{quote(name, safe='')}")).json()
        assert (user["user_id"], user["bundle_ids"]) == (name, [name])
        found = await client.get("/v1/explanations", params={"user_id": "user-1", "bundle_id": name})
        assert found.json()["bundle_id"] == name
        assert (await client.put(place, json={"item_ids": ["item-2"]})).status_code == 200
        assert (await client.delete(place)).status_code == 204
        assert (await client.get(place)).status_code == 404

    with_client(run, check)


def test_anybody_is_answered_by_what_they_have(run: Path) -> None:
    library = Recommender.load(run)

    async def check(client: httpx.AsyncClient) -> None:
        asked = {"item_ids": ["item-3"], "bundle_ids": ["bundle-9"], "k": 4, "exclude": ["bundle-1"]}
        document = (await client.post("/v1/recommendations", json=asked)).json()
        expected = library.recommend(
            ["x"], 4, exclude=["bundle-1"], items={"x": ["item-3"]}, bundles={"x": ["bundle-9"]}
        )
        assert (document["user_id"], document["source"]) == (None, "folded-in")
        assert [row["bundle_id"] for row in document["recommendations"]] == [
            row.bundle_id for row in expected
        ]
        nobody = (await client.get("/v1/recommendations/nobody?k=3")).json()
        assert nobody["source"] == "popular-and-new"
        unknown = await client.post("/v1/recommendations", json={"candidates": ["bundle-x"]})
        assert (unknown.status_code, unknown.json()["recommendations"]) == (200, [])
        assert "did you mean" not in unknown.json()["note"]  # looking for it would hold up everybody
        some = {
            "candidates": ["bundle-1", "nothing"],
            "exclude": ["nothing"],
            "bundle_ids": ["nothing"],
            "k": 1,
        }
        found = (await client.post("/v1/recommendations", json=some)).json()
        assert [row["bundle_id"] for row in found["recommendations"]] == ["bundle-1"]
        assert found["note"].count("'nothing'") == 3

    with_client(run, check)


def test_a_preview_changes_nothing(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        before = (await client.get("/v1/bundles?limit=100")).json()
        items = ["item-1", "item-2", "moon"]
        seen = (await client.post("/v1/previews", json={"item_ids": items, "k": 3})).json()
        assert seen["unknown_item_ids"] == ["moon"]
        assert (await client.get("/v1/bundles?limit=100")).json() == before
        await publish(client, "real", items)
        assert (await client.get("/v1/bundles/real/audience?k=3")).json()["audience"] == seen["audience"]

    with_client(run, check)


def test_searching_and_paging(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        found: list[str] = []
        offset: int | None = 0
        while offset is not None:
            page = (await client.get(f"/v1/users?query=SER-1&offset={offset}&limit=4")).json()
            found += [row["user_id"] for row in page["users"]]
            offset = page["next_offset"]
        assert found == ["user-1", *(f"user-{n}" for n in range(10, 20))]
        items = (await client.get("/v1/items?query=item-4&limit=100")).json()["items"]
        assert [row["item_id"] for row in items] == ["item-4", *(f"item-{n}" for n in range(40, 50))]
        assert (await client.get("/v1/items?query=%00")).json() == {"items": [], "next_offset": None}

    with_client(run, check)


def test_statistics_add_up(run: Path) -> None:
    library = Recommender.load(run)
    n_cold = int((library.popularity == 0).sum())

    async def check(client: httpx.AsyncClient) -> None:
        found = (await client.get("/v1/statistics")).json()
        assert found["n_cold_bundles"] == n_cold == found["popularity"][0]["bundles"]
        assert sum(one["bundles"] for one in found["popularity"]) == found["n_bundles"] == 40
        interactions = sum(one["interactions"] for one in found["popularity"])
        assert interactions == found["n_interactions"] == library.popularity.sum()
        rows = library.recommend([f"user-{n}" for n in range(60)], 20)
        cold = [library.bundle(row.bundle_id).popularity == 0 for row in rows]
        assert found["cold_share_of_lists"] == pytest.approx(np.mean(cold))
        weights = [one["mean_history_weight"] for one in found["popularity"] if one["bundles"]]
        assert weights == sorted(weights)

    with_client(run, check)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/recommendations/user-1?k=0", None, 422),
        ("GET", "/v1/recommendations/user-1?k=1001", None, 422),
        ("GET", "/v1/recommendations/user-1?candidates=cold", None, 422),
        ("GET", "/v1/recommendations/%ff", None, 422),
        ("GET", f"/v1/recommendations/{'x' * 1001}", None, 422),
        ("GET", "/v1/bundles/", None, 404),
        ("PATCH", "/v1/bundles", None, 405),
        ("POST", "/v1/bundles", b"{", 422),
        ("POST", "/v1/bundles", b"[" * 100_000, 400),
        ("POST", "/v1/bundles", b'{"bundle_id": "\\ud800", "item_ids": ["item-1"]}', 422),
        ("POST", "/v1/bundles", b'{"bundle_id": "", "item_ids": ["item-1"]}', 422),
        ("POST", "/v1/bundles", b'{"bundle_id": "x", "item_ids": []}', 422),
        ("POST", "/v1/bundles", b'{"bundle_id": "x", "item_ids": "item-1"}', 422),
        ("POST", "/v1/bundles", b'{"bundle_id": "x", "item_ids": ["item-1"], "price": 1}', 422),
        ("POST", "/v1/bundles", b"x" * 5_000_000, 413),
        ("POST", "/v1/interactions", b'{"user_id": "user-1", "bundle_id": "nothing"}', 404),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_a_sentence(
    run: Path, method: str, path: str, body: bytes | None, status: int
) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        answer = await client.request(
            method, path, content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        document = answer.json()
        assert document["status"] == status
        assert document["detail"]
        assert document["request_id"] == answer.headers["x-request-id"]

    with_client(run, check)


def test_a_body_of_unknown_length_is_cut_off(run: Path) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 65536

    async def check(client: httpx.AsyncClient) -> None:
        answer = await client.post(
            "/v1/bundles", content=endless(), headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 413

    with_client(run, check)


def test_a_slow_body_does_not_hold_a_place(run: Path) -> None:
    async def stuck() -> Any:
        yield b"{"
        await asyncio.sleep(30)

    async def check(client: httpx.AsyncClient) -> None:
        answer = await client.post(
            "/v1/bundles", content=stuck(), headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 408

    with_client(run, check, limits=Limits(body_seconds=0.1))


def test_too_much_at_once_is_refused_quickly(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        answers = await asyncio.gather(*(client.get(f"/v1/recommendations/user-{n}") for n in range(40)))
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {200, 503}
        assert statuses.count(200) >= 4
        busy = next(answer for answer in answers if answer.status_code == 503)
        assert busy.headers["retry-after"] == "1"
        assert (await client.get("/v1/recommendations/user-1")).status_code == 200
        assert 'coheat_http_requests_refused_total{reason="busy"}' in (await client.get("/metrics")).text

    with_client(run, check, limits=Limits(requests=4))


def test_metrics_name_routes_and_never_ids(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        await client.get("/v1/recommendations/user-17")
        await client.get("/v1/somewhere/user-17")
        await publish(client, "secret-bundle", ["item-1"])
        text = (await client.get("/metrics")).text
        assert (
            'coheat_http_requests_total{method="GET",route="/v1/recommendations/{user_id}",status="200"} 1.0'
            in text
        )
        assert "coheat_http_request_duration_seconds_bucket" in text
        assert "coheat_bundles 41.0" in text
        assert "user-17" not in text
        assert "secret-bundle" not in text

    with_client(run, check)


def test_the_page_and_its_protection(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        page = await client.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        for path in ("/../app.py", "/%2e%2e/app.py", "/..%2fapp.py"):
            assert (await client.get(path)).status_code == 404

    with_client(run, check)


def test_readiness_follows_warming_up(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        assert (await client.get("/health/live")).status_code == 200
        for _ in range(200):
            answer = await client.get("/health/ready")
            if answer.status_code == 200:
                break
            assert answer.status_code == 503
            await asyncio.sleep(0.01)
        parts = dict.fromkeys(("model", "store", "keys", "service"), "ok")
        assert answer.json() == {"status": "ready", **parts}

    with_client(run, check)
