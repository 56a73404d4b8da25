"""Ids behind rows; an unknown one is an error with a suggestion."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import overload

from coheat.errors import UnknownIdError

STRETCH = 10_000


class IdColumn(Sequence[str]):
    """The ids in a Parquet file of one column; each becomes a text of Python's when it is looked at.

    So they take a tenth of the memory: there may be millions of users, and few of them are asked for.
    """

    def __init__(self, path: Path):
        from pyarrow import parquet

        self._column = parquet.read_table(path).column(0).combine_chunks()

    def __len__(self) -> int:
        return len(self._column)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), STRETCH):
            yield from self._column[start : start + STRETCH].to_pylist()

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return list(self._column[place].to_pylist())
        return str(self._column[int(place)])


class Ids:
    """Ids in the order of rows, and the row of an id."""

    def __init__(self, ids: Sequence[str], kind: str):
        self.ids, self.kind = ids, kind

    @cached_property
    def rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    def row(self, name: str) -> int:
        try:
            return self.rows[name]
        except KeyError:
            raise unknown(name, self.kind, self.ids) from None


def unknown(name: str, kind: str, known: Sequence[str]) -> UnknownIdError:
    """The error for an id that is not there, with the nearest one that is."""
    return UnknownIdError(f"unknown {kind} id {shortened(name)}{suggestion(name, kind, known)}")


def suggestion(name: str, kind: str, known: Sequence[str]) -> str:
    # Comparing texts is slow, so only the ids that begin alike are looked at, and not too many.
    wanted = name.strip()[:100]
    alike = [one for one in known if one[:1].casefold() == wanted[:1].casefold()]
    close = difflib.get_close_matches(wanted, alike[:5000], n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; the model knows {len(known)} {kind}s"


def shortened(name: str) -> str:
    """An id as it stands in a sentence: quoted, and cut where it is very long."""
    return repr(name) if len(name) <= 100 else f"{name[:100]!r}... ({len(name)} characters)"
