"""Checkpoints: everything a training run needs to go on as if it had never stopped.

A checkpoint is the model's state, its optimisers' state and the best state so far (safetensors), plus
the epoch, the optimisers' settings and the best metrics (JSON). Generators need no saving: they are
pure functions of seed, name and epoch (`coheat.rng`).

The tensor files carry their epoch in their names and `checkpoint.json`, which is replaced last, says
which ones belong together; a run killed while saving therefore still has its previous checkpoint.

Where several processes train together, each writes the rows that it owns, to files of its own, and the
leading one the rest and the index. Reading joins them, so that any number of processes can go on.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from coheat.errors import ArtifactError
from coheat.graph.propagation import array
from coheat.graph.ranks import ALONE, OF_RANK, Ranks, joined, own_part
from coheat.storage import map_arrays, read_json, replacing_file, sha256, write_arrays, write_json

State = dict[str, Tensor]

INDEX = "checkpoint.json"
HISTORY = "history.jsonl"
FORMAT = 1


FILES = "*-[0-9][0-9][0-9][0-9][0-9][0-9].safetensors"


def model_state(model: nn.Module, directory: Path | None = None, ranks: Ranks = ALONE) -> State:
    """Parameters and buffers, set aside, so that further training leaves them alone.

    Of several ranks each has its rows of the parameters, and the leading one the buffers.
    """
    return set_aside(own_state(model, model.state_dict(), ranks), directory)


def own_state(model: nn.Module, state: State, ranks: Ranks) -> State:
    """What is this rank's of a whole state: its rows of the parameters and, if it leads, the buffers."""
    found = {}
    learned = {name for name, _ in model.named_parameters()}
    for name, tensor in state.items():
        if name in learned and ranks.size > 1:
            label, rows = own_part(name, tensor, len(tensor), ranks)
            found[label] = rows
        elif ranks.leads:
            found[name] = tensor
    return found


def restore_model(model: nn.Module, state: State, ranks: Ranks = ALONE) -> None:
    """Put back what `model_state` took; every rank has all rows of the parameters then."""
    if ranks.size == 1:
        model.load_state_dict(state)
        return
    model.load_state_dict(
        {name: tensor for name, tensor in state.items() if OF_RANK not in name}, strict=False
    )
    tables = []
    with torch.no_grad():
        for name, table in model.named_parameters():
            label, rows = own_part(name, table, len(table), ranks)
            rows.copy_(state[label])
            tables.append((array(table), ranks.boundaries(len(table))))
    ranks.exchange(*tables)


class OnDisk(State):
    """Tensors that are mapped from a file; `arrays` are the same, and know of it."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]):
        super().__init__({name: torch.from_numpy(array) for name, array in arrays.items()})
        self.arrays = arrays


def set_aside(state: State, directory: Path | None = None) -> State:
    """A copy of tensors on the CPU: in memory, or, with a `directory`, on its disk and mapped from there.

    The file on the disk has no name, so it is gone with the copy, however the process ends.
    """
    if directory is None or not state:
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}
    path = directory / f".aside-{uuid.uuid4().hex}.safetensors.{os.getpid()}.part"
    try:
        write_tensors(path, state)
        return OnDisk(map_arrays(path, "c"))
    finally:
        path.unlink(missing_ok=True)


def optimizer_state(
    optimizers: list[torch.optim.Optimizer], directory: Path | None = None, ranks: Ranks = ALONE
) -> tuple[State, list[dict[str, Any]]]:
    """Tensors of the optimisers, set aside, by name ("0.3.exp_avg": optimiser, parameter, moment); and the
    rest. Of several ranks each has the moments of its rows."""
    tensors: State = {}
    rest: list[dict[str, Any]] = []
    for number, optimizer in enumerate(optimizers):
        document, lengths = optimizer.state_dict(), _lengths(optimizer)
        plain: dict[str, dict[str, Any]] = {}
        for parameter, values in document["state"].items():
            plain[str(parameter)] = {k: v for k, v in values.items() if not isinstance(v, Tensor)}
            for key, value in values.items():
                label = f"{number}.{parameter}.{key}"
                if isinstance(value, Tensor) and value.dim():
                    label, value = own_part(label, value, lengths[parameter], ranks)
                    tensors[label] = value
                elif isinstance(value, Tensor) and ranks.leads:
                    tensors[label] = value
        rest.append({"state": plain, "param_groups": document["param_groups"]})
    return set_aside(tensors, directory), rest


def _lengths(optimizer: torch.optim.Optimizer) -> list[int]:
    """How many rows each parameter has, in the order of their numbers in the state."""
    return [len(p) if p.dim() else 0 for group in optimizer.param_groups for p in group["params"]]


def restore_optimizers(
    optimizers: list[torch.optim.Optimizer], tensors: State, rest: list[dict[str, Any]], ranks: Ranks = ALONE
) -> None:
    """Put back what `optimizer_state` took, joined; a rank keeps the moments of its rows."""
    for number, (optimizer, saved) in enumerate(zip(optimizers, rest, strict=True)):
        state: dict[int, dict[str, Any]] = {int(p): dict(values) for p, values in saved["state"].items()}
        lengths = _lengths(optimizer)
        for name, tensor in tensors.items():
            owner, parameter, key = name.split(".", 2)
            if int(owner) == number:
                whole = ranks.size == 1 or not tensor.dim()
                # A copy, because a view would keep all of it in memory.
                state[int(parameter)][key] = (
                    tensor if whole else tensor[ranks.own(lengths[int(parameter)])].clone()
                )
        groups = [
            # JSON turns tuples (Adam's betas) into lists; the optimiser's own groups say which were tuples.
            {k: tuple(v) if isinstance(own.get(k), tuple) else v for k, v in group.items()}
            for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=True)
        ]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def write_tensors(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write a safetensors file; a disk that takes no more is an ArtifactError."""
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}
    write_arrays(path, state.arrays if isinstance(state, OnDisk) else arrays)


