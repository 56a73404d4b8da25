"""Counting: how many of the bundle's items does the user already have, and how often.

No learning at all, and hard to beat where bundles are cold: a bundle is judged by its items, so one
that nobody has taken is as good as any other.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from coheat.config import Settings
from coheat.data.dataset import BundleData
from coheat.models.base import Progress
from coheat.models.untrained import Untrained
from coheat.rng import Randomness
from coheat.served import Curve, Overlap, Served


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
    config: CountingConfig
    places_cold_bundles: ClassVar[bool] = True
    size_exponent: Tensor

    def __init__(self, data: BundleData, config: CountingConfig, rng: Randomness):
        super().__init__(data, config, rng)
        first = torch.tensor(config.size_exponents[0], dtype=torch.float64)
        self.register_buffer("size_exponent", first)  # so that a checkpoint carries the choice

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        exponents = self.config.size_exponents
        self.size_exponent.fill_(exponents[min(progress.epoch, len(exponents)) - 1])

    def facts(self) -> dict[str, float]:
        return {"size_exponent": float(self.size_exponent)}

    def served(self) -> Served:
        """Nothing but an overlap."""
        overlap = Overlap(
            "items in common",
            "linear",
            Curve.constant(1.0),
            taken=float(self.config.use_bundle_items),
            size_exponent=float(self.size_exponent),
        )
        return Served.create(self.relations, overlaps=(overlap,))
