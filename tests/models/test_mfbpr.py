"""MFBPR against its equation written out, triple by triple."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from worlds import small_data

from coheat.data.sampling import Triples
from coheat.models.base import Progress
from coheat.models.mfbpr import MFBPR, MFBPRConfig
from coheat.rng import Randomness


def mfbpr(**settings: object) -> MFBPR:
    config = MFBPRConfig.create({"embedding_size": 3, "learning_rate": 0.05, **settings})
    return MFBPR(small_data(), config, Randomness(1))


def test_loss_is_that_of_the_equation_with_repeated_rows_counted_each_time() -> None:
    model = mfbpr(weight_decay=0.7)
    batch = Triples(np.array([0, 0, 2, 4]), np.array([1, 1, 2, 0]), np.array([5, 6, 1, 1]))
    users, bundles = model.users.detach().double().numpy(), model.bundles.detach().double().numpy()
    ranking = decay = 0.0
    for u, p, n in zip(batch.users, batch.positives, batch.negatives, strict=True):
        margin = users[u] @ bundles[p] - users[u] @ bundles[n]
        ranking += np.log1p(np.exp(-margin)) / 4
        squares = (users[u] ** 2).sum() + (bundles[p] ** 2).sum() + (bundles[n] ** 2).sum()
        decay += 0.7 * squares / (2 * 4)
    terms = {name: term.item() for name, term in model.loss(batch).items()}
    assert terms == pytest.approx({"bpr": ranking, "decay": decay}, rel=1e-5)


def test_decay_reaches_only_the_vectors_of_the_batch() -> None:
    model = mfbpr(weight_decay=1.0)
    batch = Triples(np.array([0, 0]), np.array([1, 1]), np.array([5, 6]))
    model.loss(batch)["decay"].backward()  # type: ignore[no-untyped-call]
    assert model.users.grad is not None
    assert model.bundles.grad is not None
    assert torch.allclose(model.users.grad[0], model.users[0])
    assert torch.allclose(model.bundles.grad[5], model.bundles[5] / 2)
    assert not model.users.grad[1:].any()
    assert not model.bundles.grad[[0, 2, 3, 4]].any()
    assert model.optimizers()[0].param_groups[0]["weight_decay"] == 0


@pytest.mark.parametrize("negatives", ["all", "warm"])
def test_a_cold_bundle_is_pushed_down_or_stays_where_it_began(negatives: str) -> None:
    model = mfbpr(negatives=negatives)
    cold = np.flatnonzero(model.data.popularity == 0)
    assert len(cold)
    before = model.bundles.detach().clone()
    optimizers = model.optimizers()
    for epoch in range(1, 31):
        model.begin_epoch(Progress(epoch, 30))
        for batch in model.batches(4):
            model.step(batch, optimizers)
            assert negatives == "all" or not np.isin(batch.negatives, cold).any()
    moved = (model.bundles.detach() != before).any(1).numpy()
    assert moved[model.data.popularity > 0].all()
    assert moved[cold].all() == (negatives == "all")
    if negatives == "all":
        active = np.flatnonzero(np.diff(model.data.user_bundle.indptr))
        scores = model.served().scores(active)
        assert scores[:, cold].mean() < scores[:, model.data.popularity > 0].mean()
