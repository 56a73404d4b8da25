"""coheat serve: a trained model over HTTP, and the keys that open it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coheat.cli import app
from coheat.cli.output import note, print_json, say
from coheat.cli.serving import KNOB, turned
from coheat.errors import ConfigError
from coheat.service.places import Place, place_of, shown

if TYPE_CHECKING:
    from coheat.service.sides import Side

keys = typer.Typer(
    help="Create, list and revoke the API keys of a service.", no_args_is_help=True, rich_markup_mode="rich"
)
app.add_typer(keys, name="keys")

RUN = typer.Argument(help="A run of coheat train, or the artifact in it.", metavar="RUN")
STATE = typer.Option(
    None,
    "--state",
    metavar="DIR|URL",
    envvar="COHEAT_STATE",
    help="Where to keep the keys and what is written: a directory (default: RUN.service), or a PostgreSQL "
    "database that several services share, postgresql://USER@HOST/DATABASE.",
)
JSON = typer.Option(False, "--json", help="Print JSON instead of text.")


def state_of(run: Path, given: str | None) -> Place:
    """Beside the run, never inside: replacing the run must not take away what was written."""
    if given is not None:
        return place_of(given)
    here = run.absolute()
    if here.name == "model" and (here.parent / "run.json").exists():  # the artifact in a run
        here = here.parent
    return here.with_name(f"{here.name}.service")


@app.command()
def serve(
    run: Path | None = typer.Argument(None, help="A run of coheat train, or the artifact in it."),
    runs: list[str] = typer.Option(
        [],
        "--run",
        metavar="NAME=RUN",
        help="Serve several runs side by side, each under a name; repeatable.",
    ),
    shares: list[str] = typer.Option(
        [], "--share", metavar="NAME=SHARE", help="Share of the users that a run answers, 0 to 1; repeatable."
    ),
    host: str = typer.Option(
        "127.0.0.1", help="Address to listen on; any but this machine's own requires keys."
    ),
    port: int = typer.Option(8000, min=0, max=65535, help="Port to listen on; 0 takes a free one."),
    state: str | None = STATE,
    max_requests: int = typer.Option(64, min=1, help="Requests in progress at once; more are answered 503."),
    max_connections: int = typer.Option(
        1000, min=1, help="Open connections; beyond that, idle ones are closed for new ones."
    ),
    per_peer: int = typer.Option(
        750, "--max-connections-per-peer", min=1, help="The same from one address (a proxy counts as one)."
    ),
    health_port: int | None = typer.Option(
        None, min=1, max=65535, help="Also answer /health/live and /health/ready on this port."
    ),
    drain: float = typer.Option(
        5.0, min=0, help="Seconds between SIGTERM, when /health/ready turns 503, and closing the port."
    ),
    log_ids: bool = typer.Option(False, "--log-ids", help="Also write user ids to the log."),
    positive: list[str] = typer.Option(
        ["took"],
        help="Interactions that hide a bundle from the user and count towards its popularity: took, clicked, "
        "shown; repeatable.",
    ),
    knob: float | None = KNOB,
    as_json: bool = JSON,
) -> None:
    """Serve a model over HTTP, with a page to explore it.

    Every write is on disk before it is acknowledged. Several services can share a state in PostgreSQL
    (docs/replicas.md).
    Without keys it listens on this machine only.

    Examples:

      coheat serve runs/youshu --port 8000

      coheat keys create runs/youshu --scope write --name shop

      coheat serve runs/youshu --host 0.0.0.0

      coheat serve --run a=runs/yesterday --run b=runs/today --share a=0.9

      coheat serve runs/youshu --state postgresql://shop@db.example/shop
    """
    from coheat.storage import check_system

    check_system()  # before what exists only where there are such locks is imported
    # One user's scores are one small product: a second thread for it would cost more than it brings.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from coheat.service.limits import Limits
    from coheat.service.server import Address, Options, run_server
    from coheat.service.store import KINDS

    sides = _sides(run, runs, shares)

    def announce(url: str, kept: Place) -> None:
        if as_json:
            print_json({"url": url, "state": shown(kept)})
        else:
            names = ", ".join(f"{side.name}={side.run} ({side.share:.0%})" for side in sides)
            say(f"Serving {run or names} at {url} (Ctrl-C stops)")
            note(f"what is written is kept in {shown(kept)}")

    limits = Limits(requests=max_requests, connections=max_connections, connections_per_peer=per_peer)
    counted = frozenset(kind for kind in KINDS if kind in positive)
    if unknown := set(positive).difference(KINDS):
        raise ConfigError(f"--positive {min(unknown)}: choose among {', '.join(KINDS)}")
    options = Options(Address(host, port), health_port, limits, drain, turned(knob), log_ids, counted)
    run_server(sides, state_of(sides[0].run, state), options, announce)


def _sides(run: Path | None, runs: list[str], shares: list[str]) -> tuple[Side, ...]:
    from coheat.service.sides import ONLY, Side, sides_of

    if (run is None) == (not runs):
        raise ConfigError("name one run, or several with --run NAME=RUN")
    if run is not None:
        if shares:
            raise ConfigError("--share goes with several runs; name them with --run NAME=RUN")
        return (Side(ONLY, run),)
    named = {name: Path(path) for name, path in _pairs(runs, "--run")}
    if len(named) < len(runs):
        raise ConfigError("--run: a name is used twice; give each run its own")
    try:
        parts = {name: float(share) for name, share in _pairs(shares, "--share")}
    except ValueError:
        raise ConfigError("--share NAME=SHARE: a share is a number from 0 to 1") from None
    return sides_of(named, parts)


def _pairs(given: list[str], option: str) -> list[tuple[str, str]]:
    pairs = [(name, value) for name, _, value in (one.partition("=") for one in given)]
    if wrong := [one for one, (name, value) in zip(given, pairs, strict=True) if not (name and value)]:
        raise ConfigError(f"{option} {wrong[0]}: write it as NAME=VALUE")
    return pairs


@keys.command("create")
def create(
    run: Path = RUN,
    scope: str = typer.Option("read", help="read, or write (which includes reading)."),
    name: str = typer.Option(..., help="A name for the key, by which it is listed and revoked."),
    state: str | None = STATE,
    as_json: bool = JSON,
) -> None:
    """Create a key and print it once: only its hash is kept.

    Example:

      coheat keys create runs/youshu --scope write --name shop
    """
    from coheat.service.keys import checked_scope
    from coheat.service.opening import keys_of

    with keys_of(state_of(run, state)) as ring:
        secret = ring.create(name, checked_scope(scope))
    if as_json:
        print_json({"name": name, "scope": scope, "key": secret})
    else:
        print(secret)
        note("keep it now, it cannot be shown again; send it in the header X-API-Key")


@keys.command("list")
def list_keys(run: Path = RUN, state: str | None = STATE, as_json: bool = JSON) -> None:
    """List the names and scopes of all keys; the keys themselves are not kept.

    Example:

      coheat keys list runs/youshu
    """
    from coheat.service.opening import keys_of

    with keys_of(state_of(run, state)) as ring:
        found = ring.keys()
    if as_json:
        print_json([{"name": key.name, "scope": key.scope, "created": key.created} for key in found])
        return
    for key in found:
        say(f"{key.name}  {key.scope}  {key.created}")
    if not found:
        note("there are no keys; make one with coheat keys create")


@keys.command("revoke")
def revoke(
    run: Path = RUN,
    name: str = typer.Option(..., help="The name of the key."),
    state: str | None = STATE,
    as_json: bool = JSON,
) -> None:
    """Forget a key; a running service refuses it from its next request on.

    Example:

      coheat keys revoke runs/youshu --name shop
    """
    from coheat.service.opening import keys_of

    with keys_of(state_of(run, state)) as ring:
        ring.revoke(name)
    if as_json:
        print_json({"revoked": name})
    else:
        say(f"revoked {name}")
