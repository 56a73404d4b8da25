"""Mistakes in a question, said in a sentence before anything is done."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coheat.errors import ConfigError, DataError
from coheat.recommender.ids import shortened


def check_k(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ConfigError(f"k = {k}: a list has at least one place; choose k from 1 up")


def check_id(name: object, kind: str) -> str:
    if not isinstance(name, str):
        raise DataError(f"a {kind} id is a text; {name!r} is not")
    if not name:
        raise DataError(f"a {kind} id is empty; choose another")
    return name


def check_ids(names: Sequence[str], what: str, advice: str) -> list[str]:
    """A list of ids with at least one, none twice."""
    if isinstance(names, str):
        raise ConfigError(f"{what} is one text; {advice}")
    listed = list(names)
    if not listed:
        raise ConfigError(f"{what} is an empty list; {advice}")
    if len(set(listed)) < len(listed):
        twice = next(name for place, name in enumerate(listed) if name in listed[:place])
        raise ConfigError(f"{what} names {shortened(twice)} twice; name each once")
    return listed
