"""What every request passes before a route sees it: identity, keys, limits, counting, headers.

Written against ASGI itself: it costs little, and it holds for pages, unknown addresses and errors alike.

An id in a path may contain any character, a slash too, percent-encoded. So routing looks at the path as
it was sent, where an encoded slash divides nothing, and the routes decode their ids (see `routes.py`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders

from coheat.errors import CoheatError
from coheat.service.keys import KeyRing
from coheat.service.metrics import Metrics
from coheat.service.problems import problem
from coheat.service.schemas import MAX_BODY

log = logging.getLogger("coheat.service")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
READS = {"GET", "HEAD", "OPTIONS"}
READING_POSTS = {"/v1/previews", "/v1/recommendations"}
"""They answer a question that does not fit into an address, and change nothing."""


@dataclass(frozen=True)
class Limits:
    """How much is taken on: requests in work at once, bytes of a body, seconds for it to arrive."""

    requests: int = 64
    body_bytes: int = MAX_BODY
    body_seconds: float = 10.0


class Refused(Exception):
    """A request that is not let in."""

    def __init__(self, status: int, detail: str, reason: str, headers: dict[str, str] | None = None):
        super().__init__(detail)
        self.status, self.detail, self.reason, self.headers = status, detail, reason, headers or {}


class Gate:
    """The ASGI application around the application."""

    def __init__(
        self, app: App, keys: KeyRing, metrics: Metrics, limits: Limits, has_started: Callable[[], bool]
    ):
        self.app, self.keys, self.metrics, self.limits = app, keys, metrics, limits
        self.has_started = has_started
        self.in_work = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        scope = {**scope, "path": _path_as_sent(scope), "state": {**scope.get("state", {})}}
        scope["state"]["id"] = secrets.token_hex(8)
        answer = Answer(send, scope["state"]["id"])
        try:
            await self._let_through(scope, receive, answer)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            self.metrics.requests.labels(_known(scope["method"]), route, str(answer.status)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - started)

    async def _let_through(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        request_id = scope["state"]["id"]
        free = scope["path"].startswith("/health/")  # a probe is answered however busy we are
        try:
            if not free:
                self._check(scope)
            self.in_work += not free
            self.metrics.in_work.set(self.in_work)
            try:
                await self.app(scope, self._limited(receive), answer)
            finally:
                self.in_work -= not free
                self.metrics.in_work.set(self.in_work)
        except Refused as refused:
            self.metrics.refused.labels(refused.reason).inc()
            said = problem(refused.status, refused.detail, request_id, refused.headers)
            await said(scope, receive, answer)
        except Exception:
            log.exception("request %s failed", request_id)
            if answer.status == 0:
                said = problem(500, "this is a fault of ours; it is in the log", request_id)
                await said(scope, receive, answer)
            else:
                raise

    def _check(self, scope: Scope) -> None:
        """Raise `Refused` for whom we do not know, what they may not do, and what is too much."""
        headers = Headers(scope=scope)
        if self.in_work >= self.limits.requests:
            busy = f"{self.in_work} requests are in work, as many as are taken on; try again in a moment"
            raise Refused(503, busy, "busy", {"Retry-After": "1"})
        if self._keys_required():
            if scope["path"] == "/metrics" or scope["path"].startswith("/v1"):
                self._check_key(scope, headers.get("x-api-key", ""))
        else:
            _check_local(headers)
        if scope["path"].startswith("/v1") and not self.has_started():
            starting = "it has just been started and is catching up with what was written; try again soon"
            raise Refused(503, starting, "starting", {"Retry-After": "1"})
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self.limits.body_bytes:
            raise Refused(413, f"the body may have {self.limits.body_bytes} bytes at most", "body")

    def _keys_required(self) -> bool:
        try:
            return self.keys.required()
        except (CoheatError, OSError) as error:
            log.error("%s", error)
            raise Refused(503, "the keys cannot be read; nobody is let in", "keys") from None

    def _check_key(self, scope: Scope, given: str) -> None:
        allowed = self.keys.scope_of(given)
        if allowed is None:
            detail = "this service wants a key in the header X-API-Key; make one with coheat keys create"
            raise Refused(401, detail, "key", {"WWW-Authenticate": 'ApiKey header="X-API-Key"'})
        writes = scope["method"] not in READS and scope["path"] not in READING_POSTS
        if writes and allowed != "write":
            raise Refused(403, "this key may only read; use one with the scope write", "scope")

    def _limited(self, receive: Receive) -> Receive:
        """`receive` that stops a body which is too long or too slow, whatever its head promised."""
        taken, ended = 0, False

        async def limited() -> MutableMapping[str, Any]:
            nonlocal taken, ended
            if ended:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self.limits.body_seconds)
            except TimeoutError:
                raise HTTPException(408, "the body did not arrive in time") from None
            taken += len(message.get("body", b""))
            ended = not message.get("more_body", False)
            if taken > self.limits.body_bytes:
                raise HTTPException(413, f"the body may have {self.limits.body_bytes} bytes at most")
            return message

        return limited


class Answer:
    """`send` that adds our headers and remembers the status."""

    def __init__(self, send: Send, request_id: str):
        self.send, self.request_id, self.status = send, request_id, 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers["X-Request-ID"] = self.request_id
            headers.setdefault("Cache-Control", "no-cache")
        await self.send(message)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_local(headers: Headers) -> None:
    """Without keys we serve this machine only; a page from elsewhere in its browser is not this machine.

    It could reach us by a name of its own that points here (Host), or by a form (Origin).
    """
    host = _host_of(f"//{headers.get('host', '')}")
    if host is None or not is_loopback(host):
        detail = f"without keys this service answers to localhost only, not to {host!r}"
        raise Refused(403, detail, "host")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        raise Refused(403, "without keys this service does not answer to pages of other origins", "origin")


def _host_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _path_as_sent(scope: Scope) -> str:
    raw = scope.get("raw_path")
    if raw is None:
        return quote(scope["path"])
    return bytes(raw).split(b"?")[0].decode("latin-1")


def _known(method: str) -> str:
    return method if method in READS | {"POST", "PUT", "DELETE", "PATCH"} else "other"
