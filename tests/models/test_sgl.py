"""SGL against dense matrices: two damaged graphs, and every node against all others."""

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
from torch import Tensor

from coheat.graph.bipartite import Selection
from coheat.models.base import Progress
from coheat.models.sgl import SGL, SGLConfig
from coheat.rng import Randomness


def kept_edges(selection: Selection) -> Tensor:
    """The damaged graph as a dense matrix (n_users, n_bundles), from its users' side."""
    return torch.from_numpy((selection.left[1].dense() > 0).astype(np.float64))


def mean_output(taken: Tensor, users: Tensor, bundles: Tensor, n_layers: int) -> tuple[Tensor, Tensor]:
    user_layers, bundle_layers = dense_layers(taken, users, bundles, n_layers)
    return user_layers.mean(0), bundle_layers.mean(0)


def in_a_loop(
    first: Tensor, second: Tensor, nodes: list[int], others: list[int], temperature: float
) -> Tensor:
    """Mean over `nodes` of how little of the sum over `others` is their own."""

    def exponential(a: int, b: int) -> Tensor:
        return torch.exp(torch.cosine_similarity(first[a], second[b], dim=0) / temperature)

    terms = [-torch.log(exponential(n, n) / sum(exponential(n, other) for other in others)) for n in nodes]
    return torch.stack(terms).mean()


@pytest.mark.parametrize("candidates", ["all", "batch"])
def test_loss_and_gradients_equal_the_dense_computation(candidates: str) -> None:
    data, batch = small_data(), some_triples()
    settings = {
        "embedding_size": 6,
        "n_layers": 2,
        "dropout": 0.4,
        "contrast_weight": 0.7,
        "weight_decay": 0.3,
    }
    config = SGLConfig.create({**settings, "candidates": candidates, "contrast_temperature": 0.5})
    model = SGL(data, config, Randomness(0))
    model.begin_epoch(Progress(3, 10))
    users, bundles = tables(model)
    views = [mean_output(kept_edges(graph), users, bundles, 2) for graph in model.damaged]
    everybody = range(data.n_users), range(data.n_bundles)
    contrast = torch.zeros((), dtype=torch.float64)
    for side, nodes in enumerate((batch.users.tolist(), batch.positives.tolist())):
        others = list(everybody[side]) if candidates == "all" else sorted(set(nodes))
        contrast = contrast + in_a_loop(views[0][side], views[1][side], nodes, others, 0.5)
    expected = {
        "bpr": mean_bpr(*mean_output(interactions(data), users, bundles, 2), batch),
        "decay": 0.3 * mean_l2(users, bundles, batch),
        "contrast": 0.7 * contrast,
    }
    assert_same(model, batch, expected, (users, bundles))


def test_each_epoch_has_two_graphs_of_its_own_without_the_dropped_share() -> None:
    data = small_data(n_users=300, n_bundles=40)
    model = SGL(data, SGLConfig(dropout=0.3), Randomness(0))
    graphs = []
    for epoch in (1, 2, 1):
        model.begin_epoch(Progress(epoch, 10))
        for graph in model.damaged:
            from_users, from_bundles = graph.left[1].dense(), graph.right[1].dense()
            assert np.allclose(from_users, from_bundles.T), "an edge is dropped in one direction only"
            assert (from_users > 0).sum() / data.user_bundle.nnz == pytest.approx(0.7, abs=0.03)
            assert not (from_users[data.user_bundle.toarray() == 0]).any()
            graphs.append(from_users > 0)
    first, second, third, fourth, again, once_more = graphs
    assert len({graph.tobytes() for graph in (first, second, third, fourth)}) == 4
    assert np.array_equal(first, again)
    assert np.array_equal(second, once_more)
