from __future__ import annotations

import numpy as np
import pytest
import torch

from coheat.data.dataset import BundleData
from coheat.models.content import ContentBag
from coheat.rng import Randomness
from coheat.testing import small_data


@pytest.fixture
def shop() -> BundleData:
    """Bundles of three items, of one, and of none."""
    return small_data(
        user_bundle=[("u", "three"), ("u", "none")],
        user_item=[("u", "a")],
        bundle_item=[("three", "a"), ("three", "b"), ("three", "c"), ("one", "c")],
    )


def bag(data: BundleData, size_exponent: float = 0.5, bias: bool = True) -> ContentBag:
    made = ContentBag(data, 4, Randomness(0).torch_generator("content"), size_exponent, bias)
    if made.bias is not None:
        torch.nn.init.normal_(made.bias, generator=Randomness(1).torch_generator("bias"))
    return made


def slowly(made: ContentBag, data: BundleData, size_exponent: float) -> torch.Tensor:
    """phi of all bundles as the equation reads, differentiable in the bag's parameters."""
    rows = []
    for items in data.bundle_item.toarray():
        total = sum((made.items[i] for i in np.flatnonzero(items)), torch.zeros(4))
        row = total / max(items.sum(), 1) ** size_exponent
        rows.append(row if made.bias is None else row + made.bias)
    return torch.stack(rows)


@pytest.mark.parametrize("size_exponent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("bias", [True, False])
def test_bag_is_the_scaled_sum_of_its_items(shop: BundleData, size_exponent: float, bias: bool) -> None:
    made = bag(shop, size_exponent, bias)
    expected = slowly(made, shop, size_exponent)
    torch.testing.assert_close(made(), expected)
    some = np.array([2, 0, 0, 1])
    torch.testing.assert_close(made(some), expected[torch.from_numpy(some)])


def test_half_is_the_product_with_rows_of_length_one(shop: BundleData) -> None:
    made = bag(shop, 0.5, bias=False)
    rows = torch.nn.functional.normalize(torch.from_numpy(shop.bundle_item.toarray()))
    torch.testing.assert_close(made(), rows @ made.items)


def test_gradients_are_those_of_the_equation(shop: BundleData) -> None:
    weights = torch.randn(3, 4, generator=Randomness(2).torch_generator("weights"))
    found = []
    for compute in (lambda made: made(np.array([0, 1, 2])), lambda made: slowly(made, shop, 0.5)):
        made = bag(shop)
        (compute(made) * weights).sum().backward()
        assert made.bias is not None
        found.append((made.items.grad, made.bias.grad))
    torch.testing.assert_close(found[0], found[1])
