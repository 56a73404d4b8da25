"""BGCN against its equations written out with dense matrices, and its hard negatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from worlds import small_data

from coheat.data.dataset import BundleData, relation
from coheat.data.sampling import draw_overlapping
from coheat.graph.weighted import closest_rows
from coheat.models.base import Progress
from coheat.models.bgcn import BGCN, BGCNConfig
from coheat.models.growing import GrowingLayers
from coheat.rng import Randomness


def model_for(data: BundleData, **settings: Any) -> BGCN:
    values = {"embedding_size": 4, "message_dropout": 0.0, "weight_decay": 0.01, **settings}
    model = BGCN(data, BGCNConfig(**values), Randomness(0))
    model.begin_epoch(Progress(1, 10))
    return model


def unit_rows(x: Tensor) -> Tensor:
    return torch.stack([row / row.norm() if row.norm() > 0 else row for row in x])


def representations(level: GrowingLayers, adjacency: Tensor, x: Tensor) -> Tensor:
    """The layers of one level on a dense graph."""
    degrees = adjacency.sum(1)
    normalised = adjacency / torch.sqrt(degrees[:, None] * degrees[None, :])
    found = [x]
    for transform in level.transforms:
        weight, bias = (parameter.detach().double() for parameter in transform.parameters())
        message = (normalised @ x) @ weight.T + bias
        x = torch.cat([torch.where(message > 0, message, 0.01 * message), x], 1)
        found.append(unit_rows(x))
    return torch.cat(found, 1)


def dense_representations(model: BGCN) -> tuple[Tensor, Tensor]:
    """Users and bundles, both levels side by side, from the definitions."""
    data = model.data
    taken, owned, held = (
        torch.from_numpy(m.toarray()).double() for m in (data.user_bundle, data.user_item, data.bundle_item)
    )
    cosines = unit_rows(held) @ unit_rows(held).T
    own = torch.eye(data.n_users, dtype=torch.float64)
    item_graph = torch.cat(
        [torch.cat([own, owned], 1), torch.cat([owned.T, torch.eye(data.n_items).double()], 1)]
    )
    bundle_graph = torch.cat([torch.cat([own, taken], 1), torch.cat([taken.T, cosines], 1)])
    users, bundles, items = (p.detach().double() for p in (model.users, model.bundles, model.items))
    by_items = representations(model.item_level, item_graph, torch.cat([users, items]))
    by_bundles = representations(model.bundle_level, bundle_graph, torch.cat([users, bundles]))
    pooled = unit_rows(held @ by_items[data.n_users :] / held.sum(1, keepdim=True))
    return (
        torch.cat([by_items[: data.n_users], by_bundles[: data.n_users]], 1),
        torch.cat([pooled, by_bundles[data.n_users :]], 1),
    )


@pytest.mark.parametrize("n_layers", [1, 2])
def test_scores_and_loss_equal_the_dense_computation(n_layers: int) -> None:
    data = small_data()
    model = model_for(data, n_layers=n_layers)
    with torch.no_grad():  # biases begin at 0, where a wrong one would not be seen
        for level in (model.item_level, model.bundle_level):
            for transform in level.transforms:
                assert isinstance(transform, torch.nn.Linear)
                transform.bias.normal_(generator=torch.Generator().manual_seed(1))
    users, bundles = dense_representations(model)
    scores = users @ bundles.T
    assert np.allclose(model.served().scores(np.arange(data.n_users)), scores.numpy(), atol=1e-5)

    batch = next(model.drawn(2048))
    losses, squares = [], []
    for u, p, n in zip(batch.users, batch.positives, batch.negatives, strict=True):
        losses.append(-torch.log(torch.sigmoid(scores[int(u), int(p)] - scores[int(u), int(n)])))
        squares.append(users[u].square().sum() + bundles[p].square().sum() + bundles[n].square().sum())
    terms = model.loss(model.prepare(batch))
    assert terms["bpr"].item() == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5)
    assert terms["decay"].item() == pytest.approx(0.01 * torch.stack(squares).mean().item(), rel=1e-5)


def test_a_batch_computes_the_same_as_everything() -> None:
    """The rows a batch asks for are those of the whole computation, and so are the gradients."""
    data = small_data(3)
    model = model_for(data)
    users, bundles = np.array([4, 1]), np.array([5, 0, 2])
    gradients = []
    for part in (True, False):
        model.zero_grad()
        needed = (users, bundles) if part else (np.arange(data.n_users), np.arange(data.n_bundles))
        found = model.represent(model.needed(*needed), 0.0)
        chosen = found if part else (found[0][users], found[1][bundles])
        (chosen[0] @ chosen[1].T).square().sum().backward()  # type: ignore[no-untyped-call]
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert other is not None
        assert torch.allclose(one, other, atol=1e-5)


def test_a_bundle_is_joined_with_its_closest_ones() -> None:
    data = small_data(n_bundles=9)
    held = data.bundle_item.toarray()
    cosines = held @ held.T / np.sqrt(np.outer(held.sum(1), held.sum(1)))
    kept = closest_rows(data.bundle_item, 3, block=2).toarray()
    for b in range(9):
        smallest_kept = np.sort(cosines[b])[-3]
        assert np.allclose(
            kept[b, cosines[b] > smallest_kept + 1e-6], cosines[b, cosines[b] > smallest_kept + 1e-6]
        )
    assert np.allclose(kept, kept.T)
    assert np.allclose(kept[kept > 0], cosines[kept > 0])
    assert (np.count_nonzero(kept, axis=1) >= 3).all()
    assert np.count_nonzero(kept) < np.count_nonzero(cosines)


def test_dropout_differs_from_batch_to_batch_and_not_from_run_to_run() -> None:
    data = small_data()
    losses = []
    for _ in range(2):
        model = model_for(data, message_dropout=0.5)
        batch = model.prepare(next(model.drawn(2048)))
        losses.append([model.loss(batch)["bpr"].item() for _ in range(2)])
    assert losses[0] == losses[1]
    assert losses[0][0] != losses[0][1]


def test_overlapping_bundles_are_drawn_from_those_that_share_most() -> None:
    """Ten bundles share 1 .. 10 of the set's items and one none: the three that share most are drawn."""
    rows = np.repeat(np.arange(11), np.arange(11))
    columns = np.concatenate([np.arange(size) for size in range(11)])
    bundle_item = relation(rows, columns, (11, 12))
    sets = relation([0] * 10, range(10), (2, 12))  # the second set is empty
    rng, found = np.random.default_rng(0), set()
    for _ in range(60):
        drawn = draw_overlapping(sets, bundle_item, 0.3, np.array([0, 7]), rng)
        found.add(int(drawn[0]))
        assert drawn[1] == 7
    assert found == {8, 9, 10}


def test_hard_negatives_come_in_the_last_epochs_and_are_never_positives() -> None:
    data = small_data(n_users=40, n_bundles=30, n_items=40)
    model = model_for(data, hard_share=0.5)
    plain = model_for(data)
    for epoch, same in ((5, True), (6, False)):
        negatives = []
        for one in (model, plain):
            one.begin_epoch(Progress(epoch, 10))
            batch = next(one.drawn(2048))
            negatives.append(batch.negatives)
            assert not data.user_bundle.toarray()[batch.users, batch.negatives].any()
        assert np.array_equal(negatives[0], negatives[1]) is same
