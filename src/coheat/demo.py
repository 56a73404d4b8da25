"""The demo: the whole walk on a made-up shop, from tables to a bundle that nobody has bought yet.

    data/          the shop, as tables
    splits/        cold, warm, all: the same shop divided in three ways
    runs/          cold, warm, all: Ember; cold-coheat, cold-counting, ...: its rivals
    demo.json      everything that was found

Nothing here is special to the demo: each step is a library call that works on your own tables.
"""

from __future__ import annotations

import os
import platform
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat import __version__
from coheat.data.dataset import BundleData, Sparse
from coheat.data.files import read_split
from coheat.data.split import Split, split
from coheat.data.stats import stats
from coheat.data.synthetic import LIKE, Counts, realistic_world
from coheat.data.writing import write_tables
from coheat.errors import ConfigError
from coheat.evaluation import Scorer, evaluate
from coheat.evaluation.metrics import restrict
from coheat.recommender import Recommendation, Recommender
from coheat.runs import open_run, train_run
from coheat.storage import write_json
from coheat.training import Watcher

SCENARIOS = ("cold", "warm", "all")
MODELS = {"ember": "Ember", "coheat": "CoHeat", "counting": "counting", "popularity": "popularity"}
"""The models, and what sentences call them."""
OURS = "ember"
"""The model that recommends; the others stand beside it."""
LEARNING = ("ember", "coheat")
"""Models that take their time: those with a preset for the demo, and a bar to watch."""
TURNS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
"""Values of Ember's knob, `welcome`, that are looked at."""
K = 20
SHOWN = 10
NEW_BUNDLE = "brand-new"
NEW_BUNDLE_SIZE = 6
RECORD = "demo.json"

QUICK_WORLD = Counts(
    n_users=300, n_bundles=150, n_items=400, n_user_bundle=2_400, n_user_item=6_000, n_bundle_item=1_800
)
QUICK_SETTINGS = {"epochs": 12, "evaluate_every": 3, "batch_size": 512, "learning_rate": 0.01}


@dataclass(frozen=True)
class Scenario:
    """One way to divide the shop, and how each model did there.

    `models` has, by name, what `Run.evaluate` reports: metrics on test and validation, the chosen epoch,
    the seconds. `verdict` says in a sentence, computed from the numbers, who is ahead.
    """

    name: str
    split: dict[str, Any]
    models: dict[str, dict[str, Any]]
    verdict: str


@dataclass(frozen=True)
class Sides:
    """Recall@K of the held-out bundles that nobody took in training, and of those that somebody took."""

    new: float
    known: float


@dataclass(frozen=True)
class Knob:
    """Both sides on the test part of the scenario all: Ember as its knob turns, its rivals as they are."""

    welcome: float
    turned: list[tuple[float, Sides]]
    rivals: dict[str, Sides]


@dataclass(frozen=True)
class ShownBundle:
    """A recommended bundle and the reason at a glance: which of its items the user has already."""

    rank: int
    bundle_id: str
    score: float
    times_taken: int
    size: int
    shared_items: list[str]
    taken_later: bool


@dataclass(frozen=True)
class ShownUser:
    """A user and the list recommended to them. `held_out` are the bundles they took in the test part."""

    user_id: str
    items: list[str]
    held_out: list[str]
    recommended: list[ShownBundle]


@dataclass(frozen=True)
class Receiver:
    """A user whom the new bundle suits; `owned` of its items are theirs already."""

    rank: int
    user_id: str
    score: float
    owned: int


@dataclass(frozen=True)
class NewBundle:
    """A bundle that did not exist in training, and who gets it.

    `owned_on_average` is over all users; `lists_entered` says how many of their lists of K it enters.
    `list_of_first` is the list of the first of the audience.
    """

    bundle_id: str
    items: list[str]
    audience: list[Receiver]
    owned_on_average: float
    lists_entered: int
    n_users: int
    list_of_first: list[str]


