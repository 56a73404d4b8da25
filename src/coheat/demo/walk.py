"""The demo: the whole walk on a made-up shop, from tables to a bundle that nobody has bought yet.

    data/          the shop, as tables
    splits/        cold, warm, all, warm-up: the same shop divided in four ways
    runs/          cold, warm, all, warm-up: Ember; cold-coheat, cold-counting, ...: its rivals
                   everything: Ember, for whom nothing was held out: the one to serve
    demo.json      everything that was found

Nothing here is special to the demo: each step is a library call that works on your own tables.
"""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coheat import __version__
from coheat.data.dataset import BundleData, Sparse
from coheat.data.files import read_split
from coheat.data.split import Split, split
from coheat.data.stats import stats
from coheat.data.synthetic import LIKE, Counts, realistic_world
from coheat.data.writing import write_tables
from coheat.demo.findings import (
    Demo,
    FirstDays,
    Knob,
    NewBundle,
    Receiver,
    Scenario,
    ShownBundle,
    ShownUser,
    Sides,
)
from coheat.errors import ConfigError
from coheat.evaluation import Scorer, evaluate
from coheat.evaluation.metrics import restrict
from coheat.recommender import Recommendation, Recommender
from coheat.runs import Run, open_run, train_run
from coheat.storage import write_json
from coheat.training import Watcher

SCENARIOS = ("cold", "warm", "all")
YOUNG, EVERYTHING = "warm-up", "everything"
"""The scenario that follows bundles from their launch on, and the one that holds nothing out."""
MODELS = {"ember": "Ember", "coheat": "CoHeat", "counting": "counting", "popularity": "popularity"}
"""The models, and what sentences call them."""
OURS = "ember"
"""The model that recommends; the others stand beside it."""
LEARNING = ("ember", "coheat")
"""Models that take their time: those with a preset for the demo, and a bar to watch."""
YOUNG_MODELS = ("ember", "counting", "popularity")
"""Those that are judged on young bundles: ours, and two that take no time."""
YOUNG_SETTINGS = {"epochs": 10, "evaluate_every": 10}
"""A short training is enough to see whether the first sales push a bundle out of the lists."""
TURNS = (0.0, 0.5, 1.0, 2.0, 3.0, 6.0)
"""Values of Ember's knob that are looked at, besides the one it was trained with."""
K = 20
SHOWN = 10
NEW_BUNDLE = "brand-new"
NEW_BUNDLE_SIZE = 6
RECORD = "demo.json"

QUICK_WORLD = Counts(
    n_users=300, n_bundles=150, n_items=400, n_user_bundle=2_400, n_user_item=6_000, n_bundle_item=1_800
)
Settings: TypeAlias = Mapping[str, Any]
QUICK_SETTINGS = {"epochs": 12, "evaluate_every": 3, "batch_size": 512, "learning_rate": 0.01}


class Viewer:
    """Follows the demo; this one says nothing. The command line prints tables."""

    def world(self, data: BundleData) -> None:
        """The shop is made."""

    def begin(self, scenario: str) -> None:
        """The models are about to be trained and judged in a scenario."""

    def training(self, model: str) -> Watcher:  # noqa: ARG002
        """A model is about to be trained; what is returned follows it."""
        return Watcher()

    def scenario(self, found: Scenario) -> None:
        """All models are judged in one scenario."""

    def knob(self, found: Knob) -> None:
        """Ember's knob was turned."""

    def first_days(self, found: FirstDays) -> None:
        """Bundles were followed from their launch on."""

    def user(self, shown: ShownUser) -> None:
        """A user's list is there."""

    def new_bundle(self, shown: NewBundle) -> None:
        """A bundle that did not exist in training has found its audience."""


def run_demo(
    out: Path, seed: int = 0, quick: bool = False, viewer: Viewer | None = None, program: str = "coheat"
) -> Demo:
    """Walk through everything and leave data, splits, runs and `demo.json` in `out`.

    `quick` takes a tiny shop and a few epochs: for a look at how it works, not at how well. `program` is
    how the commands to go on with begin. An earlier demo in `out` is replaced, anything else refused.
    """
    started = time.perf_counter()
    viewer = viewer or Viewer()
    _claim(out)
    world = realistic_world(**(QUICK_WORLD if quick else LIKE["demo"]), seed=seed)
    write_tables(world, out / "data", overwrite=True)
    viewer.world(world)
    scenarios = {}
    for name in SCENARIOS:
        write_tables(split(world, name, seed), out / "splits" / name, overwrite=True)
        scenarios[name] = _judge_all(out, name, seed, quick, viewer)
        viewer.scenario(scenarios[name])

    knob = turn_the_knob(out)
    viewer.knob(knob)
    first_days = follow_young_bundles(out, world, seed, quick, viewer)
    viewer.first_days(first_days)
    served = _train_on_everything(out, seed, quick, viewer)
    recommender = Recommender.load(served)
    user = recommend_to_one(recommender, world)
    viewer.user(user)
    new_bundle = add_a_bundle(recommender, world)
    viewer.new_bundle(new_bundle)
    demo = Demo(
        out=str(out),
        seed=seed,
        quick=quick,
        seconds=time.perf_counter() - started,
        world=stats(world).to_dict(),
        scenarios=scenarios,
        knob=knob,
        first_days=first_days,
        served=str(served),
        user=user,
        new_bundle=new_bundle,
        versions=_versions(),
        commands=_commands(out, user, new_bundle, program),
    )
    write_json(out / RECORD, demo.to_dict())
    return demo


