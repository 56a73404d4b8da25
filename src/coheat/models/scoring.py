"""Scores where no inner product gives them: some users at a time, each against all bundles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from coheat.data.dataset import Indices
from coheat.errors import ConfigError
from coheat.models.base import FloatArray


def no_vectors(reason: str, instead: str) -> ConfigError:
    """What a model of this kind says when it is asked for its vectors."""
    return ConfigError(
        f"the model {reason} and has no vectors to export; use its scorer(), or train {instead}"
    )


class BlockScorer:
    """Scores (m, n_bundles) from a function that gives those of at most `at_once` users (n,) at a time."""

    def __init__(self, score: Callable[[Indices], Tensor], n_bundles: int, at_once: int):
        self.score, self.n_bundles, self.at_once = score, n_bundles, at_once

    @torch.no_grad()
    def scores(self, users: Indices) -> FloatArray:
        found = np.empty((len(users), self.n_bundles), dtype=np.float32)
        for start in range(0, len(users), self.at_once):
            block = slice(start, start + self.at_once)
            found[block] = self.score(users[block]).cpu().numpy()
        return found
