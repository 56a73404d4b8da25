"""CoHeat (Jeon, Lee, Yun, Kang; WWW 2024): popularity-based coalescence and curriculum heating.

Two views of users and bundles. The *history view* h is a light graph convolution over who took which
bundle. The *affiliation view* a is one over who has which item; there a bundle is the mean of its items.
The score weighs them by how much history a bundle has:

    y_ub = g_b <h_u, h_b> + (1 - g_b) <a_u, a_b>,   g_b = tanh(n_b / temperature),

with n_b the training interactions of b, so a bundle that nobody took yet (n_b = 0) is scored by its items
alone. The temperature rises from 1 to `max_temperature` over the epochs, temperature(t) =
max_temperature ** (t / T): training starts with the easier history view and moves on to the other.

    loss = BPR + contrast_weight * (alignment + uniformity of the two views) + L2

Where the published figures were produced by something else than the paper's text says, an option of
`CoHeatConfig` names the difference, and its default is what reproduces the figures.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from coheat.data.dataset import BundleData
from coheat.graph.fused import unit_rows
from coheat.losses import alignment, bpr, uniformity
from coheat.models.base import Progress
from coheat.models.layers import pick, table
from coheat.models.two_views import Prepared, Rows, TwoViewConfig, TwoViewModel, Views
from coheat.rng import Randomness


class CoHeatConfig(TwoViewConfig):
    """Settings of CoHeat; the defaults are those of the paper's Youshu figures."""

    contrast_weight: float = Field(0.1, ge=0, description="weight of alignment and uniformity (lambda_1)")
    max_temperature: float = Field(1e4, gt=1, description="temperature of the last epoch (epsilon)")

    # The paper's ablations.
    coalescence: Literal["popularity", "constant"] = Field(
        "popularity", description="history weight by popularity, or 0.5 for every bundle (CoHeat-PC)"
    )
    curriculum: Literal["heating", "anti", "fixed"] = Field(
        "heating", description="temperature rises, falls (CH-Ant), or stays at its maximum (CH-Fix)"
    )

    # Where the published figures differ from the paper's text, besides what `TwoViewConfig` has of that.
    share_users: bool = Field(True, description="one table of user vectors for both views; the text has two")
    average_contrast: bool = Field(
        True, description="average the contrast over users and bundles and over views; the text sums"
    )
    weight_decay_as: Literal["adam", "loss"] = Field(
        "adam", description="L2 by Adam's weight decay; the text adds weight_decay * |parameters| to the loss"
    )
    first_epoch: Literal[0, 1] = Field(
        1, description="number of the first epoch in the temperature; the text has 0"
    )
    score_temperature: Literal["epoch", "maximum"] = Field(
        "epoch", description="score with the temperature of the evaluated epoch; or with the maximum"
    )


class CoHeat(TwoViewModel):
    """See the module's text. Parameters: vectors of users (shared by the views), bundles and items."""

    Config = CoHeatConfig
    config: CoHeatConfig
    places_cold_bundles = True
    temperature: Tensor

    def __init__(self, data: BundleData, config: CoHeatConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.decay_in_loss = config.weight_decay_as == "loss"
        if not config.share_users:
            self.affiliation_user_table = table(
                data.n_users, config.embedding_size, rng.torch_generator("item users")
            )
        self.register_buffer("temperature", torch.tensor(1.0, dtype=torch.float64))

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        self.temperature.fill_(self.temperature_at(progress))

    def temperature_at(self, progress: Progress) -> float:
        """max_temperature ** (t / T); falling from T to 0 in CH-Ant, at its maximum in CH-Fix."""
        config = self.config
        fraction = (progress.epoch - 1 + config.first_epoch) / progress.epochs
        if config.curriculum == "fixed":
            fraction = 1.0
        elif config.curriculum == "anti":
            fraction = 1.0 - fraction
        return float(config.max_temperature**fraction)

    def facts(self) -> dict[str, float]:
        """What the training history notes besides the losses."""
        weights = self.history_weights(self._weighing_temperature())
        warm = self.popularity > 0
        return {
            "temperature": float(self.temperature),
            "history_weight": float(weights[warm].mean()) if warm.any() else 0.0,
        }

    def _weighing_temperature(self) -> float | None:
        """The epoch's temperature; None where the weights do not depend on popularity."""
        return None if self.config.coalescence == "constant" else float(self.temperature)

    def loss(self, batch: Prepared) -> dict[str, Tensor]:
        rows = batch.rows
        history = self.history_view(batch.history)
        affiliation = self.affiliation_view(batch.affiliation, batch.pooling)[:2]
        weights = pick(self.history_weights(self._weighing_temperature()), rows.bundles)
        terms = {"bpr": bpr(*rows.weighed_scores(history, affiliation, weights))}
        if self.config.contrast_weight > 0:
            terms["contrast"] = self.config.contrast_weight * self._contrast(history, affiliation, rows)
        if self.decay_in_loss:
            norm = torch.sqrt(sum((p.square().sum() for p in self.parameters()), torch.zeros(())))
            terms["decay"] = self.config.weight_decay * norm
        return terms

    def _contrast(self, history: Views, affiliation: Views, rows: Rows) -> Tensor:
        """Alignment between the views and uniformity within each, for the batch's users and positives."""
        n_positives = len(rows.positive_counts)
        parts = [
            (unit_rows(history[0]), unit_rows(affiliation[0]), rows.user_counts),
            (
                unit_rows(history[1][:n_positives]),
                unit_rows(affiliation[1][:n_positives]),
                rows.positive_counts,
            ),
        ]
        aligned = torch.stack([alignment(h, a, counts) for h, a, counts in parts]).sum()
        spread = uniformity([(x, counts) for h, a, counts in parts for x in (h, a)]).sum()
        return (aligned + spread / 2) / 2 if self.config.average_contrast else aligned + spread

    def served_temperature(self) -> float | None:
        if self.config.score_temperature == "maximum" and self.config.coalescence != "constant":
            return float(self.config.max_temperature)
        return self._weighing_temperature()
