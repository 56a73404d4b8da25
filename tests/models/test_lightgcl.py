"""LightGCL against dense matrices, with a dense singular value decomposition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from light_oracle import (
    assert_same,
    dense_layers,
    interactions,
    mean_bpr,
    normalised,
    small_data,
    some_triples,
    tables,
)
from torch import Tensor

from coheat.data.dataset import BundleData
from coheat.models.lightgcl import LightGCL, LightGCLConfig
from coheat.rng import Randomness


def dense_summary(data: BundleData, rank: int) -> Tensor:
    """The closest matrix of this rank to the normalised one, from all singular values."""
    left, values, right = torch.linalg.svd(normalised(interactions(data)), full_matrices=False)
    product: Tensor = left[:, :rank] @ torch.diag(values[:rank]) @ right[:rank]
    return product


@pytest.mark.parametrize("rank", [1, 3, 7, 20])
def test_factors_multiply_to_the_closest_matrix_of_their_rank(rank: int) -> None:
    data = small_data(n_users=40, n_bundles=9)
    model = LightGCL(data, LightGCLConfig(rank=rank), Randomness(0))
    assert model.user_factors.shape == (40, min(rank, 9))
    product = (model.user_factors @ model.bundle_factors.t()).double()
    assert torch.allclose(product, dense_summary(data, rank), atol=1e-5)


def test_few_random_vectors_find_the_largest_of_many_singular_values() -> None:
    """Where the matrix is wider than the random vectors are many, they have to converge."""
    data = small_data(n_users=200, n_bundles=120)
    model = LightGCL(data, LightGCLConfig(rank=5), Randomness(0))
    whole = normalised(interactions(data))
    found = (whole - (model.user_factors @ model.bundle_factors.t()).double()).norm()
    best = (whole - dense_summary(data, 5)).norm()
    assert best * (1 - 1e-6) <= found <= best * 1.002


def in_a_loop(
    summary: Tensor, outputs: Tensor, nodes: list[int], others: list[int], temperature: float
) -> Tensor:
    """Mean over nodes of log sum exp over others, less the own product cut at 5."""
    terms = []
    for node in nodes:
        total = sum(torch.exp(summary[node] @ outputs[other] / temperature) for other in others)
        own = torch.clamp(summary[node] @ outputs[node] / temperature, -5, 5)
        terms.append(torch.log(torch.as_tensor(total)) - own)
    return torch.stack(terms).mean()


@pytest.mark.parametrize(("candidates", "temperature"), [("all", 0.5), ("batch", 0.5), ("all", 0.05)])
def test_loss_and_gradients_equal_the_dense_computation(candidates: str, temperature: float) -> None:
    data, batch = small_data(), some_triples()
    settings = {"embedding_size": 6, "n_layers": 2, "rank": 3, "contrast_weight": 0.7, "weight_decay": 0.3}
    config = LightGCLConfig.create(
        {**settings, "candidates": candidates, "contrast_temperature": temperature}
    )
    model = LightGCL(data, config, Randomness(0))
    users, bundles = tables(model)
    user_layers, bundle_layers = dense_layers(interactions(data), users, bundles, 2)
    outputs = user_layers.sum(0), bundle_layers.sum(0)
    summary = dense_summary(data, 3)
    views = (
        users + sum(summary @ layer for layer in bundle_layers[:-1]),
        bundles + sum(summary.t() @ layer for layer in user_layers[:-1]),
    )
    met = np.concatenate([batch.positives, batch.negatives]).tolist()
    contrast = torch.zeros((), dtype=torch.float64)
    for side, nodes in enumerate((batch.users.tolist(), met)):
        others = list(range(len(outputs[side]))) if candidates == "all" else sorted(set(nodes))
        contrast = contrast + in_a_loop(views[side], outputs[side], nodes, others, temperature)
    own = torch.stack([views[0][u] @ outputs[0][u] for u in batch.users]) / temperature
    assert (own.abs() > 5).any() == (temperature == 0.05), "one of the cases should reach the limit"
    expected = {"bpr": mean_bpr(*outputs, batch), "contrast": 0.7 * contrast}
    assert_same(model, batch, expected, (users, bundles))
