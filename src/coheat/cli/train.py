"""coheat train: train a model and keep everything about it in a run."""

from __future__ import annotations

from pathlib import Path

import typer

from coheat.cli import app
from coheat.cli.output import console, print_json, problem


@app.command()
def train(
    directory: Path = typer.Argument(
        ..., metavar="DIR", help="The data, with or without a split of its own."
    ),
    out: Path = typer.Option(..., "--out", metavar="RUN", help="Where to keep the run."),
    model: str = typer.Option("ember", help="Which model; coheat is the paper's."),
    preset: str = typer.Option(
        "default",
        help="Named settings, for example youshu; some differ where all held-out bundles are new.",
    ),
    seed: int = typer.Option(0, min=0, help="Same seed, same result."),
    scenario: str | None = typer.Option(
        None, help="How to split data that has no split: warm, cold, all or time. Default: all."
    ),
    epochs: int | None = typer.Option(None, min=1, help="Short for --set epochs=N."),
    settings: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Change a setting of the model or of training; repeatable."
    ),
    device: str = typer.Option("auto", help="cpu, cuda, or auto: a GPU where there is one."),
    resume: bool = typer.Option(False, "--resume", help="Go on with the run in RUN."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace the run in RUN."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress bar."),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as JSON."),
) -> None:
    """Train a model on the data in DIR and choose its best epoch by validation.

    A run that was interrupted or killed goes on with --resume and gives the same numbers.

    Examples:

        coheat train data/Youshu --preset youshu --seed 0 --out runs/youshu

        coheat train shop --scenario cold --set n_layers=2 --epochs 50 --out runs/shop

        coheat train shop --model counting --out runs/counting
    """
    from coheat.config import parse_overrides
    from coheat.progress import ProgressBar
    from coheat.runs import train_run
    from coheat.training import TrainingInterrupted, Watcher

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
            watcher=Watcher() if quiet else ProgressBar(),
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
            }
        )
        return
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in about.metrics.items()) or "not validated"
    console.print(
        f"{about.model}: best epoch {about.best_epoch} of {about.training['epochs']} "
        f"({about.reason}), validation {metrics}, {about.seconds:.1f} s",
        highlight=False,
    )
    console.print(f"next: coheat evaluate {out}", highlight=False, markup=False)
