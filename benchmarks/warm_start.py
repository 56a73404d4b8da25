"""Does a training that starts from yesterday's vectors reach a fresh one, and in which share of its time?

Interactions are put in order: by time, where they have times, else by chance. Yesterday's model learns from
the first of them, today's from more; both of today's, the fresh one and the one that starts from
yesterday's, are judged by the same later ones. Without times, some bundles are left out of yesterday
altogether, so that there are new ones. With --split, today has the training part of a published split,
yesterday some of that, and the test part judges. Seconds are those of the processor, so that other work on
the machine does not count; what compiles is compiled before.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import markdown, write_json

from coheat.config import parse_overrides
from coheat.data.dataset import BundleData, Indices, Sparse, pairs, relation
from coheat.data.files import read_data, read_split
from coheat.data.split import Split
from coheat.evaluation import Evaluation, evaluate
from coheat.evaluation.intervals import bootstrap
from coheat.runs import Run, train_run
from coheat.training import Watcher

METRICS = ("recall@20", "ndcg@20")
NEW = "recall@20 of new bundles"
NEW_BUNDLES = 0.02
"""Share of the bundles that yesterday did not know, where there are no times."""


def order_of(data: BundleData, rng: np.random.Generator) -> Indices:
    """The place of every interaction in the order in which they come."""
    n = data.user_bundle.nnz
    order = rng.permutation(n) if data.timestamps is None else np.argsort(data.timestamps, kind="stable")
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    return place


def first(data: BundleData, kept: np.ndarray[Any, Any]) -> BundleData:
    """The world with some of its interactions, as it was at the latest of them."""
    users, bundles = pairs(data.user_bundle)
    times = None if data.timestamps is None else data.timestamps[kept]
    return data.with_user_bundle(relation(users[kept], bundles[kept], data.user_bundle.shape), times)


def timed(train: Callable[[], Run]) -> tuple[Run, float]:
    started = time.process_time()
    run = train()
    return run, time.process_time() - started


@dataclass(frozen=True)
class Days:
    """What each earlier day and today knew, and what came later."""

    earlier: list[BundleData]
    today: BundleData
    later: Sparse


def days_of(data: BundleData, cut: float, options: argparse.Namespace, rng: np.random.Generator) -> Days:
    place, n = order_of(data, rng), data.user_bundle.nnz
    users, bundles = pairs(data.user_bundle)
    today, later = place < cut * n, (place >= cut * n) & (place < cut * n + options.judged * n)
    ago = range(options.nights, 0, -1)
    known = [place < cut * n - days * options.step * n for days in ago]
    if data.timestamps is None:
        launched = rng.random(data.n_bundles)
        known = [
            kept & (launched >= days * NEW_BUNDLES)[bundles] for kept, days in zip(known, ago, strict=True)
        ]
    held_out = relation(users[later], bundles[later], data.user_bundle.shape)
    return Days([first(data, kept) for kept in known], first(data, today), held_out)


def days_of_split(split: Split, options: argparse.Namespace, rng: np.random.Generator) -> Days:
    """Today is the training part, each day before lacks a step more and some of the bundles altogether."""
    data, bundles = split.train, pairs(split.train.user_bundle)[1]
    n = data.user_bundle.nnz
    place, launched = rng.permutation(n), rng.random(data.n_bundles)
    known = [
        (place < (1 - days * options.step) * n) & (launched >= days * NEW_BUNDLES)[bundles]
        for days in range(options.nights, 0, -1)
    ]
    return Days([first(data, kept) for kept in known], data, split.parts[options.part])


def night(days: Days, options: argparse.Namespace, seed: int, out: Path) -> dict[str, Any]:
    """The last night: yesterday's model, a fresh one and a warm one, judged by what came later."""
    settings: dict[str, Any] = {
        "model_name": options.model,
        "preset": options.preset,
        "overrides": parse_overrides(options.settings),
        "scenario": "everything",
        "seed": seed,
        "watcher": Watcher(),
    }
    before = train_run(days.earlier[0], out / "0", **settings)
    for number, known in enumerate(days.earlier[1:], 1):
        before = train_run(known, out / str(number), start=before.path, **settings)
    fresh, fresh_seconds = timed(lambda: train_run(days.today, out / "fresh", **settings))
    warm, warm_seconds = timed(lambda: train_run(days.today, out / "warm", start=before.path, **settings))
    found = {name: judged(run, days.later) for name, run in
             (("yesterday", before), ("fresh", fresh), ("warm", warm))}  # fmt: skip
    return {
        "interactions": {
            "yesterday": days.earlier[-1].user_bundle.nnz,
            "today": days.today.user_bundle.nnz,
            "later": days.later.nnz,
        },
        "epochs": {"fresh": fresh.record.training["epochs"], "warm": warm.record.training["epochs"]},
        "seconds": {"fresh": fresh_seconds, "warm": warm_seconds},
        "metrics": {name: figures(one) for name, one in found.items()},
        "gaps": {m: (found["warm"].per_user[m] - found["fresh"].per_user[m]).tolist() for m in METRICS},
    }


