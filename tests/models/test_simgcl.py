"""SimGCL against dense matrices, with the noise it drew; isolated nodes score 0."""

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

from coheat.models.base import Progress
from coheat.models.simgcl import SimGCL, SimGCLConfig
from coheat.rng import Randomness

SETTINGS = SimGCLConfig(
    embedding_size=6, n_layers=2, noise=0.2, contrast_weight=0.7, weight_decay=0.3, contrast_temperature=0.5
)


def perturbed(
    adjacency: Tensor, users: Tensor, bundles: Tensor, drawn: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """The mean of two layers, each moved by the noise in `drawn`: users and bundles by turns."""
    found: list[tuple[Tensor, Tensor]] = []
    for layer in range(2):
        users, bundles = adjacency @ bundles, adjacency.t() @ users
        noise = [0.2 * n / n.norm(dim=1, keepdim=True) for n in drawn[2 * layer : 2 * layer + 2]]
        users, bundles = users + users.sign() * noise[0], bundles + bundles.sign() * noise[1]
        found.append((users, bundles))
    return (found[0][0] + found[1][0]) / 2, (found[0][1] + found[1][1]) / 2


def in_a_loop(first: Tensor, second: Tensor, nodes: list[int]) -> Tensor:
    def exponential(a: int, b: int) -> Tensor:
        return torch.exp(torch.cosine_similarity(first[a], second[b], dim=0) / 0.5)

    return torch.stack(
        [-torch.log(exponential(n, n) / sum(exponential(n, other) for other in nodes)) for n in nodes]
    ).mean()


def test_loss_and_gradients_equal_the_dense_computation() -> None:
    data, batch = small_data(), some_triples()
    model = SimGCL(data, SETTINGS, Randomness(0))
    model.begin_epoch(Progress(3, 10))
    rng = model.rng.generator("noise", 3)
    sizes = [data.n_users, data.n_bundles] * 4
    drawn = [torch.from_numpy(rng.random((size, 6), dtype=np.float32)).double() for size in sizes]
    users, bundles = tables(model)
    adjacency = normalised(interactions(data))
    views = [perturbed(adjacency, users, bundles, drawn[:4]), perturbed(adjacency, users, bundles, drawn[4:])]
    contrast = sum(
        in_a_loop(views[0][side], views[1][side], sorted(set(nodes.tolist())))
        for side, nodes in enumerate((batch.users, batch.positives))
    )
    user_layers, bundle_layers = dense_layers(interactions(data), users, bundles, 2)
    outputs = user_layers[1:].mean(0), bundle_layers[1:].mean(0)
    lengths = outputs[0][batch.users].norm() + outputs[1][batch.positives].norm()
    expected = {
        "bpr": mean_bpr(*outputs, batch),
        "contrast": 0.7 * contrast,
        "decay": 0.3 * lengths / len(batch),
    }
    assert_same(model, batch, expected, (users, bundles))


def test_an_isolated_bundle_scores_exactly_0_for_everybody() -> None:
    data = small_data()
    scores = SimGCL(data, SETTINGS, Randomness(0)).served().scores(np.arange(data.n_users))
    assert (scores[:, -1] == 0).all()
    assert (scores[-1] == 0).all(), "a user who took nothing has no vector either"
    assert (scores[:-1, :-1] != 0).all()


def test_noise_has_its_length_and_stays_in_the_orthant() -> None:
    model = SimGCL(small_data(), SETTINGS, Randomness(0))
    model.begin_epoch(Progress(1, 10))
    layer = torch.randn(50, 6)
    layer[7] = 0
    moved = model.perturb(layer)
    steps = (moved - layer).norm(dim=1)
    assert steps[7] == 0
    assert torch.cat([steps[:7], steps[8:]]).numpy() == pytest.approx(0.2, rel=1e-4)
    assert torch.equal(moved.sign(), layer.sign())
    assert (moved.abs() >= layer.abs()).all()
    assert not torch.equal(moved, model.perturb(layer)), "every pass has noise of its own"
