"""All columns of bundles or of items, by name. A change makes a new table and leaves this one as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coheat.attributes.column import UNDERSTOOD, Column, Value, column_of, kind_of_value
from coheat.errors import ConfigError
from coheat.ids import shortened

MOST_COLUMNS = 1_000
LONGEST_NAME = 200


@dataclass(frozen=True, eq=False)
class Attributes:
    """Columns by name, in their order. Rows are those of a vocabulary, or of a catalogue."""

    columns: Mapping[str, Column] = field(default_factory=dict)
    masks: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict, repr=False)
    """Which rows meet a filter, once asked for (`where.py`)."""

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def get(self, name: str) -> Column | None:
        return self.columns.get(name)

    def kinds(self) -> dict[str, str]:
        """What each column is taken for."""
        return {name: column.kind for name, column in self.columns.items()}

    def values(self, row: int, names: Sequence[str] | None = None) -> dict[str, Value]:
        """What is said of one row; of a name that has no column None."""
        return {
            name: None if (column := self.columns.get(name)) is None else column.value(row)
            for name in (self.columns if names is None else names)
        }

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse names of columns that are neither here nor understood."""
        for name in names:
            if name not in self.columns and name not in UNDERSTOOD:
                raise no_column(name, self)

    def only(self, rows: npt.NDArray[np.int64]) -> Attributes:
        """These rows alone, numbered anew."""
        return Attributes({name: column.only(rows) for name, column in self.columns.items()})

    def with_columns(self, columns: Mapping[str, Column]) -> Attributes:
        return Attributes({**self.columns, **columns}) if columns else self

    def changed(self, rows: Mapping[int, Mapping[str, Value]]) -> Attributes:
        """With other values for some columns of some rows; a column of a new name begins to be."""
        by_column: dict[str, dict[int, Value]] = {}
        for row, values in rows.items():
            for name, value in values.items():
                by_column.setdefault(check_name(name), {})[row] = value
        if len(self.columns | by_column.keys()) > MOST_COLUMNS:
            raise ConfigError(f"there would be more than {MOST_COLUMNS} columns; describe with fewer")
        return self.with_columns(
            {name: self._begun(name, values).changed(values, name) for name, values in by_column.items()}
        )

    def _begun(self, name: str, values: Mapping[int, Value]) -> Column:
        if name in self.columns:
            return self.columns[name]
        first = next((value for value in values.values() if value is not None), None)
        return column_of((), kind_of_value(name, first), name)

    def digest(self, n: int) -> bytes:
        """Of everything in it, for n rows; it does not matter in which order texts are kept."""
        found = hashlib.sha256()
        for name, column in sorted(self.columns.items()):
            found.update(f"{name}:{column.kind}:{n}".encode())
            data = column.resized(n)
            if column.kind == "text":
                order: dict[str, int] = {}
                places = np.array([order.setdefault(text, len(order)) for text in column.texts] + [-1])
                # Numbered by first appearance among the rows, whatever the order of places.
                data, seen = places[data], dict[int, int]()
                data = np.array([-1 if one < 0 else seen.setdefault(one, len(seen)) for one in data.tolist()])
                distinct = list(order)
                for place in seen:
                    found.update(distinct[place].encode("utf-8", "surrogatepass") + b"\0")
            elif data.dtype.kind == "f":
                data = np.where(np.isnan(data), np.nan, data) + 0.0
            found.update(data.astype(np.float64).tobytes())
        return found.digest()


def check_name(name: object) -> str:
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME:
        raise ConfigError(f"{shortened(str(name))} is not a column name: use 1 to {LONGEST_NAME} characters")
    return name


def no_column(name: str, table: Attributes) -> ConfigError:
    known = ", ".join(table) or "none; give the data directory a table `bundles` with further columns"
    return ConfigError(f"there is no column {shortened(name)}; the columns are: {known}")
