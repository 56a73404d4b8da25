"""DAM against its equations, pair by pair; its two tasks take turns."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from worlds import small_data

from coheat.data.dataset import BundleData
from coheat.data.sampling import Triples
from coheat.models.base import Progress
from coheat.models.dam import DAM, DAMConfig, Task
from coheat.rng import Randomness


def model_for(data: BundleData, **settings: Any) -> DAM:
    values = {"embedding_size": 4, "hidden_dropout": 0.0, **settings}
    model = DAM(data, DAMConfig(**values), Randomness(0))
    model.begin_epoch(Progress(1, 10))
    with torch.no_grad():  # vectors begin near 0 and biases at it, where little could be told apart
        for number, parameter in enumerate(model.parameters()):
            parameter.normal_(generator=torch.Generator().manual_seed(number))
    return model


def network(model: DAM, user: Tensor, other: Tensor, head: int) -> Tensor:
    x = torch.cat([user, other])
    for layer in model.hidden:
        weight, bias = layer.parameters()
        x = torch.relu(weight @ x + bias)
    return x @ model.heads[:, head]


def bundle_score(model: DAM, user: int, other: int) -> Tensor:
    items = np.flatnonzero(model.data.bundle_item.toarray()[other])
    attention = torch.softmax(torch.stack([model.users[user] @ model.keys[i] for i in items]), 0)
    seen = sum(weight * model.items[i] for weight, i in zip(attention, items, strict=True))
    if model.data.popularity[other]:
        seen = seen + model.bundles[other]
    return network(model, model.users[user], seen, 0)


def item_score(model: DAM, user: int, other: int) -> Tensor:
    return network(model, model.users[user], model.items[other], 1)


def test_the_scorer_equals_the_equations() -> None:
    data = small_data()
    model = model_for(data)
    with torch.no_grad():
        expected = [
            [float(bundle_score(model, u, b)) for b in range(data.n_bundles)] for u in range(data.n_users)
        ]
    assert np.allclose(model.served().scores(np.arange(data.n_users)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("task", ["bundles", "items"])
def test_loss_and_gradients_equal_the_equations(task: Task) -> None:
    data = small_data()
    model = model_for(data)
    batch = Triples(np.array([0, 3, 0, 5]), np.array([1, 2, 0, 3]), np.array([4, 2, 6, 6]))
    name, score = {"bundles": ("bpr", bundle_score), "items": ("item_bpr", item_score)}[task]
    terms = model.loss(model.prepare((batch, task)))
    assert list(terms) == [name]
    differences = [
        score(model, int(u), int(p)) - score(model, int(u), int(n))
        for u, p, n in zip(batch.users, batch.positives, batch.negatives, strict=True)
    ]
    expected = -torch.log(torch.sigmoid(torch.stack(differences))).mean()
    assert terms[name].item() == pytest.approx(expected.item(), rel=1e-4)
    found, wanted = (
        torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
        for loss in (terms[name], expected)
    )
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4)


def test_the_tasks_take_turns() -> None:
    data = small_data()
    model = model_for(data)
    batches = list(model.batches(4))
    assert [batch.items is not None for batch in islice(batches, 4)] == [True, False, True, False]
    assert len(batches) == model.n_batches(4)
    alone = model_for(data, item_task=False)
    assert all(batch.items is not None for batch in alone.batches(4))
    assert len(list(alone.batches(4))) == alone.n_batches(4) == data.user_bundle.nnz // 4


def test_dropout_differs_from_batch_to_batch_and_not_from_run_to_run() -> None:
    data = small_data()
    losses = []
    for _ in range(2):
        model = model_for(data, hidden_dropout=0.5)
        batch = next(iter(model.batches(8)))
        losses.append([model.loss(batch)["bpr"].item() for _ in range(2)])
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][1]
