"""EpicCBR (Li, Liu, Wei; WSDM 2026): a branch for known bundles beside one for new ones.

The *warm branch* is MultiCBR's three views, with weights p_i for the items in the bundle-item graph and in
the mean of a bundle's items. The *cold branch* has tables of users and items of its own and none of bundles,
so it knows a bundle by its items alone. It has two views: users and items of a denser graph D, where a bundle
is the weighted mean of its items; and bundles and items of the bundle-item graph, where layer 0 of a bundle
is that mean, and a user is the mean of the items that the user has in D. Both branches fuse their views as
MultiCBR does, and the score has a share k of the warm one:

    e    = [k * warm ; (1 - k) * cold],     y_ub = <e_u, e_b>
    loss = BPR + contrast_weight * (contrast + branch_weight * branches) + L2

`contrast` is MultiCBR's, of e. `branches` is InfoNCE between the two branches, of the batch's users plus of
its positive bundles. With n_pairs > 0, a third of `contrast` is half of InfoNCE between items of the cold
branch and items related to them, of pairs drawn for each batch. With k = 1 (or 0) and no weight on
`branches`, the cold (or warm) branch counts for nothing and is left out.

*Related* are items with more in common by their users than by their bundles: J_users(i, j) is at least
`relation_threshold` and above J_bundles(i, j), J being the size of the intersection divided by that of the
union; each item has its `n_relations` closest. In D a user has, beside each own item with weight 1,
`relation_strength` for each item that is related to one.

*Weights of items*: h_i is the number of users who have i, plus what its bundles bring, each its training
interactions / 15 and at most 1. p_i = h_i up to 1, and then rises to 2 for the item with the largest h.

Weights of views, noise and temperatures are the published ones. The paper names four kinds of related items
and publishes which pairs are which, and the items' weights, as tables of numbers for its data sets, not the
rules that they come from. The two rules above are ours: the weights are close to those tables (which seem to
count held-out interactions; ours do not), the relation to its description. InfoNCE of related items takes the
other pairs of the batch as negatives, where the authors have kinds of unrelated items. They normalise D
twice, we once.

It places cold bundles that were there in training. A bundle that comes later cannot be placed: its vector is
no sum over its items, since layers are scaled to length 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from scipy import sparse
from torch import Tensor

from coheat.config import Settings
from coheat.data.dataset import BundleData, Indices, Sparse
from coheat.data.sampling import Triples, triples
from coheat.graph.fused import unit_rows
from coheat.graph.propagation import multiply
from coheat.graph.weighted import Chosen, WeightedGraph, mean_rows
from coheat.losses import bpr, infonce
from coheat.models.base import numpy
from coheat.models.layers import pick, table
from coheat.models.three_views import (
    Needed,
    Pooled,
    ThreeViewConfig,
    ThreeViewModel,
    convolved,
    pooled,
)
from coheat.models.two_views import Rows
from coheat.rng import Randomness
from coheat.served import Block, Served

ENOUGH = 15
"""Training interactions with which a bundle counts for its items as much as a user does."""


class EpicCBRConfig(ThreeViewConfig):
    """Settings of EpicCBR."""

    warm_branch_share: float = Field(0.8, ge=0, le=1, description="share k of the warm branch")
    cold_view_weights: tuple[float, float] = Field(
        (0.23, 0.77), description="weights of the cold branch's views: user-item, bundle-item"
    )
    branch_weight: float = Field(0.5, ge=0, description="weight of the contrast between the branches")
    n_pairs: int = Field(20, ge=0, description="pairs of related items drawn for each batch")
    relation_threshold: float = Field(
        0.2, gt=0, le=1, description="least share of users in common of related items"
    )
    n_relations: int = Field(5, ge=0, description="related items of an item, at most")
    relation_strength: float = Field(0.2, ge=0, description="weight of related items in what a user has")
    negatives: Literal["all", "warm"] = Field(
        "all", description="draw negatives from all bundles, or from those with training interactions"
    )


class ColdNeeded(NamedTuple):
    """What some users and bundles are made of in the cold branch; view 1 needs all items."""

    user_item: Chosen
    bundle_item: Chosen
    of_users: Pooled
    bundles: Indices


Pairs = tuple[Indices, Indices]
"""Items, and one related to each."""
Batch = tuple[Rows, Needed, ColdNeeded, Pairs]


class EpicCBR(ThreeViewModel):
    """See the module's text. Parameters: users, bundles and items, and the cold branch's users and items."""

    Config: ClassVar[type[Settings]] = EpicCBRConfig
    config: EpicCBRConfig
    places_cold_bundles = True
    row_tables: ClassVar[Mapping[str, str]] = {
        **ThreeViewModel.row_tables,
        "cold_users": "user",
        "cold_items": "item",
    }

    def __init__(self, data: BundleData, config: EpicCBRConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.has_warm = config.warm_branch_share > 0 or config.branch_weight > 0
        self.has_cold = config.warm_branch_share < 1 or config.branch_weight > 0
        size = config.embedding_size
        self.cold_users = table(data.n_users, size, rng.torch_generator("cold users"))
        self.cold_items = table(data.n_items, size, rng.torch_generator("cold items"))
        self.related = related_items(data, config.relation_threshold, config.n_relations)
        dense = enriched(data.user_item, self.related, config.relation_strength)
        self.enriched_item, self.enriched_means = WeightedGraph(dense), mean_rows(dense)
        self.pooling = pooled(self.bundle_means, np.arange(data.n_bundles))
        self.warm_bundles = np.flatnonzero(data.popularity)
        for parameter, used in (
            (self.users, self.has_warm),
            (self.bundles, self.has_warm),
            (self.items, self.has_warm),
            (self.cold_users, self.has_cold),
            (self.cold_items, self.has_cold),
        ):
            parameter.requires_grad_(used)

    def affiliations(self) -> Sparse:
        weights = item_weights(self.data)
        found: Sparse = (self.data.bundle_item @ sparse.diags_array(weights)).tocsr().astype(np.float32)
        return found

    def drawn(self, batch_size: int) -> Iterable[tuple[Triples, Pairs]]:
        rng = self.rng.generator("batches", self.progress.epoch)
        pool = self.warm_bundles if self.config.negatives == "warm" else None
        items, others = self.related.nonzero()
        for batch in triples(self.data.user_bundle, batch_size, rng, pool):
            n_pairs = self.config.n_pairs if len(items) and self.has_cold else 0
            places = rng.integers(len(items), size=n_pairs) if n_pairs else np.array([], dtype=np.int64)
            yield batch, (items[places].astype(np.int64), others[places].astype(np.int64))

    def prepare(self, batch: tuple[Triples, Pairs]) -> Batch:
        bare, pairs = batch
        rows = Rows.of(bare, self.data, self.users.device)
        return rows, self.needed(rows.users, rows.bundles), self.cold_needed(rows.users, rows.bundles), pairs

    def cold_needed(self, users: Indices, bundles: Indices) -> ColdNeeded:
        """What representing these users and bundles in the cold branch takes."""
        of_users = pooled(self.enriched_means, users)
        return ColdNeeded(
            self.enriched_item.choose(users, self.pooling.items),
            self.bundle_item.choose(bundles, of_users.items),
            of_users,
            bundles,
        )

    def cold_branch(self, needed: ColdNeeded, noisy: bool) -> tuple[Tensor, Tensor]:
        """Users (m, d) and bundles (l, d) by the items alone."""
        config = self.config
        has, holds = (
            self.change(length if noisy else 0.0)
            for length in (config.user_item_noise, config.bundle_item_noise)
        )
        tables = self.cold_users, self.cold_items
        users_1, items_1 = convolved(needed.user_item, *tables, config.user_item_layers, has)
        bundles_1 = holds(multiply(items_1, self.pooling.means))
        bundles_2, items_2 = convolved(
            needed.bundle_item, bundles_1, self.cold_items, config.bundle_item_layers, holds
        )
        users_2 = has(multiply(items_2, needed.of_users.means))
        first, second = config.cold_view_weights
        return (
            first * users_1 + second * users_2,
            first * pick(bundles_1, needed.bundles) + second * bundles_2,
        )

    def warm_branch(self, needed: Needed, noisy: bool) -> tuple[Tensor, Tensor]:
        views = self.views(needed, noisy)
        return self.fused(views.users), self.fused(views.bundles)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        rows, needed, cold_needed, pairs = batch
        config, branches = self.config, []
        if self.has_warm:
            branches.append((config.warm_branch_share, self.warm_branch(needed, noisy=True)))
        if self.has_cold:
            branches.append((1 - config.warm_branch_share, self.cold_branch(cold_needed, noisy=True)))
        users, bundles = (
            torch.cat([share * branch[side] for share, branch in branches if share > 0], 1)
            for side in range(2)
        )
        terms = {"bpr": bpr(*rows.scores(users, bundles))}
        contrast = self.apart(rows, users, bundles)
        if len(pairs[0]):
            contrast = (2 * contrast + self.related_apart(pairs) / 2) / 3
        terms["contrast"] = config.contrast_weight * contrast
        if config.branch_weight > 0:
            (_, warm), (_, cold) = branches
            together = self.together(rows, warm, cold)
            terms["branches"] = config.contrast_weight * config.branch_weight * together
        return terms

    def related_apart(self, pairs: Pairs) -> Tensor:
        """InfoNCE between items and those related to them."""
        x, y = (unit_rows(pick(self.cold_items, items)) for items in pairs)
        return infonce([(x, y, x.new_ones(len(x)))], self.config.contrast_temperature).sum()

    def together(self, rows: Rows, warm: tuple[Tensor, Tensor], cold: tuple[Tensor, Tensor]) -> Tensor:
        """InfoNCE between the branches: of the batch's users plus of its positive bundles."""
        sets = [
            (unit_rows(one[: len(counts)]), unit_rows(other[: len(counts)]), counts)
            for one, other, counts in zip(warm, cold, (rows.user_counts, rows.positive_counts), strict=True)
        ]
        return infonce(sets, self.config.contrast_temperature).sum()

    @torch.no_grad()
    def served(self) -> Served:
        """The warm branch as history and items, and the cold branch."""
        k, size = self.config.warm_branch_share, self.config.embedding_size
        everybody, everything = np.arange(self.data.n_users), np.arange(self.data.n_bundles)
        blocks: list[tuple[Block, Any, Any]] = []
        if k > 0:
            views = self.views(self.needed(everybody, everything), noisy=False)
            users = numpy(k * self.fused(views.users))
            first, second, third = (
                weight * k * view
                for weight, view in zip(self.config.view_weights, views.bundles, strict=True)
            )
            blocks += [
                (Block("history", "history", size), users, numpy(first)),
                (Block("items", "items", size), users, numpy(second + third)),
            ]
        if k < 1:
            owners, bundles = self.cold_branch(self.cold_needed(everybody, everything), noisy=False)
            cold = Block("cold branch", "items", size)
            blocks.append((cold, numpy((1 - k) * owners), numpy((1 - k) * bundles)))
        return Served.create(self.relations, blocks)


