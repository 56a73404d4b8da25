"""Files that came from elsewhere, read with suspicion: nothing is used before it is known to be what it says.

Only plain files are opened (a pipe would be waited for, for ever), sizes are held against the memory there
is, and whatever is wrong is one sentence that names the file.
"""

from __future__ import annotations

import json
import math
import stat
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from coheat.errors import ArtifactError, CoheatError
from coheat.memory_limit import shortage

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
JSON_FACTOR = 30
"""Bytes of memory for a byte of JSON: a list of small numbers takes so many."""
TEXT_BYTES = 16
"""For a value in a column of text: where it begins, its place in a dictionary, and a copy of that."""
LARGEST_INTEGER = 1 << 62
Refuse = Callable[[str], CoheatError]


def check_plain(path: Path, refuse: Refuse = ArtifactError) -> None:
    """Raise where there is no plain file that can be opened."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "no plain file"
            raise refuse(f"{path}: {what} where a file was written")
        path.open("rb").close()
    except FileNotFoundError:
        raise refuse(f"{path}: there is no such file") from None
    except OSError as error:  # no permission, or links that lead in a circle
        raise refuse(f"{path}: cannot be read ({error.strerror})") from None


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; anything else at that path is an ArtifactError that names it."""
    check_plain(path)
    if short := shortage(JSON_FACTOR * path.stat().st_size):
        raise ArtifactError(f"{path}: {short}")
    try:
        return parse_object(path.read_bytes(), str(path))
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from None


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """The same of bytes that stand at `where`."""
    try:
        document = json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ArtifactError(f"{where}: not what was written there (it is nested too deeply)") from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        reason = str(error)[:200]
        raise ArtifactError(f"{where}: not valid JSON ({reason}); the file was altered or cut off") from None
    if not isinstance(document, dict):
        raise ArtifactError(f"{where}: holds JSON, but not the object that was written there")
    return document


def build(kind: Callable[..., T], document: object, where: str, **known: Any) -> T:
    """A dataclass from a JSON object that has its fields, each of the type that it says.

    `known` are fields that do not stand in the document, or stand there as None.
    """
    if not isinstance(document, Mapping):
        raise ArtifactError(f"{where}: {_shown(document)} instead of an object")
    hints = get_type_hints(kind)
    found = dict(known)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in known:
            continue
        if field.name in document:
            found[field.name] = _checked(document[field.name], hints[field.name], f"{where}, {field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ArtifactError(f"{where}: {field.name} is missing")
    strange = set(document) - {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if strange:
        raise ArtifactError(f"{where}: {min(map(str, strange))!r} means nothing here")
    return kind(**found)


def _checked(value: Any, hint: Any, where: str) -> Any:
    """A value of JSON, of this type; lists become tuples where the type says so."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is types.UnionType:
        if value is None and type(None) in inside:
            return None
        return _checked(value, next(one for one in inside if one is not type(None)), where)
    if inside in ((float,), (float, ...)) and _are_floats(value) and (origin is list or inside[-1] is ...):
        return value if origin is list else tuple(value)
    if origin is list and isinstance(value, list):
        return [_checked(one, inside[0], where) for one in value]
    if origin is dict and isinstance(value, dict):
        return {key: _checked(one, inside[1], where) for key, one in value.items()}
    if origin is tuple and isinstance(value, list):
        kinds = [inside[0]] * len(value) if inside[-1] is ... else inside
        if len(kinds) != len(value):
            raise ArtifactError(f"{where}: {len(value)} values instead of {len(kinds)}")
        return tuple(_checked(one, kind, where) for one, kind in zip(value, kinds, strict=True))
    if not _fits(value, hint):
        raise ArtifactError(f"{where}: {_shown(value)} instead of {getattr(hint, '__name__', hint)}")
    return value


def _are_floats(value: object) -> bool:
    """Whether it is a list of ordinary floats: curves have a hundred thousand, too many to look at singly."""
    return isinstance(value, list) and set(map(type, value)) == {float} and all(map(math.isfinite, value))


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return any(value == one and type(value) is type(one) for one in get_args(hint))
    if type(value) is int and hint in (int, float):
        return abs(value) < LARGEST_INTEGER
    if hint is float:
        return type(value) is float and math.isfinite(value)
    return type(value) is hint


def _shown(value: object) -> str:
    if isinstance(value, list | dict):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
        return "a number of very many digits"
    return repr(value)[:60]


# --- Parquet ------------------------------------------------------------------------------------


def read_parquet(path: Path, refuse: Refuse, n_rows: int | None = None) -> pa.Table:
    """The table in a Parquet file, or in a directory of them.

    Texts stay a dictionary where they repeat, so that they are held once. With `n_rows`, a file that declares
    another number is refused before it is read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    is_directory = path.is_dir()
    what = "directory of Parquet files" if is_directory else "Parquet file"
    files = sorted(path.rglob("*.parquet")) if is_directory else [path]
    for file in files:
        check_plain(file, refuse)
    try:
        described = [parquet.read_metadata(file) for file in files]
        total = sum(one.num_rows for one in described)
        if n_rows is not None and total != n_rows:
            raise refuse(f"{path}: {total} rows instead of {n_rows}")
        if short := shortage(sum(map(_bytes_in_memory, described))):
            raise refuse(f"{path}: {total:,} rows; {short}")
        schema = parquet.read_schema(files[0]) if files else pa.schema([])
        texts = [column.name for column in schema if pa.types.is_string(column.type)]
        if is_directory:
            table = parquet.read_table(path, read_dictionary=texts)
        else:  # what reads directories imports pandas where it is installed: a fifth of a second, 70 MB
            with parquet.ParquetFile(path, read_dictionary=texts) as file:
                table = file.read(use_threads=False)
        table.validate(full=True)
        return table
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, RecursionError) as error:
        reason = (str(error) or type(error).__name__).split("\n")[0][:200]
        raise refuse(f"{path}: not a readable {what}: {reason}") from None


def _bytes_in_memory(described: Any) -> int:
    """An upper estimate of what the table of a Parquet file, and the codes of its ids, take."""
    total = 0
    for group in range(described.num_row_groups):
        group_described = described.row_group(group)
        for number in range(group_described.num_columns):
            column = group_described.column(number)
            is_text = column.physical_type == "BYTE_ARRAY"
            held = column.total_uncompressed_size if is_text else 0
            # The value, its code, and a copy of that on the way.
            total += held + (TEXT_BYTES + 8 if is_text else 24) * column.num_values
    return int(total)
