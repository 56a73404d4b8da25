"""A small made-up shop with ids that a person can read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from coheat.data.dataset import BundleData
from coheat.data.tables import from_frames
from coheat.rng import Randomness

N_PEOPLE = 400
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Ella", "Finn", "Gita", "Hugo", "Ines", "Jon", "Kim", "Lea", "Max",
         "Nora", "Omar", "Pia", "Rosa", "Sam", "Tess", "Yuki")  # fmt: skip
THEMES = {
    "camping": (
        ["tent", "sleeping bag", "gas stove", "headlamp", "enamel mug", "folding chair", "cool box",
         "hammock", "rain poncho", "water filter", "pocket knife", "camping pillow"],
        ["Weekend outdoors", "First tent", "Light and warm", "Campfire kitchen", "Rainy trail",
         "Lakeside lounge", "Trail essentials", "Two in the woods"],
    ),
    "kitchen": (
        ["chef's knife", "cutting board", "cast-iron pan", "salad spinner", "pasta pot", "whisk", "grater",
         "mixing bowls", "oven dish", "spice rack", "wooden spoons", "kitchen scale"],
        ["First kitchen", "Pasta night", "Sunday roast", "Sharp start", "Baker's table",
         "Everyday cooking", "Salad days", "One-pan dinners"],
    ),
    "coffee": (
        ["moka pot", "burr grinder", "espresso cups", "milk frother", "pour-over cone", "paper filters",
         "house blend", "decaf beans", "gooseneck kettle", "travel cup", "cupping spoon", "coffee scale"],
        ["Slow morning", "Barista at home", "Pour-over set", "Coffee to go", "Flat white kit",
         "Tasting table", "Office break", "Italian classic"],
    ),
    "garden": (
        ["hand trowel", "pruning shears", "seed box", "watering can", "raised bed", "potting soil",
         "tomato seeds", "herb seeds", "garden gloves", "plant labels", "bird feeder", "compost bin"],
        ["Balcony harvest", "First garden", "Herb corner", "Tomato summer", "Spring tidy-up",
         "Birds welcome", "Seed to salad", "Green fingers"],
    ),
    "desk": (
        ["notebook", "fountain pen", "desk lamp", "monitor stand", "keyboard", "wireless mouse", "cable box",
         "desk mat", "headphones", "webcam", "bookends", "letter tray"],
        ["Home office", "Tidy desk", "Deep focus", "Clear calls", "Writer's corner",
         "Study start", "Cable calm", "Late shift"],
    ),
    "running": (
        ["running shoes", "running socks", "sports watch", "water belt", "rain jacket", "arm pocket",
         "foam roller", "energy gels", "reflective vest", "cap", "training shirt", "recovery drink"],
        ["First 5k", "Race day", "Night run", "Recovery set", "Winter miles",
         "Marathon plan", "Fast and light", "Back in shape"],
    ),
}  # fmt: skip


def make_shop(seed: int = 0) -> BundleData:
    """Everybody likes one or two themes; within a theme a few bundles and items are taken by most."""
    rng = Randomness(seed).generator("readable shop")
    user_bundle: set[tuple[str, str]] = set()
    user_item: set[tuple[str, str]] = set()
    bundle_item: set[tuple[str, str]] = set()
    for items, bundles in THEMES.values():
        for bundle in bundles:
            for item in rng.choice(items, size=int(rng.integers(3, 7)), replace=False):
                bundle_item.add((bundle, str(item)))
    names = list(THEMES)
    for person in range(N_PEOPLE):
        user = f"{NAMES[person % len(NAMES)]} {person // len(NAMES) + 1}"
        for theme in rng.choice(names, size=int(rng.integers(1, 3)), replace=False):
            items, bundles = THEMES[str(theme)]
            user_item.update((user, item) for item in _some(items, 0.7, 5, rng))
            user_bundle.update((user, bundle) for bundle in _some(bundles, 1.1, 3, rng))
    return from_frames(
        _frame(user_bundle, "user_id", "bundle_id"),
        _frame(user_item, "user_id", "item_id"),
        _frame(bundle_item, "bundle_id", "item_id"),
    )


def _some(names: list[str], skew: float, count: int, rng: np.random.Generator) -> list[str]:
    """Some of the names, earlier ones more often: the one at place n has the weight 1 / n ** skew."""
    weights = 1.0 / np.arange(1, len(names) + 1) ** skew
    drawn = rng.choice(names, size=count, replace=False, p=weights / weights.sum())
    return [str(name) for name in drawn]


def _frame(found: set[tuple[str, str]], first: str, second: str) -> pa.Table:
    rows = sorted(found)
    return pa.table({first: [row[0] for row in rows], second: [row[1] for row in rows]})
