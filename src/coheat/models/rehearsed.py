"""What a rehearsal leaves to the next one, so that it need not start from scratch every night.

A rehearsal learns from what a division kept (`coheat.models.stand_ins`), and what was held out decides.
Vectors that have seen nothing of that are as good a start for it as yesterday's are for the model itself.
Those of yesterday's rehearsal are such: today's division goes on from yesterday's, and holds out nothing that
any rehearsal before it has seen. Beside its vectors a rehearsal leaves just that, all by row; a warm start
finds the rows again by their ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coheat.data.dataset import Indices, Sparse, pairs, relation
from coheat.models.base import HANDED_ON, take_rows
from coheat.models.stand_ins import Before, StandIns
from coheat.models.two_views import TwoViewModel

TABLES = {"users": "user", "bundles": "bundle", "items": "item"}
"""The tables of a rehearsal, and what has a row there."""


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """An earlier rehearsal: its tables, where today's rows stand in them (-1: nowhere), and its division."""

    tables: Mapping[str, Tensor]
    rows: Mapping[str, Indices]
    before: Before

    @staticmethod
    def found(learned: Mapping[str, Tensor], rows: Mapping[str, Indices], size: int) -> Rehearsed | None:
        """From what an artifact keeps; None where it keeps no rehearsal with vectors of this size."""
        named = {name.removeprefix(HANDED_ON): found for name, found in learned.items() if HANDED_ON in name}
        if not {*TABLES, "seen", "held_out", "is_stand_in", "took_items"} <= set(named):
            return None
        if any(named[name].shape[1:] != (size,) for name in TABLES):
            return None
        users, bundles = (_places(rows[kind], len(named[f"{kind}s"])) for kind in ("user", "bundle"))
        shape = len(rows["user"]), len(rows["bundle"])

        def moved(name: str) -> Sparse:
            found = named[name].numpy()
            now = users[found[0]], bundles[found[1]]
            there = (now[0] >= 0) & (now[1] >= 0)
            return relation(now[0][there], now[1][there], shape)

        stood_in = np.append(named["is_stand_in"].numpy(), False)[rows["bundle"]]
        before = Before(moved("seen"), moved("held_out"), stood_in, bool(named["took_items"]))
        return Rehearsed({name: named[name] for name in TABLES}, rows, before)

    def start(self, rehearsal: TwoViewModel) -> None:
        """Start a rehearsal that was just made from these vectors; rows that are new stay as drawn."""
        for name, kind in TABLES.items():
            take_rows(getattr(rehearsal, name), self.tables[name], self.rows[kind])
        rehearsal.is_warm = True


def left_by(rehearsal: TwoViewModel, division: StandIns) -> dict[str, Tensor]:
    """What an artifact has to keep of a rehearsal that is over."""
    return {
        **{HANDED_ON + name: getattr(rehearsal, name).detach() for name in TABLES},
        HANDED_ON + "seen": _rows(division.seen),
        HANDED_ON + "held_out": _rows(division.held_out),
        HANDED_ON + "is_stand_in": torch.from_numpy(division.is_stand_in),
        HANDED_ON + "took_items": torch.tensor([division.took_items]),
    }


def _rows(interactions: Sparse) -> Tensor:
    """(2, n) the users and the bundles of interactions."""
    return torch.from_numpy(np.stack(pairs(interactions)).astype(np.int32))


def _places(rows: Indices, n: int) -> Indices:
    """Where each of n earlier rows stands today, -1 where it does not; `rows` say it the other way round."""
    places = np.full(n, -1, dtype=np.int64)
    known = np.flatnonzero(rows >= 0)
    places[rows[known]] = known
    return places
