"""How time and memory of training grow with the data: generated worlds of 1, 2, 4 and 8 times a base.

Two ways to grow. With `--grow contents` the same users take as many bundles as before, but there are f
times the items, users have f times as many of them, and so do bundles. An epoch has as many batches as
before, so its seconds should grow no faster than the edges. With `--grow everything`, like a shop that
grows, there are f times the users, bundles, items and pairs, and so f times the batches: seconds per epoch
grow as fast as the edges only if a batch costs the same in every world, and faster as soon as a larger
world makes a batch dearer. Both are shown: "growth" is against the base, and the exponent p says that time
grows like edges ** p.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from common import SIDES, Measured, markdown, medians, parser, run_side, write_json, write_world

Sizes = dict[float, tuple[float, float]]
"""For each factor of growth the size of the world, and of its contents besides: see `write_world`."""

TRAINING = Path(__file__).with_name("training_speed.py")


def measure_worlds(
    parent: Path, like: str, sizes: Sizes, sides: list[str], rounds: int, batches: int
) -> list[Measured]:
    """What training costs each side on each generated world; the worlds take turns, too."""
    directories = [parent / str(place) for place in range(len(sizes))]
    for directory, (scale, contents) in zip(directories, sizes.values(), strict=True):
        write_world(directory, like, scale, contents=contents)
    turns: list[list[dict[str, Measured]]] = [[] for _ in sizes]
    for _ in range(rounds):
        for directory, found in zip(directories, turns, strict=True):
            arguments = ["--data", directory, "--like", like, "--batches", batches]
            found.append({side: run_side(TRAINING, side, arguments) for side in sides})
    return [
        {
            "factor": factor,
            "edges": count_training_edges(directory),
            **{side: medians([turn[side] for turn in found]) for side in sides},
        }
        for factor, directory, found in zip(sizes, directories, turns, strict=True)
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
                f"{world['factor']:g}x",
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
    example = "python benchmarks/scaling.py --grow contents --factors 1 2 4 8 --json scaling.json"
    options = parser(__doc__, example, compares=False)
    options.add_argument(
        "--grow", choices=["contents", "everything"], default="everything", help="default: everything"
    )
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
    sizes = {
        factor: (chosen.base, factor) if chosen.grow == "contents" else (chosen.base * factor, 1.0)
        for factor in sorted(chosen.factors)
    }
    with tempfile.TemporaryDirectory(prefix="coheat-scaling-") as name:
        worlds = measure_worlds(Path(name), chosen.like, sizes, sides, chosen.rounds, chosen.batches)
    for side in sides:
        print(f"\n{side}\n\n{table(worlds, side)}\n")
        if len(worlds) > 1:
            for what in ("epoch", "batch"):
                grown = exponent(worlds, side, f"{what}_seconds")
                print(f"seconds per {what} grow like edges ** {grown:.2f}")
    write_json(chosen.json, "scaling", {"like": chosen.like, "grow": chosen.grow, "worlds": worlds})


if __name__ == "__main__":
    main()
