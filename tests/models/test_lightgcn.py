"""LightGCN against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from light_oracle import (
    assert_same,
    dense_layers,
    interactions,
    mean_bpr,
    mean_l2,
    small_data,
    some_triples,
    tables,
)
from served_vectors import vectors_of

from coheat.data.dataset import BundleData
from coheat.models.lightgcn import LightGCN, LightGCNConfig
from coheat.rng import Randomness


def model_for(data: BundleData, n_layers: int) -> LightGCN:
    return LightGCN(
        data, LightGCNConfig(embedding_size=6, n_layers=n_layers, weight_decay=0.3), Randomness(0)
    )


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_loss_and_gradients_equal_the_dense_computation(n_layers: int) -> None:
    data, batch = small_data(), some_triples()
    model = model_for(data, n_layers)
    users, bundles = tables(model)
    user_layers, bundle_layers = dense_layers(interactions(data), users, bundles, n_layers)
    expected = {
        "bpr": mean_bpr(user_layers.mean(0), bundle_layers.mean(0), batch),
        "decay": 0.3 * mean_l2(users, bundles, batch),
    }
    assert_same(model, batch, expected, (users, bundles))


def test_nodes_without_neighbours_keep_their_share_of_layer_0() -> None:
    model = model_for(small_data(), 3)
    vectors = vectors_of(model)
    assert torch.allclose(vectors.users[-1], model.users[-1] / 4)
    assert torch.allclose(vectors.bundles[-1], model.bundles[-1] / 4)


def test_layer_0_starts_with_deviation_a_tenth() -> None:
    model = LightGCN(small_data(n_users=400), LightGCNConfig(), Randomness(1))
    assert np.std(model.users.detach().numpy()) == pytest.approx(0.1, rel=0.05)
