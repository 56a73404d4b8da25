"""One propagation step to a node that was not in the training graph (or was): fold-in.

In training, a node's vector is its own layer 0 plus, for k = 1 .. K, the sum over its neighbours s of
(layer k-1 of s) / sqrt(degree of the node x degree of s), each sum then brought to length 1, or
divided by k + 1 where layers are not normalised. A newcomer has layer 0 = 0, so its vector is those sums
alone. The neighbours' layers and degrees are those of training (a degree of 0 counts as 1, for the newcomer
itself); the newcomer's own degree is the number of its edges.
"""

from __future__ import annotations

import numpy as np

from coheat.recommender.ranking import Floats, Positions


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
