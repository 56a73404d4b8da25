"""HTTP as it is meant: methods, addresses, preconditions, repeated requests, a log that finds a request."""

from __future__ import annotations

import json
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from service_client import linked_run, publish, with_client, without_id
from service_common import serving

from coheat.service import logs
from coheat.service.app import create_app
from coheat.service.keys import KeyRing
from coheat.service.logs import logging_to


def test_lines_are_written_in_order_and_left_out_where_nobody_reads() -> None:
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    with suppress(BrokenPipeError), stream, logging_to(stream) as handler:
        events = logging.LogRecord("coheat.service.events", logging.INFO, "", 0, "%d", (), None)
        for number in range(100):
            handler.handle(logging.makeLogRecord({**events.__dict__, "args": (number,)}))
        with os.fdopen(reading) as pipe:
            assert [json.loads(pipe.readline())["message"] for _ in range(100)] == [
                str(n) for n in range(100)
            ]
            for _ in range(2 * logs.MOST_WAITING):  # the pipe is full, nobody reads it, and nobody waits
                handler.handle(logging.makeLogRecord({**events.__dict__, "args": (0,)}))
            assert 0 < handler.dropped < 2 * logs.MOST_WAITING


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return linked_run(tmp_path)


def test_head_answers_what_get_would_without_its_body(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        for path in ("/health/live", "/health/ready", "/v1/models", "/v1/bundles/bundle-1", "/", "/metrics"):
            full, head = await client.get(path), await client.head(path)
            assert (head.status_code, head.content) == (200, b""), path
            if path != "/metrics":  # which grows by being asked for
                assert head.headers["content-length"] == str(len(full.content))
            assert head.headers["content-type"] == full.headers["content-type"]
        assert (await client.head("/v1/bundles/nothing")).status_code == 404

    with_client(run, check)


def test_unknown_methods_and_addresses(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        for method, path, allow in (
            ("PATCH", "/v1/bundles", "GET, HEAD, POST"),
            ("POST", "/v1/bundles/x", "DELETE, GET, HEAD, PATCH, PUT"),
            ("GET", "/v1/previews", "POST"),
            ("HEAD", "/v1/previews", "POST"),
            ("PUT", "/v1/interactions", "DELETE, GET, HEAD, POST"),
            ("DELETE", "/health/live", "GET, HEAD"),
            ("OPTIONS", "/v1/models", "GET, HEAD"),
            ("POST", "/index.html", "GET, HEAD"),
        ):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, allow), (method, path)
        for method in ("GET", "POST", "HEAD", "BREW"):
            for path in ("/v1/nothing", "/v1", "/v1/", "/v1/bundles/", "/v1/bundles/a/b/c", "/health/x"):
                assert (await client.request(method, path)).status_code == 404, (method, path)
        text = (await client.get("/metrics")).text
        assert 'method="PATCH",route="/v1/bundles",status="405"' in text
        assert 'method="other",route="unmatched",status="404"' in text

    with_client(run, check)


def test_parameters_that_mean_nothing_are_told(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        for path in (
            "/v1/recommendations/user-1?exclude=bundle-1", "/v1/models?x", "/v1/bundles?K=1&query=a",
            "/health/live?verbose=1",
        ):  # fmt: skip
            answer = await client.get(path)
            assert (answer.status_code, "unknown parameter" in answer.json()["detail"]) == (422, True), path
        assert (await client.put("/v1/bundles/x?k=1", json={"item_ids": ["item-1"]})).status_code == 422
        assert (await client.get("/?from=mail")).status_code == 200

    with_client(run, check)


def test_a_list_at_once_is_the_list_of_the_framework(run: Path) -> None:
    """A parameter that is given twice sends a question through the framework, which takes the last."""

    async def check(client: httpx.AsyncClient) -> None:
        for user, query, twice in (
            ("user-1", "k=7", "k=3"),
            ("user-1", "k=7&candidates=new&exclude_seen=false", "k=3"),
            ("user-2", "k=5&only_on_offer=0", "only_on_offer=1"),
            ("nobody", "k=5", "k=3"),
            ("a%2Fb", "k=5", "k=3"),
            ("user-1", "k=0", "k=3"),
            ("user-1", "k=many", "k=3"),
            ("user-1", "k=", "k=3"),
            ("user-1", "candidates=old", "candidates=new"),
            ("user-1", "where=%7B", "where=x"),
            ("user-1", "where=%7B%22price%22%3A%7B%22at_most%22%3A3%7D%7D", "where=x"),
            ("user-1", "fields=", "fields=x"),
            ("user-1", "fields=nothing", "fields=x"),
            ("%ff", "k=5", "k=3"),
            ("u" * 1001, "k=5", "k=3"),
        ):
            path = f"/v1/recommendations/{user}?"
            at_once, framework = await client.get(path + query), await client.get(f"{path}{twice}&{query}")
            assert at_once.status_code == framework.status_code, (user, query)
            first, second = ({**without_id(one.json()), "request_id": ""} for one in (at_once, framework))
            assert first == second, (user, query)
            ours = [{key for key, _ in one.headers.raw} for one in (at_once, framework)]
            assert ours[0] == ours[1]

    with_client(run, check)


def test_a_bundle_is_changed_only_if_it_is_as_it_was_seen(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        made = await publish(client, "a/ä", ["item-1", "moon"])
        place = f"/v1/bundles/{quote('a/ä', safe='')}"
        assert made.headers["location"] == place
        tag = made.headers["etag"]
        await client.post("/v1/interactions", json={"user_id": "user-1", "bundle_id": "a/ä"})
        assert (await client.get(place)).headers["etag"] == tag
        changed = await client.put(place, json={"item_ids": ["item-2"]}, headers={"If-Match": tag})
        assert changed.status_code == 200
        assert "location" not in changed.headers
        for headers in ({"If-Match": tag}, {"If-Match": '"other", "another"'}):
            refused = await client.put(place, json={"item_ids": ["item-3"]}, headers=headers)
            assert refused.status_code == 412
            assert (await client.delete(place, headers=headers)).status_code == 412
        assert (await client.get(place)).json()["item_ids"] == ["item-2"]
        newest = f"{tag}, {changed.headers['etag']}"
        assert (await client.delete(place, headers={"If-Match": newest})).status_code == 204
        absent = await client.put(place, json={"item_ids": ["item-3"]}, headers={"If-Match": "*"})
        assert absent.status_code == 412
        assert (await client.get(place)).status_code == 404
        put = await client.put(place, json={"item_ids": ["item-3"]})
        assert (put.status_code, put.headers["location"]) == (201, place)

    with_client(run, check)


def test_a_request_with_a_key_of_its_own_may_be_repeated(run: Path) -> None:
    new = {"bundle_id": "new", "item_ids": ["item-1"]}
    key = {"Idempotency-Key": "order 17"}

    async def create(client: httpx.AsyncClient) -> None:
        assert (await client.post("/v1/bundles", json=new, headers=key)).status_code == 201

    async def check(client: httpx.AsyncClient) -> None:
        again = await client.post("/v1/bundles", json=new, headers=key)
        assert (again.status_code, again.json()["bundle_id"]) == (201, "new")
        other = await client.post("/v1/bundles", json={**new, "item_ids": ["item-2"]}, headers=key)
        assert (other.status_code, "another body" in other.json()["detail"]) == (422, True)
        for headers in ({}, {"Idempotency-Key": "order 18"}):
            assert (await client.post("/v1/bundles", json=new, headers=headers)).status_code == 409
        await client.delete("/v1/bundles/new")
        assert (await client.post("/v1/bundles", json=new)).status_code == 201
        assert (await client.post("/v1/bundles", json=new, headers=key)).status_code == 409

    with_client(run, create)
    with_client(run, check)  # also after a restart


@pytest.mark.parametrize("with_ids", [False, True])
def test_the_log_finds_a_request_and_tells_who_wrote(run: Path, with_ids: bool) -> None:
    secret = KeyRing(run.with_name("run.service") / "keys.json").create("the shop", "write")
    own = {"X-API-Key": secret}
    with serving(run, *(["--log-ids"] if with_ids else [])) as server:
        taken = {"user_id": "user-1", "bundle_id": "bundle-2"}
        assert server.ask("POST", "/v1/interactions", taken, own)[0] == 201
        assert server.ask("PUT", "/v1/bundles/new", {"item_ids": ["item-1"]}, own)[0] == 201
        assert server.ask("GET", "/v1/recommendations/user-2", headers=own)[0] == 200
        assert server.ask("POST", "/v1/models/reload", headers=own)[0] == 200
        wrong = server.ask("GET", "/v1/models", headers={"X-API-Key": secret[:-1]})[1]
        unknown = server.ask("GET", "/v1/bundles/nothing", headers=own)[1]
        text = server.stop()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    requests = {line["request_id"]: line for line in lines if line["event"] == "request"}
    assert requests[wrong["request_id"]]["refused"] == "key"
    assert (requests[unknown["request_id"]]["status"], requests[unknown["request_id"]]["key"]) == (
        404, "the shop",
    )  # fmt: skip
    assert {line["route"] for line in requests.values()} >= {"/v1/bundles/{bundle_id}", "/v1/models"}
    writes = [line for line in lines if line["event"] == "write" and line["kind"] != "model"]
    assert [(line["kind"], line["bundle_id"], line["key"]) for line in writes] == [
        ("interaction", "bundle-2", "the shop"), ("bundle", "new", "the shop"),
    ]  # fmt: skip
    assert all(line["request_id"] in requests for line in writes)
    assert [line["generation"] for line in lines if line["event"] == "reload"] == [2]
    assert secret[:-1] not in text
    assert ("user-1" in text, "user-2" in text) == (with_ids, with_ids)


def test_a_fault_of_ours_is_in_the_log_by_its_request(run: Path) -> None:
    records: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(self.format(record))

    async def check(client: httpx.AsyncClient) -> None:
        app: Any = client._transport.app  # type: ignore[attr-defined]
        app.state.coheat.models.described = None  # a mistake of ours
        answer = await client.get("/v1/bundles/bundle-1")
        assert answer.status_code == 500
        found = [json.loads(line) for line in records]
        [fault] = [one for one in found if "traceback" in one]
        assert fault["request_id"] == answer.json()["request_id"]
        assert "TypeError" in fault["traceback"]

    handler = Keep()
    handler.setFormatter(logs.JsonLines())
    logging.getLogger("coheat.service").addHandler(handler)
    try:
        with_client(run, check)
    finally:
        logging.getLogger("coheat.service").removeHandler(handler)


def spoil(artifact: Path, how: str) -> None:
    index, vectors = artifact / "artifact.json", artifact / "served.safetensors"
    if how == "a pipe":
        index.unlink()
        os.mkfifo(index)
    elif how == "a directory":
        vectors.unlink()
        vectors.mkdir()
    elif how == "a link to itself":
        vectors.unlink()
        vectors.symlink_to(vectors)
    elif how == "deep nesting":
        index.write_text("[" * 100_000)
    elif how == "a huge number":
        index.write_text('{"format": ' + "9" * 5000 + "}")
    elif how == "another type":
        index.write_text(json.dumps({**json.loads(index.read_text()), "files": 7, "description": 7}))
    else:
        index.write_text("null")


@pytest.mark.parametrize(
    "how",
    ["a pipe", "a directory", "a link to itself", "deep nesting", "a huge number", "another type", "null"],
)
def test_a_strange_artifact_is_refused_with_its_reason_and_counted(run: Path, how: str) -> None:
    strange = run.parent / "strange"
    shutil.copytree(run.resolve(), strange)
    spoil(strange, how)

    async def check(client: httpx.AsyncClient) -> None:
        run.unlink()
        run.symlink_to(strange)
        answer = await client.post("/v1/models/reload")
        assert answer.status_code == 422
        assert "the old model goes on: " in answer.json()["detail"]
        assert 'coheat_model_reloads_total{result="failed"} 1.0' in (await client.get("/metrics")).text
        assert (await client.get("/v1/recommendations/user-1")).status_code == 200

    with_client(run, check)
    from coheat.errors import CoheatError

    with pytest.raises(CoheatError):
        create_app(strange, run.parent / "another")
