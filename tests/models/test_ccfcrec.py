"""CCFCRec against its equations, row by row; which users and bundles are drawn."""

from __future__ import annotations

import math

import numpy as np
import torch
from served_vectors import vectors_of
from torch.nn.functional import cosine_similarity, leaky_relu

from coheat.contract import build
from coheat.data.split import Split
from coheat.models.base import Progress
from coheat.models.ccfcrec import CCFCRec, Interactions


def ready(split: Split) -> CCFCRec:
    model = build(CCFCRec, split)
    assert isinstance(model, CCFCRec)
    model.begin_epoch(Progress(1, 10))
    return model


@torch.no_grad()
def content(model: CCFCRec, bundle: int) -> torch.Tensor:
    """q_b as the text reads it: attention over the bundle's own items, then two layers."""
    items = model.items[torch.from_numpy(np.flatnonzero(model.data.bundle_item.toarray()[bundle]))]
    weights = torch.softmax(items @ model.attention[:, 0], 0)
    pooled = (weights[:, None] * items).sum(0)
    hidden = leaky_relu(model.hidden.weight @ pooled + model.hidden.bias)
    return model.output.weight @ hidden + model.output.bias


@torch.no_grad()
def slow_terms(model: CCFCRec, batch: Interactions) -> dict[str, float]:
    config, n = model.config, len(batch.users)
    related, negatives = batch.related.view(n, -1).tolist(), batch.negatives.view(n, -1).tolist()
    sums = {"rank": 0.0, "collaborative": 0.0, "self": 0.0}

    def softmax_loss(anchor: torch.Tensor, positive: int, others: list[int]) -> float:
        cosines = [float(cosine_similarity(anchor, model.bundles[b], 0)) for b in [positive, *others]]
        exponentials = [math.exp(c / config.temperature) for c in cosines]
        return -math.log(exponentials[0] / sum(exponentials))

    for row in range(n):
        bundle = int(batch.bundles[batch.at[row]])
        own, made = model.bundles[bundle], content(model, bundle)
        difference = model.users[batch.users[row]] - model.users[batch.others[row]]
        for vector in (own, made):
            sums["rank"] += math.log1p(math.exp(-float(vector @ difference)))
        found = [softmax_loss(made, other, negatives[row]) for other in related[row]]
        sums["collaborative"] += float(np.mean(found))
        sums["self"] += softmax_loss(made, bundle, negatives[row])
    weight = config.contrast_weight
    weights = {"rank": 1 - weight, "collaborative": weight, "self": weight}
    return {name: weights[name] * total / n for name, total in sums.items()}


def test_loss_is_the_one_of_the_equations(planted: Split) -> None:
    model = ready(planted)
    batch = next(model.batches(32))
    expected = slow_terms(model, batch)
    for name, term in model.loss(batch).items():
        assert math.isclose(float(term.detach()), expected[name], rel_tol=1e-4), name


def test_content_survives_attention_of_any_size(planted: Split) -> None:
    model = ready(planted)
    with torch.no_grad():
        model.attention.mul_(1000)
        spread = model.items @ model.attention
        assert spread.max() - spread.min() > 100  # the plain exponentials would be infinite or 0
        assert model.content().isfinite().all()


def test_what_is_drawn(planted: Split) -> None:
    """Others never took the bundle; related bundles are the user's own; negatives are warm and not."""
    model = ready(planted)
    taken = planted.train.user_bundle.toarray() > 0
    for batch in model.batches(32):
        n = len(batch.users)
        bundles = batch.bundles[batch.at.numpy()]
        assert taken[batch.users.numpy(), bundles].all()
        assert not taken[batch.others.numpy(), bundles].any()
        assert taken[np.repeat(batch.users.numpy(), len(batch.related) // n), batch.related.numpy()].all()
        repeated = np.repeat(batch.users.numpy(), len(batch.negatives) // n)
        assert not taken[repeated, batch.negatives.numpy()].any()
        assert (planted.train.popularity[batch.negatives.numpy()] > 0).all()


def test_cold_bundles_are_scored_by_content_and_warm_ones_by_their_own_vector(planted: Split) -> None:
    model = ready(planted)
    vectors = vectors_of(model)
    for bundle, popularity in enumerate(planted.train.popularity):
        expected = model.bundles[bundle] if popularity else content(model, bundle)
        torch.testing.assert_close(vectors.bundles[bundle], expected)
