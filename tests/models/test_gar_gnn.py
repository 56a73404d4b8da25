"""GAR-GNN: its three vectors, its nine products, and scoring in blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import leaky_relu

import coheat.models.gar_gnn
from coheat.contract import small_config
from coheat.data.split import Split
from coheat.errors import ConfigError
from coheat.models.base import FloatArray, Progress
from coheat.models.gar_gnn import GARGNN, GARGNNConfig
from coheat.rng import Randomness


def ready(split: Split, **settings: object) -> GARGNN:
    """A model after one epoch with random pretrained vectors, in evaluation mode."""
    config = small_config(GARGNN, **settings)
    assert isinstance(config, GARGNNConfig)
    model = GARGNN(split.train, config, Randomness(0))
    generator = Randomness(1).torch_generator("pretrained")
    model.pretrained_users.normal_(generator=generator)
    model.pretrained_bundles.normal_(generator=generator)
    model.pretrained_bundles[torch.from_numpy(split.train.popularity == 0)] = 0
    model.begin_epoch(Progress(1, 10))
    optimizers = model.optimizers()
    for batch in model.batches(32):
        model.step(batch, optimizers)
    return model.eval()


@torch.no_grad()
def slow_scores(model: GARGNN, users: range, combine: bool = True) -> FloatArray:
    """One pair at a time through the network, or the weighted sum of products where `combine` is False."""
    part, (of_users, of_bundles) = model.recommender, model.served_inputs()
    normed = [
        (x - norm.running_mean) / torch.sqrt(norm.running_var + norm.eps) * norm.weight + norm.bias
        for x, norm in ((of_users, part.norm_users), (of_bundles, part.norm_bundles))
    ]
    scores = np.empty((len(users), model.data.n_bundles), dtype=np.float32)
    for user in users:
        for bundle in range(model.data.n_bundles):
            ours, theirs = normed[0][user].chunk(3), normed[1][bundle].chunk(3)
            products = torch.stack([u @ b for u in ours for b in theirs])
            deviation = torch.sqrt(part.norm.running_var + part.norm.eps)
            x = (products - part.norm.running_mean) / deviation if combine else products / deviation
            for layer in part.hidden:
                x = leaky_relu(layer.weight @ x + layer.bias)
            scores[user, bundle] = float(part.output.weight[0] @ x)
    return scores


def test_inputs_are_layers_of_the_normalised_graph(planted: Split) -> None:
    model = ready(planted)
    taken = torch.from_numpy(planted.train.user_bundle.toarray())
    degrees = taken.sum(1).clamp(min=1), taken.sum(0).clamp(min=1)
    graph = taken / torch.sqrt(degrees[0][:, None] * degrees[1])
    users, bundles = model.pretrained_users, model.pretrained_bundles
    expected = [
        torch.cat([users, graph @ bundles, graph @ graph.t() @ users], 1),
        torch.cat([bundles, graph.t() @ users, graph.t() @ graph @ bundles], 1),
    ]
    for found, wanted in zip(model.inputs(), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_all_three_vectors_of_a_cold_bundle_are_made(planted: Split) -> None:
    model = ready(planted)
    cold = torch.from_numpy(planted.train.popularity == 0)
    with torch.no_grad():
        real, served = model.inputs()[1], model.served_inputs()[1]
        made = model.generator(None, None)
    assert not real[cold].any()
    torch.testing.assert_close(served, torch.where(cold[:, None], made, real))
    assert all(part.abs().sum() > 0 for part in served[cold].chunk(3, 1))


def test_blocked_scores_are_those_of_single_pairs(planted: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ready(planted)
    monkeypatch.setattr(coheat.models.gar_gnn, "PAIRS", 2 * planted.train.n_bundles)  # two users at a time
    found = model.served().scores(np.arange(5))
    np.testing.assert_allclose(found, slow_scores(model, range(5)), atol=1e-4)


def test_the_weighted_sum_is_an_inner_product(planted: Split) -> None:
    model = ready(planted, combination="linear")
    found = model.served().scores(np.arange(5))
    np.testing.assert_allclose(found, slow_scores(model, range(5), combine=False), atol=1e-4)


def test_a_network_has_no_vectors_and_says_so(planted: Split) -> None:
    served = ready(planted).served()
    assert served.users.shape[1] == 0
    with pytest.raises(ConfigError, match="without vectors"):
        served.place([np.array([0])])
    assert ready(planted, combination="linear").served().users.shape[1] > 0


def test_distance_is_the_mean_over_vectors_of_the_sum_over_coordinates(planted: Split) -> None:
    model = ready(planted)
    size = 3 * model.config.embedding_size
    made, real = torch.zeros(2, size), torch.stack([torch.ones(size), torch.zeros(size)])
    torch.testing.assert_close(model.distances(made, real), torch.tensor([size / 3, 0.0]))