def figures(one: Evaluation) -> dict[str, float]:
    """The metrics, and the recall of what nobody had taken until today."""
    new = one.by_popularity.get("0", {}).get("recall@20", float("nan"))
    return {**{name: one.metrics[name] for name in METRICS}, NEW: new}


def judged(run: Run, held_out: Sparse) -> Evaluation:
    artifact = run.artifact
    return evaluate(artifact.served(), artifact.training_data(), held_out)


def compile_all(options: argparse.Namespace, data: BundleData, out: Path) -> None:
    overrides = {"epochs": 1}
    train_run(data, out, options.model, options.preset, overrides, scenario="everything", watcher=Watcher())


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python benchmarks/warm_start.py --data DATA/all/Youshu --split --preset youshu",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--data", type=Path, required=True, metavar="DIR", help="tables, or research text")
    options.add_argument("--model", default="ember")
    options.add_argument("--preset", default="default")
    options.add_argument(
        "--cuts", type=float, nargs="+", default=[0.9], help="where today ends, as a share of all; repeatable"
    )
    options.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="of what chance decides; all nights for each"
    )
    options.add_argument(
        "--nights", type=int, default=1, help="warm starts one after the other, of which the last is judged"
    )
    options.add_argument("--split", action="store_true", help="take the published split of the data")
    options.add_argument("--part", choices=["validation", "test"], default="test",
                         help="the part of it that judges; settings are chosen by validation")  # fmt: skip
    options.add_argument("--step", type=float, default=0.1, help="what today has more than yesterday")
    options.add_argument("--judged", type=float, default=0.1, help="what judges, right after today")
    options.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    asked = options.parse_args(arguments)
    split = read_split(asked.data) if asked.split else None
    data = split.train if split else read_data(asked.data)
    nights = []
    with tempfile.TemporaryDirectory(prefix="coheat-benchmark-") as name:
        compile_all(asked, data, Path(name) / "compiled")
        several = [(seed, cut) for seed in asked.seeds for cut in asked.cuts]
        for number, (seed, cut) in enumerate(several):
            rng = np.random.default_rng(seed)
            days = days_of_split(split, asked, rng) if split else days_of(data, cut, asked, rng)
            nights.append(night(days, asked, seed, Path(name) / str(number)))
            print(f"night {number + 1} of {len(several)} is over", flush=True)
    gaps = {m: bootstrap(np.concatenate([one["gaps"][m] for one in nights])) for m in METRICS}
    seconds = {side: sum(one["seconds"][side] for one in nights) for side in ("fresh", "warm")}
    rows = []
    for side in ("yesterday", "fresh", "warm"):
        means = [float(np.nanmean([one["metrics"][side][m] for one in nights])) for m in (*METRICS, NEW)]
        took = f"{seconds[side] / len(nights):.1f}" if side in seconds else ""
        rows.append([side, *(f"{mean:.4f}" for mean in means), took])
    share = f"{seconds['warm'] / seconds['fresh']:.2f}x"
    rows.append(["warm minus fresh", *map(str, gaps.values()), "", share])
    print(markdown(["training", *METRICS, NEW, "CPU seconds"], rows))
    measured = {"nights": [{k: v for k, v in one.items() if k != "gaps"} for one in nights],
                "differences": {m: gap.to_dict() for m, gap in gaps.items()}, "seconds": seconds}  # fmt: skip
    write_json(asked.json, "warm_start", {"data": "/".join(asked.data.parts[-2:]), **measured})


if __name__ == "__main__":
    main()
