"""Split: what a model may learn from, what chooses its best epoch, and what judges it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coheat.data.dataset import BundleData, Sparse, check_relation, freeze
from coheat.errors import DataError

PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """A world divided for training and judging.

    `train` is the whole world (all users, bundles, items and their affiliations), its `user_bundle`
    only the training interactions. `validation` and `test` are relations of the same shape
    (n_users, n_bundles). The three never share an interaction. A bundle without training
    interactions is cold; it stays a candidate like every other.
    """

    train: BundleData
    validation: Sparse
    test: Sparse
    scenario: str = "published"
    seed: int | None = None

    def __post_init__(self) -> None:
        parts = self.parts
        for name in ("validation", "test"):
            check_relation(name, parts[name], self.train.user_bundle.shape)
            freeze(parts[name])
        for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
            shared = parts[one].multiply(parts[other]).nnz
            if shared:
                raise DataError(
                    f"{shared} interactions stand in both {one} and {other}; the parts of a split share none"
                )

    @property
    def parts(self) -> dict[str, Sparse]:
        """The three relations (n_users, n_bundles) by name: train, validation, test."""
        return {"train": self.train.user_bundle, "validation": self.validation, "test": self.test}

    @property
    def cold_bundles(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """(n_bundles,) which bundles have no training interactions."""
        cold: np.ndarray[tuple[int], np.dtype[np.bool_]] = self.train.popularity == 0
        return cold

    def report(self) -> dict[str, Any]:
        """Sizes of the parts, and how much of validation and test is cold; ready for JSON."""
        cold_users = np.diff(self.train.user_bundle.indptr) == 0
        cold_bundles = self.cold_bundles
        report: dict[str, Any] = {"scenario": self.scenario, "seed": self.seed}
        for name, part in self.parts.items():
            users = np.diff(part.indptr) > 0
            bundles = np.bincount(part.indices, minlength=part.shape[1]) > 0
            report[name] = {
                "interactions": int(part.nnz),
                "users": int(users.sum()),
                "bundles": int(bundles.sum()),
            }
            if name != "train":
                on_cold = int(cold_bundles[part.indices].sum())
                report[name] |= {
                    "cold_users": int((users & cold_users).sum()),
                    "cold_bundles": int((bundles & cold_bundles).sum()),
                    "cold_interaction_share": on_cold / part.nnz if part.nnz else 0.0,
                }
        return report
