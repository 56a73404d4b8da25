"""CVAR against its equations; whose vectors score which bundle."""

from __future__ import annotations

import math

import numpy as np
import torch
from served_vectors import vectors_of
from torch.nn import functional

from coheat.contract import build
from coheat.data.split import Split
from coheat.models.base import Progress
from coheat.models.cvar import CVAR, Warming


def ready(split: Split) -> CVAR:
    model = build(CVAR, split)
    assert isinstance(model, CVAR)
    model.begin_epoch(Progress(1, 10))
    return model


def layer(part: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return part.weight @ x + part.bias


@torch.no_grad()
def slow_terms(model: CVAR, batch: Warming) -> dict[str, float]:
    """The loss one interaction at a time."""
    config, size = model.config, model.config.code_size
    counts = model.data.popularity
    sums = {"rank": 0.0, "reconstruct": 0.0, "distance": 0.0}
    for row in range(len(batch.users)):
        at = int(batch.at[row])
        bundle = int(batch.bundles[at])
        shown = float(batch.shown[at])
        popularity = torch.tensor([shown * math.log(1 + counts[bundle]) / math.log(1 + counts.max())])
        vector = model.pretrained_bundles[bundle]
        codes, parameters = [], []
        for part, x, noise in (
            (model.encoder, vector, batch.noise[0, at]),
            (model.prior, model.bag(np.array([bundle]))[0], batch.noise[1, at]),
        ):
            output = layer(part, x)
            mean, deviation = output[:size], (output[size:] / 2).exp()
            parameters.append((mean, deviation))
            codes.append(mean + deviation * noise)
        rebuilt, warmed = (layer(model.decoder, torch.cat([code, popularity])) for code in codes)
        user = model.pretrained_users[batch.users[row]]
        difference = user @ warmed - user @ model.pretrained_bundles[batch.negatives[row]]
        sums["rank"] += float(functional.softplus(-difference))
        sums["reconstruct"] += float((rebuilt - vector).square().sum())
        for one, other in zip(*parameters, strict=True):
            sums["distance"] += config.distance_weight * float((one - other).square().sum())
    return {name: total / len(batch.users) for name, total in sums.items()}


def test_loss_is_the_one_of_the_equations(planted: Split) -> None:
    model = ready(planted)
    batch = next(model.batches(32))
    batch.noise.mul_(1e4)  # as published it is too small to be seen in a sum
    assert 0 < batch.shown.float().mean() < 1
    expected = slow_terms(model, batch)
    for name, term in model.loss(batch).items():
        assert math.isclose(float(term.detach()), expected[name], rel_tol=1e-4), name


def test_a_cold_vector_comes_from_the_prior_and_a_warm_one_from_the_backbone(planted: Split) -> None:
    model = ready(planted)
    vectors = vectors_of(model)
    for bundle, popularity in enumerate(planted.train.popularity):
        code = layer(model.prior, model.bag(np.array([bundle]))[0])[: model.config.code_size]
        made = layer(model.decoder, torch.cat([code, torch.zeros(1)]))
        expected = model.pretrained_bundles[bundle] if popularity else made
        torch.testing.assert_close(vectors.bundles[bundle], expected)
    torch.testing.assert_close(vectors.users, model.pretrained_users)


def test_the_backbone_is_frozen(planted: Split) -> None:
    model = ready(planted)
    before = model.pretrained_users.clone(), model.pretrained_bundles.clone()
    assert before[0].any()
    assert not before[1][torch.from_numpy(planted.train.popularity == 0)].any()
    optimizers = model.optimizers()
    for batch in model.batches(32):
        model.step(batch, optimizers)
    assert torch.equal(model.pretrained_users, before[0])
    assert torch.equal(model.pretrained_bundles, before[1])
