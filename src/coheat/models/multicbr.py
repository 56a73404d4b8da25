"""MultiCBR (Ma, He, Wang, Wei, Du, Fu, Chua; ACM TOIS 2024): three views, fused before they are compared.

Three graphs, each with a light graph convolution of its own: who took which bundle (view 1), who has which
item (view 2), which bundle has which item (view 3). Users, bundles and items have one table each for all of
them. Where a view has no nodes of a kind it has means: in view 2 a bundle is the mean of its items, in view 3
a user is the mean of the items that the user has. Layer 0 counts as it is, every further layer is scaled to
length 1:

    x    = w_0 x^0 + sum over k of w_k x^k / |x^k|,     w: weights of the layers, given for each view
    e_u  = sum over views v of m_v x_u(v),   e_b likewise,     m: weights of the views
    y_ub = <e_u, e_b>

In training each propagated vector and each mean is moved, without a change of sign, by noise of a given
length (as in SimGCL), in place of dropped edges. The loss is

    BPR + contrast_weight * (contrast(users) + contrast(positive bundles)) / 2 + L2

where the contrast, of e scaled to length 1 with temperature t, has each vector as its own counterpart,

    contrast = mean over x of log( sum over x' of exp((cos(x, x') - 1) / t) ),

so it pushes the batch's users (and its bundles) apart and pulls nothing together; x and x' run over the
batch, each as often as it stands there.

What the text leaves open follows the authors' published settings: that contrast (the text speaks of two
augmented views), the layers scaled to length 1, the same noise for means. Noise is drawn anew in each batch.

A bundle that nobody took has a vector of its own, used as a negative only, and its items in views 2 and 3.
Its score means something, but among all bundles it stands far behind, so cold bundles are not claimed. A
bundle added while serving has view 2 alone, the mean of its items.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coheat.config import Settings
from coheat.data.sampling import Triples
from coheat.losses import bpr
from coheat.models.base import numpy
from coheat.models.three_views import Needed, ThreeViewConfig, ThreeViewModel
from coheat.models.two_views import Rows
from coheat.served import Block, Served


class MultiCBRConfig(ThreeViewConfig):
    """Settings of MultiCBR."""


class MultiCBR(ThreeViewModel):
    """See the module's text. Parameters: vectors of users, bundles and items."""

    Config: ClassVar[type[Settings]] = MultiCBRConfig
    config: MultiCBRConfig
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "planted_cold_answer_is_ranked_first": "among themselves it ranks new bundles by their items, which "
        "the small world is enough for; among all they stand far behind, so it does not claim them"
    }

    def prepare(self, batch: Triples) -> tuple[Rows, Needed]:
        rows = Rows.of(batch, self.data, self.users.device)
        return rows, self.needed(rows.users, rows.bundles)

    def loss(self, batch: tuple[Rows, Needed]) -> dict[str, Tensor]:
        rows, needed = batch
        views = self.views(needed, noisy=True)
        users, bundles = self.fused(views.users), self.fused(views.bundles)
        terms = {"bpr": bpr(*rows.scores(users, bundles))}
        if self.config.contrast_weight > 0:
            terms["contrast"] = self.config.contrast_weight * self.apart(rows, users, bundles)
        return terms

    @torch.no_grad()
    def served(self) -> Served:
        """A block for each view of bundles, all with the fused vectors of users."""
        everything = self.needed(np.arange(self.data.n_users), np.arange(self.data.n_bundles))
        views = self.views(everything, noisy=False)
        users, size = numpy(self.fused(views.users)), self.config.embedding_size
        history, items, contents = self.config.view_weights
        single = np.zeros((self.data.n_items, size), dtype=np.float32)
        single[everything.of_bundles.items] = items * numpy(views.items)
        first, second, third = (numpy(view) for view in views.bundles)
        blocks = [
            (Block("history", "history", size), users, history * first),
            (Block("items", "items", size, items=single), users, items * second),
            (Block("contents", "items", size), users, contents * third),
        ]
        return Served.create(self.relations, blocks)
