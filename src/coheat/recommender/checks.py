"""Mistakes in a question, said in a sentence before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from coheat.errors import ConfigError, DataError, UnknownIdError
from coheat.ids import Vocabulary, shortened, text_id
from coheat.served.ranking import Positions

Given = TypeVar("Given")


def check_k(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ConfigError(f"k = {k}: a list has at least one place; choose k from 1 up")


def check_id(name: object, kind: str) -> str:
    if not text_id(name, kind):
        raise DataError(f"a {kind} id is empty; choose another")
    return str(name)


def check_ids(names: Sequence[str], what: str, advice: str) -> list[str]:
    """A list of ids with at least one, none twice."""
    if isinstance(names, str):
        raise ConfigError(f"{what} is a single string; {advice}")
    if not isinstance(names, Iterable):
        raise ConfigError(f"{what} is no list, but {shortened(str(names))}; {advice}")
    listed = [text_id(name, what.removesuffix("s")) for name in names]
    if not listed:
        raise ConfigError(f"{what} is an empty list; {advice}")
    if len(set(listed)) < len(listed):
        seen: set[str] = set()
        twice = next(name for name in listed if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ConfigError(f"{what} names {shortened(twice)} twice; name each once")
    return listed


def check_no_text(ids: object, what: str) -> None:
    """A text is a sequence, too, of letters that nobody meant as ids."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise ConfigError(f'{what} takes a list of ids, such as ["cup"], not {shortened(str(ids))}')


def check_by_user(given: Mapping[str, Sequence[str]] | None, what: str) -> None:
    """Lists of ids by user id, if there are any."""
    for user, ids in keyed(given or {}, what, '{"ada": ["cup"]}').items():
        check_no_text(ids, f"{what} of {shortened(str(user))}")


def keyed(given: Mapping[str, Given], what: str, example: str) -> Mapping[str, Given]:
    """Something by id, as it was given."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{what} is a mapping, such as {example}, not {shortened(str(given))}")
    return given


def check_columns(given: Mapping[str, Mapping[str, Given]], what: str) -> None:
    """Columns by id."""
    for name, columns in keyed(given, what, '{"picnic": {"price": 30}}').items():
        keyed(columns, f"what is said of {shortened(str(name))}", '{"price": 30}')


def item_rows(
    known: Vocabulary, name: str, items: Iterable[str], left_out: dict[str, list[str]]
) -> Positions:
    """Rows of a bundle's items, in order; those the model does not know go to `left_out`."""
    bundle = f"bundle {shortened(name)}" if name else "these items"
    if isinstance(items, str):
        raise ConfigError(f"{bundle}: give a list of item ids, not a single string")
    if not isinstance(items, Iterable):
        raise ConfigError(f"{bundle}: give a list of item ids, not {shortened(str(items))}")
    distinct = list(dict.fromkeys(text_id(item, "item") for item in items))
    found = list(map(known.index.get, distinct))
    rows = np.array([row for row in found if row is not None], dtype=np.int64)
    if not distinct:
        raise UnknownIdError(f"{bundle}: without items there is nothing to place it by")
    if len(rows) < len(distinct):
        left_out[name] = [item for item, row in zip(distinct, found, strict=True) if row is None]
    return np.sort(rows)
