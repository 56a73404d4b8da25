"""CrossCBR against its equations, and what is served of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from coheat_oracle import two_views, unit
from served_vectors import vectors_of
from torch import Tensor
from worlds import small_data

from coheat.data.dataset import BundleData
from coheat.data.sampling import Triples
from coheat.models.base import Progress
from coheat.models.crosscbr import CrossCBR, CrossCBRConfig
from coheat.models.two_views import Masks
from coheat.rng import Randomness


def model_for(data: BundleData, **settings: Any) -> CrossCBR:
    model = CrossCBR(data, CrossCBRConfig(**{"embedding_size": 8, **settings}), Randomness(0))
    model.begin_epoch(Progress(3, 10))
    return model


def contrast(anchors: list[Tensor], candidates: list[Tensor], temperature: float) -> Tensor:
    """Every entry of the batch against every entry, repeated ones included."""
    losses = []
    for own, anchor in enumerate(anchors):
        closeness = torch.stack([unit(anchor) @ unit(other) / temperature for other in candidates])
        losses.append(-torch.log(torch.exp(closeness[own]) / torch.exp(closeness).sum()))
    return torch.stack(losses).mean()


def oracle_loss(
    data: BundleData, config: CrossCBRConfig, tables: dict[str, Tensor], batch: Triples, masks: Masks
) -> dict[str, Tensor]:
    (h_users, h_bundles), (a_users, a_bundles) = two_views(data, config, tables, masks)
    scores = h_users @ h_bundles.T + a_users @ a_bundles.T
    ranking = [
        -torch.log(torch.sigmoid(scores[int(u), int(p)] - scores[int(u), int(n)]))
        for u, p, n in zip(batch.users, batch.positives, batch.negatives, strict=True)
    ]
    users = [a_users[u] for u in batch.users], [h_users[u] for u in batch.users]
    bundles = [a_bundles[b] for b in batch.positives], [h_bundles[b] for b in batch.positives]
    both = (
        contrast(*users, config.contrast_temperature) + contrast(*bundles, config.contrast_temperature)
    ) / 2
    return {"bpr": torch.stack(ranking).mean(), "contrast": config.contrast_weight * both}


@pytest.mark.parametrize("settings", [{}, {"n_layers": 2, "contrast_temperature": 0.5}], ids=str)
def test_loss_and_gradients_equal_the_oracle(settings: dict[str, Any]) -> None:
    data = small_data()
    model = model_for(data, **settings)
    batch, masks = next(model.drawn(2048))
    terms = model.loss(model.prepare((batch, masks)))
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]

    tables = {name: p.detach().double().requires_grad_() for name, p in model.named_parameters()}
    expected = oracle_loss(data, model.config, tables, batch, masks)
    torch.stack(list(expected.values())).sum().backward()  # type: ignore[no-untyped-call]

    assert terms.keys() == expected.keys()
    for name in terms:
        assert terms[name].item() == pytest.approx(expected[name].item(), abs=1e-5)
    for name, parameter in model.named_parameters():
        got, wanted = parameter.grad, tables[name].grad
        assert got is not None
        assert wanted is not None
        assert torch.allclose(got.double(), wanted, atol=1e-5), name


def test_edges_are_dropped_once_an_epoch() -> None:
    model = model_for(small_data(n_users=60, n_items=60))
    first, second = model.batch_masks(), model.batch_masks()
    assert np.array_equal(first.affiliation_users, second.affiliation_users)
    model.begin_epoch(Progress(4, 10))
    assert not np.array_equal(first.affiliation_users, model.batch_masks().affiliation_users)


def test_what_is_served_is_half_the_sum_of_the_views_on_whole_graphs() -> None:
    data = small_data()
    model = model_for(data)
    everything = Masks(
        *(
            np.ones(matrix.nnz, dtype=np.uint8)
            for matrix in (
                data.user_bundle,
                data.user_bundle,
                data.user_item,
                data.user_item,
                data.bundle_item,
            )
        )
    )
    tables = {name: p.detach().double() for name, p in model.named_parameters()}
    (h_users, h_bundles), (a_users, a_bundles) = two_views(data, model.config, tables, everything)
    expected = (h_users @ h_bundles.T + a_users @ a_bundles.T) / 2
    scores = model.served().scores(np.arange(data.n_users))
    assert np.allclose(scores, expected.numpy(), atol=1e-5)


def test_a_cold_bundle_keeps_its_own_vector_and_a_new_one_has_items_alone() -> None:
    data = small_data()
    model = model_for(data)
    vectors, half = vectors_of(model), model.config.embedding_size
    cold = int(np.flatnonzero(data.popularity == 0)[-1])
    new = vectors.new_bundles(data.bundle_item[[cold]])[0]
    assert torch.allclose(vectors.bundles[cold, :half], model.bundles[cold] / 2)
    assert bool((new[:half] == 0).all())
    assert torch.allclose(new[half:], vectors.bundles[cold, half:], atol=1e-6)
