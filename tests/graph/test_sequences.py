"""Attention within sequences: kernels against torch operations, and against a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from coheat.data.dataset import Sparse, relation
from coheat.graph.sequences import Sequences


def some_relation(n_rows: int = 40, n_columns: int = 12) -> Sparse:
    """Rows of 0 to 12 columns."""
    rng = np.random.default_rng(0)
    inside = rng.random((n_rows, n_columns)) < rng.random((n_rows, 1))
    inside[3] = False
    inside[4] = True
    rows, columns = np.nonzero(inside)
    return relation(rows, columns, inside.shape)


def in_a_loop(matrix: Sparse, asked: Tensor, x: Tensor, n_tokens: int) -> Tensor:
    found = []
    for row in range(matrix.shape[0]):
        at = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]][:n_tokens]
        answers = [torch.softmax(x[at] @ asked[s], 0) @ x[at] for s in at]
        found.append(torch.stack(answers).mean(0) if answers else x.new_zeros(x.shape[1]))
    return torch.stack(found)


@pytest.mark.parametrize("n_tokens", [1, 5, 100])
def test_values_and_gradients_are_those_of_a_loop(n_tokens: int) -> None:
    matrix = some_relation()
    generator = torch.Generator().manual_seed(0)
    asked, x = (torch.randn(12, 6, generator=generator).requires_grad_() for _ in range(2))
    towards = torch.randn(40, 6, generator=generator)
    sequences = Sequences(matrix, n_tokens)
    results = []
    for attend in (
        sequences.attend,
        sequences.torch_attend,
        lambda asked, x: in_a_loop(matrix, asked, x, n_tokens),
    ):
        out = attend(asked, x)
        results.append([out.detach(), *torch.autograd.grad((out * towards).sum(), (asked, x))])
    for found in results[:2]:
        for one, other in zip(found, results[2], strict=True):
            assert torch.allclose(one, other, atol=1e-5)
    assert not results[0][0][3].any()


def test_large_products_stay_finite() -> None:
    x = 100 * torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    assert Sequences(some_relation(), 100).attend(x, x).isfinite().all()
