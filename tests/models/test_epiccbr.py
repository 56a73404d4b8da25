"""EpicCBR: its branches against dense matrices, its weights of items and relations against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_multicbr import means, unit
from torch import Tensor
from worlds import small_data

from coheat.data.dataset import BundleData
from coheat.data.sampling import Triples
from coheat.models.base import Progress
from coheat.models.epiccbr import ENOUGH, EpicCBR, EpicCBRConfig, enriched, item_weights, related_items
from coheat.rng import Randomness

BATCH = Triples(np.array([0, 0, 1, 2, 0]), np.array([0, 1, 2, 1, 0]), np.array([5, 6, 0, 6, 3]))
NOBODY = np.array([], dtype=np.int64), np.array([], dtype=np.int64)


def model_for(data: BundleData, **settings: Any) -> EpicCBR:
    quiet = {"user_bundle_noise": 0.0, "user_item_noise": 0.0, "bundle_item_noise": 0.0}
    values = {**quiet, "embedding_size": 4, "contrast_weight": 0.7, "contrast_temperature": 0.5, **settings}
    model = EpicCBR(data, EpicCBRConfig(**values), Randomness(0))
    model.begin_epoch(Progress(1, 10))
    return model


def view(matrix: Tensor, left: Tensor, right: Tensor, weights: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """As MultiCBR's, with the sums of weights for degrees."""
    degrees = matrix.sum(1, keepdim=True) * matrix.sum(0, keepdim=True)
    adjacency = matrix / torch.where(degrees > 0, degrees, 1).sqrt()
    sums = weights[0] * left, weights[0] * right
    for weight in weights[1:]:
        left, right = adjacency @ right, adjacency.T @ left
        sums = sums[0] + weight * unit(left), sums[1] + weight * unit(right)
    return sums


def weighed_means(matrix: Tensor, x: Tensor) -> Tensor:
    sums = matrix.sum(1, keepdim=True)
    return (matrix @ x) / torch.where(sums > 0, sums, 1)


