"""Which rule should choose CoHeat's epoch? Settled on splits of our own, away from the published test data.

The training part of a published cold split is divided anew (bundles 7:1:2), several times; CoHeat is trained
on each with several seeds, and every rule chooses an epoch by the validation data of that split. What the
chosen epochs reach on the test data of these splits decides: the largest sum of mean Recall and mean nDCG.
One training serves all rules. Finished trainings are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from beyond import Followed
from common import machine, markdown

from coheat.data.files import read_split
from coheat.data.split import split as divide
from coheat.data.writing import write_tables
from coheat.runs import train_run
from coheat.training import Standing, TrainingSettings

RULES = ("both", "recall", "ndcg")
METRICS = ("recall@20", "ndcg@20")


def trained(source: Path, out: Path, preset: str, split_seed: int, seed: int) -> dict[str, Any]:
    """Validation and test figures of every validated epoch of one training."""
    kept = out / f"split-{split_seed}-seed-{seed}.json"
    if not kept.exists():
        directory = out / f"split-{split_seed}"
        if not directory.exists():
            write_tables(divide(read_split(source).train, "cold", split_seed), directory)
        watcher = Followed(read_split(directory))
        place = out / f"run-{split_seed}-{seed}"
        run = train_run(directory, place, "coheat", preset, seed=seed, overwrite=True, watcher=watcher)
        validation = {
            str(record["epoch"]): record["validation"] for record in run.history if "validation" in record
        }
        test = {epoch: {name: found[name] for name in METRICS} for epoch, found in watcher.found.items()}
        kept.write_text(json.dumps({"validation": validation, "test": test}))
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def chosen_epoch(validation: dict[str, dict[str, float]], rule: str) -> int:
    """The epoch that the training loop would have kept under this rule."""
    settings = TrainingSettings.create({"selection": rule})
    standing = Standing()
    for epoch, metrics in validation.items():
        standing = replace(standing, epoch=int(epoch)).judge(metrics, settings)
    return standing.best_epoch


def tabulate(runs: dict[str, Any]) -> str:
    rows = []
    for rule in RULES:
        epochs = [chosen_epoch(run["validation"], rule) for run in runs.values()]
        row = [rule, ", ".join(map(str, epochs))]
        for metric in METRICS:
            pairs = zip(runs.values(), epochs, strict=True)
            values = [run["test"][str(epoch)][metric] for run, epoch in pairs]
            spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
            row.append(f"{statistics.mean(values):.4f}{spread}")
        rows.append(row)
    return markdown(["an epoch is better when it improves", "chosen epochs", "Recall@20", "nDCG@20"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python benchmarks/selection_rules.py --data DATA/cold/Youshu --out runs/rules",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "--data", type=Path, required=True, help="a split whose training part is divided anew"
    )
    options.add_argument("--out", type=Path, required=True, help="where splits and runs are kept")
    options.add_argument("--preset", default="youshu")
    options.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2], help="seeds of the splits")
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the trainings")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    given = options.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    runs = {
        f"split-{split}-seed-{seed}": trained(given.data, given.out, given.preset, split, seed)
        for split in given.splits
        for seed in given.seeds
    }
    print(tabulate(runs))
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
