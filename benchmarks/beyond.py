"""Ember beside its rivals, on the published splits or on others: the study behind docs/results.md.

One training per scenario and seed serves both protocols. P, the paper's: the knob is chosen on the validation
data of the scenario. S, the shop's: the default knob everywhere. In both, weights are learned from the
training part and the epoch is the last; a rival's epoch is chosen on validation. What a part brings is
measured by leaving it out of the trained model, with the other weights as they were learned beside it. Only
what changes learning itself is trained again. Finished trainings are not repeated, so the command can be
stopped and started.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine, markdown

from coheat.data.files import read_split
from coheat.data.split import Split
from coheat.evaluation import evaluate
from coheat.models.base import Model
from coheat.models.ember import Ember, usual_welcome, youth_of
from coheat.plots import to_png
from coheat.progress import ProgressBar
from coheat.rng import Randomness
from coheat.runs import Run, train_run
from coheat.served import Curve, Served
from coheat.training import Record, Standing

SCENARIOS = ("cold", "all", "warm", "time")
WELCOMES = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 100.0)
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "everything": (),
    "no history view": ("history",),
    "no item view": ("affiliation",),
    "no companions": ("companions",),
    "no overlaps": ("overlap", "own items", "items of own bundles"),
}
HAND_SET = "hand-set weights"
LAUNCH_TIMES = "no launch times"
TRAINED_AGAIN: dict[str, dict[str, Any]] = {"negatives among all bundles": {"negatives": "all"}}


@dataclass(frozen=True)
class Study:
    """Where the data are (SCENARIO/NAME under `data`), where runs go, and which preset is trained."""

    data: Path
    out: Path
    name: str
    preset: str

    def train(self, scenario: str, model: str, seed: int, label: str, **settings: Any) -> Run:
        return train_run(
            self.data / scenario / self.name,
            self.out / f"{label}-{scenario}-{seed}",
            model,
            self.preset,
            settings,
            seed,
            resume=True,
            watcher=ProgressBar(),
        )

    def split(self, scenario: str) -> Split:
        return read_split(self.data / scenario / self.name)


def measure(scorer: Served, split: Split, popularity: bool = False) -> dict[str, Any]:
    """Recall, nDCG and the share of new bundles in the lists, on the test part; and those of the shelf."""
    found = evaluate(scorer, split.train, split.test)
    report: dict[str, Any] = {name: found.metrics[name] for name in ("recall@20", "ndcg@20", "cold_share@20")}
    unseen = split.train.popularity == 0
    report["cold_share_of_test"] = float(unseen[split.test.indices].mean())
    if unseen[split.test.indices].any():
        shelf = evaluate(scorer, split.train, split.test, candidates="cold").metrics
        report["shelf"] = {name: shelf[name] for name in ("recall@20", "ndcg@20")}
    if popularity:
        report["by_popularity"] = found.by_popularity
    return report


def without(served: Served, names: Sequence[str]) -> Served:
    """The same model with weight 0 for some of its blocks and overlaps."""
    nothing = Curve.constant(0.0)
    blocks = (replace(one, curve=nothing) if one.name in names else one for one in served.blocks)
    overlaps = (replace(one, curve=nothing) if one.name in names else one for one in served.overlaps)
    changed = replace(served, blocks=tuple(blocks), overlaps=tuple(overlaps))
    return changed.turned(welcome=served.knobs["welcome"].value)  # which weighs bundles anew


def default_knob(model: Ember, split: Split) -> float:
    """The knob where nothing is chosen."""
    given, train = model.config.welcome, split.train
    return usual_welcome(train, youth_of(train, model.config.young_days)) if given is None else given


def otherwise(model: Ember, split: Split) -> dict[str, Any]:
    """What changes without learned weights, and then without launch times, at the default knob. Changes the
    model."""
    found, default = {}, default_knob(model, split)
    learned = model.curves.clone()
    model.curves.copy_(Ember(model.data, model.config, Randomness(0)).curves)
    found[HAND_SET] = measure(model.served().turned(welcome=default), split)
    model.curves.copy_(learned)
    if split.train.launched is not None:
        model.is_new.copy_(torch.from_numpy(split.train.popularity == 0))
        model.youth.copy_(torch.from_numpy(2.0 ** -np.minimum(split.train.popularity, 60)))
        found[LAUNCH_TIMES] = measure(model.served().turned(welcome=default), split)
    return found


def study_run(study: Study, scenario: str, seed: int, again: bool) -> dict[str, Any]:
    """Train one Ember and measure it in both protocols, without each part, and along the knob."""
    run = study.train(scenario, "ember", seed, "ember")
    split, model = study.split(scenario), run.artifact.model()
    assert isinstance(model, Ember)
    seconds = [record["seconds"] for record in run.history if "validation" not in record]
    with torch.no_grad():
        default = default_knob(model, split)
        shop = model.served().turned(welcome=default)
        result: dict[str, Any] = {
            "seconds_per_epoch": statistics.median(seconds),
            "seconds": sum(record["seconds"] for record in run.history),
            "chosen": {"welcome": float(model.knobs[0])},
            "default": default,
            "P": measure(model.served(), split, popularity=True),
            "S": measure(shop, split, popularity=True),
            "left_out": {part: measure(without(shop, off), split) for part, off in LEFT_OUT.items()},
        }
        if seed == 0:
            result["curve"] = {str(w): measure(shop.turned(welcome=w), split) for w in WELCOMES}
        result["left_out"] |= otherwise(model, split)
    for label, settings in TRAINED_AGAIN.items() if again else ():
        run = study.train(scenario, "ember", seed, label.replace(" ", "-"), choose="fixed", **settings)
        result["left_out"][label] = measure(run.artifact.model().served(), split)
    return result


def rival_run(study: Study, scenario: str, seed: int, model: str) -> dict[str, Any]:
    """Train a rival with the preset of the data set and measure it; its epoch is chosen on validation."""
    run = study.train(scenario, model, seed, model)
    return measure(run.artifact.model().served(), study.split(scenario))


class Followed(ProgressBar):
    """Measures a model at every validation of its training, and shows progress."""

    def __init__(self, split: Split):
        super().__init__()
        self.split = split
        self.model: Model | None = None
        self.found: dict[str, Any] = {}

    def begin(self, model: Model, *rest: Any) -> None:
        super().begin(model, *rest)
        self.model = model

    def epoch(self, record: Record, standing: Standing) -> None:
        super().epoch(record, standing)
        if "validation" in record and self.model is not None:
            self.found[str(record["epoch"])] = measure(self.model.served(), self.split)


def coheat_curve(study: Study, scenario: str) -> dict[str, Any]:
    """CoHeat's test figures at every fifth epoch of one training; kept, because it has to be watched."""
    kept = study.out / f"coheat-{scenario}-curve.json"
    if not kept.exists():
        directory, out = study.data / scenario / study.name, study.out / f"coheat-{scenario}"
        watcher = Followed(read_split(directory))
        train_run(directory, out, "coheat", study.preset, overwrite=True, watcher=watcher)
        kept.write_text(json.dumps(watcher.found))
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def mean(runs: Iterable[dict[str, Any]], *path: str) -> str:
    """Mean and deviation over seeds of Recall@20 / nDCG@20 under a path; empty where no run has it."""
    texts = []
    for metric in ("recall@20", "ndcg@20"):
        values = []
        for run in runs:
            for key in path:
                run = run.get(key, {})
            if metric in run:
                values.append(run[metric])
        if not values:
            return ""
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        texts.append(f"{statistics.mean(values):.4f}{spread}")
    return " / ".join(texts)


