"""CrossCBR (Ma, He, Zhang, Wang, Chua; KDD 2022): cross-view contrastive learning for bundles.

The same two views as CoHeat's, which grew out of it (see `two_views`), weighed alike for every bundle:

    y_ub = <h_u, h_b> + <a_u, a_b>

The two views of a user, and of a bundle, are pulled together and pushed off those of the others in the batch,
with cosines and a temperature t:

    contrast(X) = mean over x of -log( exp(cos(a_x, h_x) / t) / sum over x' of exp(cos(a_x, h_x') / t) )
    loss        = BPR + contrast_weight * (contrast(users) + contrast(positive bundles)) / 2 + L2

x and x' run over the batch's users (or its positive bundles), each as often as it stands there.

Where the published figures come from something else than the paper's text, the options of `TwoViewConfig`
name it, and the defaults follow the figures: layers scaled to length 1, each direction of an edge dropped on
its own, degrees counted afterwards. Edges are drawn once an epoch.

Where we differ: the vectors that are evaluated and served give half of y_ub, the mean of the two views
instead of their sum. The order is the same, and serving needs to know only one rule for two views. A bundle
that nobody took in training has, in the history view, just its own vector, which training has used as a
negative only: cold bundles rank low, as published. A bundle added while serving has no such vector and is
placed by its items alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from coheat.losses import bpr, infonce
from coheat.models.two_views import Prepared, TwoViewConfig, TwoViewModel


class CrossCBRConfig(TwoViewConfig):
    """Settings of CrossCBR; the defaults are those published for Youshu."""

    contrast_weight: float = Field(
        0.04, ge=0, description="weight of the contrast between the views (lambda_1)"
    )
    contrast_temperature: float = Field(0.25, gt=0, description="temperature of the contrast (tau)")
    user_item_dropout: float = Field(0.2, ge=0, lt=1, description="share of user-item edges dropped")
    user_bundle_dropout: float = Field(0.2, ge=0, lt=1, description="share of user-bundle edges dropped")
    bundle_item_dropout: float = Field(
        0.2, ge=0, lt=1, description="share of affiliations dropped in pooling"
    )
    dropout_redraw: Literal["batch", "epoch"] = Field(
        "epoch", description="draw the dropped edges once an epoch, or anew for each batch"
    )


class CrossCBR(TwoViewModel):
    """See the module's text. Parameters: vectors of users (for both views), bundles and items."""

    Config = CrossCBRConfig
    config: CrossCBRConfig
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "planted_cold_answer_is_ranked_first": "among themselves it ranks new bundles by their items, which "
        "the small world is enough for; among all they stand far behind, so it does not claim them"
    }

    def loss(self, batch: Prepared) -> dict[str, Tensor]:
        rows = batch.rows
        history = self.history_view(batch.history)
        affiliation = self.affiliation_view(batch.affiliation, batch.pooling)[:2]
        users, bundles = (torch.cat(views, 1) for views in zip(history, affiliation, strict=True))
        terms = {"bpr": bpr(*rows.scores(users, bundles))}
        if self.config.contrast_weight > 0:
            sets = [
                (normalize(a[: len(counts)]), normalize(h[: len(counts)]), counts)
                for a, h, counts in zip(
                    affiliation, history, (rows.user_counts, rows.positive_counts), strict=True
                )
            ]
            contrast = infonce(sets, self.config.contrast_temperature).mean()
            terms["contrast"] = self.config.contrast_weight * contrast
        return terms
