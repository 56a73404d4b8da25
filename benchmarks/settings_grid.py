"""Which settings of the paper's grid suit Youshu? Asked of validation data alone.

One setting at a time is moved away from the published ones, over the values of the paper's appendix, and
CoHeat is trained with each. A setting's figure in a scenario is the mean over the seeds of validation
Recall + nDCG at the epoch that the run itself chose. The test part is never scored. Finished trainings are
not repeated, and `--only` tries just some settings, in other scenarios say.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import machine, markdown

from coheat.progress import ProgressBar
from coheat.runs import train_run

GRID: dict[str, list[float]] = {
    "contrast_weight": [0.1, 0.2, 0.5, 1.0],
    "weight_decay": [4e-5, 1e-4, 4e-4, 1e-3],
    "n_layers": [1, 2],
    "max_temperature": [1e3, 1e4, 1e5, 1e6],
}
"""The paper's grid, but for learning rates that do not arrive anywhere in 100 epochs, and for
temperatures that never let a new bundle into a list."""

PUBLISHED: dict[str, float] = {
    "contrast_weight": 0.1,
    "weight_decay": 1e-4,
    "n_layers": 1,
    "max_temperature": 1e4,
}
"""The published settings for Youshu; what is not here is as in the preset."""

METRICS = ("recall@20", "ndcg@20")


def settings_to_try() -> dict[str, dict[str, float]]:
    """Names and settings: the published ones, then every one of the grid that differs in one of them."""
    tried = {"published": PUBLISHED}
    for name, values in GRID.items():
        for value in values:
            if value != PUBLISHED[name]:
                tried[f"{name}={value:g}"] = {**PUBLISHED, name: value}
    return tried


def validated(data: Path, out: Path, settings: dict[str, float], seed: int) -> dict[str, Any]:
    """The epoch that a training chose, and its validation figures."""
    run = train_run(data, out, "coheat", "youshu", settings, seed, resume=True, watcher=ProgressBar())
    epoch = run.artifact.description.best_epoch
    metrics = next(record["validation"] for record in run.history if record["epoch"] == epoch)
    return {"epoch": epoch, **{name: metrics[name] for name in METRICS}}


def tabulate(found: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """One row a setting and scenario, its sum beside that of the published settings there."""
    rows = []
    for scenario, settings in found.items():
        sums = {
            name: statistics.mean(sum(run[m] for m in METRICS) for run in runs)
            for name, runs in settings.items()
        }
        for name, runs in settings.items():
            means = [f"{statistics.mean(run[m] for run in runs):.4f}" for m in METRICS]
            epochs = ", ".join(str(run["epoch"]) for run in runs)
            gain = f"{sums[name] / sums['published'] - 1:+.1%}" if "published" in sums else ""
            rows.append([f"{scenario}: {name}", epochs, *means, gain])
    return markdown(["setting", "chosen epochs", "Recall@20", "nDCG@20", "sum against published"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python benchmarks/settings_grid.py --data DATA --scenarios cold --out runs/grid",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "--data", type=Path, required=True, help="directory with cold/, warm/ and all/, each with Youshu/"
    )
    options.add_argument("--out", type=Path, required=True, help="where runs are kept")
    options.add_argument("--scenarios", nargs="+", default=["cold"], choices=["cold", "warm", "all"])
    options.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5], help="others than those reported")
    options.add_argument(
        "--only", nargs="+", metavar="SETTING", help="such as published max_temperature=100000"
    )
    options.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    given = options.parse_args(arguments)
    known = settings_to_try()
    names = given.only or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        options.error(f"no such setting: {', '.join(unknown)}; choose from {', '.join(known)}")
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for scenario in given.scenarios:
        data = given.data / scenario / "Youshu"
        for name in names:
            found.setdefault(scenario, {})[name] = [
                validated(data, given.out / f"{scenario}-{name}-{seed}", known[name], seed)
                for seed in given.seeds
            ]
    print(tabulate(found))
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
