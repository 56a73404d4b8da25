"""Running the service: who may reach it, the socket, and an orderly end."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from coheat.errors import ConfigError
from coheat.service.app import create_app
from coheat.service.gate import Limits, is_loopback
from coheat.service.keys import KeyRing
from coheat.service.state import State, lock_directory, release

SECONDS_TO_FINISH = 30
SECONDS_KEPT_OPEN = 75
"""For an idle connection: longer than the minute after which clients usually let go of theirs."""
HEAD_BYTES = 1 << 16
"""An id of 1,000 emoji takes 12,000 characters in an address."""
CONNECTIONS = 1000
SWITCH_SECONDS = 0.0005


@dataclass(frozen=True)
class Address:
    host: str
    port: int


def run_server(
    run: Path,
    state_directory: Path,
    address: Address,
    max_requests: int,
    announce: Callable[[str, Path], None],
    welcome: float | None = None,
) -> None:
    """Serve until a signal ends it; `announce` is told the address once requests can come."""
    _check_open(address, KeyRing(state_directory / "keys.json"))
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    lock = lock_directory(state_directory)
    try:
        listener = _listen(address)
        app = create_app(run, state_directory, limits=Limits(requests=max_requests), welcome=welcome)
        # The event loop and the model's thread pass Python's lock to each other many times per request.
        sys.setswitchinterval(SWITCH_SECONDS)
        host, port = listener.getsockname()[:2]
        announce(f"http://{f'[{host}]' if ':' in host else host}:{port}", state_directory)
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS,
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_graceful_shutdown=SECONDS_TO_FINISH,
            timeout_keep_alive=SECONDS_KEPT_OPEN,
        )
        state: State = app.state.coheat
        _Server(config, state).run(sockets=[listener])
        if state.failure is not None:
            raise state.failure
    finally:
        release(lock)


class _Server(uvicorn.Server):
    """Ends by itself where the model cannot be brought up to date."""

    def __init__(self, config: uvicorn.Config, state: State):
        super().__init__(config)
        self.state = state

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.state.failure is not None


def _check_open(address: Address, keys: KeyRing) -> None:
    if not is_loopback(address.host) and not keys.keys():
        raise ConfigError(
            f"--host {address.host}: without a key the service listens on this machine only; make one with "
            "coheat keys create RUN --scope write --name NAME, then start again"
        )


def _listen(address: Address) -> socket.socket:
    """The listening socket; taken before the model is loaded, so that a taken port is told at once."""
    try:
        family, _, _, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. asyncio sets it only on sockets whose protocol is named, and without it the
        # second half of an answer waits 40 ms for the acknowledgement of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(place)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address.host} port {address.port} ({error.strerror}); choose another --port"
        ) from None
    return listener
