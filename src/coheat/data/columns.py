"""Columns of ids and of timestamps: any sensible type goes in, texts and Unix seconds come out.

A column of ids is dictionary-encoded once; conversions and checks then look at the distinct ids only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coheat.data.dataset import Indices, Moments
from coheat.data.problems import Problems, ShowRows, counted, listed, places

MISSING_WORDS = ("nan", "NaN", "NAN", "null", "NULL", "none", "None", "NA", "N/A", "<NA>", "NaT")
INTEGERS_OR_TEXTS = "make the column integers or texts"
MILLISECONDS = 100_000_000_000
"""As Unix seconds this is the year 5138, as milliseconds 1973: a value above is hardly seconds."""


@dataclass(frozen=True)
class Column:
    """One column of one source, for messages that can say where something stands."""

    values: Any
    name: str
    source: str
    show_rows: ShowRows
    problems: Problems

    def error(self, what: str, hint: str, bad: npt.NDArray[np.bool_]) -> None:
        """Tell an error about the rows marked `bad`."""
        where, row = places("row", np.flatnonzero(bad), self.show_rows)
        self.problems.error(self.source, f"{what} ({where})", hint, row=row)


@dataclass(frozen=True)
class CodedIds:
    """`ids`: distinct ids, a pyarrow string array; `codes`: (rows,) positions in it, -1 where unusable."""

    ids: Any
    codes: Indices


def encode_ids(column: Column) -> CodedIds:
    """Codes and distinct texts of a column of ids; rows without a usable id are told and get code -1."""
    values = plain(column.values)
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_text(kind)):
        what = f"{column.name} is of type {kind}"
        column.problems.error(column.source, what, INTEGERS_OR_TEXTS)
        return CodedIds(pa.array([], pa.string()), np.full(len(values), -1, dtype=np.int64))
    codes, distinct = _distinct(values)
    texts, valid, why = _as_texts(distinct)
    filled = valid & pc.not_equal(texts, "").to_numpy(zero_copy_only=False)
    if not filled.all() or (codes < 0).any():
        # Position -1, where rows without a value point, is the last: not filled, but not wrong either.
        wrong = np.append(~valid, False)[codes]
        blank = ~np.append(filled, False)[codes] & ~wrong
        if wrong.any():
            first = str(distinct[int(codes[np.argmax(wrong)])].as_py())
            many = counted(int(wrong.sum()), column.name)
            column.error(f"{many} like {first!r}: {why[0]}", why[1], wrong)
        if blank.any():
            many = counted(int(blank.sum()), "row")
            column.error(f"{many} without {column.name}", "fill it in or delete the row", blank)
        renumbered = np.append(np.where(filled, np.cumsum(filled) - 1, -1), -1)
        codes, texts = renumbered[codes], texts.filter(pa.array(filled))
    _warn_of_odd_ids(column, texts, codes)
    return CodedIds(texts, codes)


def _distinct(values: Any) -> tuple[Indices, Any]:
    """Codes (rows,) and the distinct values of a column; rows without a value get code -1."""
    came_encoded = pa.types.is_dictionary(values.type)
    chunks = (values.unify_dictionaries() if came_encoded else values.dictionary_encode()).chunks
    if not chunks:
        return np.zeros(0, dtype=np.int64), pa.array(
            [], values.type.value_type if came_encoded else values.type
        )
    # All chunks of an encoded column share one dictionary.
    codes = np.concatenate([pc.fill_null(chunk.indices, -1).to_numpy() for chunk in chunks]).astype(np.int64)
    distinct = chunks[-1].dictionary
    return _only_used(codes, distinct) if came_encoded else (codes, distinct)


def _only_used(codes: Indices, dictionary: Any) -> tuple[Indices, Any]:
    """Without values that a dictionary from elsewhere holds twice or that no row has; numbered as they
    appear."""
    encoded = dictionary.dictionary_encode()
    codes = np.append(pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64), -1)[codes]
    used, first = np.unique(codes[codes >= 0], return_index=True)
    used = used[np.argsort(first)]
    renumbered = np.full(len(encoded.dictionary) + 1, -1)
    renumbered[used] = np.arange(len(used))
    return renumbered[codes], encoded.dictionary.take(pa.array(used))


def plain(values: Any) -> Any:
    """The same column without views; a dictionary stays one: what repeats is held once."""
    is_dictionary = pa.types.is_dictionary(values.type)
    kind = values.type.value_type if is_dictionary else values.type
    if pa.types.is_string_view(kind) or pa.types.is_null(kind):
        kind = pa.large_string()
    elif pa.types.is_binary_view(kind):
        kind = pa.large_binary()
    if is_dictionary:
        chunks = [
            pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int64()), chunk.dictionary.cast(kind))
            for chunk in values.chunks
        ]
        return pa.chunked_array(chunks, pa.dictionary(pa.int64(), kind))
    return values if kind == values.type else values.cast(kind)


def dense(values: Any) -> Any:
    """The same column in one piece, without dictionaries and views."""
    found = plain(values).combine_chunks()
    return found.dictionary.take(found.indices) if pa.types.is_dictionary(found.type) else found


def is_text(kind: Any) -> bool:
    """Whether it is text, or bytes: some programs write text as bytes into Parquet."""
    types = pa.types
    is_string = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_string or types.is_binary(kind) or types.is_large_binary(kind))


def _as_texts(distinct: Any) -> tuple[Any, npt.NDArray[np.bool_], tuple[str, str]]:
    """Texts of distinct values, which of them are valid, and what is wrong with the others and what to do."""
    if pa.types.is_floating(distinct.type):
        numbers = distinct.to_numpy(zero_copy_only=False)
        whole = np.isfinite(numbers) & (numbers == np.round(numbers)) & (np.abs(numbers) < 2**53)
        texts = pa.array(np.where(whole, numbers, 0).astype(np.int64)).cast(pa.string())
        texts = pc.if_else(pa.array(np.isnan(numbers)), "", texts)
        return texts, whole | np.isnan(numbers), ("not a whole number that is exact", INTEGERS_OR_TEXTS)
    why = ("not UTF-8 text", "write ids as UTF-8 text")
    try:
        return distinct.cast(pa.string()), np.ones(len(distinct), dtype=bool), why
    except pa.ArrowInvalid:
        decoded = [value.decode("utf-8", "replace") for value in distinct.to_pylist()]
        pairs = zip(decoded, distinct.to_pylist(), strict=True)
        return pa.array(decoded, pa.string()), np.array([t.encode() == value for t, value in pairs]), why


def _warn_of_odd_ids(column: Column, texts: Any, codes: Indices) -> None:
    """Ids are taken exactly as they are; those that look like an accident are told."""
    odd = (
        (pc.is_in(texts, pa.array(MISSING_WORDS)), "look like a missing value"),
        (pc.not_equal(pc.utf8_trim_whitespace(texts), texts), "begin or end with a space"),
    )
    for is_odd, what in odd:
        found = np.flatnonzero(is_odd.to_numpy(zero_copy_only=False))
        if len(found):
            row = column.show_rows(np.flatnonzero(np.isin(codes, found))[:1])[0]
            names = listed([repr(name) for name in texts.take(pa.array(found)).to_pylist()])
            what = f"{counted(len(found), f'distinct {column.name}')} {what}: {names}"
            column.problems.warning(column.source, what, "they are kept exactly as they are", row=row)


def encode_timestamps(column: Column) -> Indices:
    """(rows,) Unix seconds; rows without a valid time are told as errors and get 0."""
    seconds, missing = _encode_times(column)
    if missing.any():
        many = counted(int(missing.sum()), "row")
        column.error(f"{many} without {column.name}", "fill it in, or leave out the whole column", missing)
    return seconds


def encode_offer_times(column: Column) -> Moments:
    """(rows,) Unix seconds, NaN where nothing is written; what is no time is told as an error."""
    seconds, missing = _encode_times(column)
    return np.where(missing, np.nan, seconds)


def _encode_times(column: Column) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """(rows,) Unix seconds, and where there is no value; what is no time is told as an error."""
    hint = "write whole Unix seconds, or times like 2024-05-31T18:00:00"
    values = plain(column.values)
    if pa.types.is_dictionary(values.type):
        codes, distinct = _distinct(values)
        seconds, known, missing = _times_of(pa.chunked_array([distinct]))
        # Position -1, where rows without a value point, is the last.
        seconds, known = np.append(seconds, 0)[codes], np.append(known, False)[codes]
        missing = np.append(missing, True)[codes]
    else:
        seconds, known, missing = _times_of(values)
    wrong = ~known & ~missing
    if wrong.any():
        first = column.values[int(np.argmax(wrong))].as_py()
        shown = first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)
        many = counted(int(wrong.sum()), column.name)
        column.error(f"{many} like {shown!r}: not a time", hint, wrong)
    late = seconds > MILLISECONDS
    if late.any():
        row = column.show_rows(np.flatnonzero(late)[:1])[0]
        example = f"values of {column.name} like {seconds[late][0]}"
        what = f"{example} lie thousands of years ahead when read as Unix seconds"
        column.problems.warning(column.source, what, "divide milliseconds by 1000", row=row)
    return seconds, missing


def _times_of(values: Any) -> tuple[Indices, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Unix seconds of a column, which rows have a valid one, and which have none."""
    seconds, known = _to_seconds(values)
    return seconds, known, values.is_null().to_numpy() | is_blank(values)


