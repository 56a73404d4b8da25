"""What was said of bundles and items while a model was served, put into the columns of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coheat.attributes import Attributes, Value, fitting
from coheat.attributes.column import kind_of_value
from coheat.data.dataset import BundleData
from coheat.errors import ConfigError
from coheat.ids import Vocabulary

TIMES = ("launched", "ends")
"""Columns of bundles that are fields of the data, for models learn from them."""


@dataclass(frozen=True)
class SaidColumns:
    """Columns of a bundle or an item and their values, None where one was taken away."""

    subject: Literal["bundle", "item"]
    id: str
    columns: Mapping[str, Value]


@dataclass(frozen=True)
class Told:
    """The data with all that was said; of how many bundles and items that changed anything, and how many
    values did not fit their columns and were left out."""

    data: BundleData
    bundles: int
    items: int
    unfit: int


def with_columns(data: BundleData, said: Sequence[SaidColumns]) -> Told:
    """Saying the same again changes nothing. Of ids that the data do not have nothing is said."""
    of_bundles, of_items = (
        {one.id: one.columns for one in said if one.subject == subject} for subject in ("bundle", "item")
    )
    bundles, n_bundles, unfit = _changed(data.described_bundles(), data.bundles, of_bundles)
    items, n_items, unfit_items = _changed(data.item_attributes, data.items, of_items)
    if n_bundles:
        times = {name: bundles.get(name) for name in TIMES}
        moments = {
            name: column.resized(data.n_bundles).astype(np.float64)
            for name, column in times.items()
            if column
        }
        rest = Attributes({name: column for name, column in bundles.columns.items() if name not in TIMES})
        data = replace(data, bundle_attributes=rest, **moments)  # type: ignore[arg-type]
    if n_items:
        data = replace(data, item_attributes=items)
    return Told(data, n_bundles, n_items, unfit + unfit_items)


def _changed(
    table: Attributes, ids: Vocabulary, said: Mapping[str, Mapping[str, Value]]
) -> tuple[Attributes, int, int]:
    """The table with what is other than it was; how many rows that are, and how many values do not fit."""
    changes: dict[int, dict[str, Value]] = {}
    unfit = 0
    for name, columns in said.items():
        row = ids.index.get(name)
        if row is None:
            continue
        for column, value in columns.items():
            try:
                is_new = _is_new(table, row, column, value)
            except ConfigError:
                unfit += 1
                continue
            if is_new:
                changes.setdefault(row, {})[column] = value
    return table.changed(changes), len(changes), unfit


def _is_new(table: Attributes, row: int, name: str, value: Value) -> bool:
    """Whether a row has another value in a column; raises where this one does not fit."""
    column = table.get(name)
    kind = kind_of_value(name, value) if column is None else column.kind
    known = None if column is None else column.value(row)
    return fitting(value, kind, name) != fitting(known, kind, name)
