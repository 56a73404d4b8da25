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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from coheat.config import Settings
from coheat.data.dataset import BundleData, Indices, Sparse
from coheat.data.sampling import Triples
from coheat.graph.fused import unit_rows
from coheat.graph.noise import perturbed
from coheat.graph.propagation import Propagation, Weighted, multiply
from coheat.graph.weighted import Chosen, WeightedGraph, mean_rows
from coheat.losses import bpr, infonce
from coheat.models.base import ModelConfig, numpy
from coheat.models.layers import pick, tables
from coheat.models.preparing import PreparingModel, for_gradients
from coheat.models.two_views import Rows
from coheat.rng import Randomness
from coheat.served import Block, Served

Change = Callable[[Tensor], Tensor]
"""What is done to vectors as they are propagated."""


class MultiCBRConfig(ModelConfig):
    """Settings of MultiCBR; the defaults are those published for Youshu."""

    weight_decay: float = Field(1e-5, ge=0, description="L2 weight (lambda_2)")
    view_weights: tuple[float, float, float] = Field(
        (0.35, 0.15, 0.5), description="weights of the views: user-bundle, user-item, bundle-item"
    )
    user_bundle_layers: tuple[float, ...] = Field(
        (0.7, 0.2, 0.1), min_length=2, description="weights of layers 0 .. K in the user-bundle view"
    )
    user_item_layers: tuple[float, ...] = Field(
        (0.6, 0.2, 0.2), min_length=2, description="weights of layers 0 .. K in the user-item view"
    )
    bundle_item_layers: tuple[float, ...] = Field(
        (0.6, 0.1, 0.3), min_length=2, description="weights of layers 0 .. K in the bundle-item view"
    )
    user_bundle_noise: float = Field(0.2, ge=0, description="length of the noise in the user-bundle view")
    user_item_noise: float = Field(
        0.1, ge=0, description="length of the noise in the user-item view, and in the mean of a user's items"
    )
    bundle_item_noise: float = Field(
        0.1,
        ge=0,
        description="length of the noise in the bundle-item view, and in the mean of a bundle's items",
    )
    contrast_weight: float = Field(0.04, ge=0, description="weight of the contrast (lambda_1)")
    contrast_temperature: float = Field(0.23, gt=0, description="temperature t of the contrast")


class Pooled(NamedTuple):
    """The means over the items of some users or bundles: the items needed, and the propagation from them."""

    items: Indices
    means: Propagation


class Needed(NamedTuple):
    """What some users and bundles are made of: parts of the three graphs, and means over their items."""

    user_bundle: Chosen
    user_item: Chosen
    bundle_item: Chosen
    of_users: Pooled
    of_bundles: Pooled


@dataclass(frozen=True)
class Views:
    """Users (m, d) and bundles (l, d) in each view, not yet weighed; the items of view 2 that were needed."""

    users: tuple[Tensor, Tensor, Tensor]
    bundles: tuple[Tensor, Tensor, Tensor]
    items: Tensor


def convolved(
    chosen: Chosen, left: Tensor, right: Tensor, weights: tuple[float, ...], change: Change
) -> tuple[Tensor, Tensor]:
    """The weighed sum of layers 0 .. K of the chosen rows, all but layer 0 scaled to length 1."""
    found = [weights[0] * pick(x, rows) for x, rows in zip((left, right), chosen.rows, strict=True)]
    for k, weight in enumerate(weights[1:], start=1):
        final = k + 1 == len(weights)
        to_left, to_right = chosen.last if final else chosen.whole
        left, right = change(multiply(right, to_left)), change(multiply(left, to_right))
        for side, (layer, rows) in enumerate(zip((left, right), chosen.rows, strict=True)):
            found[side] = found[side] + weight * unit_rows(layer if final else pick(layer, rows))
    return found[0], found[1]


