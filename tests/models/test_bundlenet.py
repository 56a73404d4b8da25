"""BundleNet against its equation written out node by node; it hides the batch's own edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from worlds import small_data

from coheat.data.dataset import BundleData
from coheat.data.sampling import Triples
from coheat.models.base import Progress
from coheat.models.bundlenet import BUNDLES, ITEMS, USERS, BundleNet, BundleNetConfig, RelationalLayer
from coheat.rng import Randomness


def model_for(data: BundleData, **settings: Any) -> BundleNet:
    model = BundleNet(data, BundleNetConfig(**{"embedding_size": 4, "n_bases": 3, **settings}), Randomness(0))
    model.begin_epoch(Progress(1, 10))
    return model


def neighbours(data: BundleData, hidden: set[tuple[int, int]]) -> dict[tuple[int, int], np.ndarray]:
    """Dense 0/1 matrices of the six relations, without the hidden user-bundle pairs."""
    taken = data.user_bundle.toarray().copy()
    for user, bundle in hidden:
        taken[user, bundle] = 0
    found = {
        (USERS, BUNDLES): taken,
        (USERS, ITEMS): data.user_item.toarray(),
        (BUNDLES, ITEMS): data.bundle_item.toarray(),
    }
    return found | {(other, one): matrix.T for (one, other), matrix in found.items()}


def slow_layer(
    layer: RelationalLayer, nodes: list[Tensor], relations: dict[tuple[int, int], np.ndarray]
) -> list[Tensor]:
    outputs = []
    for kind, x in enumerate(nodes):
        rows = []
        for node in range(len(x)):
            total = x[node] @ layer.own + layer.bias
            for r, (target, source) in enumerate(layer.relations):
                if target != kind:
                    continue
                near = np.flatnonzero(relations[target, source][node])
                if len(near):
                    width = x.shape[1]
                    matrix = sum(
                        layer.mixtures[r, m] * layer.bases[m].view(width, width)
                        for m in range(len(layer.bases))
                    )
                    total = total + torch.stack([nodes[source][n] for n in near]).mean(0) @ matrix
            rows.append(torch.where(total > 0, total, 0.01 * total))
        outputs.append(torch.stack(rows))
    return outputs


def slow_outputs(model: BundleNet, hidden: set[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    relations = neighbours(model.data, hidden)
    warm = torch.from_numpy(model.data.popularity > 0)[:, None]
    nodes = [model.users.detach(), torch.where(warm, model.bundles.detach(), 0.0), model.items.detach()]
    with torch.no_grad():
        for layer in model.layers:
            assert isinstance(layer, RelationalLayer)
            nodes = slow_layer(layer, nodes, relations)
    return nodes[USERS], nodes[BUNDLES]


@pytest.mark.parametrize("n_layers", [1, 2])
def test_scores_equal_the_messages_node_by_node(n_layers: int) -> None:
    model = model_for(small_data(), n_layers=n_layers)
    users, bundles = slow_outputs(model, set())
    scores = model.served().scores(np.arange(model.data.n_users))
    assert np.allclose(scores, (users @ bundles.T).numpy(), atol=1e-5)


def test_the_batch_is_hidden_from_the_graph_and_from_nothing_else() -> None:
    data = small_data()
    model = model_for(data)
    rows, columns = data.user_bundle.nonzero()
    batch = Triples(
        rows[::2].astype(np.int64), columns[::2].astype(np.int64), np.zeros_like(rows[::2], np.int64)
    )
    users, bundles = slow_outputs(model, set(zip(rows[::2].tolist(), columns[::2].tolist(), strict=True)))
    found = model.outputs(model.prepare(batch)[1])
    assert torch.allclose(found[0], users, atol=1e-5)
    assert torch.allclose(found[1], bundles, atol=1e-5)

    scores = users @ bundles.T
    wanted = torch.stack(
        [
            scores[u, n] - scores[u, p]
            for u, p, n in zip(batch.users, batch.positives, batch.negatives, strict=True)
        ]
    )
    loss = model.loss(model.prepare(batch))["bpr"].item()
    assert loss == pytest.approx(torch.log1p(wanted.exp()).mean().item(), abs=1e-5)

    open_model = model_for(data, hide_batch=False)
    everything = slow_outputs(open_model, set())
    assert torch.allclose(open_model.outputs(open_model.prepare(batch)[1])[0], everything[0], atol=1e-5)
    assert not torch.allclose(everything[0], users, atol=1e-5)


def test_a_cold_bundles_own_vector_is_not_used() -> None:
    data = small_data()
    model = model_for(data)
    cold = data.popularity == 0
    before = model.served().scores(np.arange(data.n_users))
    with torch.no_grad():
        model.bundles[torch.from_numpy(cold)] += 1
    assert np.array_equal(model.served().scores(np.arange(data.n_users)), before)
    assert np.ptp(before[:, cold], axis=0).min() > 0  # known by its items, so people differ
