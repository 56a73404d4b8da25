"""Compiled products against dense matrices, and what dropping edges must and must not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coheat import threads
from coheat.data.dataset import Sparse, relation
from coheat.graph.bipartite import (
    BipartiteGraph,
    Direction,
    Mask,
    convolution,
    light_gcn,
    torch_convolution,
)
from coheat.graph.propagation import Weighted, multiply, torch_product


def random_relation(seed: int, n_rows: int, n_columns: int, density: float = 0.3) -> Sparse:
    rng = np.random.default_rng(seed)
    rows, columns = np.nonzero(rng.random((n_rows, n_columns)) < density)
    return relation(rows, columns, (n_rows, n_columns))


def dense_normalised(matrix: Sparse, mask: Mask) -> npt.NDArray[np.float64]:
    """D^-1/2 A D^-1/2 of the kept edges, written out."""
    kept = matrix.toarray().astype(np.float64)
    kept[kept > 0] = mask
    rows, columns = kept.sum(1, keepdims=True), kept.sum(0, keepdims=True)
    scale = np.sqrt(np.maximum(rows * columns, 1))
    return np.asarray(kept / scale, dtype=np.float64)


@given(st.integers(0, 1000), st.integers(1, 12), st.integers(1, 12), st.floats(0, 0.9))
@settings(max_examples=60, deadline=None)
def test_selected_rows_are_the_rows_of_the_whole_dropped_graph(
    seed: int, n_rows: int, n_columns: int, dropout: float
) -> None:
    direction = Direction(random_relation(seed, n_rows, n_columns), "symmetric")
    rng = np.random.default_rng(seed)
    mask = direction.draw_mask(dropout, rng)
    rows = rng.permutation(n_rows)[: rng.integers(1, n_rows + 1)]
    matrix = random_relation(seed, n_rows, n_columns)
    expected = dense_normalised(matrix, mask)[rows]
    assert np.allclose(direction.select(rows, mask).dense(), expected, atol=1e-6)


def gradients_of(function: Callable[..., Any], *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Outputs and gradients of a function of leaf tensors, for a fixed random direction."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(5)
    total = sum((out * torch.randn(out.shape, generator=generator)).sum() for out in outputs)
    total.backward()
    return [*(out.detach() for out in outputs), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("small", [1, 10**9], ids=["threads", "one thread"])
def test_product_and_gradient_equal_torch(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SMALL", small)
    direction = Direction(random_relation(3, 50, 40, 0.2), "symmetric")
    propagation = direction.select(np.arange(49, -1, -2), direction.draw_mask(0.4, np.random.default_rng(0)))
    x = torch.randn(40, 16)
    mine = gradients_of(lambda x: multiply(x, propagation), x)
    plain = gradients_of(lambda x: torch_product(x, propagation), x)
    for a, b in zip(mine, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("small", [1, 10**9], ids=["threads", "one thread"])
def test_product_with_weights_of_their_own_equals_the_dense_one(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "SMALL", small)
    matrix, rng = random_relation(6, 30, 20, 0.3).astype(np.float32), np.random.default_rng(2)
    matrix.data[:] = rng.standard_normal(matrix.nnz)
    dense, propagation = torch.from_numpy(matrix.toarray()), Weighted.of(matrix)
    assert np.array_equal(propagation.dense(), matrix.toarray())
    assert np.array_equal(propagation.transposed.dense(), matrix.toarray().T)
    x = torch.randn(20, 9)
    mine = gradients_of(lambda x: multiply(x, propagation), x)
    for a, b in zip(mine, gradients_of(lambda x: dense @ x, x), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 0.5])
@pytest.mark.parametrize("small", [1, 10**9], ids=["threads", "one thread"])
def test_convolution_and_gradient_equal_torch(
    scale: float, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "SMALL", small)
    graph, rng = BipartiteGraph(random_relation(4, 60, 45, 0.05)), np.random.default_rng(1)
    sides = []
    for direction, rows in ((graph.left, np.arange(0, 60, 3)), (graph.right, rng.permutation(45))):
        sides.append((rows, direction.select(rows, direction.draw_mask(0.4, rng))))
    assert any((np.diff(p.indptr) == 0).any() for _, p in sides)  # isolated rows are part of the test
    tables = torch.randn(60, 16), torch.randn(45, 16)
    mine = gradients_of(lambda a, b: convolution(a, b, sides[0], sides[1], scale), *tables)
    plain = gradients_of(lambda a, b: torch_convolution(a, b, sides[0], sides[1], scale), *tables)
    for a, b in zip(mine, plain, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("size", [1e-17, 1e-20, 1e-30, 0.0])
def test_rows_that_shrank_to_nothing_have_no_direction(size: float) -> None:
    """Weight decay does that to nodes that nothing trains; squares of 1e-20 are no ordinary floats."""
    graph = BipartiteGraph(random_relation(7, 20, 15, 0.3))
    tables = size * torch.randn(20, 64), size * torch.randn(15, 64)
    sides = graph.full.left, graph.full.right
    for function in (convolution, torch_convolution):
        left, right, *gradients = gradients_of(
            lambda a, b, function=function: function(a, b, *sides, 0.0), *tables
        )
        assert torch.allclose(left, tables[0], atol=1e-3)
        assert torch.allclose(right, tables[1], atol=1e-3)
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_mean_pooling_averages_what_is_left() -> None:
    matrix = relation([0, 0, 0, 1, 2], [0, 1, 2, 2, 0], (4, 3))
    pooling = Direction(matrix, "mean")
    x = torch.tensor([[1.0], [2.0], [6.0]])
    assert multiply(x, pooling.full).flatten().tolist() == [3.0, 6.0, 1.0, 0.0]
    mask = np.array([1, 0, 1, 0, 1], dtype=np.uint8)
    chosen = pooling.select(np.array([1, 0]), mask)
    assert multiply(x, chosen).flatten().tolist() == [0.0, 3.5]


def test_needed_sources_leave_the_product_unchanged() -> None:
    direction = Direction(random_relation(5, 6, 30, 0.1), "mean")
    x = torch.randn(30, 4)
    needed, small = direction.full.on_needed_sources()
    assert len(needed) < 30
    assert torch.equal(multiply(x[torch.from_numpy(needed)], small), multiply(x, direction.full))


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.8])
def test_masks_keep_the_right_share_and_are_independent(dropout: float) -> None:
    direction = Direction(random_relation(0, 300, 300, 0.5), "symmetric")
    rng = np.random.default_rng(0)
    n, draws = len(direction.sources), 50
    masks = np.stack([direction.draw_mask(dropout, rng) for _ in range(draws)]).astype(np.float64)
    sigma = np.sqrt(dropout * (1 - dropout))
    assert masks.mean() == pytest.approx(1 - dropout, abs=5 * sigma / np.sqrt(n * draws))
    # Each edge and each draw scatters as a fair coin would: neither frozen edges nor frozen draws.
    assert masks.mean(0).std() == pytest.approx(sigma / np.sqrt(draws), rel=0.05)
    assert masks.mean(1).std() == pytest.approx(sigma / np.sqrt(n), rel=0.5)
    centred = (masks - masks.mean()) / sigma
    for other in (centred[:, 1:] * centred[:, :-1], centred[1:] * centred[:-1]):  # neighbours, next draws
        assert abs(other.mean()) < 5 / np.sqrt(other.size)


def test_no_dropout_keeps_everything_and_same_generator_same_mask() -> None:
    direction = Direction(random_relation(0, 30, 30), "symmetric")
    assert direction.draw_mask(0.0, np.random.default_rng(0)).all()
    first, second = (direction.draw_mask(0.3, np.random.default_rng(7)) for _ in range(2))
    assert np.array_equal(first, second)


def test_masks_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    direction = Direction(random_relation(0, 300, 300, 0.5), "symmetric")
    whole = direction.draw_mask(0.3, np.random.default_rng(7))
    monkeypatch.setattr(threads, "n_threads", lambda: 1)
    assert np.array_equal(whole, direction.draw_mask(0.3, np.random.default_rng(7)))


def test_light_gcn_by_hand() -> None:
    """Two users, two bundles, three edges: layer 1 of user 0 is b0 / sqrt(2*1) + b1 / sqrt(2*2)."""
    graph = BipartiteGraph(relation([0, 0, 1], [0, 1, 1], (2, 2)))
    users, bundles = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [5.0]])
    left, right = light_gcn(graph.full, users, bundles, n_layers=1, normalise_layers=False)
    assert left.flatten().tolist() == pytest.approx([1 + (3 / 2**0.5 + 5 / 2) / 2, 2 + 5 / 2**0.5 / 2])
    assert right.flatten().tolist() == pytest.approx([3 + 1 / 2**0.5 / 2, 5 + (1 / 2 + 2 / 2**0.5) / 2])
    left, _ = light_gcn(graph.full, users, bundles, n_layers=1)
    assert left.flatten().tolist() == pytest.approx([2.0, 3.0])  # in one dimension a unit vector is 1


def test_an_isolated_node_keeps_its_own_vector() -> None:
    graph = BipartiteGraph(relation([0], [0], (2, 2)))
    left, right = light_gcn(graph.full, torch.ones(2, 3), torch.ones(2, 3), n_layers=2)
    assert left[1].tolist() == [1.0, 1.0, 1.0]
    assert right[1].tolist() == [1.0, 1.0, 1.0]
