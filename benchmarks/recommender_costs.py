"""What changes cost with few and with many bundles added since training, in milliseconds of the processor.

python benchmarks/recommender_costs.py
python benchmarks/recommender_costs.py --added 1000 100000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import write_json
from rich.console import Console
from rich.table import Table
from service_common import IFASHION, RandomEmber, write_random_artifact

from coheat.recommender import Recommender

TIMES = 200


def items_of(number: int) -> list[str]:
    return [f"item-{(7 * number + 13 * place) % IFASHION.n_items}" for place in range(4)]


def cost(change: Callable[[int], object]) -> float:
    """The median over some of them."""
    took = []
    for number in range(TIMES):
        started = time.thread_time()
        change(number)
        took.append(1000 * (time.thread_time() - started))
    return statistics.median(took)


def measure(run: Path, counts: list[int]) -> list[dict[str, float]]:
    model, found, total = Recommender.load(run), [], 0
    for count in counts:
        model.add_bundles({f"added-{n}": items_of(n) for n in range(total, count)})
        total = count
        costs = {
            "add": cost(lambda n, count=count: model.add_bundles({f"one-{count}-{n}": items_of(n)})),  # type: ignore[misc]
            "record": cost(lambda n: model.record(f"user-{n}", f"added-{n}")),
            "remove": cost(lambda n, count=count: model.remove_bundles([f"one-{count}-{n}"])),  # type: ignore[misc]
            "count": cost(lambda _: model.n_bundles),
        }
        found.append({"added": count, **costs})
    return found


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--added", type=int, nargs="+", default=[1000, 100_000], help="how many, rising")
    options.add_argument("--json", type=Path, metavar="FILE", help="write what was found to this file")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="coheat-costs-") as place:
        write_random_artifact(Path(place) / "run", IFASHION, model_class=RandomEmber)
        found = measure(Path(place) / "run", given.added)
    table = Table(*found[0])
    for row in found:
        table.add_row(*(f"{value:,.2f}" if name != "added" else f"{value:,}" for name, value in row.items()))
    Console().print(table)
    write_json(given.json, "recommender_costs", {"rows": found})


if __name__ == "__main__":
    main()