def item_weights(data: BundleData) -> npt.NDArray[np.float32]:
    """p_i of every item: how much it counts in the bundles that have it."""
    brought = np.minimum(data.popularity / ENOUGH, 1) @ data.bundle_item
    heard = data.user_item.sum(axis=0) + brought
    above = np.maximum(heard - 1, 0)
    weights = np.minimum(heard, 1) + above / max(float(above.max(initial=0)), 1.0)
    return np.asarray(weights, dtype=np.float32)


def enriched(user_item: Sparse, related: Sparse, strength: float) -> Sparse:
    """What users have, with weight 1, and what is related to it, with weight `strength`."""
    if strength == 0 or related.nnz == 0:
        return user_item
    reached = (user_item @ related).tocsr()
    reached.data[:] = strength
    found: Sparse = (user_item + reached).tocsr().astype(np.float32)
    return found


def related_items(data: BundleData, threshold: float, n_relations: int, block: int = 2048) -> Sparse:
    """Which items are related (n_items, n_items), 0 or 1; see the module's text.

    The products of at most `block` items with all others are held at once.
    """
    parts = []
    by_users, by_bundles = (m.T.tocsr().astype(np.float32) for m in (data.user_item, data.bundle_item))
    for start in range(0, data.n_items, block):
        rows = slice(start, min(start + block, data.n_items))
        close = shares_in_common(by_users, rows)
        close.data[close.data < threshold] = 0
        close.setdiag(0, k=start)
        close.eliminate_zeros()
        together = shares_in_common(by_bundles, rows).multiply(close.sign()).tocsr()
        further = (close - together).tocsr()
        further.data = np.maximum(further.data, 0)
        further.eliminate_zeros()
        parts.append(largest_in_rows(close.multiply(further.sign()).tocsr(), n_relations))
    found: Sparse = sparse.vstack(parts).tocsr().astype(np.float32)
    return found


def shares_in_common(matrix: Sparse, rows: slice) -> Sparse:
    """|i and j| / |i or j| of some rows i of a 0/1 matrix with all rows j, where anything is in common."""
    sizes = np.diff(matrix.indptr)
    common: Sparse = (matrix[rows] @ matrix.T).tocsr()
    own = np.repeat(sizes[rows], np.diff(common.indptr))
    common.data = (common.data / (own + sizes[common.indices] - common.data)).astype(np.float32)
    return common


def largest_in_rows(matrix: Sparse, n: int) -> Sparse:
    """1 at the n largest entries of every row; of equal ones, the first."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, rows))
    rank = np.arange(len(rows)) - matrix.indptr[rows[order]]
    kept = order[rank < n]
    ones = np.ones(len(kept), dtype=np.float32)
    return sparse.csr_array((ones, (rows[kept], matrix.indices[kept])), shape=matrix.shape)
