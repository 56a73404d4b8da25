"""Every step of the walk at one, four and ten times NetEase's size: seconds and peak memory of each.

Worlds are generated with f times the users, bundles, items and pairs. Steps run one after the other, each in
a process of its own, so that its peak memory is its own; what was measured stands in --work, and a command
that was stopped goes on with the next step. Training and lists are measured on some batches and users and
scaled: a batch costs the same whenever it comes. Seconds are those of the processor (of all cores together),
which other work on the machine changes little; the clock's stand beside them in the JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from common import Measured, machine, markdown, peak_megabytes

from coheat.training import Watcher

MODELS = ("coheat", "ember")
STEPS = ("write", "load", "prepare", "open", *(f"train {model}" for model in MODELS), "serve", "batch")
SECONDS, PEAK = "cpu_seconds", "peak_megabytes"


class Meter:
    """Seconds of the processor and of the clock, and the peak of memory, of each phase of a process."""

    def __init__(self) -> None:
        self.phases: dict[str, Measured] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.begin(name)
        yield
        self.end()

    def begin(self, name: str) -> None:
        reset_peak()
        self.name, self.started, self.cpu = name, time.perf_counter(), _cpu()

    def end(self) -> None:
        self.phases[self.name] = {
            "seconds": time.perf_counter() - self.started,
            SECONDS: _cpu() - self.cpu,
            PEAK: peak_megabytes(),
        }

    def next(self, name: str) -> None:
        self.end()
        self.begin(name)


def _cpu() -> float:
    """Seconds of this process and of those it waited for."""
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def reset_peak() -> None:
    """Let the system count the peak of memory anew, where it can."""
    path = Path("/proc/self/clear_refs")
    if path.exists():
        path.write_text("5")


class Phases(Watcher):
    """Begins a phase of the meter with the first batch, and another one after the last."""

    def __init__(self, meter: Meter, batches: int, then: str, prefix: str = ""):
        self.meter, self.batches, self.left, self.then, self.prefix = meter, batches, batches, then, prefix

    def rehearsal(self, model: Any) -> Watcher:  # noqa: ARG002
        return Phases(self.meter, self.batches, "learn curves", "rehearsal ")

    def begin(self, *_: Any) -> None:
        if self.prefix:
            self.meter.next(f"{self.prefix}companions")

    def batch(self) -> None:
        if self.left == self.batches:  # the first one waits for what is made once
            self.meter.next(f"{self.prefix}batches")
        self.left -= 1
        if not self.left:
            self.meter.next(self.then)

    def epoch(self, *_: Any) -> None:
        if not self.prefix:
            self.meter.next("checkpoint")


# The steps, each in a process of its own.


def write(place: Path, chosen: argparse.Namespace, meter: Meter) -> Measured:
    from coheat.data import LIKE, realistic_world, write_tables

    like: dict[str, Any] = dict(LIKE[chosen.like])
    counts = {name: round(count * chosen.factor * chosen.base) for name, count in like.items()}
    with meter.phase("write"):
        write_tables(realistic_world(**counts, seed=0), place / "tables", overwrite=True)
    return {"counts": counts}


def load(place: Path, _: argparse.Namespace, meter: Meter) -> Measured:
    from coheat.data import read_data

    with meter.phase("load"):
        read_data(place / "tables")
    return {}


def prepare(place: Path, _: argparse.Namespace, meter: Meter) -> Measured:
    from coheat.data.preparing import prepare as prepare_tables

    with meter.phase("prepare"):
        return prepare_tables(place / "tables", place / "prepared", "1GB", overwrite=True)


def open_prepared(place: Path, _: argparse.Namespace, meter: Meter) -> Measured:
    from coheat.data import read_data

    with meter.phase("open"):
        read_data(place / "prepared")
    return {}


def train(place: Path, chosen: argparse.Namespace, meter: Meter, model_name: str) -> Measured:
    """One epoch, as many batches as were asked for, to the saved artifact."""
    from dataclasses import replace

    from coheat.artifact import Description, save_artifact
    from coheat.checkpoint import Checkpoints
    from coheat.judging import some_users
    from coheat.presets import model_class, resolve_settings
    from coheat.rng import Randomness
    from coheat.runs import contents_of, fingerprint, open_split
    from coheat.training import fit

    preset, overrides = "default", {"epochs": 1, "checkpoint_every": 1, **chosen.set}
    with meter.phase("open split"):
        split, _ = open_split(place / "prepared", "warm", 0)
        split = replace(split, validation=some_users(split.validation, 0, chosen.users))
        mark = fingerprint(split)
    config, settings = resolve_settings(model_name, preset, overrides)
    whole = resolve_settings(model_name, preset, {})[1]
    with meter.phase("build"):
        model: Any = model_class(model_name)(split.train, config, Randomness(0))
    n_batches = model.n_batches(settings.batch_size)
    batches = min(chosen.batches + 1, n_batches)
    cut_short(model, batches)
    meter.begin("first batch")
    result = fit(model, split, settings, place / model_name, watcher=Phases(meter, batches, "validate"))
    meter.next("save")
    description = Description(
        model_name, config.model_dump(mode="json"), settings.model_dump(mode="json"), 0, "warm",
        str(place), mark, result.best_epoch, result.best_metrics, result.seconds, result.reason,
    )  # fmt: skip
    save_artifact(place / model_name / "model", contents_of(model, description), model.state_dict())
    meter.end()
    Checkpoints(place / model_name).remove()
    return {
        "batches": max(batches - 1, 1),
        "batches_per_epoch": n_batches,
        "epochs": whole.epochs,
        "validations": whole.epochs // whole.evaluate_every,
        "rehearsal_epochs": getattr(config, "rehearsal_epochs", 0),
        "validated_users": int((split.validation.indptr[1:] > split.validation.indptr[:-1]).sum()),
        "training_pairs": int(split.train.user_bundle.nnz),
        "artifact_megabytes": sum(p.stat().st_size for p in (place / model_name / "model").iterdir()) / 1e6,
    }


def cut_short(model: Any, batches: int) -> None:
    """Only so many batches in an epoch, and one epoch in a rehearsal, which is cut short, too."""
    drawn, rehearsal = model.batches, model.rehearsal

    def rehearse() -> Any:
        found = rehearsal()
        if found is None:
            return None
        cut_short(found[0], batches)
        return found[0], 1

    model.batches = lambda size: islice(drawn(size), batches)
    model.rehearsal = rehearse


def serve(place: Path, _: argparse.Namespace, meter: Meter) -> Measured:
    """`coheat serve` until the first list has come over HTTP, and then more of them."""
    from service_common import Server, in_path

    from coheat.data import read_data

    users = list(islice(read_data(place / "prepared").users.ids, 50))
    started = time.perf_counter()
    server = Server(place / "ember" / "model", seconds=600.0)
    try:
        ready = time.perf_counter() - started
        path = "/v1/recommendations/{}?k=20"
        seconds = []
        for user in users:
            asked = time.perf_counter()
            status, answer = server.ask("GET", path.format(in_path(user)))
            assert status == 200, answer
            seconds.append(time.perf_counter() - asked)
        status_of = Path(f"/proc/{server.process.pid}/status").read_text()
        own = server.memory_megabytes()
    finally:
        server.stop()
    peak = int(status_of.split("VmHWM:")[1].split()[0]) / 1024
    cpu = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    meter.phases["serve"] = {"seconds": ready, SECONDS: cpu, PEAK: peak}
    return {
        "first_list_seconds": ready + seconds[0],
        "list_milliseconds": sorted(seconds)[len(seconds) // 2] * 1e3,
        "own_megabytes": own,
    }


def batch(place: Path, chosen: argparse.Namespace, meter: Meter) -> Measured:
    from coheat.batch import recommend_all
    from coheat.recommender import Recommender
    from coheat.storage import read_json

    with meter.phase("load artifact"):
        recommender = Recommender.load(place / "ember" / "model")
    n_users = read_json(place / "prepared" / "prepared.json")["sizes"]["user"]
    parts = max(n_users // chosen.users, 1)
    with meter.phase("batch"):
        done = recommend_all(recommender, place / "lists", shard=(1, parts), part_size=chosen.users)
    return {"users": done.users, "of_users": n_users}


STEP: dict[str, Callable[..., Measured]] = {
    "write": write,
    "load": load,
    "prepare": prepare,
    "open": open_prepared,
    **{f"train {model}": partial(train, model_name=model) for model in MODELS},
    "serve": serve,
    "batch": batch,
}


# All of them, and what they say together.


def measure(chosen: argparse.Namespace) -> dict[str, dict[str, Measured]]:
    """By factor and step; what was measured before is taken from --work."""
    chosen.work.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Measured]] = {}
    for factor in chosen.factors:
        place = chosen.work / f"{factor:g}x"
        place.mkdir(exist_ok=True)
        for step in STEPS:
            kept = place / f"{step.replace(' ', '-')}.json"
            if not kept.exists():
                command = [sys.executable, __file__, *sys.argv[1:], "--step", step, "--factor", f"{factor:g}"]
                print(f"{factor:g}x {step} ...", end=" ", file=sys.stderr, flush=True)
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
                if done.returncode != 0:
                    raise SystemExit(f"{factor:g}x {step} failed; call again to go on with it")
                measured = json.loads(done.stdout.splitlines()[-1])
                kept.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
                peak = max(phase[PEAK] for phase in measured["phases"].values())
                print(f"{peak:.0f} MB", file=sys.stderr)
            found.setdefault(f"{factor:g}", {})[step] = json.loads(kept.read_text(encoding="utf-8"))
    return found


def summary(steps: dict[str, Measured]) -> dict[str, tuple[float, float]]:
    """CPU seconds and peak megabytes of everything that has a row in the table."""
    rows = {
        name: (steps[step]["phases"][name][SECONDS], steps[step]["phases"][name][PEAK])
        for step, name in (("load", "load"), ("prepare", "prepare"), ("open", "open"))
    }
    for model in MODELS:
        said = steps[f"train {model}"]
        phases = said["phases"]
        epoch = phases["batches"][SECONDS] / said["batches"] * said["batches_per_epoch"]
        rows[f"{model}: one epoch"] = epoch, phases["batches"][PEAK]
        validate, first = phases["validate"], phases["first batch"]
        rows[f"{model}: validate some users"] = validate[SECONDS], validate[PEAK]
        rows[f"{model}: checkpoint"] = phases["checkpoint"][SECONDS], phases["checkpoint"][PEAK]
        total = said["epochs"] * epoch + said["validations"] * validate[SECONDS] + first[SECONDS]
        peak = max(phase[PEAK] for phase in phases.values())
        if "rehearsal batches" in phases:
            inner = phases["rehearsal batches"]
            rows[f"{model}: companions"] = first[SECONDS], first[PEAK]
            rows[f"{model}: learn curves"] = phases["learn curves"][SECONDS], phases["learn curves"][PEAK]
            total += phases["rehearsal companions"][SECONDS] + phases["learn curves"][SECONDS]
            total += said["rehearsal_epochs"] * inner[SECONDS] / said["batches"] * said["batches_per_epoch"]
        rows[f"{model}: whole training"] = total, peak
        rows[f"{model}: save"] = phases["save"][SECONDS], phases["save"][PEAK]
    rows["serve: first list"] = steps["serve"]["first_list_seconds"], steps["serve"]["phases"]["serve"][PEAK]
    said = steps["batch"]
    rows["load artifact"] = said["phases"]["load artifact"][SECONDS], said["phases"]["load artifact"][PEAK]
    lists = said["phases"]["batch"]
    rows["batch: all users"] = lists[SECONDS] * said["of_users"] / said["users"], lists[PEAK]
    return rows


def table(found: dict[str, dict[str, Measured]]) -> str:
    """One row for each step: CPU seconds and peak megabytes at each size, and exponents over the pairs."""
    by_factor = {float(factor): summary(steps) for factor, steps in found.items()}
    factors = sorted(by_factor)
    columns = ["step", *(f"{f:g}x s" for f in factors), "exponent", *(f"{f:g}x MB" for f in factors)]
    lines = []
    for name in by_factor[factors[0]]:
        cells = [by_factor[factor][name] for factor in factors]
        power = math.nan
        if len(factors) > 1 and min(seconds for seconds, _ in cells) > 0:
            power = math.log(cells[-1][0] / cells[0][0]) / math.log(factors[-1] / factors[0])
        times = [f"{seconds:.3g}" for seconds, _ in cells]
        lines.append([name, *times, f"{power:.2f}", *(f"{peak:,.0f}" for _, peak in cells)])
    return markdown(columns, lines)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python benchmarks/ten_times.py --work ten-times --factors 1 4 10",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--work", type=Path, required=True, metavar="DIR", help="worlds, runs and results")
    options.add_argument("--like", default="netease", help="size of world 1x (default: netease)")
    options.add_argument("--base", type=float, default=1.0, metavar="X", help="all of it times this")
    options.add_argument("--factors", type=float, nargs="+", default=[1, 4, 10], metavar="F")
    options.add_argument("--batches", type=int, default=20, metavar="N", help="batches that are timed")
    options.add_argument(
        "--users", type=int, default=4000, metavar="N", help="users who are validated, and listed"
    )
    options.add_argument(
        "--set", type=json.loads, default={}, metavar="JSON", help='such as {"batch_size": 8192}'
    )
    options.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    options.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options.add_argument("--factor", type=float, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.step:
        meter = Meter()
        said = STEP[chosen.step](chosen.work / f"{chosen.factor:g}x", chosen, meter)
        print(json.dumps({**said, "phases": meter.phases}))
        return
    found = measure(chosen)
    print(table(found))
    if chosen.json:
        payload = {"benchmark": "ten_times", "machine": machine(), "steps": found}
        chosen.json.write_text(json.dumps(payload, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
