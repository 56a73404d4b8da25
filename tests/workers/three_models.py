"""Train CoHeat, CrossCBR and Ember, and Ember once more from its own vectors, as one of three ranks, then of
two: DATA OUT RANK PORT PORT."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from coheat.graph.ranks import ALONE, Ranks
from coheat.runs import train_run
from coheat.training import Watcher
from coheat.workers.rank import Place, meet

SETTINGS: dict[str, dict[str, Any]] = {
    "coheat": {"share_users": False, "weight_decay_as": "loss"},
    "crosscbr": {"n_layers": 2, "selection": "recall"},
    "ember": {"rehearsal_epochs": 2, "companion_size": 8},
}
"""Options in which tables, gradients and choices differ from the usual ones."""
WARM = "warm"
"""The run that starts from Ember's."""
SHORT = {"epochs": 3, "batch_size": 256, "embedding_size": 12, "evaluate_every": 2}


def train_three(data: Path, out: Path, ranks: Ranks = ALONE) -> None:
    for model, settings in SETTINGS.items():
        train_run(data, out / model, model, overrides=SHORT | settings, watcher=Watcher(), ranks=ranks)
    ember = SHORT | SETTINGS["ember"]
    train_run(data, out / WARM, overrides=ember, watcher=Watcher(), start=out / "ember", ranks=ranks)


if __name__ == "__main__":
    data, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    for size, port in ((3, sys.argv[4]), (2, sys.argv[5])):
        if rank < size:
            meet(Place(rank, size, "127.0.0.1", int(port), None, 120))
            train_three(data, out / str(size), Ranks(rank, size))
            dist.destroy_process_group()
