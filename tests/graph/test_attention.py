"""Attention with compiled kernels against ordinary torch operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coheat.graph import kernels
from coheat.graph.attention import attend, attend_by_source, torch_attend
from coheat.graph.propagation import Propagation, Scaled, Weighted, multiply


def random_edges(n_targets: int, n_sources: int, seed: int = 0) -> Propagation:
    """Some targets have no edges, and sources repeat."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, size=n_targets)
    counts[0], counts[1] = 0, 1
    indptr = np.concatenate([[0], np.cumsum(counts)])
    sources = rng.integers(0, n_sources, size=indptr[-1]).astype(np.int32)
    return Weighted(indptr, sources, n_sources, np.ones(len(sources), dtype=np.float32))


@pytest.mark.parametrize("n_targets", [6, 30_000], ids=["one thread", "threads"])
def test_kernels_equal_torch(n_targets: int) -> None:
    edges = random_edges(n_targets, 50)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(50, 4, generator=generator, requires_grad=True)
    logits = (30 * torch.randn(len(edges.sources), generator=generator)).requires_grad_()
    towards = torch.randn(n_targets, 4, generator=generator)
    results = []
    for way in (attend, torch_attend):
        out = way(values, logits, edges)
        results.append([out.detach(), *torch.autograd.grad((out * towards).sum(), (values, logits))])
    for kernel, plain in zip(*results, strict=True):
        assert torch.allclose(kernel, plain, rtol=1e-4, atol=1e-4)
    assert bool((results[0][0][0] == 0).all())
    assert torch.allclose(results[0][0][1], values[int(edges.sources[0])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["kernels", "torch"])
def test_an_edge_has_the_logit_of_its_source(dtype: torch.dtype) -> None:
    edges = random_edges(30, 20)
    rng = np.random.default_rng(0)
    values, logits = (torch.from_numpy(rng.normal(size=shape)).to(dtype) for shape in ((20, 4), (20,)))
    found = attend_by_source(values, logits, edges)
    expected = torch_attend(values, logits[torch.from_numpy(edges.sources)], edges)
    assert torch.allclose(found, expected, atol=1e-5)
    assert not found[0].any()
    assert torch.allclose(found[1], values[int(edges.sources[0])], atol=1e-5)


def test_weights_survive_logits_far_below_the_highest() -> None:
    """A row whose exponentials are all lost beside the highest logit still gets its softmax."""
    logits = np.array([500.0, -400.0, -401.0], dtype=np.float32)
    exponentials = np.exp(logits - logits.max())
    assert exponentials[1] == exponentials[2] == 0
    indptr, sources = np.array([0, 1, 3, 3]), np.array([0, 1, 2], dtype=np.int32)
    weights = np.empty(3, dtype=np.float32)
    kernels.shared_softmax_rows(0, 3, indptr, sources, logits, exponentials, weights)
    share = 1 / (1 + np.exp(-1))
    assert np.allclose(weights, [1, share, 1 - share])


def test_picking_repeats_rows_and_adds_up_their_gradients() -> None:
    x = torch.arange(6.0).view(3, 2).requires_grad_()
    picked = multiply(x, Scaled.picking(np.array([2, 0, 2]), 3))
    assert picked.tolist() == [[4, 5], [0, 1], [4, 5]]
    (gradient,) = torch.autograd.grad((picked * torch.tensor([[1.0], [2.0], [3.0]])).sum(), x)
    assert gradient.tolist() == [[2, 2], [0, 0], [4, 4]]