def _claim(out: Path) -> None:
    """Refuse a place where something else is; `demo.json` marks it as ours from the first moment on."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: a file is in the way; choose another --out")
    if out.exists() and any(out.iterdir()) and not (out / RECORD).exists():
        raise ConfigError(
            f"{out}: not empty and no earlier demo; choose another --out, so that nothing is lost"
        )
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RECORD, {"finished": False})


def run_directory(out: Path, scenario: str, model: str = OURS) -> Path:
    """Where the run of a model is."""
    return out / "runs" / (scenario if model == OURS else f"{scenario}-{model}")


def _judge_all(out: Path, name: str, seed: int, quick: bool, viewer: Viewer) -> Scenario:
    """Train and judge every model in one scenario."""
    viewer.begin(name)
    data = out / "splits" / name
    models = {}
    for model in MODELS:
        run = _train(out, data, name, model, seed, QUICK_SETTINGS if quick else {}, viewer)
        report = run.evaluate(ks=(K,), by_popularity=True)
        models[model] = report | {"settings": run.record.config | run.record.training}
    return Scenario(name, read_split(data).report(), models, verdict(name, models))


def _train(
    out: Path, data: Path, scenario: str, model: str, seed: int, settings: Settings, viewer: Viewer
) -> Run:
    """One training, on data that are divided already unless nothing is to be held out.

    `settings` are for models that learn; the others have none.
    """
    learns = model in LEARNING
    return train_run(
        data,
        run_directory(out, scenario, model),
        model_name=model,
        preset="demo" if learns else "default",
        overrides=settings if learns else None,
        seed=seed,
        scenario=EVERYTHING if scenario == EVERYTHING else None,
        overwrite=True,
        watcher=viewer.training(model) if learns else None,
    )


def follow_young_bundles(out: Path, world: BundleData, seed: int, quick: bool, viewer: Viewer) -> FirstDays:
    """Thin some bundles to a few takers each, and see who still finds the others."""
    viewer.begin(YOUNG)
    data = out / "splits" / YOUNG
    write_tables(split(world, YOUNG, seed), data, overwrite=True)
    settings = QUICK_SETTINGS if quick else YOUNG_SETTINGS
    levels = {}
    for model in YOUNG_MODELS:
        run = _train(out, data, YOUNG, model, seed, settings, viewer)
        levels[model] = run.evaluate(ks=(K,))["test"]["warm_up"]
    return FirstDays(levels, young_verdict(levels))


def young_verdict(levels: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """What is found of the later takers of bundles with none and with a few takers, and who finds most."""
    metric = f"recall@{K}"
    untaken = {model: found["0"][metric] for model, found in levels.items()}
    few = {}
    for model, found in levels.items():
        rest = [group[metric] for level, group in found.items() if level not in ("0", "others")]
        few[model] = sum(rest) / len(rest) if rest else 0.0

    def words(values: Mapping[str, float]) -> str:
        ranked = sorted(values, key=lambda model: -values[model])
        return ", ".join(f"{MODELS[model]} {values[model]:.4f}" for model in ranked)

    return (
        f"Recall@{K} of later takers, of bundles that nobody had taken: {words(untaken)}; of bundles with a "
        f"few takers, on average: {words(few)}."
    )


def _train_on_everything(out: Path, seed: int, quick: bool, viewer: Viewer) -> Path:
    """The model to serve: it learns from all interactions, so nothing is left to judge it by."""
    viewer.begin(EVERYTHING)
    return _train(out, out / "data", EVERYTHING, OURS, seed, QUICK_SETTINGS if quick else {}, viewer).path


def verdict(scenario: str, models: Mapping[str, Mapping[str, Any]]) -> str:
    """Who is ahead on test, Ember or the best of its rivals, by Recall and, where it differs, nDCG."""
    found = []
    for metric in (f"recall@{K}", f"ndcg@{K}"):
        values = {name: float(report["test"][metric]) for name, report in models.items()}
        own = values.pop(OURS)
        rival = max(values, key=lambda name: values[name])
        found.append((own - values[rival], own, MODELS[rival], values[rival]))
    (lead, own, rival, theirs), (ndcg_lead, ndcg, ndcg_rival, their_ndcg) = found
    us, numbers = MODELS[OURS], f"Recall@{K} {own:.4f} against {theirs:.4f}"
    if lead == 0:
        sentence = f"{scenario}: {us} and {rival} are level, {numbers}"
    elif lead > 0:
        sentence = f"{scenario}: {us} is ahead of {rival}, {numbers}"
    else:
        sentence = f"{scenario}: {rival} beats {us}, {theirs:.4f} against {own:.4f} in Recall@{K}"
    if lead * ndcg_lead < 0:
        sentence += f"; by nDCG@{K} it is the other way round, {ndcg:.4f} to {their_ndcg:.4f} ({ndcg_rival})"
    return sentence + "."


def turn_the_knob(out: Path) -> Knob:
    """What new and known bundles gain and lose as Ember's knob turns; nothing is trained for it."""
    runs = {model: open_run(run_directory(out, "all", model)) for model in MODELS}
    parts, ours = read_split(out / "splits" / "all"), runs[OURS].artifact.served()
    ((name, knob),) = ours.knobs.items()
    values = sorted({*TURNS, knob.value})
    return Knob(
        name=name,
        value=knob.value,
        turned=[(value, sides(ours.turned(**{name: value}), parts)) for value in values],
        rivals={model: sides(run.artifact.served(), parts) for model, run in runs.items() if model != OURS},
    )


