"""The readable shop with ids that say nothing, and columns that do: titles, categories, prices, pictures."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
from shop import THEMES, make_shop

from coheat.data.dataset import BundleData, Indices, pairs
from coheat.data.tables import from_frames
from coheat.data.writing import write_tables
from coheat.rng import Randomness
from coheat.runs import train_run

SETTINGS = {"epochs": 12, "evaluate_every": 12, "embedding_size": 16, "companion_size": 16, "batch_size": 256}
UNTAKEN = 6
"""Every so many bundles, one that nobody took: it is new."""


def make_named_shop(seed: int = 0) -> BundleData:
    """Ids like B-0007 and I-0042; everything that a person would read stands in columns."""
    shop = make_shop(seed)
    rng = Randomness(seed).generator("prices")
    themes = {name: theme for theme, (items, bundles) in THEMES.items() for name in (*items, *bundles)}
    users = list(shop.users.ids)
    bundles = [f"B-{n:04d}" for n in range(shop.n_bundles)]
    items = [f"I-{n:04d}" for n in range(shop.n_items)]
    took, has, holds = (pairs(one) for one in (shop.user_bundle, shop.user_item, shop.bundle_item))
    kept = took[1] % UNTAKEN != 0
    about_bundles = {
        "bundle_id": bundles,
        "title": list(shop.bundles.ids),
        "category": [themes[name] for name in shop.bundles.ids],
        "price": np.round(rng.uniform(9, 120, len(bundles)), 2),
        "image": ["/icon.svg"] * len(bundles),
    }
    about_items = {
        "item_id": items,
        "title": list(shop.items.ids),
        "category": [themes[name] for name in shop.items.ids],
    }
    return from_frames(
        user_bundle=_frame("user_id", users, took[0][kept], "bundle_id", bundles, took[1][kept]),
        user_item=_frame("user_id", users, has[0], "item_id", items, has[1]),
        bundle_item=_frame("bundle_id", bundles, holds[0], "item_id", items, holds[1]),
        bundles=pa.table(about_bundles),
        items=pa.table(about_items),
    )


def _frame(
    one: str, ones: list[str], rows: Indices, other: str, others: list[str], columns: Indices
) -> pa.Table:
    names = [ones[row] for row in rows.tolist()], [others[column] for column in columns.tolist()]
    return pa.table({one: names[0], other: names[1]})


def train_named_shop(directory: Path, seed: int = 0, **settings: object) -> Path:
    """The run of the default model, trained on all of the shop; other `settings` in place of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_tables(make_named_shop(seed), directory / "data")
        overrides = {**SETTINGS, **settings}
        train_run(
            directory / "data", directory / "run", overrides=overrides, scenario="everything", seed=seed
        )
    return directory / "run"
