"""coheat state: backups of what was written to a service since training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from coheat.cli import app
from coheat.cli.output import note, print_json, say
from coheat.service.places import is_database, place_of, shown

state = typer.Typer(
    help="Back up, restore, check and move what was written to a service.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(state, name="state")

STATE = typer.Argument(help="The state directory of a service: RUN.service, or its --state.", metavar="STATE")
JSON = typer.Option(False, "--json", help="Print JSON instead of text.")


@state.command("backup")
def backup(
    directory: Path = STATE,
    file: Path = typer.Argument(help="The file to write; it must not exist yet.", metavar="FILE"),
    as_json: bool = JSON,
) -> None:
    """Copy what was written, as of one moment, to a single file, and verify the copy.

    The service may be running and written to. Keys are not part of it.

    Example:

      coheat state backup runs/youshu.service backups/monday.sqlite
    """
    from coheat.service import backup as backups

    found = backups.backup(directory, file)
    _show({"file": str(file), **asdict(found)}, as_json)


@state.command("restore")
def restore(
    directory: Path = STATE,
    file: Path = typer.Argument(help="What coheat state backup wrote.", metavar="FILE"),
    as_json: bool = JSON,
) -> None:
    """Replace what was written by a backup. The service must not be running.

    What was there is kept beside it.

    Example:

      coheat state restore runs/youshu.service backups/monday.sqlite
    """
    from coheat.service import backup as backups

    found, kept = backups.restore(directory, file)
    _show({"file": str(file), **asdict(found), "kept": str(kept) if kept else None}, as_json)
    if kept is not None and not as_json:
        note(f"what was there is kept in {kept}")


@state.command("check")
def check(
    place: str = typer.Argument(
        help="A state directory, a backup, or postgresql://...", metavar="STATE|FILE|URL"
    ),
    as_json: bool = JSON,
) -> None:
    """Verify every row; services may be running.

    Examples:

      coheat state check backups/monday.sqlite

      coheat state check postgresql://shop@db.example/shop
    """
    if is_database(place):
        from coheat.service.moving import check_database

        found = check_database(place)
    else:
        from coheat.service import backup as backups

        found = backups.check(Path(place))
    _show({"file": shown(place_of(place)), **asdict(found)}, as_json)


@state.command("copy")
def copy(
    source: Path = typer.Argument(help="A state directory, or a backup.", metavar="STATE|FILE"),
    target: str = typer.Argument(
        help="An empty database: postgresql://USER@HOST/DATABASE.", metavar="URL", envvar="COHEAT_STATE"
    ),
    as_json: bool = JSON,
) -> None:
    """Move a shop to PostgreSQL, so that several services can share it. The service must not be running.

    Copies what was written and, from a directory, the keys; the source stays as it is.

    Example:

      coheat state copy runs/youshu.service postgresql://shop@db.example/shop
    """
    from coheat.service.moving import copy as copy_to

    found = copy_to(source, target)
    _show({"file": shown(target), **asdict(found)}, as_json)
    if not as_json:
        note(f"next: coheat serve RUN --state {shown(target)}, on as many machines as you like")


def _show(document: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    say(
        f"{document['file']}: {document['bundles']} bundles, {document['interactions']} interactions, "
        f"latest write {document['latest']}; all as written"
    )
