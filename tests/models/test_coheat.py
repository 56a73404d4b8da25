"""CoHeat against its equations: the oracle, the lemmas, the temperature, the ablations."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from coheat_oracle import oracle_loss
from hypothesis import given
from hypothesis import strategies as st
from served_vectors import vectors_of
from worlds import small_data

from coheat.data.dataset import BundleData
from coheat.models.base import Progress
from coheat.models.coheat import CoHeat, CoHeatConfig
from coheat.rng import Randomness


def model_for(data: BundleData, seed: int = 0, **settings: Any) -> CoHeat:
    return CoHeat(data, CoHeatConfig(**{"embedding_size": 8, **settings}), Randomness(seed))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"n_layers": 2},
    {"n_layers": 3, "normalise_layers": False},
    {"share_users": False},
    {"average_contrast": False, "contrast_weight": 0.7},
    {"weight_decay_as": "loss", "weight_decay": 0.01},
    {"dropout_directions": "shared"},
    {"dropout_degrees": "before", "n_layers": 2},
    {"coalescence": "constant"},
    {"contrast_weight": 0.0},
    {"user_item_dropout": 0.0, "user_bundle_dropout": 0.0, "bundle_item_dropout": 0.0},
]


@pytest.mark.parametrize("settings", OPTIONS, ids=lambda s: ",".join(s) or "published")
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_gradients_equal_the_oracle(settings: dict[str, Any], seed: int) -> None:
    data = small_data(seed)
    model = model_for(data, seed, **settings)
    model.begin_epoch(Progress(40, 100))
    batch, masks = next(model.drawn(2048))
    terms = model.loss(model.prepare((batch, masks)))
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]

    parameters = {"users": model.users, "bundles": model.bundles, "items": model.items}
    if model.affiliation_user_table is not None:
        parameters["item_users"] = model.affiliation_user_table
    tables = {name: p.detach().double().requires_grad_() for name, p in parameters.items()}
    expected = oracle_loss(data, model.config, tables, float(model.temperature), batch, masks)
    torch.stack(list(expected.values())).sum().backward()  # type: ignore[no-untyped-call]

    assert terms.keys() == expected.keys()
    for name in terms:
        assert terms[name].item() == pytest.approx(expected[name].item(), abs=1e-5)
    for name, parameter in parameters.items():
        got, wanted = parameter.grad, tables[name].grad
        assert got is not None
        assert wanted is not None
        assert torch.allclose(got.double(), wanted, atol=1e-5), name


def test_torch_operations_equal_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path for other devices, run on the CPU: same loss, same gradients."""
    from coheat.graph import bipartite

    data = small_data()
    model = model_for(data, n_layers=2)
    model.begin_epoch(Progress(40, 100))
    batch = model.prepare(next(model.drawn(2048)))
    results: list[list[torch.Tensor | None]] = []
    for forced in (False, True):
        if forced:
            monkeypatch.setattr(bipartite, "by_kernels", lambda x: False)
        model.zero_grad()
        terms = model.loss(batch)
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        results.append([*(t.detach() for t in terms.values()), *(p.grad for p in model.parameters())])
    for kernel, plain in zip(*results, strict=True):
        assert kernel is not None
        assert plain is not None
        assert torch.allclose(kernel, plain, atol=1e-6)


def test_temperature_starts_at_one_and_ends_at_its_maximum() -> None:
    model = model_for(small_data(), max_temperature=1e4)
    assert model.temperature_at(Progress(0, 100)) == 1.0
    assert model.temperature_at(Progress(100, 100)) == pytest.approx(1e4)
    assert model.temperature_at(Progress(50, 100)) == pytest.approx(1e2)
    rising = [model.temperature_at(Progress(t, 100)) for t in range(101)]
    assert all(a < b for a, b in pairwise(rising))


def test_curricula_of_the_ablations() -> None:
    data = small_data()
    anti, fixed = model_for(data, curriculum="anti"), model_for(data, curriculum="fixed")
    from_zero = model_for(data, first_epoch=0)
    assert anti.temperature_at(Progress(100, 100)) == 1.0
    assert anti.temperature_at(Progress(25, 100)) == pytest.approx(1e3)
    assert {fixed.temperature_at(Progress(t, 100)) for t in (1, 50, 100)} == {1e4}
    assert from_zero.temperature_at(Progress(1, 100)) == 1.0


