"""A score taken apart into its terms, which add up to it by construction, and into what carries them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coheat.served.blocks import Aspect
from coheat.served.bundles import Bundles
from coheat.served.overlap import Belongings
from coheat.served.ranking import Doubles, Floats, Positions

if TYPE_CHECKING:
    from coheat.served.form import Served


@dataclass(frozen=True)
class Term:
    """One term of a score: what it is about, the weight it has for this bundle, and what it gives."""

    name: str
    about: Aspect
    weight: float
    share: float


@dataclass(frozen=True)
class Breakdown:
    """A score taken apart: its terms; and what the bundle's items, the user's items and bundles carry of it.

    `own` is what was learned of the user beyond what the user has.
    """

    terms: list[Term]
    bundle_items: Doubles
    user_items: Doubles
    user_bundles: Doubles
    own: float


def breakdown(
    served: Served,
    vector: Floats,
    items: Positions,
    taken: Sequence[tuple[int, Positions]],
    bundles: Bundles,
    row: int,
    contents: Positions,
) -> Breakdown:
    """See `Served.explain`. Sums are made in float64, so shares add up to float32's rounding. An overlap
    counts as a whole; it is split in proportion to what each item brings."""
    user, terms = vector.astype(np.float64), []
    vectors = bundles.weighed.take(np.array([row]))[0].astype(np.float64)
    evidence = bundles.taken[[row]], bundles.youth[[row]]
    by_item = np.zeros(len(contents))
    for block, columns in served.columns:
        weight, share = float(block.curve.at(*evidence)[0]), float(user[columns] @ vectors[columns])
        terms.append(Term(block.name, block.about, weight, share))
        if block.forest is not None:  # what a forest says is the doing of all items alike
            by_item += share / max(len(contents), 1)
        elif block.items is not None:
            found = np.asarray(block.items)[contents].astype(np.float64) @ user[columns]
            by_item += weight * found / max(len(contents), 1) ** block.size_exponent
    have = Belongings.of(items, [held for _, held in taken])
    inside = np.isin(have.items, contents)
    brought = np.zeros(len(have.items))
    for place, overlap in enumerate(served.overlaps):
        worth = np.where(inside, overlap.worth(have.items, have.sizes), 0.0)
        weight = float(bundles.terms[1 + place, row])
        counted = overlap.measure(worth.sum(keepdims=True), bundles.divisors[place, [row]])
        share = weight * float(counted[0])
        terms.append(Term(overlap.name, "items", weight, share))
        worth *= share / worth.sum() if worth.any() else 0.0
        brought += worth
        places = np.searchsorted(contents, have.items[inside])  # contents are in order
        by_item += np.bincount(places, worth[inside], minlength=len(contents))
    terms += _bias_terms(served, *evidence)
    ends = np.cumsum([len(items), *(len(held) for _, held in taken)])[:-1]
    user_items = brought[: len(items)]
    user_bundles = np.array([part.sum() for part in np.split(brought, ends)[1:]])
    if served.layers is not None:
        of_items = served.layers.from_items(items, served.relations).astype(np.float64)
        rows = np.array([one for one, _ in taken], dtype=np.int64)
        of_bundles = served.layers.from_bundles(rows, served.relations).astype(np.float64)
        user_items = user_items + of_items @ vectors[served.columns_about("items")]
        user_bundles = user_bundles + of_bundles @ vectors[served.columns_about("history")]
    own = sum(term.share for term in terms) - float(user_items.sum()) - float(user_bundles.sum())
    return Breakdown(terms, by_item, user_items, user_bundles, own)


def _bias_terms(served: Served, taken: Positions, youth: Floats) -> list[Term]:
    """What is added for everybody: by how often the bundle was taken, by its youth, by the knobs."""
    old = float(served.bias.at(taken, np.zeros(1, np.float32))[0])
    young = float(served.bias.at(taken, youth)[0]) - old
    found = [Term("popularity", "history", 1.0, old), Term("youth", "youth", float(youth[0]), young)]
    for name, knob in served.knobs.items():
        found.append(Term(name, "youth", float(youth[0]), float(knob.curve.at(taken, youth)[0])))
    return [term for term in found if term.share]
