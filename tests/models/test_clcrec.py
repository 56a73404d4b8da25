"""CLCRec against its equations, row by row; which vector scores which bundle."""

from __future__ import annotations

import math

import numpy as np
import torch
from served_vectors import vectors_of
from torch.nn.functional import leaky_relu

from coheat.contract import build
from coheat.data.split import Split
from coheat.data.synthetic import planted_world
from coheat.models.base import Progress
from coheat.models.clcrec import CLCRec, Contrast


def ready(split: Split) -> CLCRec:
    model = build(CLCRec, split)
    assert isinstance(model, CLCRec)
    model.begin_epoch(Progress(1, 10))
    return model


def encoder(model: CLCRec, bundle: int) -> torch.Tensor:
    """f(b) as the text reads it."""
    items = np.flatnonzero(model.data.bundle_item.toarray()[bundle])
    assert model.bag.bias is not None
    hidden = model.bag.items[torch.from_numpy(items)].sum(0) / math.sqrt(len(items)) + model.bag.bias
    return model.head.weight @ leaky_relu(hidden) + model.head.bias


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()))


@torch.no_grad()
def slow_terms(model: CLCRec, batch: Contrast) -> dict[str, float]:
    config, taken = model.config, model.data.user_bundle.toarray() > 0
    pool = [int(batch.bundles[at]) for at in batch.pool_at]
    sums = {"user_bundle": 0.0, "history_content": 0.0}
    user_lengths, bundle_lengths = [], []
    for row in range(len(batch.user_at)):
        user = int(batch.users[batch.user_at[row]])
        positive = int(batch.bundles[batch.positive_at[row]])
        candidates = [(0, positive)] + [(1 + n, b) for n, b in enumerate(pool) if not taken[user, b]]
        met, compared = [], []
        for slot, bundle in candidates:
            own, content = model.bundles[bundle], encoder(model, bundle)
            met.append(float(model.users[user] @ (content if batch.slots[row, slot] else own)))
            compared.append(cosine(model.bundles[positive], content))
        for name, values in (("user_bundle", met), ("history_content", compared)):
            exponentials = [math.exp(value / config.temperature) for value in values]
            sums[name] -= math.log(exponentials[0] / sum(exponentials)) / len(batch.user_at)
        user_lengths.append(float(model.users[user].norm()))
        bundle_lengths += [float(model.bundles[b].norm()) for b in [positive, *pool]]
    weight = config.content_contrast_weight
    norms = (np.mean(user_lengths) + np.mean(bundle_lengths)) / 2
    return {
        "user_bundle": (1 - weight) * sums["user_bundle"],
        "history_content": weight * sums["history_content"],
        "norm": config.norm_weight * float(norms),
    }


def test_loss_is_the_one_of_the_equations(planted: Split) -> None:
    model = ready(planted)
    batch = next(model.batches(32))
    assert 0.3 < batch.slots.float().mean() < 0.7
    expected = slow_terms(model, batch)
    for name, term in model.loss(batch).items():
        assert math.isclose(float(term), expected[name], rel_tol=1e-4), name


def test_negatives_are_warm_and_not_the_users_own(planted: Split) -> None:
    model = ready(planted)
    taken = planted.train.user_bundle.toarray() > 0
    for batch in model.batches(32):
        pool = batch.bundles[batch.pool_at.numpy()]
        assert len(set(pool.tolist())) == len(pool) == model.config.n_negatives
        assert (planted.train.popularity[pool] > 0).all()
        users = batch.users[batch.user_at].numpy()
        np.testing.assert_array_equal(batch.known.numpy(), taken[users][:, pool])


def test_cold_bundles_are_scored_by_content_and_warm_ones_by_their_own_vector() -> None:
    split = planted_world()
    model = ready(split)
    vectors = vectors_of(model)
    for bundle, popularity in enumerate(split.train.popularity):
        expected = model.bundles[bundle] if popularity else encoder(model, bundle)
        torch.testing.assert_close(vectors.bundles[bundle], expected)