@given(
    st.lists(st.integers(0, 400), min_size=2, max_size=20, unique=True),
    st.floats(1.0, 1e4),
)
def test_lemmas_1_to_4(popularities: list[int], temperature: float) -> None:
    """dy/dh = g_b rises strictly with popularity, dy/da = 1 - g_b falls, at every temperature; both hold
    as long as tanh is not saturated in float32."""
    model = model_for(small_data())
    model.popularity = torch.tensor(sorted(popularities), dtype=torch.float32)
    weights = model.history_weights(temperature)
    saturated = model.popularity / temperature > 5
    rises = weights[1:] > weights[:-1]
    assert bool((rises | saturated[1:]).all())
    assert bool((weights >= 0).all() and (weights <= 1).all())
    assert float(model.history_weights(temperature)[0]) == (
        0.0 if model.popularity[0] == 0 else pytest.approx(float(weights[0]))
    )
    assert (weights == 0).equal(model.popularity == 0)


def test_score_is_the_weighted_sum_of_the_views() -> None:
    """Derivatives of the score, Properties 1 and 2, through the concatenated vectors that serve."""
    data = small_data()
    model = model_for(data)
    model.begin_epoch(Progress(30, 100))
    vectors = vectors_of(model)
    history_users, history_bundles = model.history_view(model.history.full)
    users, bundles, _ = model.affiliation_view(model.affiliation.full, model.pooling.full)
    weights = torch.tanh(torch.tensor(data.popularity) / model.temperature).float()
    expected = weights * (history_users @ history_bundles.T) + (1 - weights) * (users @ bundles.T)
    assert torch.allclose(vectors.users @ vectors.bundles.T, expected, atol=1e-5)


def test_history_weight_falls_with_epochs_for_warm_and_is_zero_for_cold_bundles() -> None:
    data = small_data()
    model = model_for(data)
    weights = torch.stack([model.history_weights(model.temperature_at(Progress(t, 100))) for t in range(101)])
    warm = torch.tensor(data.popularity > 0)
    assert bool((weights[1:, warm] <= weights[:-1, warm]).all())
    assert bool((weights[1:, warm] < weights[:-1, warm])[60:].all())
    assert bool((weights[:, ~warm] == 0).all())


def test_a_cold_bundle_is_served_from_its_items_alone() -> None:
    """The vector the model gives a cold bundle is the one serving makes of its items."""
    data = small_data()
    model = model_for(data)
    model.begin_epoch(Progress(30, 100))
    vectors = vectors_of(model)
    cold = np.flatnonzero(data.popularity == 0)
    assert len(cold)
    assert torch.allclose(vectors.new_bundles(data.bundle_item[cold]), vectors.bundles[cold], atol=1e-6)


def test_negatives_can_be_kept_to_warm_bundles_and_the_last_batch_kept() -> None:
    data = small_data()
    cold = set(np.flatnonzero(data.popularity == 0).tolist())
    n = data.user_bundle.nnz
    model = model_for(data, negatives="warm", drop_last_batch=False)
    drawn: set[int] = set()
    for epoch in range(1, 30):
        model.begin_epoch(Progress(epoch, 30))
        batches = list(model.triples(4))
        assert sum(len(batch) for batch in batches) == n
        assert len(batches) == model.n_batches(4)
        drawn |= {int(b) for batch in batches for b in batch.negatives}
    assert drawn
    assert not drawn & cold
    dropping = model_for(data)
    dropping.begin_epoch(Progress(1, 30))
    assert sum(len(batch) for batch in dropping.triples(4)) == n // 4 * 4


def test_masks_are_drawn_anew_for_each_batch_or_once_an_epoch() -> None:
    data = small_data(n_users=60, n_items=60)
    each, once = model_for(data), model_for(data, dropout_redraw="epoch")
    for model, same in ((each, False), (once, True)):
        model.begin_epoch(Progress(1, 10))
        first, second = model.batch_masks(), model.batch_masks()
        assert np.array_equal(first.affiliation_users, second.affiliation_users) is same
        model.begin_epoch(Progress(2, 10))
        assert not np.array_equal(first.affiliation_users, model.batch_masks().affiliation_users)


def test_shared_directions_drop_whole_edges() -> None:
    data = small_data()
    model = model_for(data, dropout_directions="shared")
    masks = model.draw_masks(np.random.default_rng(0))
    matrix = data.user_item
    kept_pairs = set()
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    for u, i, stays in zip(rows, matrix.indices, masks.affiliation_users, strict=True):
        if stays:
            kept_pairs.add((int(u), int(i)))
    transposed = matrix.T.tocsr()
    columns = np.repeat(np.arange(transposed.shape[0]), np.diff(transposed.indptr))
    for item, user, stays in zip(columns, transposed.indices, masks.affiliation_items, strict=True):
        assert ((int(user), int(item)) in kept_pairs) is bool(stays)


def test_score_temperature_can_be_the_maximum() -> None:
    data = small_data()
    model = model_for(data, score_temperature="maximum")
    at_end = model_for(data)
    model.begin_epoch(Progress(5, 100))
    at_end.begin_epoch(Progress(100, 100))
    assert torch.allclose(vectors_of(model).bundles, vectors_of(at_end).bundles)
