"""What models with three views share (MultiCBR, EpicCBR): tables, graphs, noise, and the fusion of the views.

View 1 is the graph of who took which bundle, view 2 of who has which item, view 3 of which bundle has which
item. In view 2 a bundle is the mean of its items, in view 3 a user is the mean of the items that the user
has. `multicbr` has the equations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pydantic import Field
from torch import Tensor

from coheat.config import Settings
from coheat.data.dataset import BundleData, Indices, Sparse
from coheat.graph.fused import unit_rows
from coheat.graph.noise import perturbed
from coheat.graph.propagation import Propagation, Weighted, multiply
from coheat.graph.weighted import Chosen, WeightedGraph, mean_rows
from coheat.losses import infonce
from coheat.models.base import ModelConfig
from coheat.models.layers import pick, tables
from coheat.models.preparing import PreparingModel, for_gradients
from coheat.models.two_views import Rows
from coheat.rng import Randomness

Change = Callable[[Tensor], Tensor]
"""What is done to vectors as they are propagated."""


class ThreeViewConfig(ModelConfig):
    """Settings of all models with three views; the defaults are those published for Youshu."""

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


class ThreeViewModel(PreparingModel):
    """Base of the models with three views. Parameters: vectors of users, bundles and items."""

    Config: ClassVar[type[Settings]] = ThreeViewConfig
    config: ThreeViewConfig

    def __init__(self, data: BundleData, config: ThreeViewConfig, rng: Randomness):
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

    def apart(self, rows: Rows, users: Tensor, bundles: Tensor) -> Tensor:
        """The contrast of the batch's users and positive bundles with themselves, averaged."""
        sets = []
        for vectors, counts in ((users, rows.user_counts), (bundles, rows.positive_counts)):
            unit = unit_rows(vectors[: len(counts)])
            sets.append((unit, unit, counts))
        return infonce(sets, self.config.contrast_temperature).mean()


def pooled(means: Sparse, rows: Indices) -> Pooled:
    """The means of these rows, from the items that they need."""
    items, propagation = Weighted.of(means[rows]).on_needed_sources()
    return Pooled(items, for_gradients(propagation))
