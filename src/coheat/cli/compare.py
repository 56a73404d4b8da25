"""coheat compare: trained models side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from coheat.cli import app
from coheat.cli.output import as_number, console, note, print_json, say, table
from coheat.errors import ConfigError, DataError


@app.command()
def compare(
    runs: list[Path] = typer.Argument(None, metavar="RUN RUN...", help="What coheat train --out wrote."),
    online: str | None = typer.Option(
        None,
        metavar="SOURCE",
        help="Compare instead what came of the lists of each side of a service: its state directory, or its "
        "address (a key in COHEAT_KEY).",
    ),
    on: Path | None = typer.Option(
        None, metavar="FILE", help="Compare on this file of later interactions (user_id, bundle_id)."
    ),
    part: str = typer.Option("test", help="test or validation, where the runs share a split."),
    k: list[int] = typer.Option([20], "--k", "-k", min=1, help="Length of the lists; repeatable."),
    candidates: str = typer.Option("all", help="all bundles, cold or offered (see coheat evaluate)."),
    plot: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Draw recall by takers kept (scenario warm-up), a line per run: .png or .svg.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compare runs on the same interactions, with 95% intervals of the differences (bootstrapped over users).

    Differences are from the first run.

    Examples:

        coheat compare runs/counting runs/ember

        coheat compare runs/yesterday runs/today --on this-morning.csv --json

        coheat compare --online runs/yesterday.service

        coheat compare runs/young-counting runs/young --plot warm-up.png
    """
    if online is not None:
        if runs or on is not None or plot is not None:
            raise ConfigError("--online compares what a service recorded; leave out runs, --on and --plot")
        _compare_online(online, as_json)
        return
    if len(runs or []) < 2:
        raise ConfigError("name two or more runs to compare")
    if part not in ("test", "validation") or candidates not in ("all", "cold", "offered"):
        raise ConfigError("--part is test or validation; --candidates is all, cold or offered")

    from coheat.judging import compared, judge, judge_on_file
    from coheat.runs import open_run

    opened = {str(run): open_run(run) for run in runs}
    if len(opened) < len(runs):
        raise ConfigError("a run is named twice; name each once")
    found = {}
    if on is not None:
        found = {name: judge_on_file(run.artifact, on, k)[0] for name, run in opened.items()}
    else:
        first = next(iter(opened.values()))
        split = first.split()[0]
        for name, run in opened.items():
            if run.record.fingerprint != first.record.fingerprint:
                raise DataError(
                    f"{name}: trained on another split than {first.path}, so no one test part suits both; "
                    "compare them on a file of later interactions with --on FILE"
                )
            judged = judge(run.artifact.served(), split, part, k, candidates)  # type: ignore[arg-type]
            if judged is None:
                raise DataError(f"{name}: the {part} part has nothing to measure; compare with --on FILE")
            found[name] = judged
    report = compared(found, k)
    if plot is not None:
        from coheat.plots import plot_warm_up

        plot_warm_up(report.get("warm_up", {}), plot, f"recall@{k[0]}", "The first days of a bundle")
    if as_json:
        print_json(report)
        return
    _show(report)
    _show_exposure(report["exposure"])
    if "warm_up" in report:
        _show_levels(report["warm_up"], f"recall@{k[0]}")
    if plot is not None:
        say(f"drawn: {plot}")


def _show(report: dict[str, Any]) -> None:
    from coheat.evaluation import Interval

    metrics = list(next(iter(report["runs"].values())))
    names = ("run", *metrics, *(f"difference, {metric}" for metric in metrics))
    made = table(names, ("run",), title=f"{report['users']} users; differences to {report['against']}")
    for name, values in report["runs"].items():
        gaps = report["differences"].get(name, {})
        intervals = [Interval.from_dict(gaps[m]) for m in metrics if gaps]
        shown = [f"{interval} {interval.verdict}" for interval in intervals]
        made.add_row(name, *(f"{values[metric]:.4f}" for metric in metrics), *shown)
    console.print(made)


def _show_exposure(found: dict[str, dict[str, float | None]]) -> None:
    """A row per run, a column per figure; the share of young bundles among the candidates stands below."""
    first = next(iter(found.values()))
    figures = [name for name in first if "@" in name]
    names = ("run", *(figure.replace("_", " ") for figure in figures))
    made = table(names, ("run",), title="who is seen (coheat evaluate)")
    for name, values in found.items():
        made.add_row(name, *(as_number(values[figure]) for figure in figures))
    young = as_number(first["young_of_candidates"])
    made.add_row(
        "candidates", *(young if figure.startswith("young") else "" for figure in figures), style="dim"
    )
    console.print(made)


def _compare_online(source: str, as_json: bool) -> None:
    from coheat.retraining.client import Client, is_address
    from coheat.service.online import report
    from coheat.service.opening import records_of
    from coheat.service.places import place_of

    if is_address(source):
        sides = Client(source).get("/v1/statistics")["sides"]
    else:
        with records_of(place_of(source)) as records:
            sides = [asdict(side) for side in report(records.outcomes())]
    if as_json:
        print_json({"sides": sides})
    else:
        _show_online(sides)


def _show_online(sides: list[dict[str, Any]]) -> None:
    if not sides:
        note("nothing was recorded that names a list; send recommendation_id with interactions")
        return
    names = ("side", "lists", "shown", "clicked", "took", "took: difference")
    made = table(names, ("side",), title="what came of the lists of each side; intervals of 95%")
    for side in sides:
        gap = side["take_difference"]
        made.add_row(
            side["side"],
            f"{side['lists']:,}",
            f"{side['shown']:,}",
            f"{side['clicked']:,}{_share(side['click_rate'])}",
            f"{side['took']:,}{_share(side['take_rate'])}",
            f"{_share(gap, '+')} {gap['verdict']}" if gap else "",
        )
    console.print(made)


def _share(rate: dict[str, float] | None, sign: str = "") -> str:
    """In hundredths, on a line of its own."""
    if rate is None:
        return ""
    mean, low, high = (format(100 * rate[part], f"{sign}.1f") for part in ("mean", "low", "high"))
    return f"\n{mean}% [{low}, {high}]"


def _show_levels(levels: dict[str, dict[str, dict[str, float]]], metric: str) -> None:
    """A row per run, a column per number of takers kept."""
    first = next(iter(levels.values()))
    made = table(("run", *first), ("run",), title=f"{metric} by the takers a bundle kept in training")
    for name, found in levels.items():
        made.add_row(name, *(f"{found[level][metric]:.4f}" for level in first))
    made.add_row("positives", *(f"{found['positives']:,}" for found in first.values()), style="dim")
    console.print(made)
