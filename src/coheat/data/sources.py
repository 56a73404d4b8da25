"""A table as it was found: its columns by name, and how its rows are numbered in messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coheat.data.columns import Column
from coheat.data.dataset import Indices
from coheat.data.problems import Problems, ShowRows
from coheat.errors import DataError
from coheat.reading import read_parquet

SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars", " ": "spaces"}


def count_from_one(rows: Indices) -> list[int]:
    return [int(row) + 1 for row in rows]


@dataclass(frozen=True)
class Source:
    """An Arrow table, the name it goes by in messages, and how its rows are numbered there.

    `typed`: whether the types of its columns say what they are; in a text file everything is text.
    """

    name: str
    table: Any
    show_rows: ShowRows = count_from_one
    typed: bool = True


def read_parquet_table(path: Path, problems: Problems) -> Any | None:
    """The table in a Parquet file; None, and an error told, where there is none that can be read."""
    try:
        return read_parquet(path, DataError)
    except DataError as error:
        problems.error(path.name, str(error).removeprefix(f"{path}: "), "write it again")
        return None


def find_column(source: Source, name: str, problems: Problems) -> Column | None:
    """The column of that name; where it is missing or stands twice, an error with a guess at the reason."""
    names = source.table.column_names
    if names.count(name) == 1:
        return Column(source.table.column(name), name, source.name, source.show_rows, problems)
    if name in names:
        problems.error(source.name, f"{names.count(name)} columns are named {name}", "keep one of them")
        return None
    hint = f"its columns are {', '.join(map(repr, names)) or 'none'}; rename the right one"
    separator = next(
        (letter for letter in SEPARATORS if len(names) == 1 and letter in names[0].strip()), None
    )
    if separator:
        hint = f"the header {names[0]!r} holds {SEPARATORS[separator]}; a .csv has commas, a .tsv has tabs"
    problems.error(source.name, f"there is no column named {name}", hint)
    return None
