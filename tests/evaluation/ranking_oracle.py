"""Slow, obvious versions of ranking and metrics (sets and sorted lists), and small worlds to try them on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from coheat.data import BundleData, Vocabulary, relation
from coheat.data.dataset import Indices, Sparse
from coheat.models.base import FloatArray


class TableScorer:
    """Scores read from a table (n_users, n_bundles)."""

    def __init__(self, table: Any):
        self.table = np.asarray(table, dtype=np.float32)

    def scores(self, users: Indices) -> FloatArray:
        return self.table[users]  # fancy indexing copies, so the caller may overwrite it


def random_relation(rng: np.random.Generator, shape: tuple[int, int], density: float) -> Sparse:
    rows, columns = np.nonzero(rng.random(shape) < density)
    return relation(rows, columns, shape)


def world_with(user_bundle: Sparse, n_items: int = 1) -> BundleData:
    """Data with these interactions; its items do not matter here."""
    n_users, n_bundles = user_bundle.shape
    return BundleData(
        users=Vocabulary((f"u{i:04}" for i in range(n_users)), "user"),
        bundles=Vocabulary((f"b{i:04}" for i in range(n_bundles)), "bundle"),
        items=Vocabulary((f"i{i:04}" for i in range(n_items)), "item"),
        user_bundle=user_bundle,
        user_item=relation([], [], (n_users, n_items)),
        bundle_item=relation([], [], (n_bundles, n_items)),
    )


@dataclass(frozen=True)
class Case:
    """Training data, held-out positives and a table of scores with many ties."""

    train: BundleData
    held_out: Sparse
    table: FloatArray
    candidates: np.ndarray[Any, np.dtype[np.bool_]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    table = rng.integers(-2, 3, size=shape).astype(np.float32)
    table[rng.random(shape) < draw(st.sampled_from([0.0, 0.2]))] = -np.inf
    return Case(
        train=world_with(random_relation(rng, shape, draw(st.sampled_from([0.0, 0.15, 0.5])))),
        held_out=random_relation(rng, shape, draw(st.sampled_from([0.1, 0.4, 1.0]))),
        table=table,
        candidates=rng.random(shape[1]) < draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


def row_set(matrix: Sparse, row: int) -> set[int]:
    return {int(b) for b in matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]}


def slow_list(scores: FloatArray, banned: set[int], k: int) -> list[int]:
    """The k best bundles that are not banned, equal scores by position; -inf is never listed."""
    open_bundles = [b for b in range(len(scores)) if b not in banned and scores[b] != -np.inf]
    return sorted(open_bundles, key=lambda b: (-scores[b], b))[:k]


def slow_recall(ranked: list[int], positives: set[int], k: int) -> float:
    return len(set(ranked[:k]) & positives) / len(positives)


def slow_ndcg(ranked: list[int], positives: set[int], k: int) -> float:
    gain = sum(1 / math.log2(rank + 1) for rank, b in enumerate(ranked[:k], start=1) if b in positives)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(positives)) + 1))
    return gain / ideal
