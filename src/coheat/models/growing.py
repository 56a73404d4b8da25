"""Graph convolution in which vectors grow: what the neighbours pass on is put beside what a node had.

    x^k = dropout([leaky_relu(W_k A^ x^(k-1) + bias) ; x^(k-1)]),     A^ = D^(-1/2) A D^(-1/2)
    r   = [x^0 ; x^1 / |x^1| ; ... ; x^K / |x^K|]

Nodes of the graph A are users and things: who has what, each user its own neighbour, and things joined by
weights of their own. D are its row sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from coheat.data.dataset import Indices, Sparse
from coheat.graph.fused import grow, unit_rows
from coheat.graph.propagation import Propagation, Weighted, multiply
from coheat.graph.weighted import normalised
from coheat.models.layers import linear, pick
from coheat.models.preparing import for_gradients


@dataclass(frozen=True)
class Selected:
    """Some users and things, and the last layer's propagation to them."""

    users: Indices
    things: Indices
    last: Propagation


class GrowingLayers(nn.Module):
    """r of some nodes; up to the last layer all nodes are computed. Parameters: every layer's W and bias."""

    def __init__(self, having: Sparse, joined: Sparse, width: int, n_layers: int, generator: torch.Generator):
        """From who has what (n_users, n_things), and weights between things (n_things, n_things)."""
        super().__init__()
        self.n_users = having.shape[0]
        own = sparse.eye_array(self.n_users, dtype=np.float32)
        blocks: list[list[sparse.sparray]] = [[own, having], [having.T, joined]]
        self.graph = normalised(sparse.block_array(blocks).tocsr())
        self.whole = Weighted.of(self.graph)
        self.transforms = nn.ModuleList(linear((k + 1) * width, width, generator) for k in range(n_layers))

    def nodes(self, users: Indices, things: Indices) -> Indices:
        return np.concatenate([users, self.n_users + things])

    def select(self, users: Indices, things: Indices) -> Selected:
        last = Weighted.of(self.graph[self.nodes(users, things)])
        return Selected(users, things, for_gradients(last))

    def forward(
        self, users: Tensor, things: Tensor, selected: Selected, share: float, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """r of the selected users and things, each d + 2d + ... wide, from all their vectors (n, d).

        A share of the numbers is dropped from each layer.
        """
        x, nodes, found = torch.cat([users, things]), self.nodes(selected.users, selected.things), []
        for k, transform in enumerate(self.transforms):
            assert isinstance(transform, nn.Linear)
            chosen, final = pick(x, nodes), k + 1 == len(self.transforms)
            found.append(unit_rows(chosen) if k else chosen)
            # W A^ x = A^ (W x): propagating d numbers instead of (k + 1) d.
            message = multiply(x @ transform.weight.t(), selected.last if final else self.whole)
            x = grow(message, transform.bias, chosen if final else x, share, rng)
        # Split, not sliced: the gradient of a slice is a whole table of zeros with the slice in it.
        sizes = [len(selected.users), len(selected.things)]
        of_users, of_things = torch.split_with_sizes(torch.cat([*found, unit_rows(x)], 1), sizes)
        return of_users, of_things
