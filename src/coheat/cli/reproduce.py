"""coheat reproduce: the paper's tables and figures, measured beside published."""

from __future__ import annotations

from pathlib import Path

import typer

from coheat.cli import app
from coheat.cli.output import console, print_json, problem
from coheat.cli.serving import ON


@app.command()
def reproduce(
    name: str = typer.Argument(
        ...,
        metavar="NAME",
        help="datasets, cold-methods, warm-methods, cold-ratio, ablation, temperature, figure-comparison, "
        "all; warm-up; current-rivals; or the path of a .toml file of the same kind.",
    ),
    data: Path | None = typer.Option(
        None, metavar="DIR", help="Holds cold/NAME, warm/NAME and all/NAME, or data without a split."
    ),
    out: Path = typer.Option(..., metavar="DIR", help="Where runs, tables and pictures go."),
    seeds: int | None = typer.Option(
        None, min=1, help="Runs of every model. Default: three of CoHeat, one of the others."
    ),
    only: str = typer.Option(
        "", metavar="MODEL,...", help="Train only these now; the tables show all there is."
    ),
    epochs: int | None = typer.Option(None, min=1, help="Epochs of every training; default: the presets'."),
    jobs: int = typer.Option(1, min=1, help="Trainings at a time, each in a process with one core."),
    on: str = ON,
    results: Path | None = typer.Option(
        None, metavar="DIR", help="Train nothing: make tables and pictures again from NAME.json in DIR."
    ),
    into: Path | None = typer.Option(
        None, metavar="PAGE", help="Also fill the place <!-- results: NAME --> of this Markdown page."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON."),
) -> None:
    """Run an experiment of the paper: train its models, and tabulate measured beside published.

    warm-up is our own: every model, judged by how its bundles fare from their launch to their 16th taker. So
    is current-rivals: the methods that came after the paper.

    Finished trainings are skipped and unfinished ones go on, also after Ctrl-C or a kill; experiments with
    the same --out share their trainings. In OUT stand NAME.json, NAME.md, pictures, and for all report.html.

    Examples:

        coheat reproduce cold-methods --data DATA --out results --jobs 2

        coheat reproduce cold-methods --data DATA --out results --on 10.0.0.1:6379

        coheat reproduce warm-methods --data DATA --out results --only lightgcn,coheat --seeds 1

        coheat reproduce warm-up --data shop --out results --only ember,counting --epochs 20

        coheat reproduce all --results docs/results --out docs/results
    """
    from coheat.errors import ConfigError, Interrupted
    from coheat.experiments.pages import fill_page, markdown
    from coheat.experiments.reproduce import rebuild
    from coheat.experiments.reproduce import reproduce as run

    if (data is None) == (results is None):
        raise ConfigError("give either --data DIR, to train, or --results DIR, to make tables from results")
    wanted = [model.strip() for model in only.split(",") if model.strip()]
    try:
        if data is not None:
            found = run(name, data, out, seeds, wanted, jobs, epochs=epochs, on=on)
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
        console.print(markdown(document), markup=False, highlight=False, soft_wrap=True)
        console.print()
    for path in found.files:
        console.print(f"written: {path}", markup=False, highlight=False, soft_wrap=True)
