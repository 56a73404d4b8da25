"""A piece of work, and its way to another process: plain values as JSON, never pickled."""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

from coheat import __version__
from coheat.errors import CoheatError


class TaskError(CoheatError):
    """A task could not be done."""


@dataclass(frozen=True)
class Task(ABC):
    """A piece of work whose results are files that are whole or absent.

    A task is a frozen dataclass of plain values, so that any process can be handed it. Paths are absolute: it
    may run in another directory. A field that starts with an underscore stays behind; what it holds,
    data that is in memory already, is read again by those who do not have it.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What people see; no two tasks that run together have the same."""

    @abstractmethod
    def run(self) -> None:
        """Do it. Called again after it was stopped at any moment, it goes on or begins anew."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether its files are there."""

    def failure(self) -> str | None:
        """Why it failed, where a task keeps that in a file."""
        return None

    def give_up(self, why: str) -> None:
        """It will not be done: raise, or write that down and let the others go on."""
        raise TaskError(f"{self.name}: {why}")

    @property
    def kind(self) -> str:
        """Tasks of one kind take about equally long per step."""
        return type(self).__name__

    @property
    def steps(self) -> int:
        """How many steps it has in all, epochs for instance."""
        return 1

    def standing(self) -> tuple[int, float | None]:
        """How many of its steps are done, and the seconds that the last one took, where this is known."""
        return 0, None


def to_text(task: Task) -> str:
    """A task as one line of JSON."""
    kind = type(task)
    values = {field.name: getattr(task, field.name) for field in fields(task) if field.name[0] != "_"}
    return json.dumps({"task": f"{kind.__module__}:{kind.__qualname__}", "values": values})


def from_text(text: str) -> Task:
    """The task that `to_text` wrote."""
    document = json.loads(text)
    module, _, name = document["task"].partition(":")
    kind = getattr(importlib.import_module(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        raise TaskError(
            f"{document['task']!r} is not a task of coheat {__version__}; install one version everywhere"
        )
    return kind(**document["values"])
