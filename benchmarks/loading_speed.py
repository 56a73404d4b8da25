"""Seconds to load a split in the research text layout: ours against reading it line by line, in one run."""

from __future__ import annotations

import json
from pathlib import Path

import plain
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

from coheat.data import read_split


def measure(side: str, directory: Path) -> Measured:
    """One side's seconds (median of 3, so that imports at the first use do not count), and what it read."""
    before = peak_megabytes()
    if side == "ours":
        seconds, split = time_calls(lambda: read_split(directory), 3)
        matrices = {
            "train": split.train.user_bundle,
            "tune": split.validation,
            "test": split.test,
            "user_item": split.train.user_item,
            "bundle_item": split.train.bundle_item,
        }
    else:
        seconds, matrices = time_calls(lambda: plain.load(directory), 3)
    return {
        "seconds": seconds,
        "added_megabytes": peak_megabytes() - before,
        "pairs": {name: int(matrix.nnz) for name, matrix in matrices.items()},
    }


def main() -> None:
    options = parser(__doc__, "python benchmarks/loading_speed.py --like ifashion --json loading.json")
    chosen = options.parse_args()
    if chosen.side:
        print(json.dumps(measure(chosen.side, chosen.data)))
        return
    with world_directory(chosen) as directory:
        sides = take_turns(Path(__file__), chosen.rounds, ["--data", directory])
    ours, other = sides["ours"], sides["plain"]
    n_pairs = sum(ours["pairs"].values())
    compare(
        f"Loading {n_pairs:,} pairs ({world_name(chosen)}), median of {chosen.rounds}",
        sides,
        [("seconds", "seconds", ".3f"), ("memory added, MB", "added_megabytes", ".0f")],
    )
    measured = {"world": world_name(chosen), "n_pairs": n_pairs, "ratio": ratio(sides, "seconds")}
    write_json(chosen.json, "loading_speed", {**measured, **sides})
    if ours["pairs"] != other["pairs"]:
        raise SystemExit(f"the two sides read different pairs: {ours['pairs']} and {other['pairs']}")


if __name__ == "__main__":
    main()