@dataclass(frozen=True)
class Demo:
    """Everything the demo found, ready for JSON."""

    out: str
    seed: int
    quick: bool
    seconds: float
    world: dict[str, Any]
    scenarios: dict[str, Scenario]
    knob: Knob
    user: ShownUser
    new_bundle: NewBundle
    versions: dict[str, str]
    commands: list[str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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
    cold = read_split(out / "splits" / "cold")
    recommender = Recommender.load(run_directory(out, "cold"))
    user = recommend_to_one(recommender, cold)
    viewer.user(user)
    new_bundle = add_a_bundle(recommender, cold.train)
    viewer.new_bundle(new_bundle)
    demo = Demo(
        out=str(out),
        seed=seed,
        quick=quick,
        seconds=time.perf_counter() - started,
        world=stats(world).to_dict(),
        scenarios=scenarios,
        knob=knob,
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
        learns = model in LEARNING
        run = train_run(
            data,
            run_directory(out, name, model),
            model_name=model,
            preset="demo" if learns else "default",
            overrides=QUICK_SETTINGS if learns and quick else None,
            seed=seed,
            overwrite=True,
            watcher=viewer.training(model) if learns else None,
        )
        report = run.evaluate(ks=(K,), by_popularity=True)
        models[model] = report | {"settings": run.record.config | run.record.training}
    return Scenario(name, read_split(data).report(), models, verdict(name, models))


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
    return Knob(
        welcome=float(runs[OURS].record.config["welcome"]),
        turned=[(turn, sides(ours.turned(welcome=turn), parts)) for turn in TURNS],
        rivals={model: sides(run.artifact.served(), parts) for model, run in runs.items() if model != OURS},
    )


def sides(scorer: Scorer, parts: Split) -> Sides:
    """All bundles are ranked; what was held out is judged in two halves, new and known."""
    new = parts.train.popularity == 0
    halves = (restrict(parts.test, half) for half in (new, ~new))
    return Sides(*(evaluate(scorer, parts.train, half, (K,)).metrics[f"recall@{K}"] for half in halves))


def recommend_to_one(recommender: Recommender, cold: Split) -> ShownUser:
    """The list of the user with the most held-out bundles, so that there is something to compare with."""
    train = cold.train
    row = int(np.argmax(np.diff(cold.test.indptr)))
    own = set(_row(train.user_item, row))
    later = set(_row(cold.test, row))
    shown = []
    for found in recommender.recommend([train.users[row]], k=SHOWN):
        bundle = train.bundles.position(found.bundle_id)
        contents = _row(train.bundle_item, bundle)
        shown.append(
            ShownBundle(
                rank=found.rank,
                bundle_id=found.bundle_id,
                score=found.score,
                times_taken=int(train.popularity[bundle]),
                size=len(contents),
                shared_items=[train.items[item] for item in contents if item in own],
                taken_later=bundle in later,
            )
        )
    return ShownUser(
        user_id=train.users[row],
        items=[train.items[item] for item in sorted(own)],
        held_out=[train.bundles[bundle] for bundle in sorted(later)],
        recommended=shown,
    )


def add_a_bundle(recommender: Recommender, train: BundleData) -> NewBundle:
    """Put a new bundle together, make it known, and see who gets it."""
    items = compose_bundle(train, NEW_BUNDLE_SIZE)
    recommender.add_bundles({NEW_BUNDLE: items})
    owned: npt.NDArray[np.float32] = train.user_item[:, train.items.positions(items)].sum(axis=1)
    audience = recommender.audience(NEW_BUNDLE, k=SHOWN)
    lists = recommender.recommend(train.users.ids, k=K)
    return NewBundle(
        bundle_id=NEW_BUNDLE,
        items=items,
        audience=[
            Receiver(row.rank, row.user_id, row.score, int(owned[train.users.position(row.user_id)]))
            for row in audience
        ],
        owned_on_average=float(owned.mean()),
        lists_entered=sum(row.bundle_id == NEW_BUNDLE for row in lists),
        n_users=train.n_users,
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
    cold = str(run_directory(out, "cold"))
    added = f"{new_bundle.bundle_id}={','.join(new_bundle.items)}"
    commands = [
        ["data", "stats", str(out / "data")],
        ["recommend", cold, "--user", user.user_id, "-k", str(SHOWN)],
        ["recommend", cold, "--user", user.user_id, "-k", str(SHOWN), "--welcome", "0"],
        ["explain", cold, user.user_id, user.recommended[0].bundle_id],
        ["audience", cold, new_bundle.bundle_id, "--new-bundle", added, "-k", str(SHOWN)],
        ["evaluate", cold, "--by-popularity"],
        ["evaluate", cold, "--candidates", "cold"],
    ]
    return [shlex.join([program, *words]) for words in commands]


def _versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("torch", "numba", "numpy", "scipy", "pyarrow")}
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {"coheat": __version__, "python": platform.python_version(), **packages, "machine": machine}
