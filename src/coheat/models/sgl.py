"""SGL-ED (Wu, Wang, Feng, He, Chen, Lian, Xie; SIGIR 2021): LightGCN made to know itself on damaged graphs.

Every epoch two graphs are drawn, each without a random share `dropout` of the interactions and weighed by its
own degrees. h' and h'' are LightGCN's outputs on them, scaled to length 1. A node should find itself again
among all others:

    contrast_u = -log( exp(<h'_u, h''_u> / t) / sum over all users v of exp(<h'_u, h''_v> / t) )
    loss       = mean BPR + contrast_weight * (mean contrast of the batch's users + of its positives)
                 + weight_decay * mean of (|e_u^0|^2 + |e_b+^0|^2 + |e_b-^0|^2) / 2

The authors sum over the batch where we average, with the same weights between the terms. They keep an exact
share of the interactions; we keep each on its own, which is the same share on average. The sum over all users
is made in blocks, so that its memory does not grow with the data; on large data its time does, and
`candidates="batch"` sums over the batch's own users and bundles instead, as later implementations do.

Cold bundles: as in LightGCN, no meaningful score.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from coheat.config import Settings
from coheat.data.sampling import Triples
from coheat.models.base import Progress
from coheat.models.contrast import Candidates, contrast
from coheat.models.lightgcn import LightGCN, LightGCNConfig


class SGLConfig(LightGCNConfig):
    """Settings of SGL; the defaults are those of its authors for Yelp."""

    dropout: float = Field(0.1, ge=0, lt=1, description="share of interactions left out of each graph")
    contrast_weight: float = Field(0.1, ge=0, description="weight of the contrast (lambda_1)")
    contrast_temperature: float = Field(0.2, gt=0, description="temperature t of the contrast")
    candidates: Candidates = Field(
        "all", description="contrast with all users and bundles, or with those of the batch"
    )


class SGL(LightGCN):
    """See the module's text. Parameters: as LightGCN, drawn Xavier uniform."""

    Config: ClassVar[type[Settings]] = SGLConfig
    config: SGLConfig
    starts_xavier: ClassVar[bool] = True

    def begin_epoch(self, progress: Progress) -> None:
        """Draw the epoch's two damaged graphs."""
        super().begin_epoch(progress)
        rng = self.rng.generator("damaged graphs", progress.epoch)
        self.damaged = [self.graph.dropped(self.config.dropout, rng) for _ in range(2)]

    def loss(self, batch: Triples) -> dict[str, Tensor]:
        config = self.config
        (users, bundles), (other_users, other_bundles) = (
            map(normalize, self.outputs(selection)) for selection in self.damaged
        )
        sides = [(users, other_users, batch.users), (bundles, other_bundles, batch.positives)]
        value = contrast(sides, config.contrast_temperature, config.candidates)
        return {**super().loss(batch), "contrast": config.contrast_weight * value}
