"""BundleGT against its equations written out with dense matrices and loops over sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from light_oracle import normalised
from torch import Tensor
from worlds import small_data

from coheat.data.dataset import BundleData
from coheat.data.sampling import Triples
from coheat.models.base import Progress
from coheat.models.bundlegt import BundleGT, BundleGTConfig
from coheat.rng import Randomness

BATCH = Triples(np.array([0, 0, 1, 2, 0]), np.array([0, 1, 2, 1, 0]), np.array([5, 6, 0, 6, 3]))


def model_for(data: BundleData, **settings: Any) -> BundleGT:
    values = {"embedding_size": 4, "item_attention": 0.3, "bundle_attention": 0.6, **settings}
    model = BundleGT(data, BundleGTConfig(**values), Randomness(0))
    model.begin_epoch(Progress(1, 10))
    return model


def attention(matrix: Tensor, x: Tensor, form: Tensor, n_tokens: int) -> Tensor:
    """Row by row: everybody in a sequence asks everybody, and the answers are averaged."""
    found = []
    for row in matrix:
        tokens = x[torch.nonzero(row).flatten()[:n_tokens]]
        if not len(tokens):
            found.append(x.new_zeros(x.shape[1]))
            continue
        answers = [torch.softmax(torch.stack([s @ form @ t for t in tokens]), 0) @ tokens for s in tokens]
        found.append(torch.stack(answers).mean(0))
    return torch.stack(found)


def outputs(model: BundleGT, parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    data, config = model.data, model.config
    taken, owned, held = (
        torch.from_numpy(m.toarray()).double() for m in (data.user_bundle, data.user_item, data.bundle_item)
    )
    users, bundles, items = (parameters[name] for name in ("users", "bundles", "items"))
    layers = [(users, items)]
    for _ in range(config.n_item_layers):
        layers.append((normalised(owned) @ layers[-1][1], normalised(owned).T @ layers[-1][0]))
    plain_users, plain_items = sum(u for u, _ in layers), sum(i for _, i in layers)
    for layer in range(config.n_layers):
        from_takers, from_taken = normalised(taken).T @ users, normalised(taken) @ bundles
        from_items, from_bundles = normalised(held) @ items, normalised(held).T @ bundles
        items = plain_items + from_bundles
        of_items = attention(held, items, parameters["item_forms"][layer], config.item_tokens)
        bundles = from_takers + 0.3 * of_items + 0.7 * from_items
        of_bundles = attention(taken, bundles, parameters["bundle_forms"][layer], config.bundle_tokens)
        users = plain_users + 0.6 * of_bundles + 0.4 * from_taken
    return users, bundles


@pytest.mark.parametrize("tokens", [2, 20])
def test_loss_and_gradients_equal_the_dense_computation(tokens: int) -> None:
    sizes = {"item_tokens": tokens, "bundle_tokens": tokens}
    model = model_for(small_data(), n_layers=2, learn_attention=True, **sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that attention is far from a plain mean
    copies = {name: p.detach().double().requires_grad_() for name, p in model.named_parameters()}
    users, bundles = outputs(model, copies)
    scores = [(users[BATCH.users] * bundles[some]).sum(1) for some in (BATCH.positives, BATCH.negatives)]
    expected = -torch.log(torch.sigmoid(scores[0] - scores[1])).mean()
    (found,) = model.loss(BATCH).values()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    found.backward()  # type: ignore[no-untyped-call]
    expected.backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        gradient = copies[name].grad
        assert parameter.grad is not None
        assert gradient is not None
        assert torch.allclose(parameter.grad.double(), gradient, rtol=1e-3, atol=1e-4), name
    served = model.served().scores(np.arange(model.data.n_users))
    assert served == pytest.approx((users @ bundles.T).detach().numpy(), rel=1e-4, abs=1e-4)


def test_attention_stays_as_it_was_drawn_unless_it_is_to_be_learned() -> None:
    model = model_for(small_data())
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == {
        "item_forms",
        "bundle_forms",
    }


def test_a_cold_bundle_is_known_by_its_items() -> None:
    """Its own vector reaches its score only through the items it shares with others, as any bundle's does."""
    model = model_for(small_data(), n_layers=1)
    cold = int(np.flatnonzero(model.data.popularity == 0)[0])
    _, from_takers, from_items = model.outputs()
    assert not from_takers[cold].any()
    assert from_items[cold].any()
