"""Small random worlds that the models are compared on with slow and obvious computations."""

from __future__ import annotations

import numpy as np

from coheat.data.dataset import BundleData, relation
from coheat.ids import Vocabulary


def small_data(seed: int = 0, n_users: int = 9, n_bundles: int = 7, n_items: int = 11) -> BundleData:
    """A random small world with a cold bundle, an item nobody has, and a user without bundles."""
    rng = np.random.default_rng(seed)
    user_bundle = rng.random((n_users, n_bundles)) < 0.3
    user_bundle[:, -1] = False
    user_bundle[-1] = False
    user_bundle[0, :3] = True
    user_item = rng.random((n_users, n_items)) < 0.25
    user_item[:, 0] = False
    bundle_item = rng.random((n_bundles, n_items)) < 0.3
    bundle_item[:, 1] = True
    relations = [
        relation(m.nonzero()[0], m.nonzero()[1], m.shape) for m in (user_bundle, user_item, bundle_item)
    ]
    return BundleData(
        Vocabulary((f"u{i}" for i in range(n_users)), "user"),
        Vocabulary((f"b{i}" for i in range(n_bundles)), "bundle"),
        Vocabulary((f"i{i}" for i in range(n_items)), "item"),
        relations[0],
        relations[1],
        relations[2],
    )
