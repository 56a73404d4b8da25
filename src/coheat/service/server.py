"""Running the service: who may reach it, the sockets, and an orderly end."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI
from threadpoolctl import threadpool_limits

from coheat.errors import ConfigError
from coheat.service.app import create_app
from coheat.service.connections import Connection, Connections
from coheat.service.health import Readiness
from coheat.service.keys import Keys
from coheat.service.limits import Limits, usable_connections
from coheat.service.logs import logging_to
from coheat.service.metrics import Metrics
from coheat.service.middleware import is_loopback
from coheat.service.opening import alone_at, keys_of
from coheat.service.places import Place
from coheat.service.sides import Side
from coheat.service.state import State
from coheat.service.store import TOOK, Kind

SECONDS_TO_FINISH = 30
SWITCH_SECONDS = 0.0001
ACCEPTED_AT_ONCE = 128
QUEUED_CONNECTIONS = 2048
"""By the system, until they are accepted; whoever finds the queue full tries again after a second."""
HEALTH_CONNECTIONS = 64
SEND_BYTES = 1 << 16
OVERDUE_SECONDS = 0.5


@dataclass(frozen=True)
class Address:
    host: str
    port: int


@dataclass(frozen=True)
class Options:
    """How a service is run. `drain`: seconds between a SIGTERM and the closing of the port."""

    address: Address
    health_port: int | None = None
    limits: Limits = field(default_factory=Limits)
    drain: float = 5.0
    knobs: Mapping[str, float] | None = None
    log_ids: bool = False
    positive: frozenset[Kind] = TOOK
    """See `create_app`."""


Announce = Callable[[str, Place], None]


def run_server(run: Path | Sequence[Side], place: Place, options: Options, announce: Announce) -> None:
    """Serve until a signal ends it; `announce` is told the address once requests can come."""
    address = options.address
    with keys_of(place) as keys:
        _check_open(address, keys)
    limits = replace(options.limits, connections=usable_connections(options.limits.connections))
    with alone_at(place):
        # A second thread, of the library behind numpy's products, would share a core with whatever else runs,
        # and each product would wait, at full speed, until that one has its turn.
        with logging_to() as log, threadpool_limits(1, user_api="blas"):
            listener = listen(address)
            health = listen(Address(address.host, options.health_port)) if options.health_port else None
            app = create_app(
                run,
                place,
                limits=limits,
                knobs=options.knobs,
                log_ids=options.log_ids,
                health_port=options.health_port,
                positive=options.positive,
            )
            state: State = app.state.coheat
            state.metrics.log_dropped.set_function(lambda: log.dropped)
            # Python's search for garbage goes through all objects, those of the model too, while everybody
            # waits: up to 200 ms at iFashion's size. What is there now stays, and need not be looked at.
            state.when_loaded = gc.freeze
            # Whatever computes lets go of Python's lock many times per list, and would wait so long for it
            # each time while another thread, such as one that loads a model, does not.
            sys.setswitchinterval(SWITCH_SECONDS)
            host, port = listener.getsockname()[:2]
            announce(f"http://{f'[{host}]' if ':' in host else host}:{port}", place)
            sockets = [listener, *([health] if health else [])]
            make_server(app, sockets, limits, options.drain).run(sockets=sockets)
        if state.failure is not None:
            raise state.failure


def make_server(app: FastAPI, sockets: Sequence[socket.socket], limits: Limits, drain: float) -> Server:
    """The server of an application: the first socket is for everybody, others only for health.

    Connections of each are counted apart, so that nobody can take the room of probes.
    """
    state: State = app.state.coheat
    per_peer = min(limits.connections, limits.connections_per_peer)
    listeners = {
        one.getsockname()[1]: Connections(HEALTH_CONNECTIONS, HEALTH_CONNECTIONS, limits, Metrics())
        for one in sockets[1:]
    }
    listeners[sockets[0].getsockname()[1]] = Connections(limits.connections, per_peer, limits, state.metrics)
    return Server(_config(app, listeners), app.state.readiness, listeners, drain)


def _config(app: FastAPI, listeners: dict[int, Connections]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=partial(Connection, listeners),  # type: ignore[arg-type]
        ws="none",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=SECONDS_TO_FINISH,
        timeout_keep_alive=3600,  # see `Connections.end_overdue`
    )


class Server(uvicorn.Server):
    """uvicorn's server, which drains before it ends, and ends by itself where the model cannot be served."""

    def __init__(
        self,
        config: uvicorn.Config,
        readiness: Readiness,
        listeners: dict[int, Connections],
        drain: float,
    ):
        super().__init__(config)
        self.readiness, self.listeners, self.drain = readiness, listeners, drain
        self.ends_at: float | None = None
        self._watching: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or []:
            one.listen(QUEUED_CONNECTIONS)  # asyncio queues as many as it accepts at once
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Goes on while the service ends: who does not read must not hold that up."""
        while True:
            for connections in self.listeners.values():
                connections.end_overdue()
            await asyncio.sleep(OVERDUE_SECONDS)

    async def on_tick(self, counter: int) -> bool:
        is_over = self.ends_at is not None and time.monotonic() >= self.ends_at
        return await super().on_tick(counter) or is_over or self.readiness.state.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first SIGTERM: not ready any more, and still answering. The second, or Ctrl-C: now."""
        self.readiness.draining = True
        if sig == signal.SIGTERM and self.ends_at is None and self.drain > 0:
            self.ends_at = time.monotonic() + self.drain
            self._captured_signals.append(sig)
            return
        super().handle_exit(sig, frame)


def _check_open(address: Address, keys: Keys) -> None:
    if not is_loopback(address.host) and not keys.keys():
        raise ConfigError(
            f"--host {address.host}: without a key the service listens on this machine only; make one with "
            "coheat keys create RUN --scope write --name NAME, then start again"
        )


def listen(address: Address) -> socket.socket:
    """A listening socket; taken before the model is loaded, so that a taken port is told at once."""
    try:
        family, _, _, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. asyncio sets it only on sockets whose protocol is named, and without it the
        # second half of an answer waits 40 ms for the acknowledgement of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The system would keep megabytes for each client that asks and asks and reads nothing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        listener.bind(place)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address.host} port {address.port} ({error.strerror}); choose another --port"
        ) from None
    return listener
