"""Closed by default: keys, scopes, foreign pages; and the whole document under random fire."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from quick_python import quick
from service_client import linked_run, publish, with_client
from service_common import START
from service_fuzz import fire

from coheat.errors import ConfigError
from coheat.service.app import create_app
from coheat.service.keys import KeyRing, checked_scope
from coheat.service.limits import Limits
from coheat.service.middleware import is_loopback


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return linked_run(tmp_path)


METHODS = ("get", "post", "put", "delete", "patch")


def ring(run: Path) -> KeyRing:
    return KeyRing(run.parent / "state" / "keys.json")


def routes(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Every method and address of an OpenAPI document, with an id in each place."""
    return [
        (method, path.replace("{user_id}", "user-1").replace("{bundle_id}", "bundle-1"))
        for path, operations in document["paths"].items()
        for method in METHODS
        if method in operations
    ]


def test_every_documented_route_wants_a_key(run: Path) -> None:
    secret = ring(run).create("shop", "write")

    async def check(client: httpx.AsyncClient) -> None:
        document = (await client.get("/openapi.json")).json()
        found = routes(document)
        assert len(found) >= 16
        for method, path in [*found, ("get", "/metrics"), ("get", "/v1/nothing")]:
            for wrong in ("", "wrong", secret[:-1], "é"):
                answer = await client.request(method, path, headers={b"X-API-Key": wrong.encode()})
                assert answer.status_code == 401, (method, path)
                assert answer.headers["content-type"] == "application/problem+json"
                assert "www-authenticate" in answer.headers
            assert (await client.request(method, path, headers={"X-API-Key": secret})).status_code != 401
        for path in ("/health/live", "/"):
            assert (await client.get(path)).status_code == 200

    with_client(run, check, Limits(refused_keys=1000))


def test_a_reading_key_reads_and_does_not_write(run: Path) -> None:
    keys = ring(run)
    headers = {"X-API-Key": keys.create("page", "read")}

    async def check(client: httpx.AsyncClient) -> None:
        client.headers.update(headers)
        assert (await client.get("/v1/recommendations/user-1")).status_code == 200
        assert (await client.post("/v1/previews", json={"item_ids": ["item-1"]})).status_code == 200
        assert (await client.post("/v1/recommendations", json={})).status_code == 200
        refused = await publish(client, "new", ["item-1"])
        assert refused.status_code == 403
        assert "scope write" in refused.json()["detail"]
        for method, path in (
            ("PUT", "/v1/bundles/bundle-1"),
            ("DELETE", "/v1/bundles/bundle-1"),
            ("POST", "/v1/interactions"),
            ("POST", "/v1/models/reload"),
        ):
            assert (await client.request(method, path)).status_code == 403
        keys.revoke("page")
        assert (await client.get("/v1/recommendations/user-1")).status_code == 401

    with_client(run, check)


def test_a_key_made_while_serving_closes_the_service(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/models")).status_code == 200
        keys = ring(run)
        keys.create("shop", "read")
        assert (await client.get("/v1/models")).status_code == 401
        keys.path.write_text("{}")
        assert (await client.get("/v1/models")).status_code == 503
        keys.path.unlink()
        assert (await client.get("/v1/models")).status_code == 401

    with_client(run, check)


def test_who_shows_wrong_keys_has_to_wait_and_others_do_not(run: Path) -> None:
    secret = ring(run).create("shop", "read")

    async def check(client: httpx.AsyncClient) -> None:
        wrong = [await client.get("/v1/models", headers={"X-API-Key": f"guess {n}"}) for n in range(5)]
        assert [answer.status_code for answer in wrong] == [401, 401, 401, 429, 429]
        assert 1 <= int(wrong[-1].headers["retry-after"]) <= 60
        assert (await client.get("/v1/models", headers={"X-API-Key": secret})).status_code == 200
        text = (await client.get("/metrics", headers={"X-API-Key": secret})).text
        assert 'coheat_http_requests_refused_total{reason="key"} 3.0' in text
        assert 'coheat_http_requests_refused_total{reason="keys"} 2.0' in text

    with_client(run, check, Limits(refused_keys=3))


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "a", "scope": "write", "sha256": 5, "created": ""},
        {"name": "a", "scope": "write", "sha256": "é" * 64, "created": ""},
        {"name": "a", "scope": "all", "sha256": "0" * 64, "created": ""},
        {"name": ["a"], "scope": "read", "sha256": "0" * 64, "created": ""},
        "a",
        None,
    ],
)
def test_a_file_that_holds_no_keys_lets_nobody_in(run: Path, entry: Any) -> None:
    path = ring(run).path
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"keys": [entry]}))

    async def check(client: httpx.AsyncClient) -> None:
        for key in ("", "a", "0" * 64):
            answer = await client.get("/v1/models", headers={"X-API-Key": key})
            assert (answer.status_code, "keys cannot be read" in answer.text) == (503, True)
        path.write_text("nonsense")
        assert (await client.get("/v1/models")).status_code == 503
        path.unlink()
        await asyncio.sleep(0.6)

    async def go() -> None:
        app = create_app(run, run.parent / "state")
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            ready = await client.get("/health/ready")
            assert (ready.status_code, ready.json()["keys"][:23]) == (503, "the keys cannot be read")
            await check(client)

    asyncio.run(go())


