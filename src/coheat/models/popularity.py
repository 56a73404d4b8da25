"""Popularity: the same bundles for everybody, most taken first. The least a model has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from coheat.config import Settings
from coheat.models.untrained import Untrained
from coheat.served import Curve, Served


class PopularityConfig(Settings):
    """Popularity has no settings."""


class Popularity(Untrained):
    """score(u, b) = n_b, the training interactions of bundle b; 0 for a cold bundle."""

    Config: ClassVar[type[Settings]] = PopularityConfig
    config: PopularityConfig
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "planted_answer_is_ranked_first": "it recommends the same bundles to everybody"
    }

    def served(self) -> Served:
        """Nothing but a bias that grows with how often a bundle was taken."""
        most = float(np.iinfo(np.int32).max)
        return Served.create(self.relations, bias=Curve.through([0, most], [0, most]))
