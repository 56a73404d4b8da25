"""The command line: one short file per command, each a thin layer over the library.

Errors meant for the user become one sentence on standard error and exit status 2.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings

import typer

from coheat import __version__
from coheat.cli.output import note, problem
from coheat.errors import CoheatError, extra_of

app = typer.Typer(
    name="coheat",
    help="Recommend bundles, including those that nobody has bought yet.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Each module registers its commands on `app` when imported; none imports torch or pyarrow at the top.
COMMANDS = (
    "demo",
    "data",
    "collect",
    "train",
    "retrain",
    "evaluate",
    "compare",
    "recommend",
    "audience",
    "explain",
    "similar",
    "batch",
    "export",
    "reproduce",
    "tune",
    "serve",
    "state",
    "doctor",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coheat {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: bool = typer.Option(  # noqa: ARG001
        False, "--version", help="Print the version and exit.", callback=_show_version, is_eager=True
    ),
    memory_limit: str | None = typer.Option(
        None,
        "--memory-limit",
        metavar="SIZE",
        envvar="COHEAT_MEMORY_LIMIT",
        help="Refuse to read files that would take more memory than this, such as 4GB. Default: the free "
        "memory.",
    ),
) -> None:
    if memory_limit is not None:
        from coheat.memory_limit import limit_memory

        limit_memory(memory_limit)


def main() -> None:
    """Entry point of the `coheat` command."""
    for name in COMMANDS:
        importlib.import_module(f"coheat.cli.{name}")
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        app()
    except CoheatError as error:
        problem(str(error))
        sys.exit(2)
    except MemoryError:
        problem("there is not enough memory for it; raise --memory-limit, or use a machine with more")
        sys.exit(2)
    except ModuleNotFoundError as error:
        extra = extra_of(error)
        if extra is None:
            raise
        problem(f"this command needs {error.name}; install it with: pip install 'coheat[{extra}]'")
        sys.exit(2)
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # no space, no permission, a directory where a file should be
        place = f"{error.filename}: " if error.filename else ""
        problem(f"{place}{error.strerror or error}")
        sys.exit(2)


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Our own warnings become notes; those of other packages are for developers, not for users."""
    if category.__module__.startswith("coheat"):
        note(str(message))
