"""The command line: one short file per command, each a thin layer over the library.

Errors meant for the user become one sentence on standard error and exit status 2.
"""

from __future__ import annotations

import importlib
import sys

import typer

from coheat import __version__
from coheat.cli.output import problem
from coheat.errors import CoheatError

app = typer.Typer(
    name="coheat",
    help="Recommend bundles that nobody has bought yet.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Each module registers its commands on `app` when imported; none imports torch or pyarrow at the top.
COMMANDS = ("train",)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coheat {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and stop.", callback=_show_version, is_eager=True
    ),
) -> None:
    pass


def main() -> None:
    """Entry point of the `coheat` command."""
    for name in COMMANDS:
        importlib.import_module(f"coheat.cli.{name}")
    try:
        app()
    except CoheatError as error:
        problem(str(error))
        sys.exit(2)
