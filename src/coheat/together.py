"""What the processes that train one model together must have in common, told before they begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
import torch

from coheat import __version__
from coheat.errors import ConfigError
from coheat.graph.ranks import Ranks
from coheat.models import MODELS
from coheat.presets import model_class


def shared_device(device: str, name: str, ranks: Ranks) -> str:
    """Where these ranks train a model: several on the CPU, if several can train it at all."""
    if ranks.size == 1:
        return device
    if not model_class(name).shares_rows:
        able = ", ".join(other for other, model in MODELS.items() if model.shares_rows)
        raise ConfigError(
            f"{name} cannot be trained by several processes, {able} can; train it without --workers"
        )
    if device == "cuda":
        raise ConfigError("several processes train on the CPU only; leave --device cuda or --workers out")
    return "cpu"


def check_alike(own: Mapping[str, Any], ranks: Ranks) -> None:
    """Refuse ranks that say something else of themselves than the leading one, or are other versions."""
    versions = {"coheat": __version__, "torch": str(torch.__version__), "numba": numba.__version__}
    first, *others = ranks.collect({**own, "versions": {**versions, "numpy": np.__version__}})
    for rank, other in enumerate(others, start=1):
        for name, value in first.items():
            if value != other[name]:
                raise ConfigError(
                    f"rank {rank} has other {name} than rank 0 ({other[name]}, not {value}); start all ranks "
                    "with the same command, on the same data, with the same versions"
                )
