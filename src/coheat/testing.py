"""Builders, hypothesis strategies and contract checks, for our own tests and for models of third parties.

Needs the packages of the `dev` extra.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from coheat.attributes import Attributes, Kind, column_of
from coheat.data.dataset import BundleData, Indices, Moments, Shown, Sparse, pairs, relation
from coheat.ids import Vocabulary

Pairs = Iterable[tuple[str, str]]


def small_data(
    user_bundle: Pairs = (),
    user_item: Pairs = (),
    bundle_item: Pairs = (),
    timestamps: Iterable[int] = (),
    item_timestamps: Iterable[int] = (),
) -> BundleData:
    """Data written down by hand: pairs of ids; `timestamps`, where given, in the order of `user_bundle`, and
    `item_timestamps` in that of `user_item`.

    >>> small_data([("ann", "set")], [("ann", "cup")], [("set", "cup")]).users.ids
    ('ann',)
    """
    interactions, owned, held = list(user_bundle), list(user_item), list(bundle_item)
    users = Vocabulary(sorted({u for u, _ in interactions} | {u for u, _ in owned}), "user")
    bundles = Vocabulary(sorted({b for _, b in interactions} | {b for b, _ in held}), "bundle")
    items = Vocabulary(sorted({i for _, i in owned} | {i for _, i in held}), "item")
    return BundleData(
        users,
        bundles,
        items,
        _from_ids(interactions, users, bundles),
        _from_ids(owned, users, items),
        _from_ids(held, bundles, items),
        _in_order(interactions, timestamps),
        item_timestamps=_in_order(owned, item_timestamps),
    )


def _in_order(found: list[tuple[str, str]], timestamps: Iterable[int]) -> Indices | None:
    """Times of pairs of ids in the order of a relation's entries, where there are any."""
    times = dict(zip(found, timestamps, strict=False))
    return np.array([times[pair] for pair in sorted(found)], dtype=np.int64) if times else None


def _from_ids(found: list[tuple[str, str]], rows: Vocabulary, columns: Vocabulary) -> Sparse:
    shape = (len(rows), len(columns))
    return relation(rows.positions([r for r, _ in found]), columns.positions([c for _, c in found]), shape)


def id_pairs(matrix: Sparse, rows: Vocabulary, columns: Vocabulary) -> set[tuple[str, str]]:
    """A relation as a set of pairs of ids: slow, and obvious enough to compare with."""
    return {(rows[int(row)], columns[int(column)]) for row, column in zip(*pairs(matrix), strict=True)}


def ids() -> st.SearchStrategy[str]:
    """Ids of every kind that people have: spaces, slashes, quotes, emoji, control characters."""
    return st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)


def _offer_time() -> st.SearchStrategy[float]:
    """Unix seconds of something that happened to a bundle, or NaN for not known."""
    return st.integers(0, 10**6).map(float) | st.just(float("nan"))


@st.composite
def bundle_data(
    draw: st.DrawFn,
    min_interactions: int = 0,
    timestamps: bool = False,
    evidence: bool = False,
    max_users: int = 8,
    max_bundles: int = 8,
    max_items: int = 8,
    names: st.SearchStrategy[str] | None = None,
) -> BundleData:
    """Any BundleData of a few users, bundles and items; empty relations and lonely ids included.

    Ids are short and plain unless `names` gives others; they are sorted, as readers sort them. `timestamps`
    gives each interaction a time; `evidence` adds what else may be known: launches, ends, times of items and
    showings, each of them or not.
    """
    sizes = [draw(st.integers(1, largest)) for largest in (max_users, max_bundles, max_items)]
    while sizes[0] * sizes[1] < min_interactions:
        sizes[sizes.index(min(sizes[:2]))] += 1
    vocabularies = [
        Vocabulary(
            [f"{kind}{n}" for n in range(size)]
            if names is None
            else sorted(draw(st.lists(names, min_size=size, max_size=size, unique=True))),
            kind,
        )
        for kind, size in zip(("user", "bundle", "item"), sizes, strict=True)
    ]

    def some_relation(rows: int, columns: int, least: int = 0) -> Sparse:
        cells = draw(st.sets(st.integers(0, rows * columns - 1), min_size=least, max_size=rows * columns))
        keys = np.array(sorted(cells), dtype=np.int64)
        return relation(keys // columns, keys % columns, (rows, columns))

    users, bundles, items = sizes
    user_bundle = some_relation(users, bundles, min_interactions)
    user_item = some_relation(users, items)

    def moments(count: int, known: bool) -> Indices | None:
        listed = st.lists(st.integers(0, 10**6), min_size=count, max_size=count)
        return np.array(draw(listed), dtype=np.int64) if known else None

    def offer_times() -> Moments | None:
        listed = st.lists(_offer_time(), min_size=bundles, max_size=bundles)
        return np.array(draw(listed)) if evidence and draw(st.booleans()) else None

    def showings() -> Shown | None:
        if not (evidence and draw(st.booleans())):
            return None
        shown = draw(st.lists(st.tuples(st.integers(0, users - 1), st.integers(0, bundles - 1)), max_size=12))
        rows, columns = (np.array([pair[n] for pair in shown], dtype=np.int64) for n in (0, 1))
        return Shown(rows, columns, moments(len(shown), draw(st.booleans())))

    return BundleData(
        vocabularies[0],
        vocabularies[1],
        vocabularies[2],
        user_bundle,
        user_item,
        some_relation(bundles, items),
        moments(user_bundle.nnz, timestamps),
        offer_times(),
        offer_times(),
        moments(user_item.nnz, evidence and draw(st.booleans())),
        showings(),
        bundle_attributes=draw(attributes(bundles)) if evidence else Attributes(),
        item_attributes=draw(attributes(items)) if evidence else Attributes(),
    )


@st.composite
def attributes(draw: st.DrawFn, n: int) -> Attributes:
    """Some columns of n rows, of any kind; a column in which nothing is known is no column."""
    letters = st.text("abc é'\",[]", min_size=1, max_size=4)
    values: dict[Kind, st.SearchStrategy[Any]] = {
        "text": letters.filter(lambda text: text.strip() == text),
        "number": st.integers(-5, 5) | st.sampled_from([0.5, 1e9, -2.25]),
        "truth": st.booleans(),
        "time": st.integers(0, 10**9),
    }
    names: dict[str, Kind] = {"title": "text", "price": "number", "available": "truth", "shot": "time"}
    kinds = draw(st.sets(st.sampled_from([*names.items(), ("colour", "text")])))
    found = {
        name: column_of(draw(st.lists(st.none() | values[kind], min_size=n, max_size=n)), kind, name)
        for name, kind in sorted(kinds)
    }
    return Attributes({name: column for name, column in found.items() if column.known.any()})
