"""Further columns of the tables `bundles` and `items`: what each is taken for, and values that do not fit."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coheat.attributes import UNDERSTOOD, Attributes, Kind
from coheat.attributes import Column as Attribute
from coheat.data.columns import Column, dense, encode_offer_times, is_blank, is_text
from coheat.data.dataset import Indices
from coheat.data.problems import Problems, counted
from coheat.data.sources import Source, find_column
from coheat.ids import ArrowTexts

WORDS = {"true": 1, "yes": 1, "1": 1, "1.0": 1, "false": 0, "no": 0, "0": 0, "0.0": 0}
NUMBER = r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?$"
"""How numbers are written that lose nothing by being numbers: no zeros in front, no more than 15 digits."""
EXPECTED = {
    "price": "write a number with a point, such as 12.5, without a currency",
    "available": "write true or false",
}


def read_attributes(
    source: Source, rows: Indices, problems: Problems, leave_out: Collection[str]
) -> Attributes:
    """All columns of a table but those that are read elsewhere; `rows` (ids,) say where each id stands."""
    found: dict[str, Attribute] = {}
    for name in dict.fromkeys(source.table.column_names):
        if name in leave_out:
            continue
        if not name.strip():
            problems.warning(source.name, "a column without a name is not kept", "name it in the header")
            continue
        column = find_column(source, name, problems)
        attribute = None if column is None else encode_attribute(column, source.typed)
        if attribute is not None:
            found[name] = attribute.only(rows)
    return Attributes(found)


def note_unread(source: Source, read: Collection[str], problems: Problems) -> None:
    """Tell of columns that nothing is done with."""
    others = [repr(name) for name in dict.fromkeys(source.table.column_names) if name not in read]
    if others:
        what = f"{counted(len(others), 'column')} not read: {', '.join(others)}"
        problems.note(source.name, what, "further columns are kept in the tables bundles and items only")


def encode_attribute(column: Column, typed: bool = True) -> Attribute | None:
    """The values by row; what does not fit is told with its rows. None for a type that cannot be kept.

    Where columns are not `typed`, texts that are all written like numbers are numbers.
    """
    values = dense(column.values)
    kind = UNDERSTOOD.get(column.name) or _kind(values, typed)
    if kind is None:
        what = f"the column {column.name} of type {values.type} is not kept"
        column.problems.warning(column.source, what, "write texts, numbers, times, or true and false")
        return None
    if kind == "time":
        return Attribute("time", encode_offer_times(column))
    if kind == "text":
        return _texts(values)
    return _numbers(column, values) if kind == "number" else _truths(column, values)


def _kind(values: Any, typed: bool) -> Kind | None:
    """What a column of any other name is taken for, by its type, and texts by how they are written."""
    types, kind = pa.types, values.type
    if types.is_boolean(kind):
        return "truth"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "number"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "time"
    if not is_text(kind):
        return None
    if typed:
        return "text"
    filled = pc.unique(_as_text(values).filter(pa.array(~is_blank(values)))).drop_null()
    if len(filled) and pc.all(pc.match_substring_regex(filled, NUMBER)).as_py():
        return "number"
    if len(filled) and pc.all(pc.is_in(pc.utf8_lower(filled), pa.array(["true", "false"]))).as_py():
        return "truth"
    return "text"


def _as_text(values: Any) -> Any:
    """As texts; bytes that are no UTF-8 are shown as their numbers."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        found = values.to_pylist()
        shown = [None if one is None else one.decode("utf-8", "backslashreplace") for one in found]
        return pa.array(shown, pa.string())
    except pa.ArrowNotImplementedError:
        return pa.array([None if one is None else str(one) for one in values.to_pylist()], pa.string())


def _texts(values: Any) -> Attribute:
    texts = _as_text(values)
    coded = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts).dictionary_encode()
    places = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)
    return Attribute("text", places.astype(np.int32), ArrowTexts(coded.dictionary))


def _numbers(column: Column, values: Any) -> Attribute:
    blank = values.is_null().to_numpy(zero_copy_only=False) | is_blank(values)
    if is_text(values.type):
        texts = pc.utf8_trim_whitespace(_as_text(values))
        try:
            values = pc.if_else(pa.array(blank), pa.scalar(None, pa.string()), texts).cast(pa.float64())
        except pa.ArrowInvalid:
            values = pa.array([_number(text) for text in texts.to_pylist()], pa.float64())
    try:
        found = pc.fill_null(values.cast(pa.float64(), safe=False), np.nan).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        found = np.full(len(blank), np.nan)
    found = np.where(np.isfinite(found), found, np.nan)
    _tell(column, np.isnan(found) & ~blank, "not a number")
    whole = bool(np.all(np.isnan(found) | (found == np.round(found))))
    return Attribute("number", found, (), whole)


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _truths(column: Column, values: Any) -> Attribute:
    blank = values.is_null().to_numpy(zero_copy_only=False) | is_blank(values)
    words = pc.utf8_lower(pc.utf8_trim_whitespace(_as_text(values))).dictionary_encode()
    meant = np.array([WORDS.get(word, -1) for word in words.dictionary.to_pylist()] + [-1], dtype=np.int8)
    found = meant[pc.fill_null(words.indices, -1).to_numpy(zero_copy_only=False)]
    _tell(column, (found < 0) & ~blank, "neither true nor false")
    return Attribute("truth", np.where(blank, np.int8(-1), found))


def _tell(column: Column, wrong: npt.NDArray[np.bool_], what: str) -> None:
    if wrong.any():
        first = column.values[int(np.argmax(wrong))].as_py()
        shown = first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)
        many = counted(int(wrong.sum()), column.name)
        hint = EXPECTED.get(column.name, "write numbers, or texts throughout")
        column.error(f"{many} like {shown!r}: {what}", hint, wrong)