class Checkpoints:
    """The checkpoint and the history of one run, in its directory."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def exists(self) -> bool:
        return (self.directory / INDEX).exists()

    def save(
        self,
        parts: Mapping[str, State],
        document: Mapping[str, Any],
        stamps: Mapping[str, int],
        ranks: Ranks = ALONE,
    ) -> None:
        """Write each part as `<part>-<stamp>.safetensors`, then the index that makes them valid.

        A part whose stamp is unchanged since the last save (the best state, mostly) is not written again. Of
        several ranks each writes its own as `<part>.<rank>of<size>-<stamp>.safetensors`.
        """
        own: dict[str, dict[str, str]] = {}
        known = self._index()["files"] if self.exists else {}
        for part, state in parts.items():
            label = part if ranks.size == 1 else f"{part}.{ranks.rank + 1}of{ranks.size}"
            name = f"{label}-{stamps[part]:06d}.safetensors"
            if known.get(label, {}).get("name") == name:
                own[label] = known[label]
                continue
            with replacing_file(self.directory / name) as aside:
                write_tensors(aside, state)
            own[label] = {"name": name, "sha256": sha256(self.directory / name)}
        files = {label: entry for of_rank in ranks.collect(own) for label, entry in of_rank.items()}
        if not ranks.leads:
            return
        self._flush_history()
        write_json(self.directory / INDEX, {"format": FORMAT, "files": files, **document})
        kept = {entry["name"] for entry in files.values()}
        for path in self.directory.glob(FILES):
            if path.name not in kept:
                path.unlink()

    def load(self) -> tuple[dict[str, State], dict[str, Any]]:
        """The parts, of all ranks together, and the document of the last save; a damaged file is refused by
        name."""
        document = self._index()
        parts: dict[str, State] = {}
        for label, entry in document["files"].items():
            path = self.directory / entry["name"]
            advice = "the run cannot be resumed; start it again with --overwrite"
            try:
                if sha256(path) != entry["sha256"]:
                    raise ArtifactError(f"{path}: altered since it was written; {advice}")
                parts.setdefault(label.partition(".")[0], {}).update(load_file(path))
            except FileNotFoundError:
                raise ArtifactError(f"{path}: missing; {advice}") from None
            except SafetensorError as error:
                raise ArtifactError(f"{path}: not readable ({error}); {advice}") from None
        return {part: joined(state) for part, state in parts.items()}, document

    def _index(self) -> dict[str, Any]:
        document = read_json(self.directory / INDEX)
        if document.get("format") != FORMAT:
            raise ArtifactError(
                f"{self.directory / INDEX}: format {document.get('format')!r}, this version reads {FORMAT}; "
                "start the run again with --overwrite"
            )
        return document

    def clear(self) -> None:
        """Delete the checkpoint and the history of an earlier training."""
        self.remove()
        (self.directory / HISTORY).unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the checkpoint, and what a killed process left half-written; the history stays."""
        (self.directory / INDEX).unlink(missing_ok=True)
        for pattern in (FILES, ".*.safetensors.*.part"):
            for path in self.directory.glob(pattern):
                path.unlink()

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line to the history, visible to others at once."""
        with (self.directory / HISTORY).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            file.flush()

    def _flush_history(self) -> None:
        """Force the history to the disk before a checkpoint refers to it."""
        with (self.directory / HISTORY).open("ab") as file:
            os.fsync(file.fileno())

    def cut_history(self, epochs: int) -> list[dict[str, Any]]:
        """Drop what was written after the checkpoint (and a torn last line); returns what is left."""
        path = self.directory / HISTORY
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if len(lines) < epochs:
            raise ArtifactError(
                f"{path}: {len(lines)} epochs, the checkpoint is at epoch {epochs}; the file was cut"
            )
        with replacing_file(path) as aside:
            aside.write_text("".join(line + "\n" for line in lines[:epochs]), encoding="utf-8")
        return [json.loads(line) for line in lines[:epochs]]
