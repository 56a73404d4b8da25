"""What every request passes before a route sees it: identity, keys, limits, counting, headers.

Written against ASGI itself: it costs little, and it holds for pages, unknown addresses and errors alike.

An id in a path may contain any character, a slash too, percent-encoded. So routing looks at the path as
it was sent, where an encoded slash divides nothing, and the routes decode their ids (see `routes.py`).
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response

from coheat.errors import CoheatError
from coheat.ids import shortened
from coheat.service import logs
from coheat.service.addresses import Address, Addresses, parameters, unknown_parameters
from coheat.service.admission import Bodies, Receive, Refused, WrongKeys
from coheat.service.keys import Keys
from coheat.service.limits import Limits
from coheat.service.metrics import Metrics
from coheat.service.problems import problem, problem_of
from coheat.service.tokens import Tokens

log = logging.getLogger("coheat.service")

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
AtOnce = Callable[[str, Sequence[tuple[str, str]]], Awaitable[Response | None]]
"""A GET by its id as it was sent and its parameters; None where the application has to look at it."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' https:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
NOT_CACHED = (b"cache-control", b"no-cache")
SEQUENCE = b"coheat-sequence"
"""In the answer to a write its number; in a request the change that has to be seen in the answer."""
READS = {"GET", "HEAD", "OPTIONS"}
READING_POSTS = {"/v1/previews", "/v1/recommendations", "/v1/descriptions"}
"""They answer a question that does not fit into an address, and change nothing."""


