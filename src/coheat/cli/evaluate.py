"""coheat evaluate: how good is a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from coheat.cli import app
from coheat.cli.output import as_number, console, note, print_json, say, table
from coheat.cli.serving import KNOB, turned


@app.command()
def evaluate(
    run: Path = typer.Argument(..., metavar="RUN", help="What coheat train --out wrote."),
    data: Path | None = typer.Option(
        None, metavar="DIR", help="Evaluate on this data instead of the run's own."
    ),
    k: list[int] = typer.Option([20], "--k", "-k", min=1, help="Length of the lists; repeatable."),
    on: Path | None = typer.Option(
        None, metavar="FILE", help="Evaluate on this file of later interactions (user_id, bundle_id) instead."
    ),
    candidates: str = typer.Option(
        "all",
        help="all bundles; cold: those that nobody took in training; offered: those on offer at the time.",
    ),
    by_popularity: bool = typer.Option(
        False, "--by-popularity", help="Also show recall by how often a bundle was taken in training."
    ),
    plot: Path | None = typer.Option(
        None, metavar="FILE", help="Draw recall by takers kept (scenario warm-up): .png or .svg."
    ),
    knob: float | None = KNOB,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure a trained model on the test and validation parts of its split.

    Examples:

        coheat evaluate runs/youshu

        coheat evaluate runs/youshu --k 20 --k 50 --candidates cold --json

        coheat evaluate runs/shop --on yesterday.csv

        coheat evaluate runs/young --plot warm-up.png
    """
    from coheat.errors import ConfigError
    from coheat.runs import open_run

    if candidates not in ("all", "cold", "offered"):
        raise ConfigError(f"--candidates {candidates!r}: choose all, cold or offered")
    knobs, opened = turned(knob), open_run(run)
    report = opened.evaluate(data, k, candidates, by_popularity, on, knobs)  # type: ignore[arg-type]
    if plot is not None:
        from coheat.plots import plot_warm_up

        levels = {report["model"]: (report.get("test") or {}).get("warm_up", {})}
        plot_warm_up(levels, plot, f"recall@{k[0]}", f"{run.resolve().name}: the first days of a bundle")
    if as_json:
        print_json(report)
        return
    for warning in report["warnings"]:
        note(warning)
    _show(report)
    if plot is not None:
        say(f"drawn: {plot}")


def _show(report: dict[str, Any]) -> None:
    title = f"{report['model']}, epoch {report['epoch']}, trained in {report['seconds']:.1f} s"
    parts = [part for part in ("test", "validation", "later") if report.get(part)]
    made = table(("", *parts), ("",), title=f"{title}; candidates: {report['candidates']}")
    for name, value in report[parts[0]].items():
        if not isinstance(value, dict):
            values = (report[part][name] for part in parts)
            made.add_row(name, *(str(v) if name == "users" else f"{v:.4f}" for v in values))
    made.add_section()
    for name in report[parts[0]]["exposure"]:
        if not name.startswith("coverage@"):  # it stands above
            made.add_row(name, *(as_number(report[part]["exposure"][name]) for part in parts))
    console.print(made)
    for part in parts:
        for name, title, head in (
            ("warm_up", "by the takers a bundle kept in training", "takers kept"),
            ("by_popularity", "by training interactions of the bundle", "interactions"),
        ):
            if groups := report[part].get(name):
                _show_groups(f"{part} {title}", head, groups)


def _show_groups(title: str, head: str, groups: dict[str, dict[str, float]]) -> None:
    columns = list(next(iter(groups.values())))
    made = table((head, *columns), title=title)
    for group, values in groups.items():
        made.add_row(group, *(f"{values[c]:.4f}" if "@" in c else f"{values[c]:.0f}" for c in columns))
    console.print(made)
