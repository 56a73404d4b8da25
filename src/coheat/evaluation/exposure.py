"""Who is seen: how lists share their places among bundles, popular and young ones.

A place is a filled rank of somebody's list. Everything is counted block by block: what is needed beside the
lists grows with the number of bundles alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.data.dataset import Indices, Sparse
from coheat.evaluation.metrics import Mask

YOUNG = 4
"""A bundle that was taken no more often than this in training counts as young here, whatever the model."""
BLOCK = 16_384
"""Lists that are counted at a time."""

Doubles = npt.NDArray[np.float64]


def exposure(
    ranked: npt.NDArray[Any], taken: Sparse, popularity: Indices, candidates: Mask, ks: Sequence[int]
) -> dict[str, float | None]:
    """For each k, of lists `ranked` (n, at least k) for users whose training bundles are the rows of `taken`:

    - `gini@k` of places over the candidates: 0 where all are shown equally often, near 1 where one has all;
    - `coverage@k`: the share of the candidates that is shown to anybody;
    - `popularity_lift@k`: how much more popular what is shown is than what the same users took in training
      (Abdollahpouri et al., RecSys 2019): the mean over users of the mean popularity of their list, over the
      same of their training bundles, minus 1. Users without a list or without training bundles are left
      out; None where that is everybody;
    - `young_share@k`: the share of places held by bundles taken at most `YOUNG` times in training.

    `young_of_candidates` is the share of these bundles among the candidates, to compare with.
    """
    young: Mask = popularity <= YOUNG
    found: dict[str, float | None] = {}
    for k in ks:
        places, lists, profiles = _counted(ranked[:, :k], taken, popularity)
        shown = places[candidates]
        found[f"gini@{k}"] = gini(shown)
        found[f"coverage@{k}"] = float((shown > 0).mean())
        found[f"popularity_lift@{k}"] = float(lists / profiles - 1) if profiles else None
        found[f"young_share@{k}"] = float(places[young].sum() / max(places.sum(), 1))
    found["young_of_candidates"] = float(young[candidates].mean())
    return found


def gini(amounts: npt.NDArray[Any]) -> float:
    """Gini coefficient of x_1 <= ... <= x_n: sum over i of (2 i - n - 1) x_i / (n sum of x); 0 of nothing."""
    ordered = np.sort(amounts).astype(np.float64)
    n, total = len(ordered), float(ordered.sum())
    return float(((2 * np.arange(1, n + 1) - n - 1) * ordered).sum() / (n * total)) if total else 0.0


def _counted(top: npt.NDArray[Any], taken: Sparse, popularity: Indices) -> tuple[Doubles, float, float]:
    """Places of each bundle, and sums over users: mean popularity of list and of training bundles."""
    places = np.zeros(len(popularity))
    lists = profiles = 0.0
    weights = popularity.astype(np.float64)
    for start in range(0, len(top), BLOCK):
        block = top[start : start + BLOCK]
        filled = block >= 0
        places += np.bincount(block[filled], minlength=len(popularity))
        own = taken[start : start + BLOCK]
        lengths, sizes = filled.sum(axis=1), np.diff(own.indptr)
        both = (lengths > 0) & (sizes > 0)
        sums = np.where(filled, weights[block], 0).sum(axis=1)
        lists += float((sums[both] / lengths[both]).sum())
        popular = np.asarray(own @ weights)
        profiles += float((popular[both] / sizes[both]).sum())
    return places, lists, profiles
