"""One column of what is said of bundles or items: a small array by row, whatever its kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from coheat.errors import ConfigError
from coheat.ids import shortened

Kind: TypeAlias = Literal["text", "number", "truth", "time"]
Value: TypeAlias = str | float | bool | None
"""As it goes in and out: a time is a text such as 2024-05-31 or 2024-05-31T18:00:00Z; None is not known."""

UNDERSTOOD: Mapping[str, Kind] = {
    "title": "text",
    "category": "text",
    "image": "text",
    "price": "number",
    "available": "truth",
    "launched": "time",
    "ends": "time",
}
"""Names that mean something; a column of any other name is kept and can be filtered by and asked for."""

DAY = 24 * 60 * 60
LONGEST = 10_000
"""Characters of a text that is set at run time."""
_EMPTY: Mapping[Kind, tuple[Any, Any]] = {
    "text": (np.int32, -1),
    "number": (np.float64, np.nan),
    "truth": (np.int8, -1),
    "time": (np.float64, np.nan),
}


@dataclass(frozen=True, eq=False)
class Column:
    """Values by row; what lies beyond the end is not known either.

    `data`: numbers and times (Unix seconds) as float64, NaN where not known; truths as 0 and 1, -1 where not
    known; of texts their places in `texts`, -1 where not known. Texts may stand in `texts` repeatedly.
    `whole`: a column of numbers none of which has a fraction.
    """

    kind: Kind
    data: npt.NDArray[Any]
    texts: Sequence[str] = ()
    whole: bool = False

    def __len__(self) -> int:
        return len(self.data)

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Of which rows there is a value."""
        found: npt.NDArray[np.bool_] = ~np.isnan(self.data) if self.data.dtype.kind == "f" else self.data >= 0
        return found

    def value(self, row: int) -> Value:
        if row >= len(self.data):
            return None
        found = self.data[row]
        if self.kind == "text":
            return self.texts[int(found)] if found >= 0 else None
        if self.kind == "truth":
            return bool(found) if found >= 0 else None
        if math.isnan(found):
            return None
        if self.kind == "time":
            return written_time(float(found))
        return int(found) if self.whole else float(found)

    def resized(self, n: int) -> npt.NDArray[Any]:
        """The data of exactly n rows."""
        if len(self.data) >= n:
            return self.data[:n]
        return np.pad(self.data, (0, n - len(self.data)), constant_values=_EMPTY[self.kind][1])

    def only(self, rows: npt.NDArray[np.int64]) -> Column:
        """The values of these rows, in their order."""
        return replace(self, data=self.resized(int(rows.max(initial=-1)) + 1)[rows])

    def changed(self, values: Mapping[int, Value], name: str) -> Column:
        """With other values for some rows; the column as it was stays as it was."""
        fresh = column_of(values.values(), self.kind, name)
        rows = np.fromiter(values, np.int64, len(values))
        data = self.resized(max(len(self.data), int(rows.max(initial=-1)) + 1)).copy()
        texts = self.texts
        if self.kind == "text":
            known = {text: place for place, text in enumerate(fresh.texts)}
            more = MoreTexts.after(texts)
            places = np.array([more.place(text) for text in known], dtype=np.int32)
            data[rows] = np.append(places, np.int32(-1))[fresh.data]
            texts = more
        else:
            data[rows] = fresh.data
        whole = self.whole and fresh.whole
        return replace(self, data=data, texts=texts, whole=whole)


class MoreTexts(Sequence[str]):
    """Texts with others after them. It only ever grows, so successive columns share it."""

    def __init__(self, first: Sequence[str]):
        self._first, self._more, self._places = first, list[str](), dict[str, int]()

    @classmethod
    def after(cls, texts: Sequence[str]) -> MoreTexts:
        return texts if isinstance(texts, MoreTexts) else cls(texts)

    def place(self, text: str) -> int:
        """Where this text stands, which is put at the end where it was not added before."""
        found = self._places.get(text)
        if found is None:
            self._more.append(text)
            found = self._places[text] = len(self._first) + len(self._more) - 1
        return found

    def __len__(self) -> int:
        return len(self._first) + len(self._more)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        return self._first[place] if place < len(self._first) else self._more[place - len(self._first)]

    def __iter__(self) -> Any:
        yield from self._first
        yield from self._more[:]


def column_of(values: Iterable[Value], kind: Kind, name: str) -> Column:
    """A column of these values; one that does not fit is an error with the column's name."""
    fitted = [fitting(value, kind, name) for value in values]
    dtype, empty = _EMPTY[kind]
    if kind == "text":
        places: dict[str, int] = {}
        data = np.array(
            [-1 if one is None else places.setdefault(str(one), len(places)) for one in fitted], dtype=dtype
        )
        return Column(kind, data, tuple(places))
    data = np.array([empty if one is None else one for one in fitted], dtype=dtype)
    whole = kind == "number" and bool(np.all(np.isnan(data) | (data == np.round(data))))
    return Column(kind, data, (), whole)


def fitting(value: object, kind: Kind, name: str) -> str | float | bool | None:
    """A value as the column keeps it: a time becomes Unix seconds."""
    if value is None:
        return None
    if kind == "text" and isinstance(value, str) and len(value) <= LONGEST:
        return value or None
    if kind == "truth" and isinstance(value, bool):
        return value
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if is_number and kind in ("number", "time") and math.isfinite(found := float(value)):  # type: ignore[arg-type]
        return found
    if kind == "time" and isinstance(value, str) and (moment := seconds_of(value)) is not None:
        return moment
    expected = {
        "text": f"a text of at most {LONGEST:,} characters",
        "number": "a number",
        "truth": "true or false",
        "time": "a time such as 2024-05-31 or 2024-05-31T18:00:00Z, or Unix seconds",
    }[kind]
    shown = shortened(value) if isinstance(value, str) else str(value)[:100]
    raise ConfigError(f"{name} is {expected}; {shown} is not")


def kind_of_value(name: str, value: object) -> Kind:
    """The kind of a column of which nothing but its name and one value is known."""
    if name in UNDERSTOOD:
        return UNDERSTOOD[name]
    if isinstance(value, bool):
        return "truth"
    return "number" if isinstance(value, int | float) else "text"


def seconds_of(text: str) -> float | None:
    """Unix seconds of a time in ISO 8601 (UTC unless it says otherwise); None where it is none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def written_time(seconds: float) -> str:
    """A time as people write it: a date alone where it is midnight.

    >>> written_time(1_500_000_000.0), written_time(86_400.0)
    ('2017-07-14T02:40:00Z', '1970-01-02')
    """
    moment = np.datetime64(math.floor(seconds), "s")
    return str(moment.astype("datetime64[D]")) if seconds % DAY == 0 else f"{moment}Z"