def beside(rivals: dict[str, Any], ember: dict[str, Any], kinds: Sequence[str]) -> list[list[str]]:
    """A row for Ember in both protocols and one for each rival."""
    rows = [[f"Ember, {protocol}", *(mean(ember[s], protocol) for s in kinds)] for protocol in ("P", "S")]
    for model, runs in rivals.items():
        found = ([run for key, run in runs.items() if key.startswith(f"{s}-")] for s in kinds)
        rows.append([model, *map(mean, found)])
    return rows


def tables(results: dict[str, Any]) -> str:
    """The study's tables in Markdown."""
    ember = {s: [run for key, run in results["runs"].items() if key.startswith(f"{s}-")] for s in SCENARIOS}
    rows = []
    for scenario, runs in ember.items():
        if runs:
            shares = [
                f"{100 * statistics.mean(run[p]['cold_share@20'] for run in runs):.0f}%" for p in ("P", "S")
            ]
            deserved = f"{100 * runs[0]['P']['cold_share_of_test']:.0f}%"
            rows.append([scenario, mean(runs, "P"), mean(runs, "S"), deserved, *shares])
    if ember["cold"]:
        rows.append(
            ["cold shelf", mean(ember["cold"], "P", "shelf"), mean(ember["cold"], "S", "shelf"), "", "", ""]
        )
    header = ["scenario", "P", "S", "new in the test", "new in lists, P", "new in lists, S"]
    parts = [markdown(header, rows), ""]
    kinds = [s for s in SCENARIOS if ember[s]]
    if results["rivals"]:
        parts += [markdown(["", *kinds], beside(results["rivals"], ember, kinds)), ""]
    left_out = [*LEFT_OUT, HAND_SET, *TRAINED_AGAIN, LAUNCH_TIMES]
    lines = [[part, *(mean(ember[s], "left_out", part) for s in kinds)] for part in left_out]
    parts += [markdown(["protocol S", *kinds], [line for line in lines if any(line[1:])]), ""]
    for scenario in kinds:
        first = next((run for run in ember[scenario] if "curve" in run), None)
        if first:
            lines = [
                [w, f"{m['recall@20']:.4f}", f"{m['ndcg@20']:.4f}", f"{m['cold_share@20']:.2f}"]
                for w, m in first["curve"].items()
            ]
            parts += [
                f"{scenario}, seed 0, as the knob turns",
                "",
                markdown(["welcome", "recall", "nDCG", "new in lists"], lines),
                "",
            ]
    return "\n".join(parts)


