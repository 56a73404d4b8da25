"""Accuracy on the published splits: train, choose by validation, test, and tabulate beside the paper.

Every run is an ordinary `coheat train`; a finished one is not trained again, so the command can be
stopped and started. The table shows mean and deviation over the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from common import machine, markdown

from coheat.progress import ProgressBar
from coheat.runs import Run, train_run

PAPER = {"cold": (0.0183, 0.0105), "warm": (0.2804, 0.1646), "all": (0.1247, 0.0833)}
"""CoHeat's published Recall@20 and nDCG@20 on Youshu."""

METRICS = ("recall@20", "ndcg@20")


def measure(run: Run) -> dict[str, Any]:
    """What is kept of a run: its choice, its metrics, its speed."""
    report = run.evaluate(by_popularity=True)
    shelf = run.evaluate(candidates="cold")
    seconds = [record["seconds"] for record in run.history if "validation" not in record]
    return {
        "epoch": report["epoch"],
        "seconds": report["seconds"],
        "seconds_per_epoch": statistics.median(seconds) if seconds else None,
        "validation": report["validation"],
        "test": report["test"],
        "shelf": shelf["test"],
    }


def summarise(results: dict[str, dict[str, Any]], scenario: str) -> list[str]:
    """One row of the table: mean and deviation over seeds beside the published figure."""
    runs = [result for name, result in results.items() if name.startswith(f"{scenario}-")]
    row = [scenario, str(len(runs)), ", ".join(str(run["epoch"]) for run in runs)]
    for metric, published in zip(METRICS, PAPER[scenario], strict=True):
        values = [run["test"][metric] for run in runs]
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        row += [f"{statistics.mean(values):.4f}{spread}", f"{published:.4f}"]
    shelf = [run["shelf"]["recall@20"] for run in runs if run["shelf"]]
    row.append(f"{statistics.mean(shelf):.4f}" if shelf else "")
    row.append(f"{statistics.median(run['seconds_per_epoch'] or 0 for run in runs):.2f}")
    return row


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python benchmarks/accuracy.py --data DATA --out runs/accuracy",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--data", type=Path, help="directory with cold/, warm/ and all/, each with Youshu/")
    options.add_argument("--out", type=Path, default=Path("runs/accuracy"), help="where the runs are kept")
    options.add_argument("--model", default="coheat")
    options.add_argument("--preset", default="youshu")
    options.add_argument("--scenarios", nargs="+", default=list(PAPER), choices=list(PAPER))
    options.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options.add_argument("--json", type=Path, help="keep the results here; without --data, print them again")
    chosen = options.parse_args()
    results: dict[str, dict[str, Any]] = {}
    if chosen.data is None:
        results = json.loads(chosen.json.read_text())["results"]
    else:
        for seed in chosen.seeds:
            for scenario in chosen.scenarios:
                run = train_run(
                    chosen.data / scenario / "Youshu",
                    chosen.out / f"{chosen.model}-{scenario}-{seed}",
                    model_name=chosen.model,
                    preset=chosen.preset,
                    seed=seed,
                    resume=True,
                    watcher=ProgressBar(),
                )
                results[f"{scenario}-{seed}"] = measure(run)
        if chosen.json:
            payload = {
                "model": chosen.model,
                "preset": chosen.preset,
                "machine": machine(),
                "results": results,
            }
            chosen.json.write_text(json.dumps(payload, indent=1) + "\n")
    columns = ["scenario", "seeds", "epochs", "Recall@20", "paper", "nDCG@20", "paper", "shelf", "s/epoch"]
    print(markdown(columns, [summarise(results, scenario) for scenario in chosen.scenarios]))


if __name__ == "__main__":
    main()
