"""A warm start: a model begins with what another one had learned, instead of with random vectors.

What is taken over comes from the artifact's `parameters.safetensors`, the model's raw state, which serving
does not read. Tables with a row for each user, bundle or item are matched by id; rows of ids that the other
model did not know stay as they were drawn. Everything else that was learned is copied as it is. Schedules go
on where the other training had arrived: a start stands for the first epochs, and only the last
`warm_share` of them are trained (`coheat.training.shortened`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from coheat.artifact import Artifact
from coheat.data.dataset import Indices
from coheat.errors import ConfigError
from coheat.ids import Vocabulary
from coheat.models.base import Model, take_rows


@dataclass(frozen=True)
class WarmStart:
    """How many users, bundles and items the model that was started from knew, and how many are new."""

    known: dict[str, int] = field(default_factory=dict)
    new: dict[str, int] = field(default_factory=dict)


def starts_warm(model: type[Model]) -> bool:
    """Whether a model can start from another one's state: it learns, and not from a backbone of its own."""
    return model.learns and model.backbone is None


def check_start(artifact: Artifact, name: str, model: type[Model], config: dict[str, Any]) -> None:
    """Refuse an artifact that such a model cannot start from."""
    about, place = artifact.description, artifact.directory
    if not starts_warm(model):
        why = "learns nothing" if not model.learns else "starts from the vectors of its backbone"
        raise ConfigError(f"{name} {why}, so it cannot start from {place}; train it without --start")
    if about.model != name:
        raise ConfigError(f"{place}: a model of kind {about.model}; {name} can start from its own kind only")
    size = "embedding_size"
    if about.config.get(size) != config.get(size):
        raise ConfigError(
            f"{place}: its {size} is {about.config.get(size)}, and {config.get(size)} was asked for; keep it "
            "as it was, or train without --start"
        )


def start_from(model: Model, artifact: Artifact) -> WarmStart:
    """Fill a model that was just made with what the artifact's model had learned."""
    path = artifact.directory / "parameters.safetensors"
    if not path.exists():
        raise ConfigError(f"{artifact.directory}: keeps no parameters to start from; train without --start")
    learned = load_file(path)
    vocabularies = {"user": model.data.users, "bundle": model.data.bundles, "item": model.data.items}
    rows = {kind: _rows(artifact.ids(kind), own.ids) for kind, own in vocabularies.items()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            kind = model.row_tables.get(name.rpartition(".")[2])
            found = _found(learned, name, artifact, parameter, kind is not None)
            if kind is None:
                parameter.copy_(found)
            else:
                take_rows(parameter, found, rows[kind], model.warm_part)
        for name, buffer in model.named_buffers():
            if name in model.learned_buffers:
                buffer.copy_(_found(learned, name, artifact, buffer, False))
    model.take_over(learned, rows)
    model.is_warm = True
    known = {kind: int((at >= 0).sum()) for kind, at in rows.items()}
    return WarmStart(known, {kind: len(at) - known[kind] for kind, at in rows.items()})


def _rows(others: Vocabulary, ids: Sequence[str]) -> Indices:
    """Where each id stands among the others, -1 where it does not."""
    both = min(len(others), len(ids))
    if list(others.ids[:both]) == list(ids[:both]):  # as after collecting, which adds ids at the end
        return np.where(np.arange(len(ids)) < both, np.arange(len(ids)), -1)
    index = others.index
    return np.array([index.get(name, -1) for name in ids], dtype=np.int64)


def _found(
    learned: dict[str, Tensor], name: str, artifact: Artifact, target: Tensor, has_rows: bool
) -> Tensor:
    """What was learned under this name; refused where it does not fit, but for the number of its rows."""
    first = int(has_rows)
    if name not in learned or learned[name].shape[first:] != target.shape[first:]:
        raise ConfigError(
            f"{artifact.directory}: {name!r} in it has another shape, because another version of coheat or "
            "other settings made it; train without --start, or retrain with --fresh once"
        )
    return learned[name]
