"""Seconds to evaluate a test set (recall and nDCG at 20): ours against the plain way, in one run.

Both sides rank with the same vectors, 128 wide like CoHeat's two views side by side, and must find the
same recall and nDCG.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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

WIDTH = 128
METRICS = ("recall@20", "ndcg@20")
TOLERANCE = 1e-6


def made_up_vectors(test: Any) -> tuple[Any, Any]:
    """Users (U, 128) and bundles (B, 128) in float32: noise, and enough signal that the test set is met."""
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    bundles = rng.standard_normal((test.shape[1], WIDTH), dtype=np.float32)
    users = 0.2 * (test @ bundles) + rng.standard_normal((test.shape[0], WIDTH), dtype=np.float32)
    return torch.from_numpy(users.astype(np.float32)), torch.from_numpy(bundles)


def measure(side: str, directory: Path) -> Measured:
    """One side's seconds for the test set, and what it found."""
    from coheat.data import read_split

    split = read_split(directory)
    users, bundles = made_up_vectors(split.test)
    if side == "ours":
        from coheat.evaluation import evaluate
        from coheat.models.base import Vectors, VectorScorer

        def ours() -> dict[str, float]:
            scorer = VectorScorer(Vectors(users, bundles))
            return evaluate(scorer, split.train, split.test).metrics

        ours()  # compiles
        seconds, found = time_calls(ours, 3)
    else:
        import plain

        def score(block: Any) -> Any:
            return users[block] @ bundles.T

        seconds, found = time_calls(lambda: plain.evaluate(score, split.train.user_bundle, split.test), 1)
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
    ours, plain = sides["ours"], sides["plain"]
    difference = max(abs(ours["metrics"][name] - plain["metrics"][name]) for name in METRICS)
    compare(
        f"Evaluating {ours['users']} users x {ours['bundles']} bundles ({world_name(chosen)}), "
        f"median of {chosen.rounds}",
        sides,
        [("seconds", "seconds", ".3f"), ("peak memory, MB", "peak_megabytes", ".0f")],
        [
            *(f"{name}: {ours['metrics'][name]:.6f} and {plain['metrics'][name]:.6f}" for name in METRICS),
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
