"""Filters by columns: {"category": {"in": ["TEA"]}, "price": {"at_most": 30}}. Nothing in them is run.

Every condition has to hold. What is not known of a bundle meets no condition but `missing` and `not_in`.
"""

from __future__ import annotations

import json
import operator as compare_by
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coheat.attributes.column import Column, Kind, fitting
from coheat.attributes.table import Attributes, no_column
from coheat.errors import ConfigError
from coheat.ids import shortened

Where: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Conditions by column, and in each by operator."""
Mask: TypeAlias = npt.NDArray[np.bool_]

MOST_CONDITIONS = 100
MOST_VALUES = 10_000
CACHED_BYTES = 1 << 25
FORM = '{"category": {"in": ["TEA", "COFFEE"]}, "price": {"at_most": 30}}'
OPERATORS: Mapping[str, str] = {
    "is": "equal to this value",
    "in": "one of these values",
    "not_in": "none of these values, or not known",
    "at_least": "this value or more",
    "at_most": "this value or less",
    "above": "more than this value",
    "below": "less than this value",
    "contains": "a text with these letters in it, upper or lower case",
    "missing": "true: not known; false: known",
}
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "at_least": compare_by.ge,
    "at_most": compare_by.le,
    "above": compare_by.gt,
    "below": compare_by.lt,
}


def matching(table: Attributes, where: Where, n: int) -> Mask:
    """Which of the first n rows meet all conditions (n,); not the caller's to write on."""
    key = _key(where)
    found = table.masks.get(key)
    if found is not None and len(found) >= n:
        return found[:n]
    found = np.ones(n, dtype=np.bool_)
    for name, conditions in where.items():
        column = table.get(name)
        if column is None:
            raise no_column(name, table)
        for operator, wanted in conditions.items():
            found &= _holds(column, n, name, operator, wanted)
    found.flags.writeable = False
    if len(found) * (len(table.masks) + 1) > CACHED_BYTES:
        table.masks.clear()
    table.masks[key] = found
    return found


def _key(where: Where) -> str:
    if not isinstance(where, Mapping):
        raise ConfigError(f"where is an object with a condition for each column, for example {FORM}")
    for name, conditions in where.items():
        if not isinstance(conditions, Mapping) or not conditions:
            raise ConfigError(f"where, {name}: write an operator and a value, for example {FORM}")
    try:
        if sum(map(len, where.values())) > MOST_CONDITIONS:
            raise ConfigError(f"where has more than {MOST_CONDITIONS} conditions")
        return json.dumps(where, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(f"where holds a value that JSON cannot express; write it like {FORM}") from None


def _holds(column: Column, n: int, name: str, operator: str, wanted: object) -> Mask:
    """Which rows meet one condition."""
    if operator not in OPERATORS:
        raise ConfigError(
            f"where, {name}: there is no operator {shortened(str(operator))}; "
            f"there are {', '.join(OPERATORS)}"
        )
    data, kind = column.resized(n), column.kind
    known: Mask = ~np.isnan(data) if data.dtype.kind == "f" else data >= 0
    if operator == "missing":
        if not isinstance(wanted, bool):
            raise ConfigError(f"where, {name}: missing is true or false, not {shortened(str(wanted))}")
        return ~known if wanted else known
    if operator == "contains":
        if kind != "text" or not isinstance(wanted, str):
            raise ConfigError(f"where, {name}: contains looks for a text in a column of texts")
        part = wanted.casefold()
        return _by_text(column, data, lambda text: part in text.casefold())
    if operator in ("is", "in", "not_in"):
        among = _equal(column, data, _wanted(wanted, operator, kind, name))
        return ~among if operator == "not_in" else among & known
    if kind == "truth":
        raise ConfigError(f"where, {name}: {operator} has no meaning for true and false; use is")
    limit, compare = fitting(wanted, kind, f"where, {name}: {operator}"), _COMPARE[operator]
    if limit is None:
        raise ConfigError(f"where, {name}: {operator} needs a value")
    if kind == "text":
        return _by_text(column, data, lambda text: bool(compare(text, limit)))
    found: Mask = compare(data, limit) & known
    return found


def _wanted(wanted: object, operator: str, kind: Kind, name: str) -> list[Any]:
    values = [wanted] if operator == "is" else wanted
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ConfigError(f'where, {name}: {operator} takes a list of values, such as ["TEA", "COFFEE"]')
    if len(values) > MOST_VALUES:
        raise ConfigError(f"where, {name}: {operator} takes at most {MOST_VALUES:,} values")
    found = [fitting(value, kind, f"where, {name}: {operator}") for value in values]
    if None in found:
        raise ConfigError(f"where, {name}: {operator} needs values; ask for what is not known with missing")
    return found


def _equal(column: Column, data: npt.NDArray[Any], wanted: list[Any]) -> Mask:
    if column.kind == "text":
        texts = set(wanted)
        return _by_text(column, data, texts.__contains__)
    return np.isin(data, np.array(wanted, dtype=np.float64))


def _by_text(column: Column, data: npt.NDArray[Any], holds: Callable[[str], bool]) -> Mask:
    """Which rows have a text for which it holds; each distinct text is looked at once."""
    good = np.fromiter((holds(text) for text in column.texts), np.bool_)
    found: Mask = np.append(good, False)[data]
    return found
