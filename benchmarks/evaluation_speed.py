"""Seconds to evaluate a test set (recall and nDCG at 20): ours against the plain way, in one run.

Both sides rank with the same vectors, of the shape CoHeat's have: two views of width 64, and a history
weight for each bundle. They must find the same recall and nDCG.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import plain
import torch
from common import (
    Measured,
    compare,
    parser,
    peak_megabytes,
    ratio,
    take_turns,
    time_calls,
    world_directory,
    world_name,
    write_json,
)
from service_common import tanh_curves

from coheat.data import read_split
from coheat.evaluation import evaluate
from coheat.served import Block, Csr, Relations, Served

WIDTH = 64
TEMPERATURE = 60.0  # about that of the epoch that validation chooses on Youshu
METRICS = ("recall@20", "ndcg@20")
TOLERANCE = 1e-6


def made_up_views(test: Any) -> plain.Views:
    """Noise, and enough signal that some of the test set is found."""
    rng = np.random.default_rng(0)

    def noise(rows: int) -> Any:
        return rng.standard_normal((rows, WIDTH), dtype=np.float32)

    tables = []
    for _ in range(2):
        bundles = noise(test.shape[1])
        tables += [0.3 * (test @ bundles) + noise(test.shape[0]), bundles]
    return plain.Views(*(torch.from_numpy(table.astype(np.float32)) for table in tables))


def measure(side: str, directory: Path) -> Measured:
    """One side's seconds for the test set, and what it found."""
    split = read_split(directory)
    views = made_up_views(split.test)
    weight = torch.tanh(torch.from_numpy(split.train.popularity).float() / TEMPERATURE)

    train = split.train
    relations = Relations(
        *(
            Csr(m.indptr, m.indices, m.shape[1])
            for m in (train.user_bundle, train.user_item, train.bundle_item)
        )
    )
    rising, falling = tanh_curves(TEMPERATURE)

    def ours() -> dict[str, float]:
        history = Block("history", "history", WIDTH, rising)
        items = Block("affiliation", "items", WIDTH, falling)
        blocks = [
            (history, views.history_users.numpy(), views.history_bundles.numpy()),
            (items, views.affiliation_users.numpy(), views.affiliation_bundles.numpy()),
        ]
        return evaluate(Served.create(relations, blocks), train, split.test).metrics

    def plainly() -> dict[str, float]:
        return plain.evaluate(plain.scoring(views, weight), split.train.user_bundle, split.test)

    if side == "ours":
        ours()  # compiles
    seconds, found = time_calls(ours, 3) if side == "ours" else time_calls(plainly, 1)
    return {
        "seconds": seconds,
        "peak_megabytes": peak_megabytes(),
        "users": split.test.shape[0],
        "bundles": split.test.shape[1],
        "metrics": {name: found[name] for name in METRICS},
    }


def main() -> None:
    options = parser(__doc__, "python benchmarks/evaluation_speed.py --like netease --json evaluation.json")
    chosen = options.parse_args()
    if chosen.side:
        print(json.dumps(measure(chosen.side, chosen.data)))
        return
    with world_directory(chosen) as directory:
        sides = take_turns(Path(__file__), chosen.rounds, ["--data", directory])
    ours, other = sides["ours"], sides["plain"]
    difference = max(abs(ours["metrics"][name] - other["metrics"][name]) for name in METRICS)
    compare(
        f"Evaluating {ours['users']} users x {ours['bundles']} bundles ({world_name(chosen)}), "
        f"median of {chosen.rounds}",
        sides,
        [("seconds", "seconds", ".3f"), ("peak memory, MB", "peak_megabytes", ".0f")],
        [
            *(f"{name}: {ours['metrics'][name]:.6f} and {other['metrics'][name]:.6f}" for name in METRICS),
            f"recall and nDCG differ by {difference:.1e}; allowed: {TOLERANCE:.0e}",
        ],
    )
    measured = {
        "world": world_name(chosen),
        "ratio": ratio(sides, "seconds"),
        "memory_ratio": ratio(sides, "peak_megabytes"),
        "difference": difference,
    }
    write_json(chosen.json, "evaluation_speed", {**measured, **sides})
    if difference > TOLERANCE:
        raise SystemExit("the two sides disagree, so their times say nothing")


if __name__ == "__main__":
    main()
