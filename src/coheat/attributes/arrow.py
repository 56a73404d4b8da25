"""Columns as a pyarrow table and back: for Parquet files of artifacts and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coheat.attributes.column import Column
from coheat.attributes.table import Attributes
from coheat.ids import ArrowTexts


def to_arrow(column: Column, n: int) -> Any:
    """n values as a pyarrow array."""
    import pyarrow as pa

    data = column.resized(n)
    if column.kind == "text":
        texts = pa.array(list(column.texts), pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(data, pa.int32(), mask=data < 0), texts)
    if column.kind == "truth":
        return pa.array(data == 1, pa.bool_(), mask=data < 0)
    unknown = np.isnan(data)
    numbers = np.where(unknown, 0, data)
    if column.kind == "time":
        return pa.array(np.round(numbers * 1e6).astype(np.int64), pa.int64(), mask=unknown).cast(
            pa.timestamp("us", "UTC")
        )
    if column.whole and bool(np.all(np.abs(numbers) < 2**53)):
        return pa.array(numbers.astype(np.int64), pa.int64(), mask=unknown)
    return pa.array(data, pa.float64(), mask=unknown)


def from_arrow(values: Any) -> Column | None:
    """A column of a table that `to_arrow` made; None for a type that it never writes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    kind = values.type
    if pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type):
        places = pc.fill_null(values.indices.cast(pa.int32()), -1)
        return Column("text", places.to_numpy(zero_copy_only=False), ArrowTexts(values.dictionary))
    if pa.types.is_string(kind):
        return from_arrow(values.dictionary_encode())
    if pa.types.is_boolean(kind):
        return Column("truth", pc.fill_null(values.cast(pa.int8()), -1).to_numpy(zero_copy_only=False))
    if pa.types.is_timestamp(kind):
        micro = values.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(pa.float64())
        return Column("time", pc.fill_null(micro, np.nan).to_numpy(zero_copy_only=False) / 1e6)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = pc.fill_null(values.cast(pa.float64(), safe=False), np.nan).to_numpy(zero_copy_only=False)
        return Column("number", numbers, (), bool(pa.types.is_integer(kind)))
    return None


def table_of(attributes: Attributes, n: int) -> Any:
    """All columns, n rows each, as a pyarrow table."""
    import pyarrow as pa

    names: Sequence[str] = list(attributes)
    return pa.table([to_arrow(attributes.columns[name], n) for name in names], names=names)
