"""Adam with deferred gradients against torch's own, given the same gradients in one piece."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from coheat.data.dataset import relation
from coheat.graph.adam import BLOCK, Adam, deferred_parts
from coheat.graph.bipartite import BipartiteGraph, Selection, light_gcn
from coheat.models.layers import table

SHAPE = 3 * BLOCK + 17, BLOCK + 1
"""Rows of the two sides: several blocks and a rest."""


def random_graph() -> BipartiteGraph:
    rows, columns = sp.random(*SHAPE, 0.05, random_state=0).nonzero()
    return BipartiteGraph(relation(rows, columns, SHAPE))


def tables(width: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [table(n, width, generator) for n in (*SHAPE, 5)]


def selection(graph: BipartiteGraph, seed: int) -> Selection:
    rng = np.random.default_rng(seed)
    rows = [np.sort(rng.choice(n, n // 2, replace=False)) for n in SHAPE]
    masks = graph.left.draw_mask(0.3, rng), graph.right.draw_mask(0.3, rng)
    return graph.select((rows[0], rows[1]), masks)


def loss(parameters: list[nn.Parameter], selections: list[Selection], direct: bool) -> Tensor:
    """Several views on two tables, and a table apart; with `direct`, also a term that no kernel knows of."""
    left, right, apart = parameters
    total = apart.square().sum()
    for chosen in selections:
        users, things = light_gcn(chosen, left, right, 1)
        total = total + users.square().sum() + (things[:, 0] * things[:, 1]).sum()
    return total + left[3].sum() ** 2 if direct else total


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("width", [3, 64])
def test_steps_equal_those_of_torch(width: int, direct: bool) -> None:
    graph = random_graph()
    ours, theirs = tables(width), tables(width)
    adam = Adam(ours, lr=0.01, weight_decay=0.1)
    expected = torch.optim.Adam(theirs, lr=0.01, weight_decay=0.1)
    for step in range(4):
        chosen = [selection(graph, 2 * step), selection(graph, 2 * step + 1)]
        for parameters, optimizer in ((ours, adam), (theirs, expected)):
            optimizer.zero_grad()
            with adam.deferred_gradients() if optimizer is adam else nullcontext():
                loss(parameters, chosen, direct).backward()  # type: ignore[no-untyped-call]
                assert bool(deferred_parts(parameters[0])) == (optimizer is adam)
                optimizer.step()
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    for mine, other in zip(ours, theirs, strict=True):
        for name, value in expected.state[other].items():
            torch.testing.assert_close(adam.state[mine][name], value, rtol=1e-2, atol=1e-3)
    torch.optim.Adam(theirs, fused=True).load_state_dict(adam.state_dict())


def test_gradients_are_written_outside_and_after_an_error() -> None:
    graph = random_graph()
    parameters = tables(8)
    adam = Adam(parameters, lr=0.01, weight_decay=0.0)

    def fail() -> None:
        with adam.deferred_gradients():
            loss(parameters, [selection(graph, 0)], direct=False).backward()  # type: ignore[no-untyped-call]
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert deferred_parts(parameters[0]) is None
    adam.zero_grad()
    before = parameters[0].detach().clone()
    loss(parameters, [selection(graph, 0)], direct=False).backward()  # type: ignore[no-untyped-call]
    assert parameters[0].grad is not None
    adam.step()
    assert not torch.equal(parameters[0], before)
