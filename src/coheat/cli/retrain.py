"""coheat retrain: the model of tomorrow, from the one of today and what was recorded since."""

from __future__ import annotations

from pathlib import Path

import typer

from coheat.cli import app
from coheat.cli.collect import KEY, POSITIVE, say_collected
from coheat.cli.output import print_json, problem, say


@app.command()
def retrain(
    run: Path = typer.Argument(..., metavar="RUN", help="The run to start from, or a link to one."),
    source: str = typer.Option(
        ...,
        "--from",
        metavar="SOURCE",
        help="A service's state directory, a backup of it, its database, or its address.",
    ),
    out: Path = typer.Option(..., "--out", metavar="RUN2", help="Where to keep the new run."),
    data: Path | None = typer.Option(
        None, "--data", metavar="DIR", help="The run's data, if they have been moved."
    ),
    reload: str | None = typer.Option(
        None, "--reload", metavar="URL", help="Make RUN a link to RUN2, and the service at URL load it."
    ),
    key: str | None = KEY,
    positive: list[str] = POSITIVE,
    fresh: bool = typer.Option(False, "--fresh", help="Start from scratch instead of from RUN's vectors."),
    force: bool = typer.Option(False, "--force", help="Go on even if the new model is clearly worse."),
    device: str = typer.Option("auto", help="cpu, cuda, or auto: a GPU if there is one."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress bar."),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as JSON."),
) -> None:
    """Retrain a run with what its service recorded, and replace the old one.

    Collects what was recorded, trains on everything with RUN's settings, starting from its vectors, and
    compares both models on the newest interactions. If it is killed, the same command goes on.

    Exit status 0: there is a new run; 1: it would be clearly worse than the old one, which stays.

    Examples:

        coheat retrain runs/shop --from runs/shop.service --out runs/tuesday

        coheat retrain runs/shop --from runs/shop.service --out runs/tuesday --reload http://127.0.0.1:8000
    """
    from coheat.progress import ProgressBar
    from coheat.retraining import retrain as train_again
    from coheat.training import TrainingInterrupted, Watcher

    try:
        outcome = train_again(
            run,
            source,
            out,
            data=data,
            positive=positive,
            reload=reload,
            key=key,
            fresh=fresh,
            force=force,
            device=device,
            watcher=Watcher() if quiet or as_json else ProgressBar(),
        )
    except TrainingInterrupted:
        problem("interrupted; the same command goes on")
        raise typer.Exit(130) from None
    if as_json:
        print_json(outcome.to_dict())
        raise typer.Exit(0 if outcome.run else 1)
    say_collected(outcome.counts)
    say(f"judged: {outcome.judgement}")
    if outcome.run is None:
        problem(f"the new model is clearly worse, so {outcome.old} stays; --force insists")
        raise typer.Exit(1)
    about = outcome.run.artifact.description
    start = f"from the vectors of {outcome.old}" if outcome.started_warm else "from nothing"
    say(f"trained: {about.model}, {about.training['epochs']} epochs {start}, {about.seconds:.1f} s")
    if outcome.kept is not None:
        say(f"kept: the run that was {run} is {outcome.kept} now")
    if outcome.loaded is not None:
        say(f"loaded: {reload} serves {out}, by the link {run}")
    else:
        say(f"next: coheat serve {out}")
