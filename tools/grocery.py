"""A made-up grocery of the shape of a real one: coupons for sets of products, dates, titles, categories."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

CATEGORIES = {
    "GROCERY": ["APPLE SAUCE", "PASTA", "OLIVE OIL", "CRACKERS", "OATS", "TOMATO SOUP", "RICE", "TEA"],
    "PRODUCE": ["APPLES", "BANANAS", "LETTUCE", "CARROTS", "GRAPES", "ONIONS"],
    "DRUG GM": ["SHAMPOO", "TOOTHPASTE", "BATTERIES", "DISH SOAP"],
    "MEAT": ["CHICKEN", "GROUND BEEF", "BACON", "SAUSAGE"],
}
SIZES = ("SMALL", "LARGE", "FAMILY PACK", "ORGANIC", "VALUE", "CLASSIC")
DAYS, ON_OFFER = 330, 60
"""The shop is so many days old, and a coupon is valid for so many."""


def write_grocery(directory: Path, households: int = 150, coupons: int = 60, seed: int = 0) -> None:
    """Five tables, as they come from a shop's database: numbers for ids, dates for times; up to today."""
    rng = np.random.default_rng(seed)
    directory.mkdir(parents=True)
    products = [
        (f"{title} {size}", category)
        for category, titles in CATEGORIES.items()
        for title in titles
        for size in SIZES
    ]
    items = [str(900_000 + 37 * number) for number in range(len(products))]
    of_category = {
        category: [item for item, (_, one) in zip(items, products, strict=True) if one == category]
        for category in CATEGORIES
    }
    people = [str(1 + 7 * number) for number in range(households)]
    favourite = {one: str(rng.choice(list(CATEGORIES))) for one in people}
    bought, redeemed, held, offers = [], [], [], []
    for one in people:
        for _ in range(12):
            category = favourite[one] if rng.random() < 0.7 else str(rng.choice(list(CATEGORIES)))
            bought.append(
                (one, str(rng.choice(of_category[category])), str(_day(int(rng.integers(0, DAYS)))))
            )
    for number in range(coupons):
        name, category = str(10_000_085_207 + 112 * number), list(CATEGORIES)[number % len(CATEGORIES)]
        launched = int(rng.integers(0, DAYS))
        ends = launched + ON_OFFER
        offers.append((name, str(_day(launched)), str(_day(ends)), f"Type {'ABC'[number % 3]}"))
        own = rng.choice(of_category[category], 5, replace=False)
        held += [(name, str(item)) for item in own]
        takers = [one for one in people if favourite[one] == category]
        for one in rng.choice(takers, min(len(takers), 12), replace=False):
            redeemed.append((str(one), name, str(_day(int(rng.integers(launched, min(ends, DAYS)))))))
    once = {(one, item): (one, item, day) for one, item, day in bought}
    _write(directory / "user_item.csv", ("user_id", "item_id", "timestamp"), list(once.values()))
    _write(directory / "user_bundle.csv", ("user_id", "bundle_id", "timestamp"), redeemed)
    _write(directory / "bundle_item.csv", ("bundle_id", "item_id"), held)
    _write(directory / "bundles.csv", ("bundle_id", "launched", "ends", "kind"), offers)
    brands = ("National", "Private")
    described = [
        (item, title, category, brands[place % 2])
        for place, (item, (title, category)) in enumerate(zip(items, products, strict=True))
    ]
    _write(directory / "items.csv", ("item_id", "title", "category", "brand"), described)


def _day(number: int) -> date:
    """Counted from the first day of the shop."""
    return datetime.now(UTC).date() + timedelta(days=number - DAYS)


def _write(path: Path, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    distinct = sorted(set(rows))
    csv.write_csv(pa.table(dict(zip(columns, map(list, zip(*distinct, strict=True)), strict=True))), path)
