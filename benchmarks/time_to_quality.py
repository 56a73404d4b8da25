"""Seconds until validation recall is within 1% of its best: our models against the plain ones, in one run.

Each model is trained to its end with its published recipe, the preset of that data set. Its validation
Recall@20 is measured after every epoch, as the mean over the seeds; the first epoch within 1% of the best one
counts. The plain side does the same mathematics, so it needs as many epochs, which would take it hours: a few
of its batches are timed in turns with ours and scaled to an epoch, as `training_speed.py` does. With
`--quick`, a model is trained with another preset too, which has to reach the quality of the published recipe.

Only training counts, on both sides; validation does not. With `--patience N` a training of CoHeat or CrossCBR
stops when the recall has not improved for N epochs; its schedule remains that of all epochs. Ember learns its
weights after the last epoch from a second training on a part of the data: that counts too, and whatever of it
is not training is charged to both sides alike. Its quality after an epoch is the one with the weights that it
ends with, and with the knob that is best then. Finished trainings are not repeated when `--work` names a
directory to keep their curves in.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import training_speed
from common import Measured, markdown, medians, parser, run_side, world_directory, world_name, write_json

WITHIN = 0.99
"""Share of the best recall that counts as having reached it."""
NAMES = ("coheat", "crosscbr", "ember")
COLUMNS = ["model", "preset", "best recall", "epochs", "ours, s", "plain, s", "ratio"]


class Enough(Exception):
    """Recall has not improved for long enough."""


def trained(directory: Path, name: str, preset: str, seed: int, patience: int | None = None) -> Measured:
    """Train a model; validation recall after every epoch, and what was trained besides these epochs."""
    from coheat.data import read_split
    from coheat.data.dataset import relation
    from coheat.evaluation import evaluate
    from coheat.memory import MemoryEstimate
    from coheat.models import MODELS
    from coheat.models.base import Model
    from coheat.presets import resolve_settings
    from coheat.rng import Randomness
    from coheat.training import Record, Standing, TrainingSettings, Watcher, fit

    split = read_split(directory)
    offered = split.candidates("validation")

    def validated(model: Model, **knobs: float) -> float:
        served = model.eval().served().turned(**knobs)
        found = evaluate(served, split.train, split.validation, (20,), "offered", offered)
        return float(found.metrics["recall@20"])

    class Follower(Watcher):
        """Validates after each epoch, when its seconds are taken; or keeps the state to do it later, where a
        model learns something after the last epoch."""

        model: Model

        def __init__(self, judges: bool = True):
            self.judges = judges
            self.seconds: list[float] = []
            self.recall: list[float] = []
            self.states: list[dict[str, Any]] = []
            self.inner: Follower | None = None

        def rehearsal(self, model: Model) -> Watcher:
            del model
            self.inner = Follower(judges=False)
            return self.inner

        def begin(
            self, model: Model, standing: Standing, settings: TrainingSettings, memory: MemoryEstimate
        ) -> None:
            del standing, settings, memory
            self.model = model

        def epoch(self, record: Record, standing: Standing) -> None:
            del standing
            self.seconds.append(record["seconds"])
            if not self.judges:
                return
            if later := self.model.learned_buffers:
                state = self.model.state_dict().items()
                self.states.append({key: value.clone() for key, value in state if key not in later})
                return
            self.recall.append(validated(self.model))
            if patience and max(self.recall) not in self.recall[-patience:]:
                raise Enough

    config, training = resolve_settings(name, preset, {})
    model = MODELS[name](split.train, config, Randomness(seed))
    follower = Follower()
    unseen = replace(split, validation=relation([], [], split.train.user_bundle.shape))
    settings = training.model_copy(update={"evaluate_every": training.epochs})
    beyond, besides = 0.0, 0.0
    with suppress(Enough):
        beyond = fit(model, unseen, settings, watcher=follower).seconds - sum(follower.seconds)
    beyond += surplus(follower.seconds)
    knobs = {
        name: max(knob.values, key=lambda value: validated(model, **{name: value}))
        for name, knob in (model.eval().served().knobs if follower.states else {}).items()
    }
    for state in follower.states:
        model.load_state_dict(state, strict=False)
        follower.recall.append(validated(model, **knobs))
    if (inner := follower.inner) is not None:
        share = inner.model.data.user_bundle.nnz / split.train.user_bundle.nnz
        besides = len(inner.seconds) * share
        beyond += surplus(inner.seconds) - sum(inner.seconds)
    return {
        "recall": follower.recall,
        "epoch_seconds": statistics.median(follower.seconds),
        "epochs_besides": besides,
        "seconds_besides": max(beyond, 0.0),
    }


def surplus(seconds: Sequence[float]) -> float:
    """What the first epoch takes beyond a usual one: first vectors are made in it."""
    return max(seconds[0] - statistics.median(seconds), 0.0)


def curve(chosen: argparse.Namespace, directory: Path, name: str, preset: str, seed: int) -> Measured:
    """The same, from `--work` where it is there already."""
    kept = chosen.work / f"{name}-{preset}-{seed}.json" if chosen.work else None
    if kept is not None and kept.exists():
        found: Measured = json.loads(kept.read_text(encoding="utf-8"))
        return found
    found = trained(directory, name, preset, seed, chosen.patience)
    print(f"{name}, {preset}, seed {seed}: best {max(found['recall']):.4f}", file=sys.stderr, flush=True)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return found


def averaged(curves: Sequence[Measured]) -> list[float]:
    """Mean recall of the seeds after each epoch that all of them reached: single curves are noisy."""
    return [statistics.mean(values) for values in zip(*(one["recall"] for one in curves), strict=False)]


def epochs_until(recall: Sequence[float], wanted: float) -> int | None:
    """The first epoch, counted from 1, whose recall is at least `wanted`; None if it never is."""
    return next((epoch for epoch, value in enumerate(recall, start=1) if value >= wanted), None)


def speeds(
    chosen: argparse.Namespace, directory: Path, name: str, presets: Sequence[str]
) -> dict[str, Measured]:
    """Seconds of an epoch of the plain side and of ours with each preset, in turns: medians."""
    script = Path(training_speed.__file__)
    turns: dict[str, list[Measured]] = {}
    for _ in range(chosen.rounds):
        for side, preset in [("plain", presets[0]), *(("ours", preset) for preset in presets)]:
            arguments: list[object] = ["--data", directory, "--model", name, "--preset", preset]
            if chosen.batches is not None:
                arguments += ["--batches", chosen.batches]
            key = "plain" if side == "plain" else preset
            turns.setdefault(key, []).append(run_side(script, side, arguments))
    return {key: {**medians(found), "turns": found} for key, found in turns.items()}


def measure(chosen: argparse.Namespace, directory: Path, name: str, presets: Sequence[str]) -> Measured:
    """One model: its curves with every preset, the seconds of its epochs, and what follows from both."""
    curves = {
        preset: [curve(chosen, directory, name, preset, seed) for seed in range(chosen.seeds)]
        for preset in presets
    }
    timed = speeds(chosen, directory, name, presets)
    published = curves[presets[0]]
    reaching = {preset: reached(published, curves[preset], timed, preset) for preset in presets}
    return {"curves": curves, "timed": timed, "presets": reaching}


def reached(
    published: list[Measured], own: list[Measured], timed: dict[str, Measured], preset: str
) -> Measured:
    """Seconds until nearly the published quality: of ours with this preset, of the plain one as published."""
    wanted = WITHIN * max(averaged(published))

    def seconds(curves: list[Measured], per_epoch: float) -> float | None:
        epochs = epochs_until(averaged(curves), wanted)
        if epochs is None:
            return None
        besides: float = statistics.mean(one["epochs_besides"] for one in curves)
        beyond: float = statistics.mean(one["seconds_besides"] for one in curves)
        return (epochs + besides) * per_epoch + beyond

    ours = seconds(own, timed[preset]["epoch_seconds"])
    plain = seconds(published, timed["plain"]["epoch_seconds"])
    return {
        "best": max(averaged(own)),
        "epochs": epochs_until(averaged(own), wanted),
        "epochs_besides": statistics.mean(one["epochs_besides"] for one in own),
        "ours_seconds": ours,
        "plain_seconds": plain,
        "ratio": plain / ours if ours and plain else None,
    }


def rows(found: dict[str, Measured]) -> list[list[str]]:
    """Lines of the table; a preset that does not get there has no seconds."""

    def number(value: float | None, form: str) -> str:
        return "never" if value is None else format(value, form)

    return [
        [
            name,
            preset,
            f"{one['best']:.4f}",
            number(one["epochs"], "d") + (f" + {one['epochs_besides']:.1f}" if one["epochs_besides"] else ""),
            number(one["ours_seconds"], ".1f"),
            number(one["plain_seconds"], ",.0f"),
            number(one["ratio"], ".1f") + ("x" if one["ratio"] else ""),
        ]
        for name, of_model in found.items()
        for preset, one in of_model["presets"].items()
    ]


def main() -> None:
    options = parser(
        __doc__, "python benchmarks/time_to_quality.py --data DATA/warm/Youshu --quick youshu-quick"
    )
    options.add_argument("--models", nargs="+", choices=NAMES, default=NAMES, help="only these")
    options.add_argument("--seeds", type=int, default=3, metavar="N", help="trainings of each (default: 3)")
    options.add_argument("--batches", type=int, metavar="N", help="as for training_speed.py")
    options.add_argument(
        "--quick", metavar="PRESET", help="also train with this preset, where a model has it"
    )
    options.add_argument("--patience", type=int, metavar="N", help="epochs without improvement to stop after")
    options.add_argument("--work", type=Path, metavar="DIR", help="keep curves of finished trainings here")
    chosen = options.parse_args()
    from coheat.presets import preset_names

    found: dict[str, Measured] = {}
    with world_directory(chosen) as directory:
        for name in chosen.models:
            quick = [chosen.quick] if chosen.quick in preset_names(name) else []
            found[name] = measure(chosen, directory, name, [chosen.like, *quick])
            payload = {"world": world_name(chosen), "within": WITHIN, "models": found}
            write_json(chosen.json, "time to quality", payload)
    print(markdown(COLUMNS, rows(found)))


if __name__ == "__main__":
    main()
