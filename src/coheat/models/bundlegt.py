"""BundleGT (Wei, Liu, Ma, Wang, Nie, Chua; SIGIR 2023): attention, to see by what strategy bundles are made.

Vectors of users, bundles and items go through a light graph convolution over who has which item, whose layers
are added up (u', i'), and then through `n_layers` layers of

    i <- i' + what bundles pass on to their items
    b <- a * attention over the items of b + (1 - a) * what these pass on + what its takers pass on
    u <- u' + a * attention over the bundles of u + (1 - a) * what these pass on

where a is `item_attention` or `bundle_attention`, a node passes on 1 / sqrt(d d') of its vector along an edge
between degrees d and d', what is passed on are vectors of the layer before, and attention is over those just
made. It has no values of its own: with the sequence x_1 .. x_n of a bundle or user,

    A = softmax over t of <x_s, W x_t> / sqrt(width),     attention = mean over s of sum over t of A_st x_t

and one W = W_q^T W_k for each layer and kind. Scores are inner products, the loss is BPR and L2.

Sequences are cut off at `item_tokens` and `bundle_tokens`. The authors have 70 of each on Youshu; which ones
of a longer sequence, and how many on the other data sets, is not said. Ours are the first ones in the order
of the data. The text learns W_q and W_k. In the authors' program, which the published figures come from, they
never leave their first, random values, because the optimiser does not know of them; nor do ours, unless
`learn_attention` says so.

A bundle that nobody took has its items, and nothing that was only ever a negative stands between them and its
score: it places cold bundles. One that comes after training has no rule, since attention is no sum over
items.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from coheat.config import Settings
from coheat.data.dataset import BundleData
from coheat.data.sampling import Triples
from coheat.graph.bipartite import BipartiteGraph
from coheat.graph.propagation import multiply
from coheat.graph.sequences import Sequences
from coheat.losses import bpr
from coheat.models.base import Model, ModelConfig, numpy
from coheat.models.layers import pair_scores, tables
from coheat.rng import Randomness
from coheat.served import Block, Served


class BundleGTConfig(ModelConfig):
    """Settings of BundleGT; the defaults are those published for Youshu, but for the tokens."""

    weight_decay: float = Field(2e-5, ge=0, description="L2 weight, applied by Adam to all parameters")
    n_item_layers: int = Field(4, ge=0, description="layers of the convolution over who has which item")
    n_layers: int = Field(3, ge=1, description="layers with attention")
    item_attention: float = Field(
        0.5, ge=0, le=1, description="share of attention in what a bundle gets from its items"
    )
    bundle_attention: float = Field(
        0.5, ge=0, le=1, description="share of attention in what a user gets from the bundles taken"
    )
    item_tokens: int = Field(20, ge=1, description="items of a bundle that attention sees, at most")
    bundle_tokens: int = Field(20, ge=1, description="bundles of a user that attention sees, at most")
    learn_attention: bool = Field(
        False, description="learn W, as the text says; in the authors' program it stays as drawn"
    )


class BundleGT(Model):
    """See the module's text. Parameters: vectors of users, bundles and items, and W of both kinds."""

    Config: ClassVar[type[Settings]] = BundleGTConfig
    config: BundleGTConfig
    places_cold_bundles = True
    contract_settings: ClassVar[Mapping[str, Any]] = {"n_layers": 1, "n_item_layers": 1}

    def __init__(self, data: BundleData, config: BundleGTConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.users, self.bundles, self.items = tables(data, config.embedding_size, rng)
        self.item_forms = self._forms("item attention")
        self.bundle_forms = self._forms("bundle attention")
        self.having = BipartiteGraph(data.user_item)
        self.taking = BipartiteGraph(data.user_bundle)
        self.holding = BipartiteGraph(data.bundle_item)
        self.items_of_bundles = Sequences(data.bundle_item, config.item_tokens)
        self.bundles_of_users = Sequences(data.user_bundle, config.bundle_tokens)

    def _forms(self, name: str) -> nn.Parameter:
        """W of each layer (n_layers, d, d), divided by sqrt(d): products of two matrices of small numbers."""
        size, generator = self.config.embedding_size, self.rng.torch_generator(name)
        queries, keys = (
            (2 * torch.rand(self.config.n_layers, size, size, generator=generator) - 1) / size**0.5
            for _ in range(2)
        )
        forms = queries.transpose(1, 2) @ keys / size**0.5
        return nn.Parameter(forms, requires_grad=self.config.learn_attention)

    def by_items(self) -> tuple[Tensor, Tensor]:
        """u' and i': the sums of all layers of the convolution over who has which item."""
        (_, to_users), (_, to_items) = self.having.full.left, self.having.full.right
        users: Tensor = self.users
        items: Tensor = self.items
        of_users, of_items = users, items
        for _ in range(self.config.n_item_layers):
            users, items = multiply(items, to_users), multiply(users, to_items)
            of_users, of_items = of_users + users, of_items + items
        return of_users, of_items

    def outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Users (n_users, d), and what bundles (n_bundles, d) have from their takers and from their items."""
        config = self.config
        users: Tensor = self.users
        bundles: Tensor = self.bundles
        items: Tensor = self.items
        plain_users, plain_items = self.by_items()
        (_, to_users), (_, from_users) = self.taking.full.left, self.taking.full.right
        (_, to_bundles), (_, from_bundles) = self.holding.full.left, self.holding.full.right
        a, c = config.item_attention, config.bundle_attention
        for item_form, bundle_form in zip(self.item_forms, self.bundle_forms, strict=True):
            from_takers, from_taken = multiply(users, from_users), multiply(bundles, to_users)
            from_items = multiply(items, to_bundles)
            items = plain_items + multiply(bundles, from_bundles)
            from_items = a * self.items_of_bundles.attend(items @ item_form, items) + (1 - a) * from_items
            bundles = from_takers + from_items
            attended = self.bundles_of_users.attend(bundles @ bundle_form, bundles)
            users = plain_users + c * attended + (1 - c) * from_taken
        return users, from_takers, from_items

    def loss(self, batch: Triples) -> dict[str, Tensor]:
        users, from_takers, from_items = self.outputs()
        return {"bpr": bpr(*pair_scores(users, from_takers + from_items, batch))}

    @torch.no_grad()
    def served(self) -> Served:
        """What takers and what items say of a bundle, side by side."""
        users, from_takers, from_items = (numpy(part) for part in self.outputs())
        size = self.config.embedding_size
        blocks = [
            (Block("history", "history", size), users, from_takers),
            (Block("items", "items", size), users, from_items),
        ]
        return Served.create(self.relations, blocks)
