"""MultiCBR against its equations written out with dense matrices."""

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
from coheat.models.multicbr import MultiCBR, MultiCBRConfig
from coheat.rng import Randomness
from coheat.served import Served

QUIET = {"user_bundle_noise": 0.0, "user_item_noise": 0.0, "bundle_item_noise": 0.0}
LAYERS: dict[str, Any] = {
    "view_weights": (0.5, 0.3, 0.2),
    "user_bundle_layers": (0.7, 0.2, 0.1),
    "user_item_layers": (0.6, 0.4),
    "bundle_item_layers": (0.4, 0.3, 0.2, 0.1),
}


def model_for(data: BundleData, **settings: Any) -> MultiCBR:
    config = MultiCBRConfig(embedding_size=4, **{**QUIET, **LAYERS, **settings})
    model = MultiCBR(data, config, Randomness(0))
    model.begin_epoch(Progress(1, 10))
    return model


def unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x)


def view(matrix: Tensor, left: Tensor, right: Tensor, weights: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Both sides of one graph: layer 0 as it is, further layers scaled to length 1."""
    degrees = matrix.sum(1, keepdim=True) * matrix.sum(0, keepdim=True)
    adjacency = matrix / degrees.clamp(min=1).sqrt()
    sums = weights[0] * left, weights[0] * right
    for weight in weights[1:]:
        left, right = adjacency @ right, adjacency.T @ left
        sums = sums[0] + weight * unit(left), sums[1] + weight * unit(right)
    return sums


def means(matrix: Tensor, x: Tensor) -> Tensor:
    return (matrix @ x) / matrix.sum(1, keepdim=True).clamp(min=1)


def fused(data: BundleData, users: Tensor, bundles: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    taken, owned, held = (
        torch.from_numpy(m.toarray()).double() for m in (data.user_bundle, data.user_item, data.bundle_item)
    )
    u1, b1 = view(taken, users, bundles, LAYERS["user_bundle_layers"])
    u2, i2 = view(owned, users, items, LAYERS["user_item_layers"])
    b3, i3 = view(held, bundles, items, LAYERS["bundle_item_layers"])
    return (
        0.5 * u1 + 0.3 * u2 + 0.2 * means(owned, i3),
        0.5 * b1 + 0.3 * means(held, i2) + 0.2 * b3,
    )


def apart(x: Tensor, temperature: float) -> Tensor:
    """The contrast of each vector with all of them, itself as the counterpart."""
    cosines = unit(x) @ unit(x).T
    return torch.log(torch.exp((cosines - 1) / temperature).sum(1)).mean()


def copies(model: MultiCBR) -> list[Tensor]:
    return [p.detach().double().requires_grad_() for p in (model.users, model.bundles, model.items)]


def test_loss_and_gradients_equal_the_dense_computation() -> None:
    data = small_data()
    model = model_for(data, contrast_weight=0.7, contrast_temperature=0.5)
    batch = Triples(
        np.array([0, 0, 1, 2, 0]), np.array([0, 1, 2, 1, 0]), np.array([5, 6, 0, 6, 3])
    )  # users and bundles stand in it several times, and bundle 0 on both sides
    terms = model.loss(model.prepare(batch))
    tables = copies(model)
    users, bundles = fused(data, *tables)
    scores = [(users[batch.users] * bundles[some]).sum(1) for some in (batch.positives, batch.negatives)]
    expected = {
        "bpr": -torch.log(torch.sigmoid(scores[0] - scores[1])).mean(),
        "contrast": 0.7 * (apart(users[batch.users], 0.5) + apart(bundles[batch.positives], 0.5)) / 2,
    }
    assert terms.keys() == expected.keys()
    for name in terms:
        assert terms[name].item() == pytest.approx(expected[name].item(), abs=1e-5), name
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    torch.stack(list(expected.values())).sum().backward()  # type: ignore[no-untyped-call]
    for parameter, copy in zip((model.users, model.bundles, model.items), tables, strict=True):
        assert parameter.grad is not None
        assert copy.grad is not None
        assert torch.allclose(parameter.grad.double(), copy.grad, atol=1e-5)


def test_served_scores_are_those_of_the_fused_vectors() -> None:
    data = small_data()
    model = model_for(data, user_bundle_noise=0.5, user_item_noise=0.5, bundle_item_noise=0.5)
    users, bundles = fused(data, *copies(model))
    found = model.served().scores(np.arange(data.n_users))
    assert found == pytest.approx((users @ bundles.T).detach().numpy(), abs=1e-5)


def test_noise_is_in_every_view_of_training_and_drawn_anew() -> None:
    data, batch = small_data(), Triples(np.array([0, 1]), np.array([0, 2]), np.array([5, 0]))
    quiet = model_for(data)
    without = quiet.loss(quiet.prepare(batch))["bpr"].item()
    for name in QUIET:
        model = model_for(data, **{name: 0.3})
        prepared = model.prepare(batch)
        first, second = (model.loss(prepared)["bpr"].item() for _ in range(2))
        assert len({without, first, second}) == 3, name


def test_a_bundle_added_while_serving_has_the_mean_of_its_items() -> None:
    data = small_data()
    model = model_for(data)
    served = model.served()
    assert isinstance(served, Served)
    assert served.cannot_place is None
    items = data.bundle_item.indices[: data.bundle_item.indptr[1]].astype(np.int64)
    placed, known = served.place([items])[0], served.bundles.plain.base[0]
    assert placed[4:8] == pytest.approx(known[4:8], abs=1e-6)
    assert not placed[:4].any()
    assert not placed[8:].any()
