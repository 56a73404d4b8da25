"""Fused kernels against ordinary torch operations: values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coheat.graph import fused


@pytest.fixture(params=[7, 60_000], ids=["one thread", "threads"])
def n_rows(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def test_rows_get_length_one(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, towards = random(n_rows, 5), random(n_rows, 5, seed=1).detach()
    with torch.no_grad():
        x[2] = 0
    results = []
    for forced in (False, True):
        if forced:
            monkeypatch.setattr(fused, "by_kernels", lambda x: False)
        out = fused.unit_rows(x)
        (gradient,) = torch.autograd.grad((out * towards).sum(), x)
        results.append((out.detach(), gradient[torch.arange(n_rows) != 2]))
    assert torch.allclose(results[0][0].norm(dim=1), (torch.arange(n_rows) != 2).float())
    for kernel, plain in zip(*results, strict=True):
        assert torch.allclose(kernel, plain, atol=1e-6)


def test_a_row_that_shrank_to_nothing_has_no_direction() -> None:
    x = (1e-20 * torch.ones(3, 8)).requires_grad_()
    out = fused.unit_rows(x)
    out.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert not out.any()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_growing_equals_the_separate_operations(
    n_rows: int, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = random(n_rows, 4), random(4, seed=1), random(n_rows, 3, seed=2)
    towards = random(n_rows, 7, seed=3).detach()
    results = []
    for forced in (False, True):
        if forced:
            monkeypatch.setattr(fused, "by_kernels", lambda x: False)
        out = fused.grow(*inputs, dropout, np.random.default_rng(5))
        results.append([out.detach(), *torch.autograd.grad((out * towards).sum(), inputs)])
    for kernel, plain in zip(*results, strict=True):
        assert torch.allclose(kernel, plain, rtol=1e-4, atol=1e-5)


def test_as_many_are_dropped_as_asked_for_and_the_mean_stays() -> None:
    out = fused.grow(torch.ones(3000, 8), torch.zeros(8), torch.ones(3000, 8), 0.3, np.random.default_rng(0))
    assert float((out == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.01)
