"""DAM (Chen, Liu, He, Gao, Zheng; IJCAI 2019): attention over a bundle's items, and two tasks at once.

A user looks at a bundle's items with weights of her own, and a bundle is its own vector plus what she sees:

    alpha_ui = softmax over the items i of b of <e_u, a_i>,     v_ub = e_b + sum over i of alpha_ui e_i

One network N of two hidden layers (2d wide, ReLU, dropout) reads a user beside a bundle, or beside an item:

    score(u, b) = w_B . N([e_u ; v_ub]),     score(u, i) = w_I . N([e_u ; e_i])

Training takes turns: a step of BPR on who took which bundle, then one on who has which item, so the items are
learned from both. An epoch takes every user-bundle interaction once, and as many batches of user-item ones.

Where we differ: scores have no ReLU at the end, which would make most of them 0, and no bias, which changes
no ranking. The loss is a mean over the batch, not a sum, so the same `weight_decay` weighs a thousand times
as much or so. Training knows a cold bundle's e_b as a negative only, so it is 0, and its items speak for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from coheat.data.dataset import BundleData, Indices
from coheat.data.sampling import Triples, triples
from coheat.graph.attention import attend, attend_by_source
from coheat.graph.propagation import Propagation, Scaled, Weighted, multiply
from coheat.losses import bpr, dot_rows
from coheat.models.base import ModelConfig
from coheat.models.layers import both_pairs, dropout, linear, table, tables, tensors, warm_rows
from coheat.models.preparing import PreparingModel, for_gradients
from coheat.models.scoring import own_scores
from coheat.rng import Randomness
from coheat.served import OwnScores

Task = Literal["bundles", "items"]


class DAMConfig(ModelConfig):
    """Settings of DAM."""

    weight_decay: float = Field(1e-6, ge=0, description="L2 weight, applied by Adam to all parameters")
    hidden_dropout: float = Field(0.5, ge=0, lt=1, description="share of each hidden layer dropped")
    item_task: bool = Field(True, description="learn from user-item interactions too, in every second step")


@dataclass(frozen=True)
class Batch:
    """Pairs of a user and a bundle, or an item: all positives, then all negatives of the same users.

    The propagations pick the vectors of each pair. In a batch of bundles, `items` are the edges from pairs to
    the bundle's items, and `ends` the user and the item of each edge.
    """

    users: Propagation
    others: Propagation
    items: Propagation | None = None
    ends: Sequence[Tensor] = ()


class DAM(PreparingModel):
    """See the module's text. Parameters: vectors of users, bundles and items, keys of items, the network."""

    Config = DAMConfig
    config: DAMConfig
    places_cold_bundles = True
    contract_settings = {"hidden_dropout": 0.0}  # noqa: RUF012
    row_tables = {**PreparingModel.row_tables, "keys": "item"}  # noqa: RUF012
    warm: Tensor

    def __init__(self, data: BundleData, config: DAMConfig, rng: Randomness):
        super().__init__(data, config, rng)
        width, wide, deviation = config.embedding_size, 2 * config.embedding_size, 0.001
        self.users, self.bundles, self.items = tables(data, width, rng, deviation)
        self.keys = table(data.n_items, width, rng.torch_generator("keys"), deviation)
        self.hidden = nn.ModuleList(linear(wide, wide, rng.torch_generator("hidden", k)) for k in range(2))
        self.heads = table(wide, 2, rng.torch_generator("heads"))  # for bundles and for items
        self.register_buffer("warm", warm_rows(data), persistent=False)

    def drawn(self, batch_size: int) -> Iterator[tuple[Triples, Task]]:
        """Batches of bundles and of items in turn."""
        data, epoch = self.data, self.progress.epoch
        of_items = triples(data.user_item, batch_size, self.rng.generator("items", epoch))
        for batch in triples(data.user_bundle, batch_size, self.rng.generator("batches", epoch)):
            yield batch, "bundles"
            if self.config.item_task and (more := next(of_items, None)) is not None:
                yield more, "items"

    def n_batches(self, batch_size: int) -> int:
        n_item_batches = max(self.data.user_item.nnz // batch_size, 1) if self.config.item_task else 0
        n_bundle_batches = super().n_batches(batch_size)
        return n_bundle_batches + min(n_item_batches, n_bundle_batches)

    def prepare(self, batch: tuple[Triples, Task]) -> Batch:
        drawn, task = batch
        users, others = both_pairs(drawn)
        n_others = self.data.n_bundles if task == "bundles" else self.data.n_items
        picked_users = for_gradients(Scaled.picking(users, self.data.n_users))
        picked_others = for_gradients(Scaled.picking(others, n_others))
        if task == "items":
            return Batch(picked_users, picked_others)
        items = Weighted.of(self.data.bundle_item[others])
        ends = np.repeat(users, np.diff(items.indptr)), items.sources.astype(np.int64)
        return Batch(picked_users, picked_others, items, tensors(self.users.device, *ends))

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        if batch.items is None:
            name, others = "item_bpr", multiply(self.items, batch.others)
        else:
            name, others = "bpr", multiply(self.bundles * self.warm, batch.others)
            others = others + attend(self.items, dot_rows(self.users, self.keys, *batch.ends), batch.items)
        x = torch.cat([multiply(self.users, batch.users), others], 1)
        for layer in self.hidden:
            x = dropout(torch.relu(layer(x)), self.config.hidden_dropout, self.dropout_rng)
        scores = x @ self.heads[:, 0 if name == "bpr" else 1]
        return {name: bpr(*scores.chunk(2))}

    def served(self) -> OwnScores:
        """User by user: the pooling depends on the user, so there is no inner product.

        Of the first layer, W_u e_u + W_v e_b + W_v (sum of alpha e_i), the first two parts are computed once.
        """
        width, edges = self.config.embedding_size, Weighted.of(self.data.bundle_item)
        first, second = (layer for layer in self.hidden if isinstance(layer, nn.Linear))
        with torch.no_grad():
            of_users = self.users @ first.weight[:, :width].t() + first.bias
            of_items, head = first.weight[:, width:].t().contiguous(), self.heads[:, 0].contiguous()
            of_bundles = self.bundles * self.warm @ of_items

        def score(users: Indices) -> Tensor:
            """Scores of all bundles for one user (1, n_bundles)."""
            (user,) = users
            hidden = attend_by_source(self.items, self.keys @ self.users[user], edges) @ of_items
            hidden += of_bundles
            hidden += of_users[user]
            hidden = torch.addmm(second.bias, hidden.relu_(), second.weight.t()).relu_()
            return (hidden @ head)[None]

        return own_scores(self, score, at_once=1)
