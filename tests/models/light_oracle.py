"""LightGCN and its kin written out with dense matrices in double precision: slow and obvious."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from coheat.data.dataset import BundleData, relation
from coheat.data.sampling import Triples
from coheat.ids import Vocabulary
from coheat.models.lightgcn import LightGCN


def small_data(seed: int = 0, n_users: int = 9, n_bundles: int = 7) -> BundleData:
    """A random small world; the last bundle is cold and the last user has taken nothing."""
    rng = np.random.default_rng(seed)
    taken = rng.random((n_users, n_bundles)) < 0.4
    taken[:, -1] = False
    taken[-1] = False
    taken[0, :3] = True
    users, bundles = np.nonzero(taken)
    nothing = relation(np.array([], dtype=np.int64), np.array([], dtype=np.int64), (n_users, 1))
    return BundleData(
        Vocabulary((f"u{i}" for i in range(n_users)), "user"),
        Vocabulary((f"b{i}" for i in range(n_bundles)), "bundle"),
        Vocabulary(["item"], "item"),
        relation(users, bundles, (n_users, n_bundles)),
        nothing,
        relation(np.arange(n_bundles), np.zeros(n_bundles, dtype=np.int64), (n_bundles, 1)),
    )


def some_triples() -> Triples:
    """Users and bundles that stand in the batch several times, and one bundle on both sides."""
    return Triples(np.array([0, 0, 0, 1, 2, 2]), np.array([0, 1, 0, 2, 1, 3]), np.array([4, 5, 6, 6, 0, 4]))


def normalised(taken: Tensor) -> Tensor:
    """A_ub = 1 / sqrt(d_u d_b) where u took b (n_users, n_bundles)."""
    degrees = taken.sum(1, keepdim=True) * taken.sum(0, keepdim=True)
    return taken / degrees.clamp(min=1).sqrt()


def interactions(data: BundleData) -> Tensor:
    return torch.from_numpy(data.user_bundle.toarray()).double()


def dense_layers(taken: Tensor, users: Tensor, bundles: Tensor, n_layers: int) -> tuple[Tensor, Tensor]:
    """Layers 0 .. n_layers (n_layers + 1, n, d) of users and bundles: one matrix, [[0, A], [A^T, 0]]."""
    n_users, n_bundles = taken.shape
    adjacency = torch.zeros(n_users + n_bundles, n_users + n_bundles, dtype=torch.float64)
    adjacency[:n_users, n_users:] = normalised(taken)
    adjacency[n_users:, :n_users] = normalised(taken).t()
    nodes = [torch.cat([users, bundles])]
    for _ in range(n_layers):
        nodes.append(adjacency @ nodes[-1])
    stacked = torch.stack(nodes)
    return stacked[:, :n_users], stacked[:, n_users:]


def mean_bpr(users: Tensor, bundles: Tensor, batch: Triples) -> Tensor:
    terms = [
        -torch.log(torch.sigmoid(users[u] @ bundles[p] - users[u] @ bundles[n]))
        for u, p, n in zip(batch.users, batch.positives, batch.negatives, strict=True)
    ]
    return torch.stack(terms).mean()


def mean_l2(users: Tensor, bundles: Tensor, batch: Triples) -> Tensor:
    """Half the squared lengths of a triple's three vectors, averaged over the triples."""
    rows = torch.cat([users[batch.users], bundles[batch.positives], bundles[batch.negatives]])
    return rows.square().sum() / 2 / len(batch)


def tables(model: LightGCN) -> tuple[Tensor, Tensor]:
    """Double-precision copies of the model's parameters, to be differentiated."""
    return model.users.detach().double().requires_grad_(), model.bundles.detach().double().requires_grad_()


def assert_same(
    model: LightGCN, batch: Triples, expected: dict[str, Tensor], copies: tuple[Tensor, Tensor]
) -> None:
    """Terms and gradients of the model are those of the oracle, whose leaves are `copies`."""
    terms = model.loss(batch)
    assert terms.keys() == expected.keys()
    for name in terms:
        assert terms[name].item() == pytest.approx(expected[name].item(), abs=1e-5), name
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    torch.stack(list(expected.values())).sum().backward()  # type: ignore[no-untyped-call]
    for parameter, copy in zip((model.users, model.bundles), copies, strict=True):
        assert parameter.grad is not None
        assert copy.grad is not None
        assert torch.allclose(parameter.grad.double(), copy.grad, atol=1e-5)
