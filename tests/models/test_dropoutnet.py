"""DropoutNet against its equations written out, and what it draws and withholds."""

from __future__ import annotations

import numpy as np
import torch
from pretrained import content, double, head, standardise, with_random_backbone
from served_vectors import vectors_of
from worlds import small_data

from coheat.data.split import Split
from coheat.models.base import Progress
from coheat.models.dropoutnet import DropoutNet, DropoutNetConfig, Pairs
from coheat.models.towers import standardised
from coheat.rng import Randomness


def dropoutnet(**settings: object) -> DropoutNet:
    config = DropoutNetConfig.create({"embedding_size": 3, "content_size": 5, **settings})
    return with_random_backbone(DropoutNet(small_data(), config, Randomness(1)))


def test_standardising_leaves_missing_rows_out_and_zero() -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) * 7 + 2
    x[[3, 17]] = 0
    x[5] = 1000
    found = standardised(x, 5.0)
    assert np.allclose(double(found), standardise(double(x), 5.0), atol=1e-5)
    assert (found[5] == 5).all()
    assert not found[[3, 17]].any()


def test_loss_is_that_of_the_equations() -> None:
    model = dropoutnet()
    users, bundles = np.array([0, 2, 0, 4, 3]), np.array([1, 1, 0, 2, 5])
    shown_users = torch.tensor([True, False, True, True, False])[:, None]
    shown_bundles = torch.tensor([False, True, True, False, True])[:, None]
    p, q = double(model.pretrained_users), double(model.pretrained_bundles)
    user_rows = standardise(p, 5)[users] * shown_users.numpy()
    bundle_rows = standardise(q, 5)[bundles] * shown_bundles.numpy()
    read = np.array([content(model, b) for b in bundles])
    user_side = head(model.user_head, user_rows @ double(model.user_layer.weight).T)
    bundle_side = head(model.bundle_head, bundle_rows @ double(model.bundle_layer.weight).T + read)
    errors = [(user_side[row] @ bundle_side[row] - p[users[row]] @ q[bundles[row]]) ** 2 for row in range(5)]
    found = model.loss(Pairs(users, bundles, shown_users, shown_bundles))["error"]
    assert np.isclose(found.item(), np.mean(errors), rtol=1e-4)


def test_the_best_bundles_are_the_highest_warm_scores() -> None:
    data = small_data(n_users=30, n_bundles=40)
    config = DropoutNetConfig(embedding_size=3, content_size=4, n_best=4)
    model = with_random_backbone(DropoutNet(data, config, Randomness(1)))
    warm = [b for b in range(40) if data.popularity[b]]
    for user, best in zip(model.active_users, model.best, strict=True):
        scores = {b: float(model.pretrained_users[user] @ model.pretrained_bundles[b]) for b in warm}
        assert best.tolist() == sorted(warm, key=lambda b: -scores[b])[:4]


def test_an_epoch_draws_every_user_from_the_best_and_from_all_warm_bundles() -> None:
    data = small_data(n_users=30, n_bundles=40)
    config = DropoutNetConfig(embedding_size=3, content_size=4, n_best=4, pairs_per_user=200)
    model = with_random_backbone(DropoutNet(data, config, Randomness(1)))
    batches = list(model.batches(1000))
    assert len(batches) == model.n_batches(1000) > 1
    users = np.concatenate([batch.users for batch in batches])
    bundles = np.concatenate([batch.bundles for batch in batches])
    assert (data.popularity[bundles] > 0).all()
    for user, best in zip(model.active_users, model.best, strict=True):
        own = bundles[users == user]
        assert len(own) == 200
        assert set(best.tolist()) <= set(own.tolist())
        assert 100 <= np.isin(own, best).sum() < 150
    assert len(users) == 200 * len(model.active_users)
    again = next(iter(model.batches(1000)))
    assert np.array_equal(again.bundles, batches[0].bundles), (
        "an epoch's draws depend on more than its number"
    )
    model.begin_epoch(Progress(2, 10))
    assert not np.array_equal(next(iter(model.batches(1000))).bundles, batches[0].bundles)


def test_half_of_the_vectors_are_withheld_on_each_side_independently() -> None:
    data = small_data(n_users=30, n_bundles=40)
    config = DropoutNetConfig(embedding_size=3, content_size=4, pairs_per_user=200, bundle_dropout=0.3)
    model = with_random_backbone(DropoutNet(data, config, Randomness(1)))
    batches = list(model.batches(10**6))
    users = torch.cat([batch.shown_users for batch in batches]).double()
    bundles = torch.cat([batch.shown_bundles for batch in batches]).double()
    assert abs(float(users.mean()) - 0.5) < 0.03
    assert abs(float(bundles.mean()) - 0.7) < 0.03
    assert abs(float((users * bundles).mean()) - 0.35) < 0.03


def test_a_cold_bundle_is_scored_as_one_whose_vector_is_withheld(planted: Split) -> None:
    config = DropoutNetConfig(embedding_size=3, content_size=4)
    model = with_random_backbone(DropoutNet(planted.train, config, Randomness(1))).eval()
    cold = torch.from_numpy(planted.train.popularity == 0)
    scored = vectors_of(model).bundles
    withheld = model.bundle_vectors(torch.zeros_like(model.pretrained_bundles))
    assert torch.equal(scored[cold], withheld[cold])
    assert not torch.isclose(scored[~cold], withheld[~cold]).all(1).any()
