"""coheat demo: the whole walk on a made-up shop, with a report to read."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coheat.cli import app
from coheat.cli.output import console, headline, print_json, problem, say

if TYPE_CHECKING:
    from coheat.demo import Demo


@app.command()
def demo(
    out: Path = typer.Option(
        Path("demo"), "--out", metavar="DIR", help="Where to write data, runs and report."
    ),
    seed: int = typer.Option(0, min=0, help="Same seed, same shop and same numbers."),
    quick: bool = typer.Option(
        False, "--quick", help="A tiny shop and a few epochs: takes seconds, with poor numbers."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print all results as JSON."),
) -> None:
    """Train and evaluate Ember on a made-up shop, recommend, add a new bundle, and write a report.

    CoHeat, counting and popularity are evaluated beside it. In the end Ember learns from everything: that
    is the run to serve. Takes about two minutes on two cores. Running it again replaces its own output and
    nothing else.

    Examples:

        coheat demo --out demo

        coheat demo --quick --json
    """
    from coheat.cli.demo_viewer import Printing
    from coheat.demo import run_demo
    from coheat.report import write_report
    from coheat.training import TrainingInterrupted

    viewer = None if as_json else Printing()
    try:
        found = run_demo(out, seed, quick, viewer, program())
    except TrainingInterrupted:
        problem("interrupted; start the demo again to see all of it")
        raise typer.Exit(130) from None
    report = write_report(found)
    if as_json:
        print_json(found.to_dict() | {"report": str(report)})
        return
    _show_end(found, report)


def program() -> str:
    """How this very program can be called again: by name where the shell finds it, else by its path."""
    called, found = Path(sys.argv[0]), shutil.which("coheat")
    if called.stem != "coheat" or (found and called.exists() and called.samefile(found)):
        return "coheat"
    return str(called)


def _show_end(found: Demo, report: Path) -> None:
    headline(f"Done in {found.seconds:.0f} s. The report: {report}")
    console.print("Go on with:", highlight=False)
    for command in found.commands:
        say(f"  {command}")