class Middleware:
    """The ASGI application around the application."""

    def __init__(
        self,
        app: App,
        keys: Keys,
        metrics: Metrics,
        limits: Limits,
        addresses: Addresses,
        has_started: Callable[[], bool],
        reach: Callable[[int], Awaitable[bool]],
        log_ids: bool = False,
        health_port: int | None = None,
        at_once: Mapping[str, AtOnce] | None = None,
    ):
        """`at_once` are the addresses that are asked most often: they are answered without `app`."""
        self.app, self.keys, self.metrics, self.limits = app, keys, metrics, limits
        self.addresses, self.has_started, self.reach = addresses, has_started, reach
        self.log_ids, self.health_port = log_ids, health_port
        self.bodies = Bodies(limits)
        self.wrong_keys = WrongKeys(limits.refused_keys)
        self.in_progress = 0
        self.at_once = at_once or {}
        self.tokens = Tokens()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        scope = {**scope, "path": _path_as_sent(scope), "state": {**scope.get("state", {})}}
        scope["state"] |= {"id": self.tokens.take(8).hex(), "address": self.addresses.find(scope["path"])}
        logs.request_id.set(scope["state"]["id"])
        logs.key_name.set(None)
        logs.written.set(None)
        answer = Answer(send, scope["state"]["id"], has_body=scope["method"] != "HEAD")
        try:
            await self._let_through(scope, receive, answer)
        finally:
            self._note(scope, answer, time.perf_counter() - started)

    def _note(self, scope: Scope, answer: Answer, seconds: float) -> None:
        """Count a request, and write it down."""
        address: Address | None = scope["state"]["address"]
        route = address.template if address else "unmatched" if _is_guarded(scope["path"]) else "page"
        method = _known(scope["method"])
        self.metrics.answered(method, route, answer.status, seconds)
        if scope["path"].startswith("/health/") and answer.status == 200:
            return  # every few seconds, for ever
        ids = {"path": scope["path"]} if self.log_ids else {}
        logs.event(
            "request",
            method=method,
            route=route,
            status=answer.status,
            milliseconds=round(1000 * seconds, 1),
            bytes=answer.n_bytes,
            peer=_peer(scope),
            key=logs.key_name.get(),
            **({"refused": answer.refused} if answer.refused else {}),
            **ids,
        )

    async def _let_through(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        request_id = scope["state"]["id"]
        try:
            if scope["path"].startswith("/health/"):  # a probe is answered however busy we are
                self._check_address(scope)
                seen = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
                await self.app(seen, receive, answer)
                return
            self._check(scope)
            await self._wait_for(scope)
            body = await self.bodies.read(receive) if _has_body(scope) else b""
            with self._place(scope, answer):
                said = await self._said_at_once(scope)
                if said is not None:
                    await said(scope, receive, answer)
                    return
                # A HEAD is a GET of which only the head is sent.
                seen = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
                await self.app(seen, _given(body, receive), answer)
        except Refused as refused:
            self.metrics.refused.labels(refused.reason).inc()
            answer.refused = refused.reason
            said = problem(refused.status, refused.detail, request_id, refused.headers)
            await said(scope, receive, answer)
        except Exception:
            log.exception("request %s failed", request_id)
            if answer.status == 0:
                said = problem(500, "this is a fault of ours; it is in the log", request_id)
                await said(scope, receive, answer)
            else:
                raise

    async def _said_at_once(self, scope: Scope) -> Response | None:
        address: Address | None = scope["state"]["address"]
        handler = self.at_once.get(address.template) if address else None
        if handler is None or scope["method"] not in ("GET", "HEAD"):
            return None
        name = scope["path"].rpartition("/")[2]
        try:
            return await handler(name, parameters(scope["query_string"]))
        except CoheatError as error:
            return problem_of(error, scope["state"]["id"])

    async def _wait_for(self, scope: Scope) -> None:
        """Whoever has written something elsewhere, and says so, sees it here, too."""
        wanted = next((value.decode("latin-1") for name, value in scope["headers"] if name == SEQUENCE), None)
        if wanted is None or not scope["path"].startswith("/v1"):
            return
        if not wanted.isdecimal() or len(wanted) > 18:
            detail = "the header Coheat-Sequence is the number that a write was answered with"
            raise Refused(422, detail, "sequence")
        if not await self.reach(int(wanted)):
            detail = f"change {wanted} has not arrived at this service yet; try again soon"
            raise Refused(503, detail, "behind", {"Retry-After": "1"})

    @contextmanager
    def _place(self, scope: Scope, answer: Answer) -> Iterator[None]:
        """One of the places of those whose answers are being computed; pages need none.

        It is free again as soon as the answer is there: how fast that is read is the reader's affair.
        """
        if not _is_guarded(scope["path"]):
            yield
            return
        self._check_busy()
        self._count(+1)
        answer.on_start = lambda: self._count(-1)
        try:
            yield
        finally:
            answer.started()

    def _count(self, change: int) -> None:
        self.in_progress += change
        self.metrics.in_progress.set(self.in_progress)

    def _check_busy(self) -> None:
        if self.in_progress >= self.limits.requests:
            busy = f"{self.in_progress} requests are in progress, as many as are taken on; try again soon"
            raise Refused(503, busy, "busy", {"Retry-After": "1"})

    def _check(self, scope: Scope) -> None:
        """Raise `Refused` for whom we do not know, what they may not do, and what is too much."""
        headers = Headers(scope=scope)
        server = scope.get("server")
        if self.health_port is not None and server and server[1] == self.health_port:
            raise Refused(404, "only /health/live and /health/ready are answered on this port", "port")
        if self._keys_required():
            if _is_guarded(scope["path"]):
                self._check_key(scope, headers.get("x-api-key", ""))
        else:
            _check_local(headers)
        self._check_address(scope)
        if _is_guarded(scope["path"]):
            self._check_busy()
        if scope["path"].startswith("/v1") and not self.has_started():
            starting = "it has just been started and is catching up with what was written; try again soon"
            raise Refused(503, starting, "starting", {"Retry-After": "1"})
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > self.limits.body_bytes:
            raise Refused(413, f"the body may have {self.limits.body_bytes} bytes at most", "body")

    def _check_address(self, scope: Scope) -> None:
        """Whether there is such an address, with this method and these parameters."""
        path, method = scope["path"], scope["method"]
        address: Address | None = scope["state"]["address"]
        if address is None:
            if _is_guarded(path) or path.startswith("/health/"):
                raise Refused(404, "there is no such address; /openapi.json lists them all", "address")
            if method not in ("GET", "HEAD"):
                raise Refused(
                    405, f"a page cannot be requested with {_known(method)}", "method", {"Allow": "GET, HEAD"}
                )
            return
        if method not in address.methods and not (method == "HEAD" and "GET" in address.methods):
            detail = f"{address.template} does not know {_known(method)}, but {address.allow}"
            raise Refused(405, detail, "method", {"Allow": address.allow})
        unknown = unknown_parameters(address, "GET" if method == "HEAD" else method, scope["query_string"])
        if unknown:
            known = ", ".join(sorted(address.methods.get(method, ()))) or "none"
            detail = f"unknown parameter {shortened(unknown[0])}; {address.template} knows: {known}"
            raise Refused(422, detail, "parameter")

    def _keys_required(self) -> bool:
        try:
            return self.keys.required()
        except (CoheatError, OSError) as error:
            log.error("%s", error)
            raise Refused(503, "the keys cannot be read, so every request is refused", "keys") from None

    def _check_key(self, scope: Scope, given: str) -> None:
        key = self.keys.find(given)
        if key is None:
            seconds = self.wrong_keys.wait(_peer(scope))
            if seconds:
                detail = f"too many wrong keys; try again in {seconds} seconds, with a right one"
                raise Refused(429, detail, "keys", {"Retry-After": str(seconds)})
            detail = "this service wants a key in the header X-API-Key; make one with coheat keys create"
            raise Refused(401, detail, "key", {"WWW-Authenticate": 'ApiKey header="X-API-Key"'})
        logs.key_name.set(key.name)
        writes = scope["method"] not in READS and scope["path"] not in READING_POSTS
        if writes and key.scope != "write":
            raise Refused(403, "this key may only read; use one with the scope write", "scope")


def _given(body: bytes, receive: Receive) -> Receive:
    """`receive` of a body that is there already."""
    taken = False

    async def given() -> MutableMapping[str, Any]:
        nonlocal taken
        if taken:
            return await receive()
        taken = True
        return {"type": "http.request", "body": body, "more_body": False}

    return given


class Answer:
    """`send` that adds our headers and remembers the status."""

    def __init__(self, send: Send, request_id: str, has_body: bool = True):
        self.has_body = has_body
        self.send, self.request_id, self.status, self.n_bytes = send, request_id, 0, 0
        self.refused: str | None = None
        self.on_start: Callable[[], None] | None = None

    def started(self) -> None:
        """The answer is there, or there will be none."""
        if self.on_start is not None:
            self.on_start()
            self.on_start = None

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.started()
            self.status = message["status"]
            given = list(message.get("headers", ()))
            cached = [] if any(name == b"cache-control" for name, _ in given) else [NOT_CACHED]
            identity = (b"x-request-id", self.request_id.encode())
            sequence = logs.written.get()
            written = [] if sequence is None else [(SEQUENCE, str(sequence).encode())]
            message = {**message, "headers": [*given, *RAW_HEADERS, identity, *cached, *written]}
        if message["type"] == "http.response.body" and not self.has_body:
            message = {**message, "body": b""}
        self.n_bytes += len(message.get("body", b""))
        await self.send(message)


def _is_guarded(path: str) -> bool:
    """What wants a key, where there are keys, and a place among those who are answered."""
    return path == "/metrics" or path.startswith("/v1")


def _has_body(scope: Scope) -> bool:
    """A request without either of these headers ends with its head."""
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


@lru_cache(256)
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
    host = _host_of(headers.get("host", ""))
    if host is None or not is_loopback(host):
        detail = f"without keys this service answers to localhost only, not to {host!r}"
        raise Refused(403, detail, "host")
    origin = headers.get("origin")
    if origin is not None and _netloc_of(origin) != headers.get("host"):
        raise Refused(403, "without keys this service does not answer to pages of other origins", "origin")


def _netloc_of(address: str) -> str | None:
    try:
        return urlsplit(address).netloc
    except ValueError:
        return None


@lru_cache(256)
def _host_of(header: str) -> str | None:
    """The name in a header Host, without its port."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _path_as_sent(scope: Scope) -> str:
    raw = scope.get("raw_path")
    if raw is None:
        return quote(scope["path"])
    return bytes(raw).split(b"?")[0].decode("latin-1")


def _known(method: str) -> str:
    return method if method in READS | {"POST", "PUT", "DELETE", "PATCH"} else "other"
