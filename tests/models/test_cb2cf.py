"""CB2CF against its equations written out; what it scores with, and what it learns from."""

from __future__ import annotations

import numpy as np
import torch
from pretrained import content, double, with_random_backbone
from served_vectors import vectors_of
from worlds import small_data

from coheat.models.base import Progress
from coheat.models.cb2cf import CB2CF, CB2CFConfig
from coheat.rng import Randomness


def cb2cf(**settings: object) -> CB2CF:
    config = CB2CFConfig.create({"embedding_size": 3, "content_size": 4, "hidden_size": 5, **settings})
    return with_random_backbone(CB2CF(small_data(), config, Randomness(1)))


def bridge(model: CB2CF, bundle: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """q_b without dropout."""
    weights = {name: double(p) for name, p in model.named_parameters()}
    read = np.maximum(content(model, bundle), 0)
    hidden = np.maximum(weights["combine.weight"] @ read + weights["combine.bias"], 0)
    vector: np.ndarray[tuple[int], np.dtype[np.float64]] = (
        weights["out.weight"] @ hidden + weights["out.bias"]
    )
    return vector


def test_loss_is_the_squared_distance_to_the_pretrained_vectors() -> None:
    model = cb2cf(dropout=0.0)
    batch = np.array([2, 0, 5])
    expected = np.mean([((bridge(model, b) - double(model.pretrained_bundles)[b]) ** 2).sum() for b in batch])
    assert np.isclose(model.loss(batch)["error"].item(), expected, rtol=1e-5)


def test_only_warm_bundles_are_learned_from_each_once() -> None:
    model = cb2cf()
    batches = list(model.batches(2))
    assert len(batches) == model.n_batches(2)
    warm = np.flatnonzero(model.data.popularity)
    assert 0 < len(warm) < model.data.n_bundles
    assert sorted(np.concatenate(batches).tolist()) == warm.tolist()


def test_warm_bundles_are_scored_by_pretrained_vectors_and_cold_ones_by_their_items() -> None:
    model = cb2cf().eval()
    vectors = vectors_of(model)
    assert torch.equal(vectors.users, model.pretrained_users)
    for bundle in range(model.data.n_bundles):
        warm = model.data.popularity[bundle] > 0
        expected = double(model.pretrained_bundles)[bundle] if warm else bridge(model, bundle)
        assert np.allclose(double(vectors.bundles)[bundle], expected, atol=1e-6)


def test_warm_bundles_can_be_scored_by_their_items_too() -> None:
    model = cb2cf(warm_vectors="content").eval()
    expected = np.array([bridge(model, bundle) for bundle in range(model.data.n_bundles)])
    assert np.allclose(double(vectors_of(model).bundles), expected, atol=1e-6)


def test_dropout_thins_what_was_read_and_keeps_its_mean_in_training_only() -> None:
    model = cb2cf(content_size=4000, dropout=0.25)
    bundle = np.array([0])
    read: list[torch.Tensor] = []
    model.combine.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].detach()))
    model.bridge(bundle)
    model.eval()
    model.bridge(bundle)
    thinned, whole = (rows[0][read[1][0] > 0] for rows in read)
    assert abs(float((thinned == 0).double().mean()) - 0.25) < 0.04
    assert torch.allclose(thinned[thinned > 0], whole[thinned > 0] / 0.75)


def test_dropout_is_drawn_anew_in_every_epoch_and_alike_when_an_epoch_is_repeated() -> None:
    model = cb2cf(dropout=0.5, content_size=64)
    batch = np.array([0, 2])
    losses = []
    for epoch in (1, 2, 1):
        model.begin_epoch(Progress(epoch, 10))
        losses.append(model.loss(batch)["error"].item())
    assert losses[0] == losses[2] != losses[1]
