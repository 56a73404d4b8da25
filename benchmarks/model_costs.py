"""What one epoch of every model costs on a generated world: seconds and peak memory.

Each model is trained for one epoch and validated once, with its preset for that size, in a process of its
own, so that its peak memory is its own. A model that starts from pretrained vectors gets one epoch of its
backbone too, shown apart: it is trained once and shared. In small worlds the first epoch is mostly compiling;
with `--epochs 3` the seconds are those of the second.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from common import Measured, markdown, parser, peak_megabytes, world_directory, write_json

LIMIT = 8192
"""Megabytes that no model may need more of."""

COLUMNS = ["model", "set-up s", "backbone s/epoch", "s/epoch", "validation s", "peak MB"]


def measure(directory: Path, name: str, like: str, epochs: int) -> Measured:
    """Costs of one model, in this process."""
    from coheat.data import read_split
    from coheat.memory import MemoryEstimate
    from coheat.models.base import Model
    from coheat.presets import model_class, preset_names, resolve_settings
    from coheat.rng import Randomness
    from coheat.training import Record, Standing, TrainingSettings, Watcher, fit, pretrain

    class Clock(Watcher):
        """Notes when an epoch begins, when its last batch ends, and when it is validated."""

        started = trained = ended = 0.0
        later: ClassVar[list[float]] = []

        def begin(
            self, model: Model, standing: Standing, settings: TrainingSettings, memory: MemoryEstimate
        ) -> None:
            del model, standing, settings, memory
            self.started = self.trained = time.perf_counter()

        def batch(self) -> None:
            self.trained = time.perf_counter()

        def epoch(self, record: Record, standing: Standing) -> None:
            self.ended = time.perf_counter()
            if standing.epoch > 1 and "validation" not in record:
                self.later.append(record["seconds"])

    split = read_split(directory)
    kind = model_class(name)
    overrides: dict[str, Any] = {"epochs": epochs, "evaluate_every": epochs}
    if "backbone_epochs" in kind.Config.model_fields:
        overrides["backbone_epochs"] = 1
    preset = like if like in preset_names(name) else "default"
    config, training = resolve_settings(name, preset, overrides)
    before = time.perf_counter()
    model = kind(split.train, config, Randomness(0))
    built = time.perf_counter()
    pretrain(model, None)
    pretrained = time.perf_counter()
    clock = Clock()
    fit(model, split, training, watcher=clock)
    return {
        "setup_seconds": built - before,
        "backbone_seconds": pretrained - built if kind.backbone else None,
        "epoch_seconds": statistics.median(clock.later) if clock.later else clock.trained - clock.started,
        "validation_seconds": clock.ended - clock.trained,
        "batches": model.n_batches(training.batch_size),
        "batch_size": training.batch_size,
        "preset": preset,
        "peak_megabytes": peak_megabytes(),
    }


def measure_apart(directory: Path, name: str, like: str, epochs: int) -> Measured:
    """The same in a process of its own; a failure is a finding too."""
    command = [sys.executable, __file__, "--data", str(directory), "--like", like, "--measure", name]
    command += ["--epochs", str(epochs)]
    environment = {**os.environ, "COHEAT_CACHE": "off"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
        return {"failed": last}
    found: Measured = json.loads(done.stdout.splitlines()[-1])
    return found


def row(name: str, found: Measured) -> list[str]:
    if "failed" in found:
        return [name, f"failed: {found['failed']}", "", "", "", ""]
    backbone = found["backbone_seconds"]
    return [
        name,
        f"{found['setup_seconds']:.1f}",
        "" if backbone is None else f"{backbone:.1f}",
        f"{found['epoch_seconds']:.1f}",
        f"{found['validation_seconds']:.1f}",
        f"{found['peak_megabytes']:.0f}",
    ]


def main() -> None:
    options = parser(__doc__, "python benchmarks/model_costs.py --like netease --json costs.json")
    options.add_argument("--models", nargs="+", metavar="NAME", help="only these (default: all)")
    options.add_argument("--epochs", type=int, default=1, help="epochs to train (default: 1)")
    options.add_argument("--measure", metavar="NAME", help="measure this one here, and print JSON")
    chosen = options.parse_args()
    if chosen.measure:
        print(json.dumps(measure(chosen.data, chosen.measure, chosen.like, chosen.epochs)))
        return
    from coheat.models import MODELS

    results: dict[str, Measured] = {}
    with world_directory(chosen) as directory:
        for name in chosen.models or sorted(MODELS):
            results[name] = measure_apart(directory, name, chosen.like, chosen.epochs)
            print(" | ".join(row(name, results[name])), file=sys.stderr, flush=True)
            write_json(
                chosen.json, "model costs", {"like": chosen.like, "epochs": chosen.epochs, "models": results}
            )
    print(markdown(COLUMNS, [row(name, found) for name, found in results.items()]))
    heavy = [name for name, found in results.items() if found.get("peak_megabytes", 0) > LIMIT]
    failed = [name for name, found in results.items() if "failed" in found]
    if heavy or failed:
        sys.exit(f"more than {LIMIT} MB: {', '.join(heavy) or 'none'}; failed: {', '.join(failed) or 'none'}")


if __name__ == "__main__":
    main()
