"""Delimited text, read by pyarrow in one go; line numbers are worked out only where they are needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from coheat.data.dataset import Indices
from coheat.data.problems import Problems, counted, places

LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class TextTable:
    """A table read from text, and the way back from its rows to the lines of the file."""

    path: Path
    table: Any
    n_header_lines: int
    malformed: tuple[int, ...] = ()
    """Rows left out for their number of columns, counted from 1 over the lines that are not blank."""

    @cached_property
    def _filled_lines(self) -> Indices:
        """Numbers (from 1) of the lines that are not blank; pyarrow passes over blank ones."""
        lines = LINE_END.split(self.path.read_bytes())
        return np.flatnonzero(np.fromiter(map(len, lines), np.int64, len(lines))) + 1

    @cached_property
    def _row_lines(self) -> Indices:
        left_out = np.array(self.malformed, dtype=np.int64) - 1
        return np.delete(self._filled_lines, left_out)[self.n_header_lines :]

    def show_rows(self, rows: Indices) -> list[int]:
        """Lines, as an editor numbers them, of rows counted from 0."""
        return [int(line) for line in self._row_lines[rows]]

    def show_malformed(self, places: Indices) -> list[int]:
        """The same for the rows left out, by their place among them."""
        return [int(self._filled_lines[self.malformed[place] - 1]) for place in places]


def read_text(
    path: Path, delimiter: str, problems: Problems, names: list[str] | None = None, column_type: Any = None
) -> TextTable | None:
    """Read columns with `delimiter` between them; None, and an error told, where the file has none.

    Columns are read as bytes, or as `column_type` (then text that does not fit raises pyarrow's own
    error). Without `names`, the first line is the header and cells may be quoted. Lines with too few
    or too many columns are told as one error and left out.
    """
    content = path.read_bytes()
    cell = column_type or pa.binary()
    if not content.strip():
        if names is None:
            problems.error(path.name, "the file is empty", "its first line must name the columns")
            return None
        return TextTable(path, pa.table({name: pa.array([], cell) for name in names}), 0)
    try:
        columns = names if names is not None else _header(content, delimiter)
    except (UnicodeDecodeError, pa.ArrowInvalid):
        problems.error(path.name, "the header is not UTF-8 text", "save the file as UTF-8 text", row=1)
        return None
    malformed: list[Any] = []

    def leave_out(row: Any) -> str:
        malformed.append(row)
        return "skip"

    def read(use_threads: bool) -> Any:
        malformed.clear()
        return csv.read_csv(
            pa.BufferReader(content),
            csv.ReadOptions(column_names=names, use_threads=use_threads, block_size=1 << 22),
            csv.ParseOptions(
                delimiter=delimiter, quote_char=False if names else '"', invalid_row_handler=leave_out
            ),
            csv.ConvertOptions(column_types=dict.fromkeys(columns, cell)),
        )

    table = read(use_threads=True)
    if not malformed:
        return TextTable(path, table, 0 if names else 1)
    table = read(use_threads=False)  # the numbers of malformed rows are known only when one thread reads
    result = TextTable(path, table, 0 if names else 1, tuple(row.number for row in malformed))
    _report_malformed(result, malformed[0], delimiter, problems)
    return result


def _header(content: bytes, delimiter: str) -> list[str]:
    filled_line = re.search(rb"[^\r\n]+", content)
    first = filled_line[0] if filled_line else b""
    names: list[str] = csv.read_csv(
        pa.BufferReader(first + b"\n"), parse_options=csv.ParseOptions(delimiter=delimiter)
    ).column_names
    return names


def _report_malformed(found: TextTable, first: Any, delimiter: str, problems: Problems) -> None:
    count = len(found.malformed)
    where, line = places("line", np.arange(count), found.show_malformed)
    expected = {"\t": "a tab", ",": "a comma"}[delimiter]
    problems.error(
        found.path.name,
        f"{counted(count, 'line')} without {first.expected_columns} columns ({where}); "
        f"the first has {first.actual_columns}: {first.text!r}",
        f"between two columns stands {expected}, and nothing else",
        row=line,
    )
