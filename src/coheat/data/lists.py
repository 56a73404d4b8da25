"""Tables that list users, bundles or items: their order, and what else they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coheat.attributes import Attributes
from coheat.data.columns import encode_ids, encode_offer_times
from coheat.data.dataset import Indices, Moments
from coheat.data.describing import note_unread, read_attributes
from coheat.data.problems import Problems, counted, places
from coheat.data.sources import Source, find_column

OFFER_TIMES = ("launched", "ends")
"""Columns of the table `bundles`: from when and until when a bundle is on offer."""


@dataclass(frozen=True)
class IdList:
    """The ids of a table that lists users, bundles or items, in its order, each once.

    `times` holds those of the columns OFFER_TIMES that the table of bundles has: one moment for each id, NaN
    for not known. `attributes` are all others of the tables of bundles and items.
    """

    ids: Any
    times: Mapping[str, Moments] = field(default_factory=dict)
    attributes: Attributes = field(default_factory=Attributes)

    def moments(self, name: str, n_bundles: int) -> Moments | None:
        """A column of times for all bundles; those that the list does not have stand after those it has."""
        if name not in self.times:
            return None
        return np.pad(self.times[name], (0, n_bundles - len(self.ids)), constant_values=np.nan)


def read_list(source: Source, kind: str, problems: Problems) -> IdList | None:
    """What a table of ids lists; None where it has no column of them."""
    column = find_column(source, f"{kind}_id", problems)
    if column is None:
        return None
    coded = encode_ids(column)
    # Codes number the ids by first appearance, so the distinct ids already stand in the table's order.
    repeated = int((coded.codes >= 0).sum()) - len(coded.ids)
    if repeated:
        problems.warning(source.name, f"{counted(repeated, 'repeated id')} dropped", "each id counts once")
    if kind == "user":
        note_unread(source, {column.name}, problems)
        return IdList(coded.ids)
    times = offer_times(source, coded.codes, len(coded.ids), problems) if kind == "bundle" else {}
    rows = first_rows(coded.codes, len(coded.ids))
    return IdList(coded.ids, times, read_attributes(source, rows, problems, {column.name, *times}))


def first_rows(codes: Indices, n_ids: int) -> Indices:
    """(n_ids,) where each id stands first; `codes` (rows,) say whose row each is, -1 for nobody's."""
    rows = np.flatnonzero(codes >= 0)[::-1]
    found = np.zeros(n_ids, dtype=np.int64)
    found[codes[rows]] = rows
    return found


def offer_times(source: Source, codes: Indices, n_ids: int, problems: Problems) -> dict[str, Moments]:
    """The columns of times that the table has; `codes` (rows,) say whose row each is, -1 for nobody's."""
    rows = first_rows(codes, n_ids)  # of a repeated id the first row counts
    found: dict[str, Moments] = {}
    by_row: dict[str, Moments] = {}
    for name in OFFER_TIMES:
        column = find_column(source, name, problems) if name in source.table.column_names else None
        if column is not None:
            by_row[name] = encode_offer_times(column)
            found[name] = by_row[name][rows]
    if len(by_row) == len(OFFER_TIMES):
        backwards = np.flatnonzero(by_row["ends"] < by_row["launched"])  # NaN is not below anything
        if len(backwards):
            where, row = places("row", backwards, source.show_rows)
            what = f"{counted(len(backwards), 'bundle')} with an end before the launch ({where})"
            problems.warning(source.name, what, "such a bundle was never on offer; mend the dates", row=row)
    return found
