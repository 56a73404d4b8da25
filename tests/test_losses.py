"""Losses against their definitions, value and gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from coheat import losses


def test_bpr_by_hand() -> None:
    value = losses.bpr(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0]))
    expected = (torch.log1p(torch.exp(torch.tensor(-1.0))) + torch.log(torch.tensor(2.0))) / 2
    assert value.item() == pytest.approx(expected.item())
    assert losses.bpr(torch.tensor([1e4]), torch.tensor([-1e4])).item() == 0.0
    assert losses.bpr(torch.tensor([-1e4]), torch.tensor([1e4])).item() == 2e4  # no overflow


@given(st.integers(0, 10_000), st.integers(2, 40), st.booleans())
@settings(max_examples=50, deadline=None)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["kernels", "torch"])
def test_uniformity_equals_pdist_over_the_repeated_rows(
    dtype: torch.dtype, seed: int, n: int, with_zero_row: bool
) -> None:
    tolerance = 1e-9 if dtype == torch.float64 else 2e-6
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    if with_zero_row:
        rows[0] = 0
    counts = torch.randint(1, 4, (n,), generator=generator)
    repeated = rows.repeat_interleave(counts, 0).requires_grad_()
    expected = torch.pdist(normalize(repeated)).square().mul(-2).exp().mean().log()
    expected.backward()  # type: ignore[no-untyped-call]
    distinct = rows.to(dtype, copy=True).requires_grad_()
    value = losses.uniformity([(normalize(distinct), counts.to(dtype))]).sum()
    value.backward()  # type: ignore[no-untyped-call]
    assert value.item() == pytest.approx(expected.item(), abs=tolerance)
    assert repeated.grad is not None
    summed = torch.zeros_like(rows).index_add(0, torch.arange(n).repeat_interleave(counts), repeated.grad)
    assert distinct.grad is not None
    start = int(with_zero_row)  # direction of a zero row is undefined; nothing ever asks for it
    assert torch.allclose(distinct.grad[start:].double(), summed[start:], atol=tolerance)


def test_uniformity_is_the_same_for_any_block(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, counts = torch.randn(37, 8, dtype=torch.float64), torch.ones(37, dtype=torch.float64)
    values = []
    for block in (1, 5, 37, 64):
        monkeypatch.setattr(losses, "BLOCK", block)
        values.append(losses.uniformity([(normalize(rows), counts)]).item())
    assert values == pytest.approx([values[0]] * 4, abs=1e-12)


def test_a_single_row_has_no_uniformity() -> None:
    row = torch.ones(1, 4, requires_grad=True)
    assert losses.uniformity([(row, torch.ones(1))]).item() == 0.0


def test_alignment_counts_rows_as_often_as_they_stand_in_the_batch() -> None:
    first, second = torch.randn(4, 6), torch.randn(4, 6)
    counts = torch.tensor([1.0, 2.0, 3.0, 1.0])
    repeat = counts.long()
    a, b = normalize(first).repeat_interleave(repeat, 0), normalize(second).repeat_interleave(repeat, 0)
    assert losses.alignment(normalize(first), normalize(second), counts).item() == pytest.approx(
        (a - b).square().sum(1).mean().item()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["kernels", "torch"])
def test_squared_distances_and_their_gradients(dtype: torch.dtype) -> None:
    tables, weights = torch.randn(2, 7, 5, dtype=dtype), torch.randn(7, dtype=dtype)
    results = []
    for distances in (losses.squared_distances, lambda x, y: (x - y).norm(dim=1) ** 2):
        x, y = (table.clone().requires_grad_() for table in tables)
        values = distances(x, y)
        results.append([values.detach(), *torch.autograd.grad((values * weights).sum(), (x, y))])
    for mine, other in zip(*results, strict=True):
        assert torch.allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["kernels", "torch"])
def test_dot_rows_equals_indexing(dtype: torch.dtype) -> None:
    tables = torch.randn(4, 6, dtype=dtype), torch.randn(3, 6, dtype=dtype)
    x_at, y_at = torch.tensor([0, 3, 3, 1, 0]), torch.tensor([2, 2, 0, 1, 2])
    weights = torch.randn(5, dtype=dtype)
    results = []
    for product in (losses.dot_rows, lambda x, y, i, j: (x[i] * y[j]).sum(1)):
        x, y = (table.clone().requires_grad_() for table in tables)
        values = product(x, y, x_at, y_at)
        (values * weights).sum().backward()
        results.append((values.detach(), x.grad, y.grad))
    for mine, other in zip(*results, strict=True):
        assert torch.allclose(mine, other, atol=1e-5)


def infonce_in_a_loop(x: torch.Tensor, y: torch.Tensor, temperature: float) -> torch.Tensor:
    """One row after the other: how much of its sum of exponentials is its own partner's."""
    values = []
    for r in range(len(x)):
        exponentials = [torch.exp((x[r] * y[s]).sum() / temperature) for s in range(len(y))]
        values.append(-torch.log(exponentials[r] / sum(exponentials)))
    return torch.stack(values).mean()


@given(
    st.integers(0, 10_000), st.integers(1, 8), st.sampled_from([0.1, 0.5, 2.0]), st.sampled_from([1, 20, 999])
)
@settings(max_examples=20, deadline=None)
def test_infonce_equals_a_loop_over_the_repeated_rows(
    seed: int, n: int, temperature: float, entries: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    counts = torch.randint(1, 4, (n,), generator=generator)
    plain = [x.clone().requires_grad_() for x in (first, second)]
    repeated = [normalize(x).repeat_interleave(counts, 0) for x in plain]
    expected = infonce_in_a_loop(repeated[0], repeated[1], temperature)
    expected.backward()  # type: ignore[no-untyped-call]
    mine = [x.clone().requires_grad_() for x in (first, second)]
    x, y = (normalize(view) for view in mine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "BLOCK_ENTRIES", entries)  # the same for blocks of any size
        values = losses.infonce([(x, y, counts.double()), (y, x, counts.double())], temperature)
    values[0].backward()  # type: ignore[no-untyped-call]
    assert values[0].item() == pytest.approx(expected.item(), abs=1e-9)
    swapped = infonce_in_a_loop(repeated[1], repeated[0], temperature)
    assert values[1].item() == pytest.approx(swapped.item(), abs=1e-9)
    for a, b in zip(mine, plain, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad, b.grad, atol=1e-9)


def test_log_partition_counts_anchors_and_candidates_on_their_own() -> None:
    anchors = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    candidates = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    weights, counts = torch.tensor([1, 2, 5]), torch.tensor([1, 3, 1, 2, 0, 1])
    repeated = anchors.repeat_interleave(weights, 0), candidates.repeat_interleave(counts, 0)
    expected = (repeated[0] @ repeated[1].t() / 0.3).logsumexp(1).mean()
    value = losses.log_partition([(anchors, candidates, weights.double(), counts.double())], 0.3).sum()
    assert value.item() == pytest.approx(expected.item(), abs=1e-12)
    gradients = [torch.autograd.grad(x, (anchors, candidates)) for x in (value, expected)]
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-12)


def test_infonce_neither_overflows_nor_vanishes() -> None:
    rows = torch.tensor([[200.0, 0.0], [0.0, 200.0]])
    assert losses.infonce([(rows, rows, torch.ones(2))], 0.1).item() == 0.0
    assert losses.infonce([(rows, -rows, torch.ones(2))], 0.1).item() == pytest.approx(4e5)
