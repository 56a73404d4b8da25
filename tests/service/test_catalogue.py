"""The catalogue over HTTP: columns, filters, rules, hiding and showing, searching, nothing shown twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_client import linked_run, publish, with_client

from coheat.attributes import Value
from coheat.recommender import Recommender


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return linked_run(tmp_path)


async def listed(client: httpx.AsyncClient, user: str = "user-1", **question: Any) -> list[str]:
    answer = await client.post("/v1/recommendations", json={"user_id": user, "k": 100, **question})
    assert answer.status_code == 200, answer.text
    return [row["bundle_id"] for row in answer.json()["recommendations"]]


def test_a_bundle_is_hidden_and_shown_without_losing_anything(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        await publish(client, "X", ["item-1", "item-2"])
        await client.post("/v1/interactions", json={"user_id": "user-2", "bundle_id": "X"})
        before = (await client.get("/v1/recommendations/user-1?k=100")).json()["recommendations"]
        place, seen = "/v1/bundles/X", await client.get("/v1/bundles/X")
        assert (seen.json()["popularity"], seen.json()["on_offer"]) == (1, True)
        hidden = await client.patch(place, json={"available": False})
        assert (hidden.status_code, hidden.json()["on_offer"]) == (200, False)
        assert hidden.json()["columns"] == {"available": False}
        assert hidden.headers["etag"] != seen.headers["etag"]
        assert "X" not in await listed(client)
        assert "X" in await listed(client, only_on_offer=False)
        late = await client.patch(place, json={"available": True}, headers={"If-Match": seen.headers["etag"]})
        assert late.status_code == 412
        now = {"If-Match": hidden.headers["etag"]}
        assert (await client.patch(place, json={"available": True}, headers=now)).status_code == 200
        assert (await client.get("/v1/recommendations/user-1?k=100")).json()["recommendations"] == before
        assert (await client.get(place)).json()["popularity"] == 1

    with_client(run, check)


def test_the_address_of_a_list_may_name_another_moment(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        await publish(client, "X", ["item-1"])
        await client.patch("/v1/bundles/X", json={"launched": "2030-06-01", "ends": "2030-06-30"})
        for now, there in (
            ("2030-06-15", True),
            ("2030-06-30T23:00:00Z", True),
            ("1907712000", True),  # 2030-06-15
            ("2030-07-01", False),
            ("1714564800", False),
        ):
            answer = await client.get("/v1/recommendations/user-1", params={"k": 100, "now": now})
            assert answer.status_code == 200, answer.text
            found = [row["bundle_id"] for row in answer.json()["recommendations"]]
            assert ("X" in found) is there, now
            assert found == await listed(client, now=int(now) if now.isdecimal() else now)
        for wrong in ("soon", "nan", "1714564800000"):
            answer = await client.get("/v1/recommendations/user-1", params={"now": wrong})
            assert (answer.status_code, "query.now" in answer.json()["detail"]) == (422, True), answer.text

    with_client(run, check)


def test_columns_are_there_after_a_restart_and_a_reload(run: Path) -> None:
    async def write(client: httpx.AsyncClient) -> None:
        made = {"bundle_id": "X", "item_ids": ["item-1"], "columns": {"title": "Ten", "price": 5}}
        assert (await client.post("/v1/bundles", json=made)).json()["columns"] == {"title": "Ten", "price": 5}
        for path, columns in (
            ("/v1/bundles/X", {"title": "Tent", "colour": "red"}),
            ("/v1/bundles/bundle-3", {"price": 7.5, "available": False, "ends": "2999-01-01"}),
            ("/v1/bundles/bundle-4", {"title": "gone soon"}),
            ("/v1/items/item-7", {"title": "Lamp", "category": "LIGHT"}),
            ("/v1/items/item-7", {"category": None}),
        ):
            answer = await client.patch(path, json=columns)
            assert answer.status_code == 200, answer.text
        await client.delete("/v1/bundles/bundle-4")
        await publish(client, "bundle-4", ["item-1"])

    async def look(client: httpx.AsyncClient) -> None:
        found = [
            (await client.get(f"/v1/bundles/{name}")).json()["columns"]
            for name in ("X", "bundle-3", "bundle-4")
        ]
        assert found == [
            {"title": "Tent", "price": 5, "colour": "red"},
            {"price": 7.5, "available": False, "ends": "2999-01-01"},
            {},
        ]
        assert (await client.get("/v1/items/item-7")).json() == {
            "item_id": "item-7",
            "columns": {"title": "Lamp"},
        }
        shown = await listed(client, exclude_seen=False)
        assert "bundle-3" not in shown
        said = (await client.get("/v1/columns?limit=2")).json()
        rest = (await client.get(f"/v1/columns?after={said['next']}")).json()
        assert rest["next"] is None
        assert {(row["subject"], row["id"]): row["columns"] for row in said["columns"] + rest["columns"]} == {
            ("bundle", "X"): {"title": "Tent", "price": 5, "colour": "red"},
            ("bundle", "bundle-3"): {"price": 7.5, "available": False, "ends": "2999-01-01"},
            ("item", "item-7"): {"title": "Lamp", "category": None},
        }

    async def write_and_look(client: httpx.AsyncClient) -> None:
        await write(client)
        await look(client)
        assert (await client.post("/v1/models/reload")).status_code == 200
        await look(client)

    with_client(run, write_and_look)
    with_client(run, look)


def test_what_does_not_fit_is_refused_and_nothing_stored(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        await client.patch("/v1/bundles/bundle-1", json={"price": 3})
        for method, path, body, status in (
            ("PATCH", "/v1/bundles/bundle-1", {"price": "cheap"}, 422),
            ("PATCH", "/v1/bundles/bundle-1", {"price": [1]}, 422),
            ("PATCH", "/v1/bundles/bundle-1", {}, 422),
            ("PATCH", "/v1/bundles/bundle-1", {"item_ids": "x"}, 422),
            ("PATCH", "/v1/bundles/bundle-1", {"ends": "tomorrow"}, 422),
            ("PATCH", "/v1/bundles/nothing", {"price": 1}, 404),
            ("PATCH", "/v1/items/nothing", {"price": 1}, 404),
            ("GET", "/v1/items/nothing", None, 404),
            (
                "POST",
                "/v1/bundles",
                {"bundle_id": "Y", "item_ids": ["item-1"], "columns": {"price": "x"}},
                422,
            ),
        ):
            answer = await client.request(method, path, json=body)
            detail = answer.json()["detail"]
            assert (answer.status_code, bool(detail)) == (status, True), (path, body)
            assert "Input should" not in detail  # the words of a program
            assert detail.count(";") <= 1, detail  # one sentence, not one for each type that it is not
        assert (await client.get("/v1/bundles/bundle-1")).json()["columns"] == {"price": 3}
        assert (await client.get("/v1/bundles/Y")).status_code == 404
        assert [row["columns"] for row in (await client.get("/v1/columns")).json()["columns"]] == [
            {"price": 3}
        ]

    with_client(run, check)


def test_lists_are_filtered_arranged_and_described_as_by_the_library(run: Path) -> None:
    library = Recommender.load(run)
    columns: dict[str, dict[str, Value]]
    columns = {f"bundle-{n}": {"price": n, "category": "AB"[n % 2], "title": f"no. {n}"} for n in range(40)}
    library.describe_bundles(columns)
    where = {"price": {"at_most": 20}}
    rules = {
        "pin": {"bundle-9": 2},
        "at_most_per_category": 2,
        "boost": [{"factor": 3, "bundles": ["bundle-5"]}],
    }

    async def check(client: httpx.AsyncClient) -> None:
        for name, values in columns.items():
            assert (await client.patch(f"/v1/bundles/{name}", json=values)).status_code == 200
        asked = {"user_id": "user-1", "k": 4, "where": where, "fields": ["title", "price"], "rules": rules}
        found = (await client.post("/v1/recommendations", json=asked)).json()
        expected = library.recommend(["user-1"], 4, where=where, fields=["title", "price"], rules=rules)
        assert [(row["bundle_id"], row["fields"]) for row in found["recommendations"]] == [
            (row.bundle_id, row.fields) for row in expected
        ]
        asked_by_get: dict[str, str | int] = {
            "k": 4,
            "where": '{"price": {"at_most": 20}}',
            "fields": "title,price",
        }
        by_get = (await client.get("/v1/recommendations/user-1", params=asked_by_get)).json()
        expected = library.recommend(["user-1"], 4, where=where, fields=["title", "price"])
        assert [(row["bundle_id"], row["fields"]) for row in by_get["recommendations"]] == [
            (row.bundle_id, row.fields) for row in expected
        ]
        none = await client.post("/v1/recommendations", json={**asked, "where": {"price": {"above": 100}}})
        assert none.json()["recommendations"] == []
        assert "meet `where`" in none.json()["note"]
        for wrong, said in (
            ({"where": {"weight": {"is": 1}}}, "weight"),
            ({"where": {"price": {"like": 1}}}, "like"),
            ({"fields": ["weight"]}, "weight"),
            ({"rules": {"pin": {"bundle-1": 0}}}, "from 1"),
            ({"rules": {"run": "rm"}}, "run"),
            ({"not_shown_for": 60, "user_id": None}, "not_shown_for"),
        ):
            refused = await client.post("/v1/recommendations", json={**asked, **wrong})
            assert (refused.status_code, said in refused.json()["detail"]) == (422, True), refused.text
        for text in ("{", "[]", '"x"', "[" * 5000):
            refused = await client.get("/v1/recommendations/user-1", params={"where": text})
            assert refused.status_code == 422
        search = (await client.get("/v1/search?q=NO. 12")).json()
        assert search == {"bundles": [{"id": "bundle-12", "title": "no. 12"}], "items": [], "complete": True}
        items = (await client.get("/v1/search?q=item-49")).json()["items"]
        assert items == [{"id": "item-49", "title": None}]

    with_client(run, check)


def test_unknown_ids_are_noted_and_candidates_may_be_many(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        asked = {"user_id": "user-1", "k": 2, "exclude": ["nothing"]}
        found = (await client.post("/v1/recommendations", json=asked)).json()
        assert len(found["recommendations"]) == 2
        assert "'nothing'" in found["note"]
        many = [f"bundle-{n}" for n in range(50_000)]
        found = (await client.post("/v1/recommendations", json={"candidates": many, "k": 3})).json()
        assert len(found["recommendations"]) == 3
        assert "49960" in found["note"].replace(",", "")
        none = (await client.post("/v1/recommendations", json={"candidates": ["nothing"]})).json()
        assert (none["recommendations"], "'nothing'" in none["note"]) == ([], True)

    with_client(run, check)


def test_unknown_ids_of_a_basket_are_noted(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        async def note(**asked: Any) -> str:
            found = (await client.post("/v1/recommendations", json={"k": 2, **asked})).json()
            assert len(found["recommendations"]) == 2
            return str(found["note"])

        several = {"item_ids": ["item-1", "fork", "spoon"], "bundle_ids": ["nothing"]}
        for who in ({}, {"user_id": "user-1"}):
            said = await note(**who, **several)
            assert "does not know 2 of the items, such as 'fork'; left out" in said
            assert "does not know the bundle 'nothing'; left out" in said
        assert "no vector can be made" in await note(item_ids=["fork"])
        assert await note(user_id="stranger") == "None"  # `source` says it

    with_client(run, check)


def test_a_body_that_is_wrong_is_answered_with_what_would_be_right(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/recommendations", json={"items": ["item-1"]})
        assert answer.status_code == 422
        said = answer.json()["detail"]
        assert said.startswith("body.items: there is no such field; there are: ")
        assert "bundle_ids" in said
        assert "item_ids" in said
        form = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl -d sends it
        plain = await client.post("/v1/recommendations", content='{"user_id": "user-1"}', headers=form)
        assert plain.json()["detail"] == (
            "body: send a JSON object, with the header Content-Type: application/json"
        )
        kind = {"Content-Type": "application/json"}
        cut = await client.post("/v1/recommendations", content='{"user_id": "user-1"', headers=kind)
        assert cut.json()["detail"].startswith("body: this is not JSON (")
        lines = '{"user_id": "u", "bundle_id": "bundle-1"}\n{"user_id": "v", "bundle_id": "bundle-1"}\n'
        unnamed = await client.post("/v1/interactions", content=lines, headers=form)
        assert "each line goes with the header Content-Type: application/x-ndjson" in unnamed.json()["detail"]
        wrong = await client.post("/v1/recommendations", json={"candidates": "some"})
        assert "body.candidates: Input should be 'all' or 'new'" in wrong.json()["detail"]
        for body, sentence in (
            ({"where": {"category": "TEA"}}, "where, category: write an operator and a value, for example {"),
            ({"where": ["TEA"]}, "body.where: write an object, {...}"),
            ({"fields": "title"}, "body.fields: write a list, [...]"),
        ):
            told = await client.post("/v1/recommendations", json={"user_id": "user-1", **body})
            assert (told.status_code, told.json()["detail"][: len(sentence)]) == (422, sentence)
        for said, sentence in (
            (
                {"colour": {"is": "red"}},
                "body.colour: a value is a text of at most 10,000 characters, a n",
            ),
            ({"item_ids": ["item-1"]}, "body.item_ids: this is not a column; PUT gives a bundle other items"),
            ({"price": "3"}, "price is a number; '3' is not"),
            ({"title": 2.5}, "title is a text of at most 10,000 characters; 2.5 is not"),
        ):
            told = await client.patch("/v1/bundles/bundle-1", json=said)
            assert (told.status_code, told.json()["detail"][: len(sentence)]) == (422, sentence)

    with_client(run, check)


def test_what_was_shown_lately_is_not_shown_again(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        first = await listed(client)
        now = time.time()
        rows = [
            {"user_id": user, "bundle_id": name, "kind": kind, "timestamp": now - age}
            for user, name, kind, age in (
                ("user-1", first[0], "shown", 100),
                ("user-1", first[1], "shown", 5000),
                ("user-1", first[2], "clicked", 100),
                ("user-2", first[3], "shown", 100),
            )
        ]
        assert (await client.post("/v1/interactions", json={"interactions": rows})).status_code == 201
        assert await listed(client) == first
        assert await listed(client, not_shown_for=3600) == first[1:]
        assert await listed(client, not_shown_for=7200) == first[2:]

    with_client(run, check)


def test_fields_come_with_bundles_that_are_alike_and_in_explanations(run: Path) -> None:
    """Only lists had them."""

    async def check(client: httpx.AsyncClient) -> None:
        for n in range(40):
            await client.patch(f"/v1/bundles/bundle-{n}", json={"title": f"Title {n}", "price": n})
        alike = "/v1/bundles/bundle-1/similar?k=3"
        plain = (await client.get(alike)).json()["similar"]
        assert all("fields" not in row for row in plain)
        rows = (await client.get(f"{alike}&fields=title,price")).json()["similar"]
        assert [row["bundle_id"] for row in rows] == [row["bundle_id"] for row in plain]
        for row in rows:
            n = int(row["bundle_id"].removeprefix("bundle-"))
            assert row["fields"] == {"title": f"Title {n}", "price": n}
        dear = (await client.get(f'{alike}&where={{"price": {{"at_least": 38}}}}')).json()["similar"]
        assert {row["bundle_id"] for row in dear} == {"bundle-38", "bundle-39"}
        preview = {"item_ids": ["item-1"], "k": 2, "fields": ["title"]}
        found = (await client.post("/v1/previews", json=preview)).json()["similar"]
        assert all(row["fields"]["title"].startswith("Title") for row in found)
        why = "/v1/explanations?user_id=user-1&bundle_id=bundle-7"
        told = (await client.get(f"{why}&fields=title")).json()
        assert told["fields"] == {"title": "Title 7"}
        assert told["user_bundles"]
        for row in told["user_bundles"]:
            assert row["fields"] == {"title": row["bundle_id"].replace("bundle-", "Title ")}
        for wrong in (f"{alike}&fields=colour", f"{alike}&where=no", f"{why}&fields=colour"):
            assert (await client.get(wrong)).status_code == 422

    with_client(run, check)