class MultiCBR(PreparingModel):
    """See the module's text. Parameters: vectors of users, bundles and items."""

    Config: ClassVar[type[Settings]] = MultiCBRConfig
    config: MultiCBRConfig
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "planted_cold_answer_is_ranked_first": "among themselves it ranks new bundles by their items, which "
        "the small world is enough for; among all they stand far behind, so it does not claim them"
    }

    def __init__(self, data: BundleData, config: MultiCBRConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.users, self.bundles, self.items = tables(data, config.embedding_size, rng)
        having = self.affiliations()
        self.user_bundle = WeightedGraph(data.user_bundle)
        self.user_item = WeightedGraph(data.user_item)
        self.bundle_item = WeightedGraph(having)
        self.user_means, self.bundle_means = mean_rows(data.user_item), mean_rows(having)

    def affiliations(self) -> Sparse:
        """Which bundle has which item (n_bundles, n_items), and with which weight."""
        return self.data.bundle_item

    def prepare(self, batch: Triples) -> tuple[Rows, Needed]:
        rows = Rows.of(batch, self.data, self.users.device)
        return rows, self.needed(rows.users, rows.bundles)

    def needed(self, users: Indices, bundles: Indices) -> Needed:
        """What representing these users and bundles takes."""
        of_users, of_bundles = pooled(self.user_means, users), pooled(self.bundle_means, bundles)
        chosen = (
            self.user_bundle.choose(users, bundles),
            self.user_item.choose(users, of_bundles.items),
            self.bundle_item.choose(bundles, of_users.items),
        )
        for one in chosen:
            for propagation in one.last:
                for_gradients(propagation)
        return Needed(*chosen, of_users, of_bundles)

    def views(self, needed: Needed, noisy: bool) -> Views:
        """The three views of the needed users and bundles."""
        config = self.config
        lengths = config.user_bundle_noise, config.user_item_noise, config.bundle_item_noise
        took, has, holds = (self.change(length if noisy else 0.0) for length in lengths)
        users_1, bundles_1 = convolved(
            needed.user_bundle, self.users, self.bundles, config.user_bundle_layers, took
        )
        users_2, items_2 = convolved(needed.user_item, self.users, self.items, config.user_item_layers, has)
        bundles_2 = holds(multiply(items_2, needed.of_bundles.means))
        bundles_3, items_3 = convolved(
            needed.bundle_item, self.bundles, self.items, config.bundle_item_layers, holds
        )
        users_3 = has(multiply(items_3, needed.of_users.means))
        return Views((users_1, users_2, users_3), (bundles_1, bundles_2, bundles_3), items_2)

    def change(self, length: float) -> Change:
        """Noise of this length."""
        return lambda x: perturbed(x, length, self.dropout_rng)

    def fused(self, views: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """The weighed sum of three views (n, d)."""
        first, second, third = (
            weight * view for weight, view in zip(self.config.view_weights, views, strict=True)
        )
        return first + second + third

    def loss(self, batch: tuple[Rows, Needed]) -> dict[str, Tensor]:
        rows, needed = batch
        views = self.views(needed, noisy=True)
        users, bundles = self.fused(views.users), self.fused(views.bundles)
        terms = {"bpr": bpr(*rows.scores(users, bundles))}
        if self.config.contrast_weight > 0:
            terms["contrast"] = self.config.contrast_weight * self.apart(rows, users, bundles)
        return terms

    def apart(self, rows: Rows, users: Tensor, bundles: Tensor) -> Tensor:
        """The contrast of the batch's users and positive bundles with themselves, averaged."""
        sets = []
        for vectors, counts in ((users, rows.user_counts), (bundles, rows.positive_counts)):
            unit = unit_rows(vectors[: len(counts)])
            sets.append((unit, unit, counts))
        return infonce(sets, self.config.contrast_temperature).mean()

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


def pooled(means: Sparse, rows: Indices) -> Pooled:
    """The means of these rows, from the items that they need."""
    items, propagation = Weighted.of(means[rows]).on_needed_sources()
    return Pooled(items, for_gradients(propagation))
