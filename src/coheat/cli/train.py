"""coheat train: train a model and keep everything about it in a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from coheat.cli import app
from coheat.cli.output import console, print_json, problem

if TYPE_CHECKING:
    from coheat.artifact import Description


@app.command()
def train(
    directory: Path = typer.Argument(
        ..., metavar="DIR", help="The data, with or without a split of its own."
    ),
    out: Path = typer.Option(..., "--out", metavar="RUN", help="Where to keep the run."),
    model: str = typer.Option(
        "ember",
        help="ember, coheat (the paper's), counting, popularity, or a rival of the paper's (docs/models.md).",
    ),
    preset: str = typer.Option(
        "default",
        help="Named settings, for example youshu; some differ where all held-out bundles are new.",
    ),
    seed: int = typer.Option(0, min=0, help="Same seed, same result."),
    scenario: str | None = typer.Option(
        None,
        help="How to divide data without a split of its own: warm, cold, all (the default), time or warm-up; "
        "everything: learn from all of it, for the model that is to be served.",
    ),
    epochs: int | None = typer.Option(None, min=1, help="Short for --set epochs=N."),
    settings: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Change a setting of the model or of training; repeatable."
    ),
    device: str = typer.Option("auto", help="cpu, cuda, or auto: a GPU where there is one."),
    remove_leaks: bool = typer.Option(
        False, "--without-leaks", help="Take out of user_item what only held-out bundles explain."
    ),
    start: Path | None = typer.Option(
        None,
        metavar="RUN",
        help="Start from this run's vectors, and train a share of the epochs only (--set warm_share=0.125).",
    ),
    resume: bool = typer.Option(False, "--resume", help="Go on with the run in RUN."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace the run in RUN."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress bar."),
    tensorboard: Path | None = typer.Option(
        None, metavar="LOGS", help="Also write every epoch there, for tensorboard --logdir LOGS."
    ),
    mlflow: str | None = typer.Option(
        None, metavar="EXPERIMENT", help="Also log to this experiment of MLflow (MLFLOW_TRACKING_URI)."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as JSON."),
) -> None:
    """Train a model on the data in DIR, and show how it stands beside counting and popularity.

    A run that was interrupted or killed goes on with --resume and gives the same numbers.

    Examples:

        coheat train shop --scenario all --out runs/trial

        coheat train shop --scenario everything --out runs/shop

        coheat train shop-today --scenario everything --start runs/yesterday --out runs/today

        coheat train shop --out runs/trial --tensorboard logs/trial

        coheat train data/Youshu --model coheat --preset youshu --seed 0 --out runs/youshu
    """
    from coheat.config import parse_overrides
    from coheat.progress import ProgressBar
    from coheat.runs import train_run
    from coheat.training import TrainingInterrupted, Watcher
    from coheat.watchers import MLflow, Several, TensorBoard

    watchers: list[Watcher] = [] if quiet else [ProgressBar()]
    watchers += [] if tensorboard is None else [TensorBoard(tensorboard)]
    watchers += [] if mlflow is None else [MLflow(mlflow)]
    overrides = parse_overrides(settings) | ({} if epochs is None else {"epochs": epochs})
    try:
        run = train_run(
            directory,
            out,
            model_name=model,
            preset=preset,
            overrides=overrides,
            seed=seed,
            scenario=scenario,
            device=device,
            resume=resume,
            overwrite=overwrite,
            watcher=Several(*watchers),
            remove_leaks=remove_leaks,
            start=start,
        )
    except TrainingInterrupted as error:
        problem(str(error))
        raise typer.Exit(130) from None
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
    console.print(
        f"{about.model}: {_epochs(about)} ({about.reason}), validation: {metrics}, {about.seconds:.1f} s",
        highlight=False,
    )
    if run.rivals:
        _show_rivals(run.rivals, about.model)
    following = f"coheat evaluate {out}" if about.metrics else f"coheat recommend {out} --user ID"
    console.print(f"next: {following}", highlight=False, markup=False)


def _epochs(about: Description) -> str:
    """The epoch that counts, and whether it was chosen or is just the last."""
    total = about.training["epochs"]
    if not about.metrics or about.training["selection"] == "last":
        return f"epoch {about.best_epoch} of {total}, the last"
    return f"best epoch {about.best_epoch} of {total}"


def _show_rivals(rivals: dict[str, Any], model: str) -> None:
    from rich.table import Table

    from coheat.evaluation import Interval
    from coheat.judging import sentence

    names = list(rivals["models"][model])
    table = Table(title=f"on {rivals['users']} users of validation", title_justify="left")
    for column in ("", *names, *(f"{model} minus it, {name}" for name in names)):
        table.add_column(column, justify="right" if column else "left")
    for name, values in rivals["models"].items():
        found = rivals["against"].get(name, {})
        gaps = [Interval(*(found[m][part] for part in ("mean", "low", "high"))) for m in names if found]
        table.add_row(name, *(f"{values[m]:.4f}" for m in names), *map(str, gaps))
    console.print(table)
    console.print(sentence(rivals, model), highlight=False)
