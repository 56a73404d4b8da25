"""GAR-CF: both losses against their equations; the generator and the recommender learn in turns."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from served_vectors import vectors_of
from torch import nn
from torch.nn.functional import softplus

from coheat.contract import build
from coheat.data.dataset import Indices
from coheat.data.split import Split
from coheat.models.base import Progress
from coheat.models.gar_cf import GARCF, Tower
from coheat.models.two_views import Rows


def ready(split: Split, **changes: float) -> GARCF:
    """A model without dropout, so that its draws need no repeating; epoch 1 has begun."""
    model = build(GARCF, split)
    assert isinstance(model, GARCF)
    model.generator.share = model.recommender.users.share = model.recommender.bundles.share = 0.0
    model.config = model.config.model_copy(update=changes)
    model.begin_epoch(Progress(1, 10))
    return model


def standard(norm: nn.BatchNorm1d, x: torch.Tensor, fixed: bool) -> torch.Tensor:
    """Batch normalisation written out: with the statistics of these rows, or with the fixed ones."""
    if fixed:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        mean, variance = norm.running_mean, norm.running_var
    else:
        mean, variance = x.mean(0), x.var(0, correction=0)
    scaled = (x - mean) / torch.sqrt(variance + norm.eps)
    return scaled * norm.weight + norm.bias if norm.affine else scaled


def make(model: GARCF, bundles: Indices, fixed: bool) -> torch.Tensor:
    output = model.generator.outputs[0]
    assert isinstance(output, nn.Linear)
    hidden = torch.tanh(standard(model.generator.norm, model.generator.bag(bundles), fixed))
    return hidden @ output.weight.t() + output.bias


def tower(part: Tower, x: torch.Tensor, fixed: bool) -> torch.Tensor:
    hidden = standard(part.norm_in, x, fixed) @ part.hidden.weight.t()
    made = torch.tanh(standard(part.norm, hidden, fixed)) @ part.output.weight.t()
    return made if part.output.bias is None else made + part.output.bias


@torch.no_grad()
def slow_losses(model: GARCF, rows: Rows) -> tuple[float, float]:
    """Interaction by interaction, with the statistics that each turn should use."""
    config, positives = model.config, rows.bundles[: len(rows.positive_counts)]
    users, real = model.pretrained_users[rows.users], model.pretrained_bundles[rows.bundles]
    towers = model.recommender.users, model.recommender.bundles
    entries = list(
        zip(rows.user_at.tolist(), rows.positive_at.tolist(), rows.negative_at.tolist(), strict=True)
    )

    made = make(model, positives, fixed=True)
    of_users = tower(towers[0], users, fixed=False)
    of_bundles = tower(towers[1], torch.cat([real, made]), fixed=False)
    recommender = []
    for u, p, n in entries:
        other = (1 - config.negative_weight) * of_bundles[
            len(real) + p
        ] + config.negative_weight * of_bundles[n]
        recommender.append(softplus(-of_users[u] @ (of_bundles[p] - other)))

    made = make(model, positives, fixed=False)
    of_users, of_real, of_made = (
        tower(part, x, fixed=True) for part, x in ((towers[0], users), (towers[1], real), (towers[1], made))
    )
    generator = []
    for u, p, _ in entries:
        rated = softplus(-of_users[u] @ (of_made[p] - of_real[p]))
        far = (made[p] - real[p]).abs().mean()
        generator.append((1 - config.similarity_weight) * rated + config.similarity_weight * far)
    return float(torch.stack(recommender).mean()), float(torch.stack(generator).mean())


def test_losses_are_those_of_the_equations(planted: Split) -> None:
    """With statistics that are not the initial ones any more, so that it matters which a turn uses."""
    model = ready(planted, negative_weight=0.3, similarity_weight=0.4)
    optimizers = model.optimizers()
    *some, rows = list(model.batches(32))
    for batch in some:
        model.step(batch, optimizers)
    recommender, generator = slow_losses(model, rows)
    with torch.no_grad():
        assert abs(float(deepcopy(model).recommender_loss(rows)) - recommender) < 1e-4
        assert abs(float(deepcopy(model).generator_loss(rows)) - generator) < 1e-4


def state(part: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in part.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_generator_and_recommender_step_in_turns(planted: Split) -> None:
    """Each turn moves its own parameters only, the recommender's first; pretrained vectors never move."""
    model = ready(planted)
    rows = next(model.batches(32))
    optimizers = model.optimizers()
    pretrained = model.pretrained_users.clone(), model.pretrained_bundles.clone()
    states = [(state(model.recommender), state(model.generator))]
    for optimizer in optimizers:
        step = optimizer.step

        def noting(step=step):  # type: ignore[no-untyped-def]
            step()
            states.append((state(model.recommender), state(model.generator)))

        optimizer.step = noting  # type: ignore[method-assign]
    assert list(model.step(rows, optimizers)) == ["recommender", "generator"]
    start, middle, end = states
    assert not same(start[0], middle[0])
    assert same(start[1], middle[1])
    assert same(middle[0], end[0])
    assert not same(middle[1], end[1])
    assert torch.equal(model.pretrained_users, pretrained[0])
    assert torch.equal(model.pretrained_bundles, pretrained[1])


def test_cold_bundles_are_scored_by_made_vectors(planted: Split) -> None:
    model = ready(planted)
    model.eval()
    vectors = vectors_of(model)
    everything = np.arange(planted.train.n_bundles)
    cold = torch.from_numpy(planted.train.popularity == 0)
    inputs = torch.where(cold[:, None], make(model, everything, fixed=True), model.pretrained_bundles)
    torch.testing.assert_close(vectors.bundles, tower(model.recommender.bundles, inputs, fixed=True))
