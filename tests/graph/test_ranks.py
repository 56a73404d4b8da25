"""Rows that several ranks update are, to the last bit, those of one process; parts of tables join again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

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


class Threads(Ranks):
    """Ranks that are threads of this process: what one sends lies in a list that all of them see."""

    def __init__(self, rank: int, size: int, messages: list[Tensor], barrier: threading.Barrier):
        super().__init__(rank, size)
        self.messages, self.barrier = messages, barrier

    def _call(self, collective: Callable[..., Any], *arguments: Any) -> None:
        received, own = arguments
        self.messages[self.rank] = own.clone()
        self.barrier.wait(10)
        for place, message in zip(received, self.messages, strict=True):
            place.copy_(message)
        self.barrier.wait(10)


@pytest.mark.parametrize("message", [1, 7, 10_000])
def test_an_exchange_fills_the_rows_of_others_whatever_the_length_of_messages(
    message: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coheat.graph.ranks.MESSAGE", message)
    size, rng = 3, np.random.default_rng(0)
    whole = [rng.standard_normal((11, 3)), rng.standard_normal(5), rng.standard_normal((1, 2))]
    expected = [one.astype(np.float32) for one in whole]
    barrier, messages = threading.Barrier(size), [torch.empty(0)] * size
    found = []

    def work(rank: int) -> None:
        ranks = Threads(rank, size, messages, barrier)
        if rank == 1:
            ranks.cooperates = True
            ranks.interrupt()
        cuts = [ranks.boundaries(11), ranks.all_of(5, 2), ranks.all_of(1, 0)]
        arrays = []
        for one, cut in zip(expected, cuts, strict=True):
            arrays.append(np.full_like(one, np.nan))
            own = slice(cut[rank], cut[rank + 1])
            arrays[-1][own] = one[own]
        ranks.exchange(*zip(arrays, cuts, strict=True))
        with pytest.raises(KeyboardInterrupt):
            ranks.check_stop()
        ranks.check_stop()
        found.append(arrays)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == size
    for arrays in found:
        for one, other in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 1000])
def test_every_row_has_one_owner_and_parts_join_to_the_table(n: int) -> None:
    whole = torch.arange(3.0 * n).reshape(n, 3)
    for size in (1, 2, 3, 8):
        parts = dict(own_part("users", whole, n, Ranks(rank, size)) for rank in reversed(range(size)))
        assert len(parts) == size
        assert torch.equal(joined(parts)["users"], whole)