def draw(results: dict[str, Any], path: Path) -> None:
    """Cold against warm recall: Ember as the knob turns, CoHeat over its epochs."""

    def panel(axes: Any) -> None:
        cold, warm = (results["runs"].get(f"{s}-0", {}).get("curve", {}) for s in ("cold", "warm"))
        points = [(cold[w]["recall@20"], warm[w]["recall@20"], w) for w in cold if w in warm]
        axes.plot(*np.array([p[:2] for p in points]).T, marker="o", label="Ember, by welcome")
        for x, y, welcome in points:
            axes.annotate(
                "all" if welcome == "100.0" else welcome,
                (x, y),
                fontsize=7,
                xytext=(4, 3),
                textcoords="offset points",
            )
        cold, warm = (results["coheat"].get(s, {}) for s in ("cold", "warm"))
        points = [(cold[e]["recall@20"], warm[e]["recall@20"], e) for e in cold if e in warm]
        if points:
            axes.plot(*np.array([p[:2] for p in points]).T, marker=".", label="CoHeat, by epoch")
        axes.set_xlabel("Recall@20, cold scenario")
        axes.set_ylabel("Recall@20, warm scenario")
        axes.legend()

    to_png([panel], path)


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python benchmarks/beyond.py --data DATA --out runs/beyond",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--data", type=Path, required=True, help="holds cold/NAME, warm/NAME and all/NAME")
    options.add_argument("--name", default="Youshu", help="NAME of the data set (default: Youshu)")
    options.add_argument("--out", type=Path, required=True, help="where runs and figures go")
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=["cold", "all", "warm"])
    options.add_argument("--preset", default="youshu", help="settings of every model (default: youshu)")
    options.add_argument("--rivals", nargs="+", default=[], metavar="MODEL", help="models to train beside")
    options.add_argument("--rival-seeds", type=int, nargs="+", default=[0])
    options.add_argument("--again", action="store_true", help="train again without what changes learning")
    options.add_argument("--no-coheat", action="store_true", help="leave CoHeat's curve over epochs out")
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    given = options.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    study = Study(given.data, given.out, given.name, given.preset)
    results: dict[str, Any] = {"machine": machine(), "runs": {}, "coheat": {}}
    for seed in given.seeds:
        for scenario in given.scenarios:
            results["runs"][f"{scenario}-{seed}"] = study_run(study, scenario, seed, given.again)
    results["rivals"] = {
        model: {
            f"{scenario}-{seed}": rival_run(study, scenario, seed, model)
            for seed in given.rival_seeds
            for scenario in given.scenarios
        }
        for model in given.rivals
    }
    if not given.no_coheat:
        for scenario in ("cold", "warm"):
            results["coheat"][scenario] = coheat_curve(study, scenario)
    print(tables(results))
    if {"cold", "warm"} <= set(given.scenarios) and 0 in given.seeds:
        draw(results, given.out / "knob.png")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
