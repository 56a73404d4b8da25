"""Seconds per training epoch and peak memory: a model of ours against the plain one, in one run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from common import (
    Measured,
    compare,
    medians,
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

BUSY = 1.5
"""Above this ratio of an average batch to the fastest one, something else was running."""


@dataclass(frozen=True)
class Trainer:
    """One side, ready to train: `begin` starts an epoch and gives its batches, `step` learns from one."""

    n_batches: int
    begin: Callable[[], Iterator[Any]]
    step: Callable[[Any], Any]


def our_trainer(directory: Path, name: str, preset: str) -> Trainer:
    from coheat.data import read_split
    from coheat.graph.allocation import keep_freed_memory
    from coheat.models import MODELS
    from coheat.models.base import Progress
    from coheat.presets import resolve_settings
    from coheat.rng import Randomness

    keep_freed_memory()  # as fit does before it trains
    train = read_split(directory).train
    config, training = resolve_settings(name, preset, {})
    model = MODELS[name](train, config, Randomness(0))
    optimizers, epochs = model.optimizers(), count(1)

    def begin() -> Iterator[Any]:
        model.begin_epoch(Progress(next(epochs), training.epochs))  # first vectors are made in the first
        return iter(model.batches(training.batch_size))

    def step(batch: Any) -> list[float]:
        return [float(term) for term in model.step(batch, optimizers).values()]

    return Trainer(model.n_batches(training.batch_size), begin, step)


def plain_trainer(directory: Path, name: str, preset: str) -> Trainer:
    import plain

    from coheat.data import read_split
    from coheat.presets import resolve_settings

    train = read_split(directory).train
    config, training = resolve_settings(name, preset, {})
    model = plain.MODELS[name](train, plain.PlainSettings.of(config))
    loader = plain.training_loader(train, training.batch_size)
    optimizer = plain.adam(model)

    def begin() -> Iterator[Any]:
        model.begin_epoch(1, training.epochs)
        return iter(loader)

    return Trainer(len(loader), begin, lambda batch: plain.train_step(model, optimizer, batch))


TRAINERS = {"ours": our_trainer, "plain": plain_trainer}


def time_epoch(trainer: Trainer, n_timed: int) -> Measured:
    """Seconds of an epoch, of a batch on average and of the fastest batch, from its first `n_timed` ones.

    Up to its first batch an epoch shuffles, and our side draws all its negatives: that is timed once,
    and what follows is scaled to all batches. Batches are shuffled, so the first ones are a fair sample.
    """
    started = time.perf_counter()
    batches = trainer.begin()
    batch = next(batches)
    ends = [time.perf_counter()]
    for place in range(n_timed):
        trainer.step(batch)
        if place < n_timed - 1:
            batch = next(batches)
        ends.append(time.perf_counter())
    per_batch = (ends[-1] - ends[0]) / n_timed
    return {
        "epoch_seconds": ends[0] - started + per_batch * trainer.n_batches,
        "batch_seconds": per_batch,
        "fastest_batch_seconds": min(end - start for start, end in pairwise(ends)),
    }


def measure(side: str, directory: Path, name: str, preset: str, batches: int | None) -> Measured:
    """One side's seconds per epoch, after one batch to warm up (ours compiles in it)."""
    trainer = TRAINERS[side](directory, name, preset)
    trainer.step(next(trainer.begin()))
    n_timed = trainer.n_batches
    if batches is not None or n_timed > WHOLE_EPOCH:
        n_timed = min((batches or 6) * (5 if side == "ours" else 1), n_timed)
    # Where an epoch of ours is over in a blink, a single one would say little.
    epochs = [time_epoch(trainer, n_timed) for _ in range(3 if side == "ours" else 1)]
    return {
        **medians(epochs),
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
    options.add_argument(
        "--model", choices=("coheat", "crosscbr", "ember"), default="coheat", help="default: coheat"
    )
    options.add_argument("--preset", metavar="NAME", help="the model's preset (default: that of --like)")
    chosen = options.parse_args()
    preset = chosen.preset or chosen.like
    if chosen.side:
        print(json.dumps(measure(chosen.side, chosen.data, chosen.model, preset, chosen.batches)))
        return
    with world_directory(chosen) as directory:
        arguments: list[object] = ["--data", directory, "--model", chosen.model, "--preset", preset]
        if chosen.batches is not None:
            arguments += ["--batches", chosen.batches]
        sides = take_turns(Path(__file__), chosen.rounds, arguments)
    compare(
        f"Training {chosen.model} ({world_name(chosen)}), median of {chosen.rounds}",
        sides,
        [
            ("seconds per epoch", "epoch_seconds", ".2f"),
            ("seconds per batch", "batch_seconds", ".3f"),
            ("fastest batch", "fastest_batch_seconds", ".3f"),
            ("peak memory, MB", "peak_megabytes", ".0f"),
        ],
        [remarks(side, found) for side, found in sides.items()],
    )
    measured = {
        "world": world_name(chosen),
        "model": chosen.model,
        "preset": preset,
        "ratio": ratio(sides, "epoch_seconds"),
        "memory_ratio": ratio(sides, "peak_megabytes"),
    }
    write_json(chosen.json, "training_speed", {**measured, **sides})


def remarks(side: str, found: Measured) -> str:
    """How the seconds of an epoch came about, and whether to trust them."""
    timed, total = found["batches_timed"], found["batches_per_epoch"]
    text = (
        f"all {total} batches of an epoch timed"
        if timed == total
        else f"estimated from {timed} of {total} batches"
    )
    if found["batch_seconds"] > BUSY * found["fastest_batch_seconds"]:
        text += "; its batches differ a lot, so the machine was busy: measure again when it is idle"
    return f"{side}: {text}"


if __name__ == "__main__":
    main()
