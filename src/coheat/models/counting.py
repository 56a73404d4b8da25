"""Counting: how many of the bundle's items does the user already have, and how often.

No learning at all, and hard to beat where bundles are cold: a bundle is judged by its items, so one
that nobody has taken is as good as any other.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coheat.config import Settings
from coheat.data.dataset import BundleData, Indices, Sparse
from coheat.errors import ConfigError
from coheat.graph.overlap import overlaps
from coheat.models.base import FloatArray, Progress, Vectors
from coheat.models.untrained import Untrained
from coheat.rng import Randomness


class CountingConfig(Settings):
    """Settings of `Counting`."""

    use_bundle_items: bool = Field(True, description="count the items of the user's training bundles too")
    size_exponents: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (0, 0.125, 0.25, 0.375, 0.5, 0.75, 1),
        min_length=1,
        description="exponents of the bundle's size to try, one per epoch; validation chooses",
    )


class Counting(Untrained):
    """score(u, b) = sum over items i of b of p_ui / |b| ** size_exponent.

    The profile p_ui is 1 where the user has item i, plus the number of the user's training bundles
    that contain i. Exponent 0 is the plain overlap and favours large bundles; 1 is the mean over
    items and favours small ones. Epoch t tries the t-th of `size_exponents` (the last one again,
    where epochs are more), so choosing the best epoch on validation chooses the exponent.
    """

    Config: ClassVar[type[Settings]] = CountingConfig
    places_cold_bundles: ClassVar[bool] = True
    size_exponent: Tensor

    def __init__(self, data: BundleData, config: CountingConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.profile: Sparse = data.user_item
        if config.use_bundle_items:
            self.profile = (data.user_item + data.user_bundle @ data.bundle_item).tocsr()
        first = torch.tensor(config.size_exponents[0], dtype=torch.float64)
        self.register_buffer("size_exponent", first)  # so that a checkpoint carries the choice

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        exponents = self.config.size_exponents
        self.size_exponent.fill_(exponents[min(progress.epoch, len(exponents)) - 1])

    def facts(self) -> dict[str, float]:
        return {"size_exponent": float(self.size_exponent)}

    def vectors(self) -> Vectors:
        raise ConfigError(
            "the model 'counting' compares lists of items and has no vectors to export; "
            "use its scorer(), or train a model with vectors, such as coheat"
        )

    def scorer(self) -> CountingScorer:
        return CountingScorer(self.profile, self.data.bundle_item, float(self.size_exponent))

    def new_bundle_scores(self, users: Indices, bundle_item: Sparse) -> FloatArray:
        """Scores (len(users), n) of bundles known only by their items (n, n_items)."""
        return CountingScorer(self.profile, bundle_item, float(self.size_exponent)).scores(users)


class CountingScorer:
    """Overlap of profiles (n_users, n_items) with bundles (n_bundles, n_items), scaled by size."""

    def __init__(self, profile: Sparse, bundle_item: Sparse, size_exponent: float):
        self.profile = profile
        self.item_bundle = bundle_item.T.tocsr()
        sizes = np.maximum(np.diff(bundle_item.indptr), 1)
        self.scale = (sizes**-size_exponent).astype(np.float32)

    def scores(self, users: Indices) -> FloatArray:
        # Counts are whole numbers, so the sums are exact in float32.
        found = overlaps(self.profile, users, self.item_bundle)
        found *= self.scale
        return found
