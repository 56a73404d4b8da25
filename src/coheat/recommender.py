"""Recommender: a trained model at work. numpy only; the service, the command line and notebooks use it.

A score is the inner product of a user's and a bundle's vector. A bundle that did not exist in training
gets its vector from its items: their sum, divided by size ** size_exponent.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from coheat.artifact import Artifact, ServingVectors, load_artifact
from coheat.errors import ArtifactError, ConfigError, DataError, UnknownIdError

Floats: TypeAlias = npt.NDArray[np.float32]
Positions: TypeAlias = npt.NDArray[np.int64]
Candidates: TypeAlias = Literal["all", "new"] | Sequence[str]

BLOCK = 256
"""Users scored at once; it bounds the memory at BLOCK x n_bundles scores."""


@dataclass(frozen=True)
class Recommendation:
    """One row: this bundle stands at this rank (from 1) for this user."""

    user_id: str
    bundle_id: str
    score: float
    rank: int


@dataclass(frozen=True)
class AddedBundles:
    """What `add_bundles` did; `unknown_items` are those it left out, by bundle."""

    bundle_ids: list[str]
    unknown_items: dict[str, list[str]]


class Ids:
    """Ids in the order of rows, and the row of an id; an unknown one is an error with a suggestion."""

    def __init__(self, ids: tuple[str, ...], kind: str):
        self.ids, self.kind = ids, kind

    @cached_property
    def rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    def row(self, name: str) -> int:
        try:
            return self.rows[name]
        except KeyError:
            raise UnknownIdError(f"unknown {self.kind} id {name!r}{self._suggestion(name)}") from None

    def _suggestion(self, name: str) -> str:
        # Comparing texts is slow, so only the ids that begin alike are looked at, and not too many.
        alike = [known for known in self.ids if known[:1].casefold() == name.strip()[:1].casefold()]
        close = difflib.get_close_matches(name.strip(), alike[:5000], n=1)
        return f"; did you mean {close[0]!r}?" if close else f"; the model knows {len(self.ids)} {self.kind}s"


class Recommender:
    """Recommend bundles to users, and users to bundles, from a trained model's vectors.

    >>> recommender = Recommender.load("runs/youshu")                    # doctest: +SKIP
    >>> recommender.recommend(["17"], k=3)                               # doctest: +SKIP
    >>> recommender.add_bundles({"summer": ["4", "8", "15"]})            # doctest: +SKIP
    >>> recommender.audience("summer", k=10)                             # doctest: +SKIP
    """

    def __init__(
        self,
        users: Ids,
        bundles: Ids,
        items: Ids,
        vectors: ServingVectors,
        taken: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    ):
        """`taken` is the CSR form (indptr, indices) of who took which bundle in training."""
        self.users, self.bundles, self.items = users, bundles, items
        self.vectors = vectors
        self.taken = taken
        self.bundle_vectors: Floats = vectors.bundles
        self.is_new: npt.NDArray[np.bool_] = np.bincount(taken[1], minlength=len(bundles.ids)) == 0

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a run's directory or from the artifact in it."""
        artifact = _open(Path(path))
        vectors = artifact.vectors()
        if vectors is None:
            raise ArtifactError(
                f"{path}: the model {artifact.description.model!r} does not score by vectors, so it can be "
                "evaluated but not served; train a model with vectors, such as coheat"
            )
        users, bundles, items = (Ids(artifact.ids(kind), kind) for kind in ("user", "bundle", "item"))
        return cls(users, bundles, items, vectors, artifact.relation("user_bundle"))

    def recommend(
        self, users: Sequence[str], k: int = 20, candidates: Candidates = "all", exclude_seen: bool = True
    ) -> list[Recommendation]:
        """The k best bundles of each user, best first; fewer where there are fewer candidates.

        `candidates`: all bundles, only new ones (taken by nobody in training, or added since), or the
        ids of some. With `exclude_seen`, what the user took in training is left out. Equal scores stand
        in the order of the bundles' rows, as in evaluation.
        """
        _check_k(k)
        if isinstance(users, str):
            raise ConfigError("recommend takes a list of user ids; for one user write recommend([user])")
        rows = np.array([self.users.row(name) for name in users], dtype=np.int64)
        allowed = self._allowed(candidates)
        found: list[Recommendation] = []
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            scores = self.vectors.users[block] @ self.bundle_vectors.T
            for user, line in zip(block, scores, strict=True):
                line[~allowed] = -np.inf
                if exclude_seen:
                    line[self._taken_by(user)] = -np.inf
                found += [
                    Recommendation(self.users.ids[user], self.bundles.ids[b], float(line[b]), rank)
                    for rank, b in enumerate(_best(line, k), start=1)
                ]
        return found

    def audience(self, bundle: str, k: int = 20, exclude_seen: bool = True) -> list[Recommendation]:
        """The k users whom this bundle suits best, best first; without those who took it in training."""
        _check_k(k)
        row = self.bundles.row(bundle)
        scores = self.vectors.users @ self.bundle_vectors[row]
        if exclude_seen:
            indptr, indices = self.taken
            takers = np.searchsorted(indptr, np.flatnonzero(indices == row), side="right") - 1
            scores[takers] = -np.inf
        return [
            Recommendation(self.users.ids[u], bundle, float(scores[u]), rank)
            for rank, u in enumerate(_best(scores, k), start=1)
        ]

    def add_bundles(self, bundles: Mapping[str, Iterable[str]]) -> AddedBundles:
        """Make bundles known that did not exist in training, from the ids of their items.

        Items the model does not know are left out and reported; a bundle with no known item is refused,
        and then none is added.
        """
        if self.vectors.items is None:
            raise ConfigError("this model knows bundles only by their history, so it cannot place new ones")
        unknown: dict[str, list[str]] = {}
        rows: list[Floats] = []
        for name, items in bundles.items():
            if not name or name in self.bundles.rows:
                raise DataError(
                    f"the bundle id {name!r} is {'taken already' if name else 'empty'}; choose another"
                )
            distinct = list(dict.fromkeys(items))
            known = [self.items.rows[item] for item in distinct if item in self.items.rows]
            if not known:
                raise UnknownIdError(f"bundle {name!r}: the model knows none of its items ({distinct})")
            if len(known) < len(distinct):
                unknown[name] = [item for item in distinct if item not in self.items.rows]
            pooled = self.vectors.items[known].sum(axis=0) / len(known) ** self.vectors.size_exponent
            rows.append(pooled.astype(np.float32))
        if rows:
            self.bundle_vectors = np.concatenate([self.bundle_vectors, np.stack(rows)])
            self.is_new = np.concatenate([self.is_new, np.ones(len(rows), dtype=np.bool_)])
            self.bundles = Ids((*self.bundles.ids, *bundles), "bundle")
        return AddedBundles(list(bundles), unknown)

    def _allowed(self, candidates: Candidates) -> npt.NDArray[np.bool_]:
        if isinstance(candidates, str):
            if candidates == "all":
                return np.ones(len(self.bundles.ids), dtype=np.bool_)
            if candidates == "new":
                return self.is_new
            raise ConfigError(f"candidates = {candidates!r}: choose 'all', 'new', or a list of bundle ids")
        allowed = np.zeros(len(self.bundles.ids), dtype=np.bool_)
        allowed[[self.bundles.row(name) for name in candidates]] = True
        return allowed

    def _taken_by(self, user: int) -> npt.NDArray[Any]:
        indptr, indices = self.taken
        return indices[indptr[user] : indptr[user + 1]]


def _open(path: Path) -> Artifact:
    """The artifact at `path`, or in the run at `path`."""
    if (path / "artifact.json").exists() or not path.is_dir():
        return load_artifact(path)
    if (path / "run.json").exists() and not (path / "model").is_dir():
        raise ArtifactError(f"{path}: training is not finished; go on with the same command and --resume")
    if not (path / "model").is_dir():
        raise ArtifactError(f"{path}: neither a run nor an artifact; a run is what coheat train --out writes")
    return load_artifact(path / "model")


def _best(scores: Floats, k: int) -> Positions:
    """Positions of the k largest scores, best first, equal ones in order; never one of -inf."""
    if k < len(scores):
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        above = np.flatnonzero(scores > least)
        equal = np.flatnonzero(scores == least)[: k - len(above)]
        chosen = np.sort(np.concatenate([above, equal]))
    else:
        chosen = np.arange(len(scores))
    chosen = chosen[scores[chosen] > -np.inf]
    ordered: Positions = chosen[np.argsort(-scores[chosen], kind="stable")]
    return ordered


def _check_k(k: int) -> None:
    if k < 1:
        raise ConfigError(f"k = {k}: a list has at least one place; choose k from 1 up")
