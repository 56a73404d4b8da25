"""Adam with deferred gradients against torch's own, given the same gradients in one piece."""

from __future__ import annotations

import subprocess
from contextlib import nullcontext

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from quick_python import quick
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


@pytest.mark.parametrize("direct", [False, True])
def test_a_lazy_step_updates_the_rows_it_reaches_as_adam_does_and_leaves_the_others(direct: bool) -> None:
    graph = random_graph()
    ours, theirs = tables(8), tables(8)
    lazy = Adam(ours, lr=0.01, weight_decay=0.1, lazy=True)
    usual = Adam(theirs, lr=0.01, weight_decay=0.1)
    few = np.array([2, 7, 300]), np.array([1])
    rng = np.random.default_rng(0)
    masks = graph.left.draw_mask(0.3, rng), graph.right.draw_mask(0.3, rng)
    chosen = [graph.select(few, masks)]
    before = [parameter.detach().clone() for parameter in ours]
    for parameters, optimizer in ((ours, lazy), (theirs, usual)):
        with optimizer.deferred_gradients():
            loss(parameters, chosen, direct).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    for place, (mine, other, was) in enumerate(zip(ours, theirs, before, strict=True)):
        updated = (mine != was).any(1)
        assert torch.equal(mine[updated], other[updated])
        moved = torch.zeros(len(mine), dtype=torch.bool)
        if place < 2:
            moved[torch.from_numpy((chosen[0].left, chosen[0].right)[place][0])] = True
            given = (chosen[0].right, chosen[0].left)[place][1]
            moved[torch.from_numpy(given.sources.astype(np.int64))] = True
            # A gradient that no kernel knows of comes in one piece, so it reaches every row.
            assert torch.equal(updated, torch.ones_like(moved) if direct and place == 0 else moved)
            moments = lazy.state[mine]["exp_avg"]
            assert not moments[~updated].any()


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


WITHOUT_COMPILER = """
import sys
import torch
from coheat.graph.adam import Adam
weight = torch.nn.Parameter(torch.ones(3))
adam = Adam([weight], lr=0.1)
adam.zero_grad()
weight.square().sum().backward()
adam.step()
adam.load_state_dict(adam.state_dict())
print(float(weight[0]) < 1, "torch._dynamo" in sys.modules)
"""


def test_the_compiler_of_torch_is_not_imported() -> None:
    done = subprocess.run(
        [quick("python"), "-c", WITHOUT_COMPILER], capture_output=True, text=True, timeout=240
    )
    assert done.stdout == "True False\n", done.stderr
