"""coheat train: train a model and keep everything about it in a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from coheat.cli import app
from coheat.cli.output import console, note, print_json, problem, say, table

if TYPE_CHECKING:
    from coheat.artifact import Description
    from coheat.runs import Run
    from coheat.workers.job import Job


@app.command()
def train(
    directory: Path = typer.Argument(..., metavar="DIR", help="The data, with or without a split."),
    out: Path = typer.Option(..., "--out", metavar="RUN", help="Where to keep the run."),
    model: str = typer.Option(
        "ember",
        help="ember, coheat (the paper's), counting, popularity, or a rival of the paper's (docs/models.md).",
    ),
    preset: str = typer.Option(
        "default",
        help="Named settings, for example youshu; some values differ if all held-out bundles are new.",
    ),
    seed: int = typer.Option(0, min=0, help="Same seed, same result."),
    scenario: str | None = typer.Option(
        None,
        help="How to split data that has no split: warm, cold, all (the default), time or warm-up; "
        "everything: learn from all of it, for the model to be served.",
    ),
    epochs: int | None = typer.Option(None, min=1, help="Short for --set epochs=N."),
    settings: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Change a setting of the model or of training; repeatable."
    ),
    device: str = typer.Option("auto", help="cpu, cuda, or auto: a GPU if there is one."),
    remove_leaks: bool = typer.Option(
        False, "--without-leaks", help="Remove items from user_item that only held-out bundles explain."
    ),
    start: Path | None = typer.Option(
        None,
        metavar="RUN",
        help="Start from this run's vectors, and train only a share of the epochs (--set warm_share=0.0625).",
    ),
    resume: bool = typer.Option(False, "--resume", help="Resume the run in RUN."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace the run in RUN."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress bar."),
    tensorboard: Path | None = typer.Option(
        None, metavar="LOGS", help="Also write every epoch to LOGS, for tensorboard --logdir LOGS."
    ),
    mlflow: str | None = typer.Option(
        None, metavar="EXPERIMENT", help="Also log to this experiment of MLflow (MLFLOW_TRACKING_URI)."
    ),
    workers: int | None = typer.Option(
        None,
        min=1,
        metavar="N",
        help="Train with N processes that share the rows: the same numbers for any N (docs/distributed.md). "
        "A killed process is restarted.",
    ),
    rendezvous: str | None = typer.Option(
        None,
        metavar="HOST:PORT",
        help="Where workers on several machines meet: an address of the machine with --rank 0.",
    ),
    rank: int | None = typer.Option(
        None, min=0, metavar="K", help="Which of the N workers this machine runs, from 0 to N - 1."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as JSON."),
) -> None:
    """Train a model on the data in DIR, and compare it with counting and popularity.

    If a run is interrupted or killed, go on with --resume; it gives the same numbers.

    Examples:

        coheat train shop --scenario all --out runs/trial

        coheat train shop --scenario everything --out runs/shop

        coheat train shop-today --scenario everything --start runs/yesterday --out runs/today

        coheat train shop --out runs/trial --tensorboard logs/trial

        coheat train data/Youshu --model coheat --preset youshu --seed 0 --out runs/youshu

        coheat train shop --out /shared/runs/shop --workers 2 --rendezvous 10.0.0.5:29500 --rank 0
    """
    from coheat.config import parse_overrides
    from coheat.errors import ConfigError
    from coheat.workers.job import Job

    overrides = parse_overrides(settings) | ({} if epochs is None else {"epochs": epochs})
    job = Job(
        data=str(directory),
        out=str(out),
        model=model,
        preset=preset,
        overrides=overrides,
        seed=seed,
        scenario=scenario,
        device=device,
        resume=resume,
        overwrite=overwrite,
        remove_leaks=remove_leaks,
        start=None if start is None else str(start),
        quiet=quiet,
        tensorboard=None if tensorboard is None else str(tensorboard),
        mlflow=mlflow,
    )
    if workers is None and (rendezvous, rank) != (None, None):
        raise ConfigError("--rendezvous and --rank are for several processes; say how many with --workers N")
    run = _train(job) if workers is None else _train_together(job, workers, rendezvous, rank)
    about = run.artifact.description
    if as_json:
        print_json(
            {
                "run": str(out),
                "model": about.model,
                "epoch": about.best_epoch,
                "epochs": about.training["epochs"],
                "seconds": about.seconds,
                "reason": about.reason,
                "validation": about.metrics,
                "rivals": run.rivals,
            }
        )
        return
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in about.metrics.items()) or "nothing held out"
    say(f"{about.model}: {_epochs(about)} ({about.reason}), validation: {metrics}, {about.seconds:.1f} s")
    if run.rivals:
        _show_rivals(run.rivals, about.model)
    following = f"coheat evaluate {out}" if about.metrics else f"coheat recommend {out} --user ID"
    say(f"next: {following}")


def _train(job: Job) -> Run:
    from coheat.training import TrainingInterrupted
    from coheat.workers.job import train_job

    try:
        return train_job(job)
    except TrainingInterrupted as error:
        problem(str(error))
        raise typer.Exit(130) from None


def _train_together(job: Job, workers: int, rendezvous: str | None, rank: int | None) -> Run:
    from coheat.workers.launch import Interrupted, train_together

    try:
        train_together(job, workers, rendezvous, rank, note)
    except Interrupted as error:
        problem(str(error))
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        problem("interrupted before all workers were started")
        raise typer.Exit(130) from None
    if rank:
        say(f"rank {rank} is done; rank 0 keeps the run in {job.out}")
        raise typer.Exit
    from coheat.runs import open_run

    return open_run(job.out)


def _epochs(about: Description) -> str:
    """The epoch that counts, and whether it was chosen or is just the last."""
    total = about.training["epochs"]
    if not about.metrics or about.training["selection"] == "last":
        return f"epoch {about.best_epoch} of {total}, the last"
    return f"best epoch {about.best_epoch} of {total}"


def _show_rivals(rivals: dict[str, Any], model: str) -> None:
    from coheat.evaluation import Interval
    from coheat.judging import sentence

    names = list(rivals["models"][model])
    title, bundles = f"on {rivals['users']} users of validation", rivals.get("bundles")
    if bundles != rivals.get("of_bundles"):  # not what coheat evaluate ranks, unless it is told to
        title += f", among the {bundles} bundles on offer then (--candidates offered)"
    made = table(("", *names, *(f"{model} minus it, {name}" for name in names)), ("",), title=title)
    for name, values in rivals["models"].items():
        found = rivals["against"].get(name, {})
        gaps = [Interval.from_dict(found[m]) for m in names if found]
        made.add_row(name, *(f"{values[m]:.4f}" for m in names), *map(str, gaps))
    console.print(made)
    say(sentence(rivals, model))
