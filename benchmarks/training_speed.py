"""Seconds per training epoch and peak memory: our CoHeat against the plain one, in one run."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import (
    Measured,
    compare,
    parser,
    peak_megabytes,
    ratio,
    take_turns,
    world_directory,
    world_name,
    write_json,
)

WHOLE_EPOCH = 20
"""Epochs of up to this many batches are timed whole, longer ones by a sample of their batches."""


@dataclass(frozen=True)
class Trainer:
    """One side, ready to train: `begin` starts an epoch and gives its batches, `step` learns from one."""

    n_batches: int
    begin: Callable[[], Iterator[Any]]
    step: Callable[[Any], Any]


def our_trainer(directory: Path, preset: str) -> Trainer:
    from coheat.data import read_split
    from coheat.models import MODELS
    from coheat.models.base import Progress
    from coheat.presets import resolve_settings
    from coheat.rng import Randomness

    train = read_split(directory).train
    config, training = resolve_settings("coheat", preset, {})
    model = MODELS["coheat"](train, config, Randomness(0))
    optimizers = model.optimizers()

    def begin() -> Iterator[Any]:
        model.begin_epoch(Progress(1, training.epochs))
        return model.batches(training.batch_size)

    def step(batch: Any) -> list[float]:
        return [float(term) for term in model.step(batch, optimizers).values()]

    return Trainer(model.n_batches(training.batch_size), begin, step)


def plain_trainer(directory: Path, preset: str) -> Trainer:
    import plain

    from coheat.data import read_split
    from coheat.presets import resolve_settings

    train = read_split(directory).train
    config, training = resolve_settings("coheat", preset, {})
    model = plain.PlainCoHeat(train, plain.PlainSettings.of(config))
    loader = plain.training_loader(train, training.batch_size)
    optimizer = plain.adam(model)

    def begin() -> Iterator[Any]:
        model.begin_epoch(1, training.epochs)
        return iter(loader)

    return Trainer(len(loader), begin, lambda batch: plain.train_step(model, optimizer, batch))


TRAINERS = {"ours": our_trainer, "plain": plain_trainer}


def time_epoch(trainer: Trainer, n_timed: int) -> tuple[float, float]:
    """Seconds of an epoch and of one batch, from the first `n_timed` batches of an epoch.

    Up to its first batch an epoch shuffles, and our side draws all its negatives: that is timed once,
    and what follows is scaled to all batches. Batches are shuffled, so the first ones are a fair sample.
    """
    started = time.perf_counter()
    batches = trainer.begin()
    batch = next(batches)
    prepared = time.perf_counter()
    for _ in range(n_timed - 1):
        trainer.step(batch)
        batch = next(batches)
    trainer.step(batch)
    per_batch = (time.perf_counter() - prepared) / n_timed
    return prepared - started + per_batch * trainer.n_batches, per_batch


def measure(side: str, directory: Path, preset: str, batches: int | None) -> Measured:
    """One side's seconds per epoch, after one batch to warm up (ours compiles in it)."""
    trainer = TRAINERS[side](directory, preset)
    trainer.step(next(trainer.begin()))
    n_timed = trainer.n_batches
    if batches is not None or n_timed > WHOLE_EPOCH:
        n_timed = min((batches or 6) * (5 if side == "ours" else 1), n_timed)
    # Where an epoch of ours is over in a blink, a single one would say little.
    epochs = [time_epoch(trainer, n_timed) for _ in range(3 if side == "ours" else 1)]
    return {
        "epoch_seconds": statistics.median(epoch for epoch, _ in epochs),
        "batch_seconds": statistics.median(batch for _, batch in epochs),
        "peak_megabytes": peak_megabytes(),
        "batches_timed": n_timed,
        "batches_per_epoch": trainer.n_batches,
    }


def main() -> None:
    options = parser(__doc__, "python benchmarks/training_speed.py --like netease --json netease.json")
    options.add_argument(
        "--batches",
        type=int,
        metavar="N",
        help="time N batches of the plain side and 5 N of ours, and scale to the epoch "
        f"(default: the whole epoch up to {WHOLE_EPOCH} batches, else 6)",
    )
    chosen = options.parse_args()
    if chosen.side:
        print(json.dumps(measure(chosen.side, chosen.data, chosen.like, chosen.batches)))
        return
    with world_directory(chosen) as directory:
        arguments: list[object] = ["--data", directory, "--like", chosen.like]
        if chosen.batches is not None:
            arguments += ["--batches", chosen.batches]
        sides = take_turns(Path(__file__), chosen.rounds, arguments)
    compare(
        f"Training CoHeat ({world_name(chosen)}), median of {chosen.rounds}",
        sides,
        [
            ("seconds per epoch", "epoch_seconds", ".2f"),
            ("seconds per batch", "batch_seconds", ".3f"),
            ("peak memory, MB", "peak_megabytes", ".0f"),
        ],
        [estimate_note(side, found) for side, found in sides.items()],
    )
    measured = {
        "world": world_name(chosen),
        "preset": chosen.like,
        "ratio": ratio(sides, "epoch_seconds"),
        "memory_ratio": ratio(sides, "peak_megabytes"),
    }
    write_json(chosen.json, "training_speed", {**measured, **sides})


def estimate_note(side: str, found: Measured) -> str:
    timed, total = found["batches_timed"], found["batches_per_epoch"]
    if timed == total:
        return f"{side}: all {total} batches of an epoch timed"
    return f"{side}: estimated from {timed} of {total} batches"


if __name__ == "__main__":
    main()
