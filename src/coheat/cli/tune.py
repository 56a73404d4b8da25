"""coheat tune: search for settings on validation."""

from __future__ import annotations

from pathlib import Path

import typer

from coheat.cli import app
from coheat.cli.output import note, print_json, problem, say
from coheat.cli.serving import ON


@app.command()
def tune(
    directory: Path = typer.Argument(..., metavar="DIR", help="The data, with or without a split."),
    out: Path = typer.Option(..., metavar="STUDY", help="Where to keep the study."),
    model: str = typer.Option("ember", help="Which model; coheat is the paper's."),
    space: str = typer.Option(
        "paper", help="What to search: paper, or a .toml file with a table [MODEL] of lists and ranges."
    ),
    trials: int = typer.Option(30, min=1, help="How many settings to try altogether."),
    preset: str = typer.Option(
        "default", help="Preset for the settings that are not searched: a name or a .toml file."
    ),
    metric: str = typer.Option("recall", help="recall or ndcg, at the best epoch on validation."),
    seed: int = typer.Option(0, min=0, help="Same seed, same trials."),
    scenario: str | None = typer.Option(None, help="How to split data that has no split. Default: all."),
    settings: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Change a setting that is not searched; repeatable."
    ),
    jobs: int = typer.Option(
        1,
        min=1,
        help="Trials at a time, each on one core. They form a round, drawn before any of its results are "
        "known.",
    ),
    on: str = ON,
    as_json: bool = typer.Option(False, "--json", help="Print all trials as JSON."),
) -> None:
    """Search for the settings of a model that are best on validation; the test part is not used.

    Trials that fall behind are cut short. If it is stopped or killed, the same command goes on; with more
    --trials it adds to them. The best settings are written as a preset, STUDY/best.toml.

    Examples:

        coheat tune shop --trials 20 --out studies/shop

        coheat tune data/Youshu --model coheat --preset youshu --trials 40 --out studies/youshu

        coheat tune shop --trials 64 --out studies/wide --jobs 16 --on 10.0.0.1:6379

        coheat train shop --preset studies/shop/best.toml --out runs/tuned
    """
    from coheat.config import parse_overrides
    from coheat.errors import ConfigError, Interrupted

    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ConfigError("coheat tune needs Optuna; install it with: pip install 'coheat[tune]'") from None
    from coheat.experiments.tuning import tune as search

    if on != "here" and jobs == 1:
        note("one trial at a time; --jobs N makes rounds of N, which the machines of the cluster share")
    try:
        study = search(
            directory,
            out,
            model=model,
            space=space,
            trials=trials,
            preset=preset,
            metric=metric,
            seed=seed,
            scenario=scenario,
            overrides=parse_overrides(settings),
            parallel=jobs,
            on=on,
        )
    except (KeyboardInterrupt, Interrupted):
        problem("interrupted; everything is saved, and the same command goes on from here")
        raise typer.Exit(130) from None
    if as_json:
        print_json(study.to_dict())
        return
    if study.best is not None and study.best.value is not None:
        chosen = ", ".join(f"{key}={value}" for key, value in study.best.settings.items())
        say(
            f"{study.model}: best validation {study.metric} {study.best.value:.4f} of {len(study.trials)} "
            f"trials, with {chosen}"
        )
    say(f"next: coheat train {directory} --model {model} --preset {study.preset} --out RUN")
