"""A small CoHeat with parameters of its own, saved and loaded for serving."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from test_artifact import save

from coheat.data.dataset import BundleData
from coheat.models.base import Model, Progress
from coheat.models.coheat import CoHeat, CoHeatConfig
from coheat.recommender import Recommender
from coheat.rng import Randomness


def trained(data: BundleData, settings: Mapping[str, Any]) -> CoHeat:
    """A few steps are enough: what is tested is arithmetic, not learning."""
    model = CoHeat(data, CoHeatConfig.create({"embedding_size": 8, **settings}), Randomness(5))
    optimizers = model.optimizers()
    model.begin_epoch(Progress(3, 10))
    for batch in model.batches(64):
        model.step(batch, optimizers)
    return model


def serve(model: Model, directory: Path) -> Recommender:
    save(directory / "model", model)
    return Recommender.load(directory / "model")
