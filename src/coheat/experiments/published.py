"""The paper's own numbers, from `published.toml` beside this file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from coheat.config import read_toml

FILE = Path(__file__).with_name("published.toml")
METRICS = ("recall@20", "ndcg@20")


@cache
def _document() -> dict[str, Any]:
    return read_toml(FILE)


def published_figures(dataset: str, division: str, name: str) -> dict[str, float] | None:
    """Published Recall@20 and nDCG@20 of a method; None where the paper has no number."""
    found = _document()["figures"].get(dataset, {}).get(division, {}).get(name)
    return None if found is None else dict(zip(METRICS, found, strict=True))


def published_counts(dataset: str) -> dict[str, float] | None:
    """Table 1's counts of a data set."""
    found: dict[str, float] | None = _document()["datasets"].get(dataset)
    return found
