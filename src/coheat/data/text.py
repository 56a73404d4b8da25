"""Delimited text, read by pyarrow in one go; line numbers are worked out only where they are needed."""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from coheat.data.dataset import Indices
from coheat.data.problems import Problems, counted, places
from coheat.errors import DataError
from coheat.memory_limit import shortage

LINE_END = re.compile(rb"\r\n|\n|\r")
TEXT_FACTOR = 6
"""Bytes of memory for a byte of text: its columns, its ids' codes, and copies on the way."""
UNPACKED_AT_ONCE = 1 << 22
BLOCK = 1 << 22  # bytes that one thread parses at a time; no line may be longer


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
        lines = LINE_END.split(file_content(self.path))
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

    Columns are read as text, or as `column_type` (then what does not fit raises pyarrow's own error).
    Without `names`, the first line is the header and cells may be quoted. What is wrong with single
    lines is told; lines with too few or too many columns are left out.
    """
    try:
        content = _utf8(path, problems)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        problems.error(path.name, f"not a readable gzip file: {error}", "compress it again")
        return None
    except DataError as error:
        problems.error(path.name, str(error), "raise --memory-limit, or divide the file")
        return None
    cell = column_type or pa.string()
    if not content.strip():
        if names is None:
            problems.error(path.name, "the file is empty", "its first line must name the columns")
            return None
        return TextTable(path, pa.table({name: pa.array([], cell) for name in names}), 0)
    malformed: list[Any] = []

    def leave_out(row: Any) -> str:
        malformed.append(row)
        return "skip"

    def read(use_threads: bool) -> Any:
        malformed.clear()
        return csv.read_csv(
            pa.BufferReader(content),
            csv.ReadOptions(column_names=names, use_threads=use_threads, block_size=BLOCK),
            csv.ParseOptions(
                delimiter=delimiter, quote_char=False if names else '"', invalid_row_handler=leave_out
            ),
            csv.ConvertOptions(column_types=dict.fromkeys(names or _header(content, delimiter), cell)),
        )

    try:
        table = read(use_threads=True)
        if malformed:  # their numbers are known only when one thread reads
            table = read(use_threads=False)
    except pa.ArrowInvalid as error:
        if column_type is not None:
            raise
        reason = str(error).split("\n")[0]
        problems.error(path.name, f"it cannot be read as a table: {reason}", "write it again, or use Parquet")
        return None
    found = TextTable(path, table, 0 if names else 1, tuple(row.number for row in malformed))
    if malformed:
        _report_malformed(found, malformed[0], delimiter, problems)
    if names is None and b'"' in content:
        _report_line_breaks(found, problems)
    return found


def file_content(path: Path) -> bytes:
    """The bytes of a file; what is compressed (.gz) is unpacked, as far as there is memory for it."""
    if path.suffix != ".gz":
        _check_fits(path.stat().st_size)
        return path.read_bytes()
    parts, size = [], 0
    with gzip.open(path) as file:
        while part := file.read(UNPACKED_AT_ONCE):
            size += len(part)
            _check_fits(size)
            parts.append(part)
    return b"".join(parts)


def _check_fits(size: int) -> None:
    if short := shortage(TEXT_FACTOR * size):
        raise DataError(f"{size:,} bytes of text or more; {short}")


def _utf8(path: Path, problems: Problems) -> bytes:
    """The content of a file; lines that are not UTF-8 are told, and a mark stands in place of what is not."""
    content = file_content(path)
    try:
        content.decode("utf-8")
        return content
    except UnicodeDecodeError:
        lines = LINE_END.split(content)
        bad = [n for n, line in enumerate(lines) if line.decode("utf-8", "replace").encode("utf-8") != line]
        where, row = places("line", np.array(bad), lambda rows: [int(row) + 1 for row in rows])
        what = f"{counted(len(bad), 'line')} not UTF-8 text ({where})"
        problems.error(path.name, what, "save the file as UTF-8 text", row=row)
        return content.decode("utf-8", "replace").encode("utf-8")


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


def _report_line_breaks(found: TextTable, problems: Problems) -> None:
    """A quoted cell may not go over several lines: most often a quote is not closed and swallows the rest."""
    breaks = np.zeros(len(found.table), dtype=bool)
    for column in found.table.columns:
        for letter in ("\n", "\r"):
            breaks |= pc.match_substring(column, letter).to_numpy()
    if breaks.any():
        line = found.show_rows(np.flatnonzero(breaks)[:1])[0]
        what = "a quoted cell that begins here goes over several lines"
        problems.error(found.path.name, what, "close the quote, or use Parquet", row=line)
