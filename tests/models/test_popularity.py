from __future__ import annotations

import numpy as np
import pytest

from coheat.data import BundleData, Vocabulary, relation
from coheat.errors import ConfigError
from coheat.models.popularity import Popularity, PopularityConfig
from coheat.rng import Randomness


def test_every_user_gets_the_training_counts() -> None:
    data = BundleData(
        users=Vocabulary(["a", "b", "c"], "user"),
        bundles=Vocabulary(["w", "x", "y", "z"], "bundle"),
        items=Vocabulary(["i"], "item"),
        user_bundle=relation([0, 0, 1, 2], [0, 2, 2, 2], (3, 4)),
        user_item=relation([], [], (3, 1)),
        bundle_item=relation([0, 1, 2, 3], [0, 0, 0, 0], (4, 1)),
    )
    model = Popularity(data, PopularityConfig(), Randomness(0))
    assert model.served().scores(np.array([2, 0])).tolist() == [[1, 0, 3, 0]] * 2
    assert list(model.batches(8)) == []
    assert model.optimizers() == []
    with pytest.raises(ConfigError, match="not trained on"):
        model.vectors().new_bundles(data.bundle_item)
