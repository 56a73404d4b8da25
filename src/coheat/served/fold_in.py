"""Vectors for nodes that were not in the training graph: passed on along their edges, or those of lookalikes.

In training, a node's vector is its own layer 0 plus, for k = 1 .. K, the sum over its neighbours s of
(layer k-1 of s) / sqrt(degree of the node x degree of s), each sum then brought to length 1, or
divided by k + 1 where layers are not normalised. A newcomer has layer 0 = 0, so its vector is those sums
alone. The neighbours' layers and degrees are those of training (a degree of 0 counts as 1, for the newcomer
itself); the newcomer's own degree is the number of its edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coheat.served.ranking import Floats, Positions
from coheat.served.relations import Csr, Relations

TAKERS = 256
"""Users whose vectors stand for all who took a bundle: a mean needs no more."""


@dataclass(frozen=True)
class Layers:
    """Layers 0 .. K-1 of the graph convolutions, (K, n, d) each: of users and bundles in the graph of who
    took what (the block about history), of items in that of who has what (the block about items)."""

    users: Floats
    bundles: Floats
    items: Floats
    normalise: bool

    def from_bundles(self, bundles: Positions, relations: Relations) -> Floats:
        """What each bundle (-1: not in training) gives to its taker's history vector (n, d)."""
        return contributions(self.bundles, relations.user_bundle.degrees, bundles, self.normalise)

    def from_items(self, items: Positions, relations: Relations) -> Floats:
        """What each item gives to its owner's vector about items (n, d)."""
        return contributions(self.items, relations.user_item.degrees, items, self.normalise)

    def from_takers(self, takers: Positions, relations: Relations) -> Floats:
        """What a bundle gets from its takers (-1: not in training) by one propagation step (d,)."""
        given = contributions(self.users, relations.user_bundle.sizes, takers, self.normalise)
        total: Floats = given.sum(axis=0)
        return total

    def own(self, bundle: int | None) -> Floats:
        """Layer 0 of a bundle; zero for one added since training."""
        layer = self.bundles[0]
        own: Floats = np.zeros(layer.shape[1], dtype=np.float32) if bundle is None else layer[bundle]
        return own


def contributions(layers: Floats, degrees: Positions, neighbours: Positions, normalise: bool) -> Floats:
    """What each neighbour gives (len(neighbours), d); their sum is the propagated part of the vector.

    `layers` (K, n, d) and `degrees` (n,) are the neighbours' side. A neighbour of row -1 was not in training
    either: it gives nothing, but counts in the node's degree.
    """
    total = np.zeros((len(neighbours), layers.shape[2]), dtype=np.float64)
    known = neighbours >= 0
    rows = neighbours[known]
    scale = 1 / np.sqrt(len(neighbours) * np.maximum(degrees[rows], 1.0)) if len(rows) else np.zeros(0)
    for k, layer in enumerate(layers, start=1):
        given = layer[rows].astype(np.float64) * scale[:, None]
        length = float(np.linalg.norm(given.sum(axis=0))) if normalise else k + 1.0
        if length > 0:
            total[known] += given / length
    return total.astype(np.float32)


def lookalike(users: Floats, relations: Relations, items: Positions, bundles: Positions) -> Floats:
    """A vector for somebody with these items and bundles of training, from users who have the same.

    Learned vectors without a rule for users to come would leave known bundles far below what the bias of
    young ones was measured against. So a newcomer gets the mean over the bundles taken of their takers' mean
    vector; with no such bundle, the same over the items and their owners; with none, everybody's mean.
    """
    if not users.shape[1]:
        return np.zeros(0, dtype=np.float32)

    def means(relation: Csr, rows: Positions) -> list[Floats]:
        found = [relation.row(row) for row in rows.tolist()]
        # At most TAKERS of them, evenly over all: the same ones each time.
        return [users[have[:: -(-len(have) // TAKERS)]].mean(axis=0) for have in found if len(have)]

    found = means(relations.user_bundle.transposed, bundles) if len(bundles) else []
    found = found or (means(relations.user_item.transposed, items) if len(items) else [])
    return np.mean(found, axis=0, dtype=np.float32) if found else np.asarray(users.mean(axis=0))
