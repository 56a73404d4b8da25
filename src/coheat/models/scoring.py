"""Scores where no sum of terms gives them: some users at a time, each against all bundles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from coheat.data.dataset import Indices
from coheat.models.base import FloatArray, Model
from coheat.served import OwnScores


def own_scores(model: Model, score: Callable[[Indices], Tensor], at_once: int) -> OwnScores:
    """A served form that asks `score` for the scores (n, n_bundles) of at most `at_once` users at a time."""

    @torch.no_grad()
    def scores(users: Indices) -> FloatArray:
        found = np.empty((len(users), model.data.n_bundles), dtype=np.float32)
        for start in range(0, len(users), at_once):
            block = slice(start, start + at_once)
            found[block] = score(users[block]).cpu().numpy()
        return found

    return OwnScores.create(model.relations, scorer=scores)
