"""Judging trained models: on a split, on later interactions, beside simple rivals and beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coheat.artifact import Artifact
from coheat.data.dataset import BundleData, Sparse, pairs, relation
from coheat.data.files import read_pairs
from coheat.data.sampling import contains
from coheat.data.split import Split
from coheat.errors import DataError
from coheat.evaluation import Candidates, Evaluation, Interval, difference, evaluate
from coheat.models import MODELS
from coheat.presets import resolve_settings
from coheat.rng import Randomness
from coheat.served import Served
from coheat.training import Watcher, fit

RIVALS = ("counting", "popularity")
"""What learns nothing, and what every model has to beat."""
MOST_USERS = 2_000
"""Users on whom rivals are judged: enough to see a difference, few enough to take seconds."""


def judge(
    served: Served, split: Split, part: str, ks: Sequence[int] = (20,), candidates: Candidates = "all"
) -> Evaluation | None:
    """The metrics on a part of a split; None where there is nothing to measure."""
    levels = None if split.warm_up is None else split.warm_up.levels
    try:
        held_out = split.parts[part]
        return evaluate(served, split.train, held_out, ks, candidates, split.on_offer(part), levels)
    except DataError:
        return None


def judge_on_file(
    artifact: Artifact, path: Path, ks: Sequence[int] = (20,), knobs: Mapping[str, float] | None = None
) -> tuple[Evaluation, list[str]]:
    """The metrics on a file of later interactions, and what there is to say about those left out."""
    data = artifact.training_data()
    users, bundles = read_pairs(path)
    rows = np.array([data.users.index.get(name, -1) for name in users], dtype=np.int64)
    columns = np.array([data.bundles.index.get(name, -1) for name in bundles], dtype=np.int64)
    known = (rows >= 0) & (columns >= 0)
    notes = [
        f"{path}: {int((found < 0).sum())} of {len(found)} interactions are with a {kind} that the model "
        "was not trained with; left out"
        for kind, found in (("user", rows), ("bundle", columns))
        if (found < 0).any()
    ]
    held_out = _without(relation(rows[known], columns[known], data.user_bundle.shape), data)
    if held_out.nnz < known.sum():
        notes.append(f"{path}: repeated interactions count once, those of training not at all")
    if not held_out.nnz:
        raise DataError(
            f"{path}: none of its interactions is a new pair of a user and a bundle that this model knows"
        )
    return evaluate(artifact.served().turned(**(knobs or {})), data, held_out, ks), notes


def _without(held_out: Sparse, data: BundleData) -> Sparse:
    """The interactions that were not there in training."""
    users, bundles = pairs(held_out)
    new = ~contains(data.user_bundle, users, bundles)
    return relation(users[new], bundles[new], held_out.shape)


def beside_rivals(served: Served, split: Split, model: str, k: int, seed: int) -> dict[str, Any]:
    """The model and its RIVALS on the same users of validation, with the interval of each difference.

    {} where nothing was held out to validate on.
    """
    if not split.validation.nnz:
        return {}
    judged = replace(split, validation=some_users(split.validation, seed), warm_up=None)
    metrics, offered = [f"recall@{k}", f"ndcg@{k}"], judged.candidates("validation")
    ours = evaluate(served, judged.train, judged.validation, (k,), "offered", offered)
    found = {model: {name: ours.metrics[name] for name in metrics}}
    against: dict[str, dict[str, Any]] = {}
    for name in RIVALS:
        if name == model:
            continue
        config, training = resolve_settings(name, "default", {"k": k})
        rival = MODELS[name](split.train, config, Randomness(seed))
        fit(rival, judged, training, watcher=Watcher())
        theirs = evaluate(rival.served(), judged.train, judged.validation, (k,), "offered", offered)
        found[name] = {metric: theirs.metrics[metric] for metric in metrics}
        against[name] = {metric: difference(ours, theirs, metric).to_dict() for metric in metrics}
    counts = {"users": ours.n_users, "bundles": int(offered.sum()), "of_bundles": len(offered)}
    return {**counts, "models": found, "against": against}


def some_users(held_out: Sparse, seed: int, most: int = MOST_USERS) -> Sparse:
    """The interactions of at most so many users, drawn at random."""
    users = np.flatnonzero(np.diff(held_out.indptr))
    if len(users) <= most:
        return held_out
    chosen = np.zeros(held_out.shape[0], dtype=bool)
    chosen[Randomness(seed).generator("judged").permutation(users)[:most]] = True
    rows, columns = pairs(held_out)
    kept = chosen[rows]
    return relation(rows[kept], columns[kept], held_out.shape)


def sentence(rivals: Mapping[str, Any], model: str) -> str:
    """Who won, in words."""
    metric = next(iter(rivals["models"][model]))
    said: dict[str, list[str]] = {}
    for name, metrics in rivals["against"].items():
        said.setdefault(Interval.from_dict(metrics[metric]).verdict, []).append(name)
    words = {"better": "better than", "level": "no better than (within the interval)", "worse": "worse than"}
    parts = [f"{words[verdict]} {' and '.join(names)}" for verdict, names in said.items()]
    advice = "" if set(said) <= {"better"} else f"; for this data consider --model {_best(rivals)}"
    return f"On validation {metric} {model} is {', '.join(parts)}{advice}."


def _best(rivals: Mapping[str, Any]) -> str:
    metric = next(iter(next(iter(rivals["models"].values()))))
    models: dict[str, dict[str, float]] = rivals["models"]
    return max(models, key=lambda name: models[name][metric])


def compared(found: Mapping[str, Evaluation], ks: Sequence[int]) -> dict[str, Any]:
    """Evaluations on the same interactions side by side; differences are those to the first.

    `exposure` says who is seen in the lists of each; `warm_up`, in the scenario of that name, has its levels.
    """
    first, *others = found
    metrics = [f"{name}@{k}" for k in ks for name in ("recall", "ndcg")]
    levels = {name: one.warm_up for name, one in found.items() if one.warm_up}
    return {
        "users": found[first].n_users,
        "runs": {name: {m: one.metrics[m] for m in metrics} for name, one in found.items()},
        "against": first,
        "differences": {
            name: {m: difference(found[name], found[first], m).to_dict() for m in metrics} for name in others
        },
        "exposure": {name: one.exposure for name, one in found.items()},
        **({"warm_up": levels} if levels else {}),
    }