def sides(scorer: Scorer, parts: Split) -> Sides:
    """All bundles are ranked; what was held out is judged in two halves, new and known."""
    new = parts.train.popularity == 0
    halves = (restrict(parts.test, half) for half in (new, ~new))
    return Sides(*(evaluate(scorer, parts.train, half, (K,)).metrics[f"recall@{K}"] for half in halves))


def recommend_to_one(recommender: Recommender, data: BundleData) -> ShownUser:
    """The list of the user who took the most bundles, so that there is much to go by."""
    row = int(np.argmax(np.diff(data.user_bundle.indptr)))
    own = set(_row(data.user_item, row))
    shown = []
    for found in recommender.recommend([data.users[row]], k=SHOWN):
        bundle = data.bundles.position(found.bundle_id)
        contents = _row(data.bundle_item, bundle)
        shown.append(
            ShownBundle(
                rank=found.rank,
                bundle_id=found.bundle_id,
                score=found.score,
                times_taken=int(data.popularity[bundle]),
                size=len(contents),
                shared_items=[data.items[item] for item in contents if item in own],
            )
        )
    return ShownUser(
        user_id=data.users[row],
        items=[data.items[item] for item in sorted(own)],
        bundles=[data.bundles[bundle] for bundle in _row(data.user_bundle, row)],
        recommended=shown,
    )


def add_a_bundle(recommender: Recommender, data: BundleData) -> NewBundle:
    """Put a new bundle together, make it known, and see who gets it."""
    items = compose_bundle(data, NEW_BUNDLE_SIZE)
    recommender.add_bundles({NEW_BUNDLE: items})
    owned: npt.NDArray[np.float32] = data.user_item[:, data.items.positions(items)].sum(axis=1)
    audience = recommender.audience(NEW_BUNDLE, k=SHOWN)
    lists = recommender.recommend(data.users.ids, k=K)
    return NewBundle(
        bundle_id=NEW_BUNDLE,
        items=items,
        audience=[
            Receiver(row.rank, row.user_id, row.score, int(owned[data.users.position(row.user_id)]))
            for row in audience
        ],
        owned_on_average=float(owned.mean()),
        lists_entered=sum(row.bundle_id == NEW_BUNDLE for row in lists),
        n_users=data.n_users,
        list_of_first=_list_of(audience[0].user_id, lists),
    )


def _list_of(user: str, lists: Iterable[Recommendation]) -> list[str]:
    return [row.bundle_id for row in lists if row.user_id == user]


def compose_bundle(data: BundleData, size: int) -> list[str]:
    """The item that most users have, and those whose owners are most nearly the same (by cosine)."""
    owners = data.user_item.T.tocsr()
    counts = np.diff(owners.indptr)
    first = int(np.argmax(counts))
    together = (owners @ owners[[first]].T).toarray().ravel()
    closeness = together / np.sqrt(np.maximum(counts, 1) * counts[first])
    return [data.items[item] for item in np.argsort(-closeness, kind="stable")[:size]]


def _row(matrix: Sparse, row: int) -> list[int]:
    found: list[int] = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].tolist()
    return found


def _commands(out: Path, user: ShownUser, new_bundle: NewBundle, program: str) -> list[str]:
    """What to try next; each works as it stands, from where the demo was started."""
    served, cold = (str(run_directory(out, scenario)) for scenario in (EVERYTHING, "cold"))
    young = [str(run_directory(out, YOUNG, model)) for model in ("counting", OURS)]
    added = ["--new-bundle", f"{new_bundle.bundle_id}={','.join(new_bundle.items)}"]
    listed = ["recommend", served, "--user", user.user_id, "-k", str(SHOWN)]
    commands = [
        ["data", "stats", str(out / "data")],
        listed,
        [*listed, "--candidates", "new", *added],
        ["explain", served, user.user_id, user.recommended[0].bundle_id],
        ["audience", served, new_bundle.bundle_id, *added, "-k", str(SHOWN)],
        ["evaluate", cold, "--by-popularity"],
        ["evaluate", cold, "--candidates", "cold"],
        ["compare", *young, "--plot", str(out / "warm-up.png")],
        ["serve", served],
    ]
    return [shlex.join([program, *words]) for words in commands]


def _versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("torch", "numba", "numpy", "scipy", "pyarrow")}
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {"coheat": __version__, "python": platform.python_version(), **packages, "machine": machine}
