"""DAM (Chen, Liu, He, Gao, Zheng; IJCAI 2019): attention over a bundle's items, and two tasks at once.

A user looks at a bundle's items with weights of her own, and a bundle is its own vector plus what she sees:

    alpha_ui = softmax over the items i of b of <e_u, a_i>,     v_ub = e_b + sum over i of alpha_ui e_i

One network N of two hidden layers (2d wide, ReLU, dropout) reads a user beside a bundle, or beside an item:

    score(u, b) = w_B . N([e_u ; v_ub]),     score(u, i) = w_I . N([e_u ; e_i])

Training goes back and forth between the tasks: a step of BPR on who took which bundle, a step of BPR on who
has which item. So the items are learned from both. An epoch takes every user-bundle interaction once, and as
many batches of user-item interactions.

Where we differ. The scores have no ReLU at the end, which would make most of them equal to 0; nor a bias,
which changes no ranking. The loss is a mean and not a sum over the batch, so the same `weight_decay` weighs
about a thousand times as much. A cold bundle's e_b would be a vector that training has used as a negative
only, so it is 0, and its items speak for it.

There is no inner product: the pooling depends on the user, so scores are computed user by user, over all
bundles, in memory for one user at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from coheat.config import Settings
from coheat.data.dataset import BundleData, Indices
from coheat.data.sampling import Triples, triples
from coheat.errors import ConfigError
from coheat.graph import kernels
from coheat.graph.attention import attend
from coheat.graph.bipartite import Propagation, array, multiply
from coheat.graph.parallel import run_ranges
from coheat.graph.prefetch import prefetched
from coheat.losses import bpr, dot_rows
from coheat.models.base import FloatArray, Model, ModelConfig, Progress, Vectors
from coheat.models.layers import dropout, linear
from coheat.rng import Randomness


class DAMConfig(ModelConfig):
    """Settings of DAM."""

    weight_decay: float = Field(1e-6, ge=0, description="L2 weight, applied by Adam to all parameters")
    hidden_dropout: float = Field(0.5, ge=0, lt=1, description="share of each hidden layer dropped")
    item_task: bool = Field(True, description="learn from user-item interactions too, in every second step")


@dataclass(frozen=True)
class Batch:
    """Pairs of a user and a bundle, or an item: all positives, then all negatives of the same users.

    The propagations pick the vectors of each pair; `items` are the edges from pairs to the bundle's items,
    None in a batch of items.
    """

    users: Propagation
    others: Propagation
    items: Propagation | None
    user_at: Tensor
    item_at: Tensor


class DAM(Model):
    """See the module's text. Parameters: vectors of users, bundles and items, keys of items, the network."""

    Config: ClassVar[type[Settings]] = DAMConfig
    places_cold_bundles: ClassVar[bool] = True
    contract_settings: ClassVar[Mapping[str, Any]] = {"hidden_dropout": 0.0}
    warm: Tensor

    def __init__(self, data: BundleData, config: DAMConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.users = self._table("users", data.n_users)
        self.bundles = self._table("bundles", data.n_bundles)
        self.items = self._table("items", data.n_items)
        self.keys = self._table("keys", data.n_items)
        wide = 2 * config.embedding_size
        self.hidden = nn.ModuleList(linear(wide, wide, rng.torch_generator("hidden", k)) for k in range(2))
        self.heads = nn.Parameter(torch.empty(wide, 2))  # for bundles and for items
        nn.init.xavier_normal_(self.heads, generator=rng.torch_generator("heads"))
        warm = torch.from_numpy((data.popularity > 0).astype(np.float32))[:, None]
        self.register_buffer("warm", warm, persistent=False)
        self.dropout_rng = rng.generator("dropout", 0)

    def _table(self, name: str, n_rows: int) -> nn.Parameter:
        shape, generator = (n_rows, self.config.embedding_size), self.rng.torch_generator(name)
        return nn.Parameter(0.001 * torch.randn(shape, generator=generator))

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        self.dropout_rng = self.rng.generator("dropout", progress.epoch)

    def batches(self, batch_size: int) -> Iterable[Batch]:
        """Batches of bundles and of items in turn, each prepared while the one before is learned from."""
        return prefetched(self._batches(batch_size))

    def _batches(self, batch_size: int) -> Iterator[Batch]:
        data = self.data
        of_bundles = triples(data.user_bundle, batch_size, self.rng.generator("batches", self.progress.epoch))
        of_items = triples(data.user_item, batch_size, self.rng.generator("items", self.progress.epoch))
        for batch in of_bundles:
            yield self.of_bundles(batch)
            if self.config.item_task and (more := next(of_items, None)) is not None:
                yield self.of_items(more)

    def n_batches(self, batch_size: int) -> int:
        n_item_batches = max(self.data.user_item.nnz // batch_size, 1) if self.config.item_task else 0
        n_bundle_batches = super().n_batches(batch_size)
        return n_bundle_batches + min(n_item_batches, n_bundle_batches)

    def of_bundles(self, batch: Triples) -> Batch:
        bundles = np.concatenate([batch.positives, batch.negatives])
        return self._pairs(
            batch, bundles, self.data.n_bundles, Propagation.of(self.data.bundle_item[bundles])
        )

    def of_items(self, batch: Triples) -> Batch:
        return self._pairs(batch, np.concatenate([batch.positives, batch.negatives]), self.data.n_items, None)

    def _pairs(self, batch: Triples, others: Indices, n_others: int, items: Propagation | None) -> Batch:
        users = np.concatenate([batch.users, batch.users])
        picked = Propagation.picking(users, self.data.n_users), Propagation.picking(others, n_others)
        for propagation in picked:
            _ = propagation.transposed  # now, since the backward pass will need it
        user_at, item_at = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        if items is not None:
            user_at, item_at = np.repeat(users, np.diff(items.indptr)), items.sources.astype(np.int64)
        ends = (torch.from_numpy(ids).to(self.users.device) for ids in (user_at, item_at))
        return Batch(*picked, items, *ends)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        if batch.items is None:
            name, others = "item_bpr", multiply(self.items, batch.others)
        else:
            name, others = "bpr", multiply(self.bundles * self.warm, batch.others)
            logits = dot_rows(self.users, self.keys, batch.user_at, batch.item_at)
            others = others + attend(self.items, logits, batch.items)
        x = torch.cat([multiply(self.users, batch.users), others], 1)
        for layer in self.hidden:
            x = dropout(torch.relu(layer(x)), self.config.hidden_dropout, self.dropout_rng)
        scores = x @ self.heads[:, 0 if name == "bpr" else 1]
        return {name: bpr(*scores.chunk(2))}

    def vectors(self) -> Vectors:
        raise ConfigError(
            "the model 'dam' reads a bundle anew for every user and has no vectors to export; "
            "use its scorer(), or train a model with vectors, such as coheat"
        )

    def scorer(self) -> AttentionScorer:
        with torch.no_grad():
            return AttentionScorer(self)


class AttentionScorer:
    """Scores of all bundles, user by user: attention, then the network.

    The first hidden layer is W [e_u ; v_ub] = W_u e_u + W_v e_b + W_v (sum of alpha e_i), so the parts of the
    users and of the bundles' own vectors are computed once.
    """

    def __init__(self, model: DAM):
        width = model.config.embedding_size
        first, second = (layer for layer in model.hidden if isinstance(layer, nn.Linear))
        self.second = second
        self.users, self.keys, self.items = (t.detach().cpu() for t in (model.users, model.keys, model.items))
        self.of_users = (self.users @ first.weight[:, :width].t() + first.bias).detach()
        self.of_items = first.weight[:, width:].t().detach().contiguous()
        self.of_bundles = ((model.bundles * model.warm).detach() @ self.of_items).contiguous()
        self.head = model.heads[:, 0].detach().contiguous()
        self.edges = Propagation.of(model.data.bundle_item)
        self.weights = np.empty(len(self.edges.sources), dtype=np.float32)

    def scores(self, users: Indices) -> FloatArray:
        scores = np.empty((len(users), self.edges.n_targets), dtype=np.float32)
        for row, user in enumerate(users):
            scores[row] = self._one(int(user))
        return scores

    @torch.no_grad()
    def _one(self, user: int) -> FloatArray:
        """Scores of all bundles for one user (n_bundles,)."""
        hidden = self.seen_by(user) @ self.of_items
        hidden += self.of_bundles
        hidden += self.of_users[user]
        hidden = torch.addmm(self.second.bias, hidden.relu_(), self.second.weight.t()).relu_()
        scores: FloatArray = (hidden @ self.head).numpy()
        return scores

    def seen_by(self, user: int) -> Tensor:
        """sum over i of alpha_ui e_i of every bundle (n_bundles, d)."""
        edges, logits = self.edges, self.keys @ self.users[user]
        exponentials = torch.exp(logits - logits.max())
        arrays = edges.indptr, edges.sources, array(logits), array(exponentials), self.weights
        run_ranges(kernels.shared_softmax_rows, edges.row_ranges, *arrays)
        weighted = Propagation(edges.indptr, edges.sources, self.weights, edges.n_sources)
        return weighted.gather(array(self.items))
