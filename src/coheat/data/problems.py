"""Problems found while reading: collected as records, told all at once, each with a place and a hint."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from coheat.data.dataset import Indices
from coheat.errors import DataError

Severity = Literal["error", "warning", "note"]
ShowRows = Callable[[Indices], list[int]]
"""Turns rows counted from 0 into the numbers a person sees: lines of a text file, rows of a table."""
SHOWN = 5  # how many rows or problems a message spells out before it says how many more there are


class DataWarning(UserWarning):
    """The data can be read, but something in them deserves a look."""


@dataclass(frozen=True)
class Problem:
    """One finding.

    `file` is a name within the directory, "" the directory itself. `row` counts from 1: the line as an
    editor shows it, or the row of a Parquet table or a frame. Errors stop reading;
    warnings are passed to Python's `warnings` as `DataWarning`; notes are ordinary facts that only
    `check` tells.
    """

    severity: Severity
    file: str
    row: int | None
    what: str
    hint: str = ""

    def __str__(self) -> str:
        place = self.file if self.row is None else f"{self.file}:{self.row}"
        return f"{place}: {self.what}" + (f" ({self.hint})" if self.hint else "")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Problems:
    """Collects findings during one reading; `place` (a directory) goes before the file in messages."""

    def __init__(self, place: Path | None = None) -> None:
        self.place = place
        self.found: list[Problem] = []

    def error(self, file: str, what: str, hint: str = "", row: int | None = None) -> None:
        self.found.append(Problem("error", file, row, what, hint))

    def warning(self, file: str, what: str, hint: str = "", row: int | None = None) -> None:
        self.found.append(Problem("warning", file, row, what, hint))

    def note(self, file: str, what: str, hint: str = "") -> None:
        self.found.append(Problem("note", file, None, what, hint))

    def of(self, severity: Severity) -> list[Problem]:
        return [problem for problem in self.found if problem.severity == severity]

    def message(self, problem: Problem) -> str:
        """The problem as one sentence, with the whole path."""
        if self.place is None:
            return str(problem)
        return str(replace(problem, file=str(self.place / problem.file)))

    def raise_errors(self) -> None:
        """Raise one DataError that names the first errors, if there are any."""
        errors = self.of("error")
        if not errors:
            return
        lines = [self.message(problem) for problem in errors[:SHOWN]]
        if len(errors) > SHOWN:
            lines.append(f"... and {len(errors) - SHOWN} more; `coheat data check` tells all of them")
        raise DataError("\n".join(lines))

    def conclude(self, stacklevel: int) -> None:
        """Raise the errors, or else pass the warnings on to Python's `warnings`."""
        self.raise_errors()
        for problem in self.of("warning"):
            warnings.warn(self.message(problem), DataWarning, stacklevel=stacklevel)


def counted(count: int, word: str) -> str:
    """A number with its word.

    >>> counted(1, "row"), counted(3, "row")
    ('1 row', '3 rows')
    """
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def listed(names: Sequence[str]) -> str:
    """The first few of some texts.

    >>> listed(["3", "4", "5", "6", "7", "8", "9"])
    '3, 4, 5, 6, 7 and 2 more'
    """
    text = ", ".join(names[:SHOWN])
    return text if len(names) <= SHOWN else f"{text} and {len(names) - SHOWN} more"


def places(word: str, rows: Indices, show_rows: ShowRows) -> tuple[str, int]:
    """Where rows (counted from 0) are, as text such as "lines 3, 5, 8", and the first as a number."""
    shown = show_rows(rows[:SHOWN])
    text = f"{word if len(rows) == 1 else word + 's'} {', '.join(map(str, shown))}"
    return (text if len(rows) <= SHOWN else f"{text} and {len(rows) - SHOWN} more"), shown[0]
