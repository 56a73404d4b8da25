"""What is known of somebody who asks: from training, since, and from what comes with the question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from coheat.ids import Vocabulary, shortened, text_id
from coheat.recommender.answers import Source
from coheat.recommender.catalogue import Catalogue
from coheat.recommender.taken import Taken
from coheat.served import People, Served
from coheat.served.overlap import Belongings
from coheat.served.ranking import Floats, Positions
from coheat.served.relations import NOTHING

STRANGER = "unknown user id"
"""In the sentence about somebody of whom nothing is known."""


@dataclass(frozen=True)
class Moment:
    """All that a question is answered from; the catalogue is that of the moment it was asked."""

    catalogue: Catalogue
    taken: Taken
    items: Vocabulary

    @property
    def served(self) -> Served:
        return self.catalogue.served

    def people_of(self, names: Sequence[str], rows: Positions) -> People:
        """Users of training as they are now."""
        return self.served.people(rows, self.taken.belongings(names, self.catalogue))


@dataclass(frozen=True)
class Known:
    """What a user's list can be made from; `vector` is None where nothing is known.

    `items` and `bundles` (rows) are what counts for the scores besides training; `since` see `People`.
    """

    user_id: str
    source: Source
    row: int
    vector: Floats | None
    seen: Positions
    items: Positions
    bundles: Positions
    notes: tuple[str, ...] = ()
    since: Belongings | None = None


def known_of(moment: Moment, user: str, items: Sequence[str], bundles: Sequence[str]) -> Known:
    """The fallback chain: trained vector; else folded in; else nothing. What is given comes on top."""
    catalogue, taken, known = moment.catalogue, moment.taken, moment.items.index
    text_id(user, "user")
    notes: list[str] = []
    found_items = {item: known.get(text_id(item, "item")) for item in items}
    found_bundles = {bundle: catalogue.find(text_id(bundle, "bundle")) for bundle in bundles}
    for kind, found in (("item", found_items), ("bundle", found_bundles)):
        missing = [shortened(name) for name, place in found.items() if place is None]
        if missing:
            many = f"{len(missing)} of the {kind}s, such as {missing[0]}"
            which = many if len(missing) > 1 else f"the {kind} {missing[0]}"
            notes.append(f"user {shortened(user)}: the model does not know {which}; left out")
    given_items, given = (_in_order(found.values()) for found in (found_items, found_bundles))
    seen = taken.rows_of(user, catalogue)
    everything = np.union1d(seen, given).astype(np.int64) if len(given) else seen
    row = taken.users.index.get(user)
    if row is not None:
        return _with_more(moment, user, row, (everything, seen), (given_items, given), notes)
    if len(given_items) or len(everything):
        vector = moment.served.fold_in(given_items, _trained(everything, catalogue))
        if vector is not None:
            since = Belongings.of(given_items, [catalogue.items_of(one) for one in everything.tolist()])
            told = tuple(notes)
            return Known(user, "folded-in", -1, vector, everything, given_items, everything, told, since)
    # Looking for a similar id would take longer than the list, and strangers are many.
    why = "from what was given no vector can be made" if items or len(everything) else STRANGER
    notes.append(f"user {shortened(user)}: {why}; answered with popular and new bundles")
    return Known(user, "popular-and-new", -1, None, everything, given_items, everything, tuple(notes))


def _with_more(
    moment: Moment,
    user: str,
    row: int,
    taken: tuple[Positions, Positions],
    given: tuple[Positions, Positions],
    notes: list[str],
) -> Known:
    """A user of training; `taken` with and without what is given, `given` items and bundles."""
    catalogue, served = moment.catalogue, moment.served
    everything, before = taken
    items = np.setdiff1d(given[0], served.relations.user_item.row(row))
    bundles = np.setdiff1d(given[1], before)
    since = moment.taken.since(user, catalogue) if served.overlaps else NOTHING
    counted = np.concatenate([since, bundles]) if served.overlaps or served.layers is not None else NOTHING
    if (len(items) or len(bundles)) and not served.uses_more:
        notes.append(
            f"user {shortened(user)}: this model's vectors are fixed by training, so what was given is not "
            "used for the scores"
        )
        items = NOTHING
    vector = served.with_more(row, items, _trained(bundles, catalogue))
    contents = [catalogue.items_of(one) for one in counted.tolist()]
    more = Belongings.of(items, contents) if served.overlaps and (len(items) or contents) else None
    return Known(user, "model", row, vector, everything, items, counted, tuple(notes), more)


def _trained(rows: Positions, catalogue: Catalogue) -> Positions:
    """Rows of bundles, -1 for those that were not in training."""
    return np.where(rows < catalogue.n_trained, rows, -1)


def _in_order(rows: Iterable[int | None]) -> Positions:
    return np.array(sorted({row for row in rows if row is not None}), dtype=np.int64)
