"""First vectors that know the data: users, bundles and items that go together are alike before any training.

Vectors drawn at random need some epochs until those of users are like those of their bundles and items.
Orthogonal iteration (Golub and Van Loan) gets there with a few products of the two graphs: the columns of the
users' table come to span the directions in which the normalised relations are largest, and bundles and items
are made of who took them. Each row then gets the same length, so that no direction rules the first steps.

This saves epochs. What training ends with is no better for it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coheat.graph.bipartite import Selection
from coheat.graph.propagation import multiply

ROUNDS = 3
LENGTH = 0.5
"""Of every row; what neighbours pass on, which is added to it, has length 1."""
SMALLEST = 1e-12
"""Share of the largest direction below which another counts as this share: there is nothing in it."""


@torch.no_grad()
def spectral(
    history: Selection, affiliation: Selection, bundles: Tensor, items: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors of users, bundles and items by the whole graphs, from random ones of the last two.

    The row of a user without edges, or of something that nobody took, is 0.
    """
    for _ in range(ROUNDS):
        users = orthonormal(multiply(bundles, history.left[1]) + multiply(items, affiliation.left[1]))
        bundles, items = multiply(users, history.right[1]), multiply(users, affiliation.right[1])
    return LENGTH * normalize(users), LENGTH * normalize(bundles), LENGTH * normalize(items)


def orthonormal(x: Tensor) -> Tensor:
    """The orthonormal columns (n, d) that span what those of x span, turned as little as can be:
    x (x'x)^(-1/2)."""
    values, vectors = torch.linalg.eigh((x.T @ x).double())
    values = values.clamp(min=SMALLEST * float(values[-1].clamp(min=1e-30)))
    turn: Tensor = (vectors * values.rsqrt()) @ vectors.T
    return x @ turn.to(x.dtype)
