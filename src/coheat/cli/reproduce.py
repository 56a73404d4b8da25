"""coheat reproduce: the paper's tables and figures, measured beside published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coheat.cli import app
from coheat.cli.output import console, print_json, problem, say, table
from coheat.cli.serving import ON

if TYPE_CHECKING:
    from coheat.experiments.check import Checked


@app.command()
def reproduce(
    name: str | None = typer.Argument(
        None,
        metavar="NAME",
        help="datasets, cold-methods, warm-methods, cold-ratio, ablation, temperature, figure-comparison; "
        "our own current-rivals, ember, warm-up, other-shops, worlds; all of these: all; or the path of a "
        ".toml file of the same kind.",
    ),
    data: Path | None = typer.Option(
        None, metavar="DIR", help="Holds cold/NAME, warm/NAME and all/NAME, or data without a split."
    ),
    out: Path | None = typer.Option(None, metavar="DIR", help="Where to write runs, tables and pictures."),
    seeds: int | None = typer.Option(
        None, min=1, help="Number of seeds for every model. Default: three, in the ablation five."
    ),
    only: str = typer.Option(
        "",
        metavar="MODEL,...",
        help="Train only these models now; the tables show everything measured so far.",
    ),
    epochs: int | None = typer.Option(None, min=1, help="Epochs of every training; default: the presets'."),
    jobs: int = typer.Option(1, min=1, help="Trainings at a time, each in a process with one core."),
    on: str = ON,
    results: Path | None = typer.Option(
        None,
        metavar="DIR",
        help="Results kept earlier. Without --data: train nothing, make tables and pictures again from "
        "NAME.json in DIR. With --data: rows that have more seeds there are carried over.",
    ),
    check: bool = typer.Option(
        False, "--check", help="Train some of the kept rows again, and fail if the figures drift."
    ),
    into: Path | None = typer.Option(
        None, metavar="PAGE", help="Also fill the place <!-- results: NAME --> of this Markdown page."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON."),
) -> None:
    """Run an experiment: train its models, and tabulate measured and published figures side by side.

    There are the paper's experiments and our own: current-rivals, methods that came after the paper; ember,
    our model with the chosen and with the default knob; warm-up, how bundles fare with every model from their
    launch to their 16th taker; other-shops and worlds, on data other than the paper's.

    It first says how long it will take. Finished trainings are skipped and unfinished ones resumed, even
    after Ctrl-C or a kill; experiments with the same --out share their trainings. OUT gets NAME.json,
    NAME.md, pictures, and for all of them report.html.

    --check trains the quickest of the rows kept in --results (default docs/results) again, a few minutes'
    worth, or all rows of the models named by --only, and exits with 1 if a figure has changed.

    Examples:

        coheat reproduce cold-methods --data DATA --out results --jobs 2

        coheat reproduce all --data DATA --out results --jobs 2

        coheat reproduce cold-methods --data DATA --out results --on 10.0.0.1:6379

        coheat reproduce warm-methods --data DATA --out results --only lightgcn,coheat --seeds 1

        coheat reproduce warm-up --data shop --out results --only ember,counting --epochs 20

        coheat reproduce all --results docs/results --out docs/results

        coheat reproduce --check --data DATA

        coheat reproduce current-rivals --check --data DATA --only multicbr --json
    """
    from coheat.errors import ConfigError, Interrupted
    from coheat.experiments.pages import fill_page, markdown
    from coheat.experiments.reproduce import rebuild
    from coheat.experiments.reproduce import reproduce as run

    wanted = [model.strip() for model in only.split(",") if model.strip()]
    if check:
        _check(name or "all", data, results, out, wanted, jobs, as_json)
        return
    if name is None or out is None:
        raise ConfigError("say which experiment, and where its results go: coheat reproduce NAME --out DIR")
    if data is None and results is None:
        raise ConfigError("give --data DIR, to train, or --results DIR, to make tables from results")
    try:
        if data is not None:
            found = run(name, data, out, seeds, wanted, jobs, epochs=epochs, on=on, kept=results)
        else:
            assert results is not None
            found = rebuild(name, results, out)
    except Interrupted as error:
        problem(str(error))
        raise typer.Exit(130) from None
    if into is not None:
        for document in found.documents:
            fill_page(into, document["experiment"], markdown(document))
    if as_json:
        print_json({"experiments": found.documents, "files": [str(path) for path in found.files]})
        return
    for document in found.documents:
        say(markdown(document))
        console.print()
    for path in found.files:
        say(f"written: {path}")


def _check(
    name: str,
    data: Path | None,
    results: Path | None,
    out: Path | None,
    only: list[str],
    jobs: int,
    as_json: bool,
) -> None:
    """Compare kept results with fresh ones, show them, and exit with 1 where they drift."""
    from tempfile import TemporaryDirectory

    from coheat.errors import ConfigError
    from coheat.experiments.check import ABSOLUTE, RELATIVE, check
    from coheat.experiments.kept import KEPT

    if data is None:
        raise ConfigError("--check trains afresh, so it needs the data: give --data DIR")
    with TemporaryDirectory(prefix="coheat-check-") as aside:
        checked = check(name, data, results or KEPT, out or Path(aside), only, jobs)
    drifted = [one for one in checked if one.drifted]
    if as_json:
        tolerance = {"relative": RELATIVE, "absolute": ABSOLUTE}
        rows = [one.to_dict() for one in checked]
        print_json({"checked": rows, "drifted": len(drifted), "tolerance": tolerance})
    else:
        _show(checked)
        allowed = f"{RELATIVE:.1%} of the figure, or {ABSOLUTE} where it is small"
        verdict = f"{len(drifted)} drifted" if drifted else "none drifted"
        say(f"{len(checked)} compared, {verdict}; allowed is {allowed}.")
    for one in drifted:
        place = f"{one.experiment}: {one.row} ({one.dataset}, {one.division})"
        figures = f"{one.metric} with seed {one.seed}: committed {one.committed}, fresh {one.fresh}"
        problem(f"{place}: {one.problem or figures}")
    if drifted:
        raise typer.Exit(1)


def _show(checked: Sequence[Checked]) -> None:
    names = ("experiment", "data", "row", "seed", "metric", "committed", "fresh", "")
    words = {*names} - {"seed", "committed", "fresh"}
    made = table(names, words, box=None, padding=(0, 2, 0, 0))
    for one in checked:
        if one.metric is not None:
            made.add_row(
                one.experiment,
                f"{one.dataset}, {one.division}",
                one.row,
                str(one.seed),
                one.metric,
                *("" if value is None else f"{value:.4f}" for value in (one.committed, one.fresh)),
                "drifted" if one.drifted else "same",
            )
    console.print(made)
