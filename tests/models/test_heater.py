"""Heater against its equations written out; what it shows, draws and decays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from pretrained import content, double, head, standardise, with_random_backbone
from served_vectors import vectors_of
from worlds import small_data

from coheat.data.sampling import contains
from coheat.models.heater import Heater, HeaterConfig, Rows
from coheat.rng import Randomness


def heater(**settings: object) -> Heater:
    config = HeaterConfig.create({"embedding_size": 3, "n_experts": 2, **settings})
    return with_random_backbone(Heater(small_data(), config, Randomness(1)))


def by_experts(model: Heater, bundle: int) -> npt.NDArray[np.float64]:
    """h_b, expert by expert."""
    read = np.tanh(content(model, bundle))
    n_experts, size = model.config.n_experts, model.config.embedding_size
    total = np.zeros(size)
    for expert in range(n_experts):
        start = n_experts + expert * size
        total += read[expert] * read[start : start + size]
    result: npt.NDArray[np.float64] = np.tanh(total)
    return result


def tower(module: torch.nn.Module, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return head(module.get_submodule("1"), x @ double(module.get_parameter("0.weight")).T)


def test_loss_is_that_of_the_equations() -> None:
    model = heater(similarity_weight=0.3)
    users, bundles = np.array([0, 2, 4]), np.array([[0, 5], [1, 0], [0, 2]])
    by_content = torch.tensor([True, False, False, True, False, True])[:, None]
    p = standardise(double(model.pretrained_users), 5)
    q = standardise(double(model.pretrained_bundles), 1)
    flat = bundles.ravel()
    shown = [by_experts(model, b) if mark else q[b] for b, mark in zip(flat, by_content[:, 0], strict=True)]
    # A user stands in two rows, which changes neither mean nor variance of the batch.
    user_side = np.repeat(tower(model.user_tower, p[users]), 2, axis=0)
    scores = (user_side * tower(model.bundle_tower, np.array(shown))).sum(1)
    wanted = np.array([1, 0, 1, 0, 1, 0])
    similarity = np.mean([((by_experts(model, b) - q[b]) ** 2).sum() for b in flat])
    terms = model.loss(Rows(users, bundles, by_content))
    assert np.isclose(terms["error"].item(), ((scores - wanted) ** 2).mean(), rtol=1e-4)
    assert np.isclose(terms["similarity"].item(), 0.3 * similarity, rtol=1e-5)


def test_batches_pair_every_interaction_with_true_warm_negatives_and_show_half_by_content() -> None:
    model = heater(n_negatives=3)
    batches = list(model.batches(2))
    interactions = model.data.user_bundle
    taken = [(u, b) for batch in batches for u, b in zip(batch.users, batch.bundles[:, 0], strict=True)]
    assert len(set(taken)) == len(taken) >= interactions.nnz - 1
    for batch in batches:
        assert batch.bundles.shape == (2, 4)
        assert contains(interactions, batch.users, batch.bundles[:, 0]).all()
        for drawn in batch.bundles[:, 1:].T:
            assert not contains(interactions, batch.users, np.ascontiguousarray(drawn)).any()
        assert (model.data.popularity[batch.bundles] > 0).all()
        assert batch.by_content.shape == (8, 1)
        assert int(batch.by_content.sum()) == 4
    assert len({tuple(batch.by_content[:, 0].tolist()) for batch in batches}) > 1


def test_warm_bundles_are_scored_by_their_vector_and_cold_ones_by_the_experts() -> None:
    model = heater().eval()
    q = standardise(double(model.pretrained_bundles), 1)
    cold = model.data.popularity == 0
    assert cold.any()
    shown = np.array([by_experts(model, b) if cold[b] else q[b] for b in range(model.data.n_bundles)])
    expected = model.bundle_tower(torch.from_numpy(shown).float())
    assert torch.allclose(vectors_of(model).bundles, expected, atol=1e-5)


def test_the_items_table_is_not_decayed() -> None:
    model = heater(weight_decay=0.5)
    (optimizer,) = model.optimizers()
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert decays[id(parameter)] == (0.0 if name.startswith("content.") else 0.5)
