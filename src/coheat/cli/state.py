"""coheat state: backups of what was written to a service since training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from coheat.cli import app
from coheat.cli.output import console, note, print_json

state = typer.Typer(
    help="Back up, restore and check what was written to a service.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.add_typer(state, name="state")

STATE = typer.Argument(help="The state directory of a service: RUN.service, or its --state.", metavar="STATE")
JSON = typer.Option(False, "--json", help="Print JSON instead of text.")


@state.command("backup")
def backup(
    directory: Path = STATE,
    file: Path = typer.Argument(help="Where to; it must not exist yet.", metavar="FILE"),
    as_json: bool = JSON,
) -> None:
    """Copy what was written to a file of its own, as it is at one moment, and verify the copy.

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
    """Put a backup in the place of what was written. The service must not be running.

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
    place: Path = typer.Argument(help="A state directory, or a backup.", metavar="STATE|FILE"),
    as_json: bool = JSON,
) -> None:
    """Verify every row; the service may be running.

    Example:

      coheat state check backups/monday.sqlite
    """
    from coheat.service import backup as backups

    found = backups.check(place)
    _show({"file": str(place), **asdict(found)}, as_json)


def _show(document: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    said = (
        f"{document['file']}: {document['bundles']} bundles, {document['interactions']} interactions, "
        f"latest write {document['latest']}; all as written"
    )
    console.print(said, markup=False, highlight=False, soft_wrap=True)
