"""A forest of small trees: what sums over a bundle's items foretell, where no straight line would do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coheat.served.ranking import Doubles, Floats, Positions

FEATURES = 5
"""How many numbers `features` makes of a bundle."""
STATISTICS = 4
"""Of each item: what its bundles weigh together, the log takers and the takers of these (weighed alike), and
the log of how many users have it."""


def features(sums: npt.NDArray[np.floating], sizes: Positions) -> Doubles:
    """(n, FEATURES) of bundles of these sizes, by the sums (n, STATISTICS) over their items.

    They are the log of the size; how many other bundles hold an item, on average; the mean log takers of
    these, and the log of their mean takers; and the mean log users of an item.
    """
    weight, log_takers, takers, log_users = np.maximum(sums.T.astype(np.float64), 0.0)
    counted, size = np.maximum(weight, 1e-9), np.maximum(sizes, 1)
    found = [
        np.log(size),
        np.log1p(weight / size),
        np.where(weight > 1e-6, log_takers / counted, 0.0),
        np.where(weight > 1e-6, np.log1p(takers / counted), 0.0),
        log_users / size,
    ]
    return np.stack(found, axis=1)


@dataclass(frozen=True)
class Forest:
    """Trees that each ask a few questions, feature > threshold, the same of everybody.

    `asked` and `thresholds` are (n_trees, depth), `values` (n_trees, 2 ** depth): the answers, read as binary
    digits, say which value a tree adds.
    """

    asked: Positions
    thresholds: Doubles
    values: Doubles

    def at(self, points: Doubles) -> Floats:
        """(n,) for points (n, n_features)."""
        found = np.zeros(len(points))
        for asked, thresholds, values in zip(self.asked, self.thresholds, self.values, strict=True):
            leaf = np.zeros(len(points), dtype=np.int64)
            for feature, threshold in zip(asked, thresholds, strict=True):
                leaf = 2 * leaf + (points[:, feature] > threshold)
            found += values[leaf]
        return found.astype(np.float32)

    @staticmethod
    def mean(forests: list[Forest]) -> Forest:
        """One forest whose values are the mean of these."""
        return Forest(
            np.concatenate([one.asked for one in forests]),
            np.concatenate([one.thresholds for one in forests]),
            np.concatenate([one.values for one in forests]) / len(forests),
        )
