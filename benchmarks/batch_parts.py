"""Where the time of a training batch goes as the world grows: drawing, choosing edges, loss, and update.

Worlds are generated with f times the users, bundles, items and pairs. Each part of a batch is timed on its
own, one after the other, in seconds of the processor (of all threads); beside them stands what the batch
reaches: the edges that its rows need, and all rows of the tables, which the update goes through.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import Measured, machine, markdown

from coheat.data import LIKE, realistic_world
from coheat.graph.adam import Adam
from coheat.graph.parallel import one_torch_thread
from coheat.models.base import Progress
from coheat.models.two_views import Prepared, TwoViewModel
from coheat.presets import model_class, resolve_settings
from coheat.rng import Randomness

PARTS = ("draw", "choose edges", "loss and gradients", "update")


def measure(chosen: argparse.Namespace) -> Measured:
    """Milliseconds of each part of a batch, the mean over some batches after the first."""
    counts = {name: round(count * chosen.factor) for name, count in LIKE[chosen.like].items()}
    config, settings = resolve_settings(chosen.model, "default", chosen.set)
    model: Any = model_class(chosen.model)(realistic_world(**counts, seed=0), config, Randomness(0))
    assert isinstance(model, TwoViewModel)
    model.is_served = False  # nothing around the batches is wanted
    model.train()
    model.begin_epoch(Progress(1, 1))
    (optimizer,) = model.optimizers()
    assert isinstance(optimizer, Adam)
    drawn = iter(model.drawn(settings.batch_size))
    spent, reached = dict.fromkeys(PARTS, 0.0), 0
    for number in range(chosen.batches + 1):
        marks = [time.process_time()]
        bare = next(drawn)
        marks.append(time.process_time())
        batch = model.prepare(bare)
        marks.append(time.process_time())
        with one_torch_thread(), optimizer.deferred_gradients():
            optimizer.zero_grad(set_to_none=True)
            torch.stack(list(model.loss(batch).values())).sum().backward()  # type: ignore[no-untyped-call]
            marks.append(time.process_time())
            optimizer.step()
        marks.append(time.process_time())
        if number:  # the first one compiles and fills what is made once
            reached += edges(batch)
            for name, begun, ended in zip(PARTS, marks[:-1], marks[1:], strict=True):
                spent[name] += ended - begun
    rows = sum(len(table) for table in model.parameters())
    pairs = sum(counts[name] for name in ("n_user_bundle", "n_user_item", "n_bundle_item"))
    milliseconds = {name: 1e3 * seconds / chosen.batches for name, seconds in spent.items()}
    return {"milliseconds": milliseconds, "edges": reached / chosen.batches, "rows": rows, "pairs": pairs}


def edges(batch: Prepared) -> int:
    """How many edges a batch goes along."""
    sides = (batch.history.left, batch.history.right, batch.affiliation.left, batch.affiliation.right)
    return sum(len(part.sources) for part in (*(part for _, part in sides), batch.pooling))


def table(found: dict[str, Measured]) -> str:
    """A row for each size; then how many times the first each of the last has."""
    columns = ["size", *(f"{name}, ms" for name in PARTS), "in all, ms", "million edges", "million rows"]
    numbers = [
        [
            *one["milliseconds"].values(),
            sum(one["milliseconds"].values()),
            one["edges"] / 1e6,
            one["rows"] / 1e6,
        ]
        for one in found.values()
    ]
    lines = [
        [f"{factor}x", *(f"{value:.0f}" for value in row[:-2]), *(f"{value:.2f}" for value in row[-2:])]
        for factor, row in zip(found, numbers, strict=True)
    ]
    ratios = [f"{last / max(first, 1e-9):.1f}" for first, last in zip(numbers[0], numbers[-1], strict=True)]
    return markdown(columns, [*lines, ["last / first", *ratios]])


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python benchmarks/batch_parts.py --like netease --factors 1 4 10",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--like", choices=sorted(LIKE), default="netease", help="size of world 1x")
    options.add_argument("--model", choices=("coheat", "crosscbr", "ember"), default="coheat")
    options.add_argument("--factors", type=float, nargs="+", default=[1, 4, 10], metavar="F")
    options.add_argument("--batches", type=int, default=10, metavar="N", help="batches that are timed")
    options.add_argument(
        "--set", type=json.loads, default={}, metavar="JSON", help='such as {"optimiser": "lazy-adam"}'
    )
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    options.add_argument("--factor", type=float, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.factor is not None:
        print(json.dumps(measure(chosen)))
        return
    found: dict[str, Measured] = {}
    for factor in chosen.factors:  # each in a process of its own, so that no memory is left over
        command = [sys.executable, __file__, *sys.argv[1:], "--factor", f"{factor:g}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[f"{factor:g}"] = json.loads(done.stdout.splitlines()[-1])
    print(table(found))
    if chosen.json:
        payload = {"benchmark": "batch_parts", "model": chosen.model, "machine": machine(), "sizes": found}
        chosen.json.write_text(json.dumps(payload, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