def test_keys_are_kept_hashed_and_private(tmp_path: Path) -> None:
    keys = KeyRing(tmp_path / "keys.json")
    secret = keys.create("shop", "write")
    text = keys.path.read_text()
    assert secret not in text
    assert secret.removeprefix("coheat_") not in text
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600
    assert keys.scope_of(secret) == "write"
    assert keys.scope_of(json.loads(text)["keys"][0]["sha256"]) is None
    with pytest.raises(ConfigError, match="already"):
        keys.create("shop", "read")
    with pytest.raises(ConfigError, match=r"no key named 'stall' \(there are: 'shop'\)"):
        keys.revoke("stall")
    with pytest.raises(ConfigError, match="read or write"):
        checked_scope("admin")


def test_without_keys_only_this_machine_is_served(run: Path) -> None:
    async def check(client: httpx.AsyncClient) -> None:
        for host in ("localhost", "127.0.0.1:8000", "[::1]:8000"):
            assert (await client.get("/v1/models", headers={"Host": host})).status_code == 200
        for origin in ("http://[", "null", "http://[::1"):
            assert (await client.get("/v1/models", headers={"Origin": origin})).status_code == 403
        for host in ("evil.example", "127.0.0.1.evil.example", "", "[::1"):
            assert (await client.get("/v1/models", headers={"Host": host})).status_code == 403
        foreign = await client.post("/v1/models/reload", headers={"Origin": "https://evil.example"})
        assert foreign.status_code == 403
        own = await client.post("/v1/models/reload", headers={"Origin": "http://localhost"})
        assert own.status_code == 200

    with_client(run, check)


def test_other_addresses_need_keys(run: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START, "serve", str(run), "--host", "0.0.0.0", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 2
    assert "without a key the service listens on this machine only" in done.stderr
    assert "Traceback" not in done.stderr
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "10.0.0.1")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_keys_by_command(tmp_path: Path) -> None:
    def keys(*arguments: str) -> Any:
        command = [quick("coheat"), "keys", *arguments, "--json"]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    run = str(tmp_path / "run")
    made = keys("create", run, "--scope", "write", "--name", "the shop")
    kept = KeyRing(tmp_path / "run.service" / "keys.json")
    assert kept.scope_of(made["key"]) == "write"
    assert [(key["name"], key["scope"]) for key in keys("list", run)] == [("the shop", "write")]
    assert keys("revoke", run, "--name", "the shop") == {"revoked": "the shop"}
    assert kept.scope_of(made["key"]) is None


def test_keys_are_never_logged(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = ring(run).create("shop", "read")

    async def check(client: httpx.AsyncClient) -> None:
        client.headers["X-API-Key"] = secret
        await client.get("/v1/models")
        await publish(client, "new", ["item-1"])
        await client.get("/v1/nothing", headers={"X-API-Key": secret[:-2]})

    with caplog.at_level("DEBUG"):
        with_client(run, check)
    assert secret[:-2] not in caplog.text


def test_random_requests_get_documented_answers(run: Path) -> None:
    answers = fire(run, run.parent / "state", examples=10)
    assert len(answers) >= 16
    met = {status for counts in answers.values() for status in counts}
    assert {200, 201, 404, 422} <= met
    assert max(met) < 500


def test_bandit_finds_nothing() -> None:
    """What it leaves out stands in pyproject.toml, with the reasons."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "bandit", "-q", "-c", "pyproject.toml", "-r", "src/coheat"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
