"""Processes that train one model together. Each is a rank, which owns some rows of every table.

The new numbers of a row are computed by its owner, with the additions in the order of a single process, and
copied to the others. Nothing is ever added up across processes, because a sum of floats depends on how it is
cut: so any number of processes gives the same numbers, to the last bit.

What goes from one process to another are floats and JSON, nothing that is executed where it arrives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from coheat import errors
from coheat.data.dataset import Indices
from coheat.errors import CoheatError, TrainingError

MESSAGE = 1 << 22
"""Most floats that are sent at a time, so that what is under way takes little memory."""

Floats = npt.NDArray[np.float32]
Answer = TypeVar("Answer")


class PeerLost(TrainingError):
    """Another process of this training ended or cannot be reached; what was saved last can go on."""


class Ranks:
    """Number `rank` of `size` processes; one alone needs none of this, and each method then does nothing."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        self.cooperates = False
        """Whether an interruption waits for the next exchange of rows, so that all ranks stop at the same."""
        self._asked_to_stop = False
        self._stopping = False

    @property
    def leads(self) -> bool:
        """Whether this is the rank that decides, shows progress and writes what is not by owner."""
        return self.rank == 0

    def boundaries(self, n: int) -> Indices:
        """Rank r owns rows boundaries[r] to boundaries[r + 1] of a table with n rows."""
        return np.arange(self.size + 1, dtype=np.int64) * n // self.size

    def own(self, n: int) -> slice:
        """This rank's rows of a table with n rows."""
        start, stop = self.boundaries(n)[self.rank : self.rank + 2].tolist()
        return slice(start, stop)

    def all_of(self, n: int, owner: int) -> Indices:
        """The boundaries where one rank has all n rows."""
        return np.where(np.arange(self.size + 1) > owner, n, 0)

    def exchange(self, *pieces: tuple[Floats, Indices]) -> None:
        """Fill the others' rows of contiguous arrays (n, ...): rank r has boundaries[r] to boundaries[r + 1].

        The arrays go one behind the other, in messages of limited length, whose last number says whether
        somebody was asked to stop.
        """
        if self.size == 1:
            return
        parts = [[_part(*piece, rank) for piece in pieces] for rank in range(self.size)]
        longest = max(sum(part.size for part in of_rank) for of_rank in parts)
        own = torch.empty(min(longest, MESSAGE) + 1)
        received = [torch.empty_like(own) for _ in range(self.size)]
        for start in range(0, longest, MESSAGE):
            for place, numbers in _window(parts[self.rank], start):
                own.numpy()[place] = numbers
            own[-1] = float(self._asked_to_stop)
            self._call(dist.all_gather, received, own)
            for rank, message in enumerate(received):
                for place, numbers in _window(parts[rank], start) if rank != self.rank else ():
                    numbers[:] = message.numpy()[place]
            self._stopping |= any(bool(message[-1]) for message in received)

    def agree(self, decide: Callable[[], Answer]) -> Answer:
        """What the leading rank decides; the others wait for it. It has to fit JSON.

        An error of ours that it meets is raised by all.
        """
        if self.size == 1:
            return decide()
        document: dict[str, Any] = {}
        failure: CoheatError | None = None
        if self.leads:
            try:
                document = {"answer": decide()}
            except CoheatError as error:
                document, failure = {"error": type(error).__name__, "message": str(error)}, error
        document = self.collect(document)[0]
        if failure is not None:
            raise failure
        if "error" in document:
            kind: type[CoheatError] = getattr(errors, document["error"], TrainingError)
            raise kind(document["message"])
        answer: Answer = document["answer"]
        return answer

    def collect(self, document: Any) -> list[Any]:
        """What every rank says, in their order; it has to fit JSON."""
        if self.size == 1:
            return [document]
        text = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
        lengths = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
        self._call(dist.all_gather, lengths, torch.tensor([len(text)]))
        own = torch.zeros(max(int(length) for length in lengths), dtype=torch.uint8)
        own[: len(text)] = torch.from_numpy(text.copy())
        received = [torch.empty_like(own) for _ in range(self.size)]
        self._call(dist.all_gather, received, own)
        return [
            json.loads(message.numpy()[: int(length)].tobytes())
            for message, length in zip(received, lengths, strict=True)
        ]

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            self._call(dist.barrier)

    def _call(self, collective: Callable[..., Any], *arguments: Any) -> None:
        """A collective operation of torch, whose errors all mean that somebody does not answer."""
        try:
            collective(*arguments)
        except RuntimeError as error:
            why = "no answer for too long" if "imed out" in str(error) else "the connection was closed"
            raise PeerLost(f"rank {self.rank} of {self.size} lost another one: {why}") from None

    def interrupt(self) -> None:
        """Somebody pressed Ctrl-C: in training all stop at the same batch, before and afterwards at once."""
        if not self.cooperates:
            raise KeyboardInterrupt
        self._asked_to_stop = True

    def go_alone(self) -> None:
        """What comes now concerns this rank only: an interruption waits no longer."""
        self.cooperates = False
        if self._asked_to_stop:
            raise KeyboardInterrupt

    def check_stop(self) -> None:
        """A KeyboardInterrupt, in all ranks alike, if one was asked to stop before the last exchange."""
        if self._stopping or (self.size == 1 and self._asked_to_stop):
            self._asked_to_stop = self._stopping = False
            raise KeyboardInterrupt


def _part(rows: Floats, boundaries: Indices, rank: int) -> Floats:
    """One rank's rows of an array, flat."""
    return rows[boundaries[rank] : boundaries[rank + 1]].reshape(-1)


def _window(parts: Sequence[Floats], start: int) -> Iterator[tuple[slice, Floats]]:
    """Of flat arrays, one behind the other, what lies in the message that begins there, and where in it."""
    position = 0
    for part in parts:
        first, last = max(start - position, 0), min(start + MESSAGE - position, part.size)
        if first < last:
            yield slice(position + first - start, position + last - start), part[first:last]
        position += part.size


ALONE = Ranks()

_sharing: ContextVar[Ranks] = ContextVar("sharing", default=ALONE)


def sharing() -> Ranks:
    """Who shares the work of this thread; other threads, such as the one that prepares batches, are alone."""
    return _sharing.get()


@contextmanager
def shared_by(ranks: Ranks) -> Iterator[None]:
    """Within this context the optimiser updates the rows that this rank owns, and gets the others'."""
    token = _sharing.set(ranks)
    try:
        yield
    finally:
        _sharing.reset(token)


OF_RANK = "@"
"""Between the name of a table and the rank that a part of it belongs to."""


def own_part(name: str, rows: Tensor, n: int, ranks: Ranks) -> tuple[str, Tensor]:
    """This rank's part of a table with n rows, of which `rows` are all or just its own, and a name for it."""
    if ranks.size == 1:
        return name, rows
    return f"{name}{OF_RANK}{ranks.rank}", rows[ranks.own(n)] if len(rows) == n else rows


def joined(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Whole tables from the parts of all ranks, however many these were."""
    found: dict[str, dict[int, Tensor]] = {}
    for label, rows in parts.items():
        name, _, rank = label.partition(OF_RANK)
        found.setdefault(name, {})[int(rank or 0)] = rows
    return {
        name: of_ranks[0] if len(of_ranks) == 1 else torch.cat([of_ranks[rank] for rank in sorted(of_ranks)])
        for name, of_ranks in found.items()
    }
