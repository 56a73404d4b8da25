"""Noise for propagated vectors: its length, its signs, and that each draw is another."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coheat.graph.noise import perturbed


def test_noise_has_its_length_and_keeps_every_sign() -> None:
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    x[7] = 0
    x[8, 2] = 0
    moved = perturbed(x, 0.2, np.random.default_rng(0))
    steps = (moved - x).norm(dim=1)
    assert steps[7] == 0
    assert 0 < steps[8] < 0.2
    assert np.delete(steps.numpy(), [7, 8]) == pytest.approx(0.2, rel=1e-3)
    assert torch.equal(moved.sign(), x.sign())
    assert (moved.abs() >= x.abs()).all()


def test_directions_are_spread_as_those_of_uniform_numbers() -> None:
    steps = perturbed(torch.ones(20_000, 3), 1.0, np.random.default_rng(0)) - 1
    drawn = np.random.default_rng(1).random((20_000, 3))
    expected = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    assert steps.numpy().mean(0) == pytest.approx(expected.mean(0), abs=0.01)
    assert steps.numpy().std(0) == pytest.approx(expected.std(0), abs=0.01)


def test_draws_differ_and_follow_the_generator() -> None:
    x, rng = torch.ones(5, 4), np.random.default_rng(3)
    first, second = perturbed(x, 0.1, rng), perturbed(x, 0.1, rng)
    assert not torch.equal(first, second)
    assert torch.equal(first, perturbed(x, 0.1, np.random.default_rng(3)))


def test_noise_passes_gradients_on_unchanged_and_none_costs_no_draw() -> None:
    x, rng = torch.randn(5, 4, requires_grad=True), np.random.default_rng(3)
    perturbed(x, 0.1, rng).square().sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    expected = 2 * perturbed(x.detach(), 0.1, np.random.default_rng(3))
    assert torch.allclose(x.grad, expected)
    state = rng.bit_generator.state
    assert perturbed(x, 0.0, rng) is x
    assert rng.bit_generator.state == state
