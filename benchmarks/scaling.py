"""How time and memory of training grow with the data: generated worlds of 1, 2, 4 and 8 times a base.

A world that is f times larger has f times the users, bundles, items and pairs, like a shop that grows:
everybody keeps as many bundles as before. An epoch has a batch for every 2048 training pairs, so with f
times the pairs it has f times the batches. Seconds per epoch therefore grow as fast as the edges exactly
if a batch costs the same in every world, and faster as soon as a batch also touches what it does not need.
Both are shown: "growth" is against the base, and the exponent p says that time grows like edges ** p.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from common import SIDES, Measured, markdown, medians, parser, run_side, write_json, write_world

TRAINING = Path(__file__).with_name("training_speed.py")


def measure_worlds(
    parent: Path, like: str, scales: list[float], sides: list[str], rounds: int, batches: int
) -> list[Measured]:
    """What training costs each side on each generated world; the worlds take turns, too."""
    directories = [parent / str(place) for place in range(len(scales))]
    for directory, scale in zip(directories, scales, strict=True):
        write_world(directory, like, scale)
    turns: list[list[dict[str, Measured]]] = [[] for _ in scales]
    for _ in range(rounds):
        for directory, found in zip(directories, turns, strict=True):
            arguments = ["--data", directory, "--like", like, "--batches", batches]
            found.append({side: run_side(TRAINING, side, arguments) for side in sides})
    return [
        {
            "scale": scale,
            "edges": count_training_edges(directory),
            **{side: medians([turn[side] for turn in found]) for side in sides},
        }
        for scale, directory, found in zip(scales, directories, turns, strict=True)
    ]


def count_training_edges(directory: Path) -> int:
    """Lines of the three files a model learns from."""
    total = 0
    for name in ("user_bundle_train.txt", "user_item.txt", "bundle_item.txt"):
        total += (directory / name).read_bytes().count(b"\n")
    return total


def exponent(worlds: list[Measured], side: str, key: str) -> float:
    """p such that the quantity grows like edges ** p between the smallest and the largest world."""
    first, last = worlds[0], worlds[-1]
    growth = math.log(last[side][key] / first[side][key])
    return growth / math.log(last["edges"] / first["edges"])


def table(worlds: list[Measured], side: str) -> str:
    """One side as a Markdown table."""
    base = worlds[0]
    rows = []
    for world in worlds:
        found, first = world[side], base[side]
        rows.append(
            [
                f"{world['scale'] / base['scale']:g}x",
                f"{world['edges']:,}",
                f"{world['edges'] / base['edges']:.1f}x",
                f"{found['batches_per_epoch']}",
                f"{found['batch_seconds'] * 1e3:.0f}",
                f"{found['batch_seconds'] / first['batch_seconds']:.1f}x",
                f"{found['epoch_seconds']:.2f}",
                f"{found['epoch_seconds'] / first['epoch_seconds']:.1f}x",
                f"{found['peak_megabytes']:.0f}",
                f"{found['peak_megabytes'] / first['peak_megabytes']:.1f}x",
            ]
        )
    columns = ["world", "edges", "growth", "batches", "ms per batch", "growth"]
    return markdown([*columns, "seconds per epoch", "growth", "peak MB", "growth"], rows)


def main() -> None:
    example = "python benchmarks/scaling.py --factors 1 2 4 8 --json scaling.json"
    options = parser(__doc__, example, compares=False)
    options.add_argument(
        "--base",
        type=float,
        default=1.0,
        metavar="X",
        help="size of world 1x, in times of --like (default: 1)",
    )
    options.add_argument(
        "--factors", type=float, nargs="+", default=[1, 2, 4, 8], metavar="F", help="default: 1 2 4 8"
    )
    options.add_argument(
        "--batches", type=int, default=6, metavar="N", help="time 5 N batches of ours, N of the plain side"
    )
    options.add_argument("--plain", action="store_true", help="measure the plain side too")
    chosen = options.parse_args()
    sides = list(SIDES) if chosen.plain else ["ours"]
    scales = [chosen.base * factor for factor in sorted(chosen.factors)]
    with tempfile.TemporaryDirectory(prefix="coheat-scaling-") as name:
        worlds = measure_worlds(Path(name), chosen.like, scales, sides, chosen.rounds, chosen.batches)
    for side in sides:
        print(f"\n{side}\n\n{table(worlds, side)}\n")
        if len(worlds) > 1:
            for what in ("epoch", "batch"):
                grown = exponent(worlds, side, f"{what}_seconds")
                print(f"seconds per {what} grow like edges ** {grown:.2f}")
    write_json(chosen.json, "scaling", {"like": chosen.like, "worlds": worlds})


if __name__ == "__main__":
    main()
