"""Rows that several ranks update are, to the last bit, those of one process; parts of tables join again."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from coheat.data.dataset import Indices, relation
from coheat.graph.adam import BLOCK, Adam
from coheat.graph.bipartite import BipartiteGraph, Selection, light_gcn
from coheat.graph.ranks import Floats, Ranks, joined, own_part, shared_by
from coheat.models.layers import table

SHAPE = 3 * BLOCK + 17, 2 * BLOCK + 1


class Deaf(Ranks):
    """A rank that gets nothing from the others, so that what it computes itself can be looked at."""

    def exchange(self, *pieces: tuple[Floats, Indices]) -> None:
        pass


def trained(width: int, ranks: Ranks | None) -> tuple[list[Tensor], list[Tensor]]:
    """Two tables after one step over a random graph, and their first moments."""
    rows, columns = sp.random(*SHAPE, 0.05, random_state=0).nonzero()
    graph = BipartiteGraph(relation(rows, columns, SHAPE))
    generator = torch.Generator().manual_seed(1)
    tables: list[nn.Parameter] = [table(n, width, generator) for n in SHAPE]
    adam = Adam(tables, lr=0.01, weight_decay=0.1)
    with adam.deferred_gradients(), shared_by(ranks) if ranks else nullcontext():
        users, things = light_gcn(selection(graph), tables[0], tables[1], 1)
        (users.square().sum() + (things[:, 0] * things[:, 1]).sum()).backward()  # type: ignore[no-untyped-call]
        adam.step()
    return [t.detach() for t in tables], [adam.state[t]["exp_avg"] for t in tables]


def selection(graph: BipartiteGraph) -> Selection:
    rng = np.random.default_rng(3)
    rows = [np.sort(rng.choice(n, n // 2, replace=False)) for n in SHAPE]
    return graph.select((rows[0], rows[1]), (graph.left.draw_mask(0.3, rng), graph.right.draw_mask(0.3, rng)))


@pytest.mark.parametrize("width", [3, 10, 64])
def test_a_row_is_updated_alike_whoever_owns_it(width: int) -> None:
    expected, moments = trained(width, None)
    for size in (2, 3, 7):
        for rank in range(size):
            ranks = Deaf(rank, size)
            found, own_moments = trained(width, ranks)
            for mine, own, one, of_one in zip(found, own_moments, expected, moments, strict=True):
                rows = ranks.own(len(one))
                assert torch.equal(mine[rows], one[rows])
                assert torch.equal(own, of_one[rows])


@pytest.mark.parametrize("n", [0, 1, 2, 5, 1000])
def test_every_row_has_one_owner_and_parts_join_to_the_table(n: int) -> None:
    whole = torch.arange(3.0 * n).reshape(n, 3)
    for size in (1, 2, 3, 8):
        parts = dict(own_part("users", whole, n, Ranks(rank, size)) for rank in reversed(range(size)))
        assert len(parts) == size
        assert torch.equal(joined(parts)["users"], whole)