def is_blank(values: Any) -> npt.NDArray[np.bool_]:
    """Which values are an empty text or NaN: nothing was written there."""
    if pa.types.is_floating(values.type):
        nan: npt.NDArray[np.bool_] = np.isnan(values.to_numpy(zero_copy_only=False))
        return nan
    if is_text(values.type):
        blank: npt.NDArray[np.bool_] = (
            pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False) == 0
        )
        return blank
    return np.zeros(len(values), dtype=bool)


def _to_seconds(values: Any) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Unix seconds of a column of any type, and which rows have a valid one; the others get 0."""
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        values = values.cast(pa.timestamp("s", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
    if pa.types.is_integer(values.type):
        known = values.is_valid().to_numpy()
        return pc.fill_null(values.cast(pa.int64(), safe=False), 0).to_numpy(), known
    if pa.types.is_floating(kind):
        numbers = values.to_numpy()
        known = np.abs(numbers) < 2**53
        return np.floor(np.where(known, numbers, 0)).astype(np.int64), known
    if is_text(kind):
        return _parse_times(values)
    return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=bool)


def _parse_times(values: Any) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """The same for texts: a column of one form in one go, anything else value by value."""
    for zone in (False, None, "UTC"):
        try:
            texts = values.cast(pa.string())
            if zone is False:
                return texts.cast(pa.int64()).to_numpy(), np.ones(len(values), dtype=bool)
            times = texts.cast(pa.timestamp("ns", zone)).cast(pa.timestamp("s", zone), safe=False)
            return times.cast(pa.int64()).to_numpy(), np.ones(len(values), dtype=bool)
        except pa.ArrowInvalid:
            continue
    parsed = [parse_time(value) for value in values.to_pylist()]
    seconds = np.array([0 if time is None else time for time in parsed], dtype=np.int64)
    return seconds, np.array([time is not None for time in parsed], dtype=bool)


def parse_time(value: str | bytes | None) -> int | None:
    """Unix seconds of one text, whole seconds or ISO 8601 (UTC unless it says otherwise)."""
    try:
        text = value.decode() if isinstance(value, bytes) else value or ""
        if text.lstrip("-").isdigit() and len(text) < 19:
            return int(text)
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() // 1)