def branches(model: EpicCBR) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Users and bundles of the warm and of the cold branch, from the definitions."""
    data, config = model.data, model.config
    taken, owned, held = (
        torch.from_numpy(m.toarray()).double() for m in (data.user_bundle, data.user_item, data.bundle_item)
    )
    held = held * torch.from_numpy(item_weights(data)).double()
    dense = torch.from_numpy(
        enriched(data.user_item, model.related, config.relation_strength).toarray()
    ).double()
    users, bundles, items, own_users, own_items = (
        p.detach().double()
        for p in (model.users, model.bundles, model.items, model.cold_users, model.cold_items)
    )
    u1, b1 = view(taken, users, bundles, config.user_bundle_layers)
    u2, i2 = view(owned, users, items, config.user_item_layers)
    b3, i3 = view(held, bundles, items, config.bundle_item_layers)
    first, second, third = config.view_weights
    warm = (
        first * u1 + second * u2 + third * means(owned, i3),
        first * b1 + second * weighed_means(held, i2) + third * b3,
    )
    cold_u1, cold_i1 = view(dense, own_users, own_items, config.user_item_layers)
    pooled = weighed_means(held, cold_i1)
    cold_b2, cold_i2 = view(held, pooled, own_items, config.bundle_item_layers)
    one, other = config.cold_view_weights
    cold = (one * cold_u1 + other * weighed_means(dense, cold_i2), one * pooled + other * cold_b2)
    return warm, cold


def nce(x: Tensor, y: Tensor) -> Tensor:
    logits = unit(x) @ unit(y).T / 0.5
    return (torch.logsumexp(logits, 1) - logits.diagonal()).mean()


@pytest.mark.parametrize("n_relations", [0, 3])
def test_the_loss_equals_the_dense_computation(n_relations: int) -> None:
    model = model_for(small_data(), n_relations=n_relations, warm_branch_share=0.6, branch_weight=0.3)
    rows, needed, cold_needed, _ = model.prepare((BATCH, NOBODY))
    pairs = np.array([1, 4, 2]), np.array([3, 5, 7])
    warm, cold = branches(model)
    users, bundles = (torch.cat([0.6 * warm[side], 0.4 * cold[side]], 1) for side in range(2))
    scores = [(users[BATCH.users] * bundles[some]).sum(1) for some in (BATCH.positives, BATCH.negatives)]
    drawn = [(x[BATCH.users], y[BATCH.positives]) for x, y in (warm, cold, (users, bundles))]
    apart = sum(nce(x, x) for x in drawn[2])
    together = sum(nce(x, y) for x, y in zip(drawn[0], drawn[1], strict=True))
    items = model.cold_items.detach().double()
    related = nce(items[pairs[0]], items[pairs[1]])
    expected = {
        "bpr": -torch.log(torch.sigmoid(scores[0] - scores[1])).mean(),
        "contrast": 0.7 * (apart + related / 2) / 3,
        "branches": 0.7 * 0.3 * together,
    }
    found = model.loss((rows, needed, cold_needed, pairs))
    assert found.keys() == expected.keys()
    for name, term in expected.items():
        assert found[name].item() == pytest.approx(float(term), abs=1e-5), name
    without = model.loss((rows, needed, cold_needed, NOBODY))["contrast"].item()
    assert without == pytest.approx(0.7 * float(apart) / 2, abs=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_served_scores_weigh_the_branches(share: float) -> None:
    model = model_for(small_data(), warm_branch_share=share, branch_weight=0.0, user_item_noise=0.4)
    warm, cold = branches(model)
    expected = share**2 * warm[0] @ warm[1].T + (1 - share) ** 2 * cold[0] @ cold[1].T
    served = model.served()
    assert served.scores(np.arange(model.data.n_users)) == pytest.approx(expected.numpy(), abs=1e-5)
    assert served.cannot_place is not None


@pytest.mark.parametrize(
    ("share", "idle"), [(1.0, {"cold_users", "cold_items"}), (0.0, {"users", "bundles", "items"})]
)
def test_a_branch_without_a_share_is_left_out(share: float, idle: set[str]) -> None:
    model = model_for(small_data(), warm_branch_share=share, branch_weight=0.0)
    terms = model.loss(next(iter(model.batches(8))))
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    assert {name for name, p in model.named_parameters() if p.grad is None} == idle


def test_the_cold_branch_knows_a_bundle_by_its_items_alone() -> None:
    model = model_for(small_data(), warm_branch_share=0.0, branch_weight=0.0)
    everybody, everything = np.arange(model.data.n_users), np.arange(model.data.n_bundles)
    before = model.served().scores(everybody)
    with torch.no_grad():
        model.bundles.add_(1.0)
    assert np.array_equal(before, model.served().scores(everybody))
    assert len(everything) == before.shape[1]


def test_weights_of_items_rise_to_1_and_then_slowly_to_2() -> None:
    data = small_data()
    found = item_weights(data)
    heard = []
    for item in range(data.n_items):
        bundles = np.flatnonzero(data.bundle_item.toarray()[:, item])
        brought = sum(min(data.popularity[b] / ENOUGH, 1) for b in bundles)
        heard.append(data.user_item.toarray()[:, item].sum() + brought)
    most = max(heard)
    expected = [h if h <= 1 else 1 + (h - 1) / max(most - 1, 1) for h in heard]
    assert found == pytest.approx(expected, abs=1e-6)
    assert found.max() == pytest.approx(2.0)
    assert (found[:1] < 1).all(), "an item that nobody has counts by its bundles"


@pytest.mark.parametrize("block", [3, 100])
def test_related_items_share_users_more_than_bundles(block: int) -> None:
    data, threshold, n_relations = small_data(n_users=30, seed=2), 0.15, 2
    found = related_items(data, threshold, n_relations, block).toarray()

    def in_common(matrix: np.ndarray[Any, Any], i: int, j: int) -> float:
        one, other = set(np.flatnonzero(matrix[:, i])), set(np.flatnonzero(matrix[:, j]))
        return len(one & other) / max(len(one | other), 1)

    users, bundles = data.user_item.toarray(), data.bundle_item.toarray()
    expected = np.zeros_like(found)
    for i in range(data.n_items):
        shares = {
            j: in_common(users, i, j)
            for j in range(data.n_items)
            if j != i
            and in_common(users, i, j) >= threshold
            and in_common(users, i, j) > in_common(bundles, i, j)
        }
        for j in sorted(shares, key=lambda j: (-shares[j], j))[:n_relations]:
            expected[i, j] = 1
    assert expected.any()
    assert (expected.sum(1) == n_relations).any()
    assert np.array_equal(found, expected)


def test_what_users_have_is_enriched_by_what_is_related_to_it() -> None:
    data = small_data(n_users=30, seed=2)
    related = related_items(data, 0.15, 2)
    owned = data.user_item.toarray()
    expected = owned + 0.2 * ((owned @ related.toarray()) > 0)
    assert enriched(data.user_item, related, 0.2).toarray() == pytest.approx(expected)
    assert enriched(data.user_item, related, 0.0) is data.user_item
