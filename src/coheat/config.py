"""Settings: frozen, strict, documented where they are defined.

A settings class derives from `Settings`. Unknown keys and wrong types become a `ConfigError` that
names the key and lists what is allowed. Values come from three places, later ones win: the class's
defaults, a preset or TOML file, and `key=value` pairs from the command line.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from coheat.errors import ConfigError


class Settings(BaseModel):
    """Base of every settings class: immutable, no unknown keys, no silent conversions of text."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def create(cls, values: Mapping[str, Any], source: str = "the settings") -> Self:
        """Build from a mapping; every problem is named in one ConfigError.

        `source` says where the values came from (a file, the command line) and opens the message.
        """
        try:
            return cls(**dict(values))
        except ValidationError as error:
            problems = [cls._describe(problem) for problem in error.errors()]
            raise ConfigError(f"{source}: " + "; ".join(problems)) from None

    @classmethod
    def _describe(cls, problem: Any) -> str:
        key = ".".join(str(part) for part in problem["loc"]) or "settings"
        if problem["type"] == "extra_forbidden":
            known = sorted(cls.model_fields)
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
            return f"unknown key {key!r} ({hint})"
        if problem["type"] == "missing":
            return f"key {key!r} is missing"
        return f"{key} = {problem.get('input')!r}: {problem['msg'].lower()}"


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; a missing or malformed one is a ConfigError with the path and the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such settings file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """Turn `key=value` texts from the command line into values, read as TOML.

    >>> parse_overrides(["n_layers=2", "edge_dropout=0.1", "name=plain text"])
    {'n_layers': 2, 'edge_dropout': 0.1, 'name': 'plain text'}
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {pair!r}: write it as key=value, for example --set n_layers=2")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = text.strip()
    return values
