"""A tiny experiment on planted worlds, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

from coheat.data.files import read_data
from coheat.data.synthetic import planted_world
from coheat.data.writing import write_tables

SMALL = "embedding_size = 8, batch_size = 50, evaluate_every = 2, checkpoint_every = 3"

TINY = f"""
title = "Tiny"
view = "methods"
scenarios = ["cold", "warm"]
models = [
    {{ name = "CoHeat", model = "coheat", seeds = 2, settings = {{ epochs = 4, {SMALL} }} }},
    {{ name = "Counting", model = "counting", family = "yardstick" }},
    {{ name = "Popularity", model = "popularity", family = "yardstick" }},
    {{ name = "Nobody", model = "nobody" }},
]
"""


def write_experiment(path: Path, text: str = TINY) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def write_published(directory: Path) -> Path:
    """Planted worlds in the layout of published data: cold/Planted and warm/Planted."""
    for seed, scenario in enumerate(("cold", "warm")):
        write_tables(planted_world(seed=seed), directory / scenario / "Planted")
    return directory


def write_plain(directory: Path) -> Path:
    """A planted world without a split, in DIR/Shop."""
    write_tables(planted_world(), directory / "with-split")
    write_tables(read_data(directory / "with-split"), directory / "data" / "Shop")
    return directory / "data"
