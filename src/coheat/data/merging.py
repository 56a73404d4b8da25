"""What a service recorded, merged into the data that its model was trained on.

Rows are added behind those that are there: positions of known users, bundles and items stay as they are.
Merging what was merged before changes nothing, and what was withdrawn since is taken out again: a ledger says
which rows the data owe to merging.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from coheat.data.dataset import BundleData, Indices, Moments, Shown, Sparse, pairs, relation
from coheat.data.said_columns import SaidColumns, with_columns
from coheat.ids import Vocabulary

SHOWN = "shown"


class Row(NamedTuple):
    """What happened between a user and a bundle; `sequence` is its place in the order of writing."""

    sequence: int
    user_id: str
    bundle_id: str
    kind: str
    timestamp: int
    """Unix seconds."""


@dataclass(frozen=True)
class WrittenBundle:
    """A bundle as it was last written: its items, or None where it was removed.

    `published` is when it was made, None for one that the model was trained with; `removed` is when it was
    taken away, where it was.
    """

    bundle_id: str
    item_ids: tuple[str, ...] | None
    published: float | None = None
    removed: float | None = None


@dataclass(frozen=True)
class Recorded:
    """All that a source holds, up to the write with the number `sequence`."""

    rows: Sequence[Row]
    bundles: Sequence[WrittenBundle]
    sequence: int
    columns: Sequence[SaidColumns] = ()


@dataclass(frozen=True)
class Merged:
    """The data with what was recorded, and the rows that they owe to it; what happened, in numbers."""

    data: BundleData
    ledger: list[Row]
    counts: dict[str, int] = field(default_factory=dict)


def merge(
    data: BundleData, recorded: Recorded, ledger: Collection[Row] = (), positive: Collection[str] = ("took",)
) -> Merged:
    """Add what was recorded to the data; `ledger` are the rows that they owe to earlier merging.

    Interactions of the kinds in `positive` are taken bundles, showings go to `shown`; others are left out. So
    are those with bundles that neither the data nor the source describe. Times of interactions are kept where
    the data have some for all others, or no others. What was said of bundles and items stands in their
    columns, also where it is another launch or end than that of publishing or removing; what does not fit a
    column of the data is left out.
    """
    gone = _withdrawn(recorded, ledger)
    data = _without(data, gone)
    wanted = [row for row in recorded.rows if row.kind == SHOWN or row.kind in positive]
    data, n_bundles, n_changed, n_ended = _with_bundles(data, recorded.bundles)
    told = with_columns(data, recorded.columns)
    data = told.data
    kept = [row for row in ledger if row not in gone]
    known = set(kept)
    fresh = [row for row in wanted if row not in known and row.bundle_id in data.bundles.index]
    n_users = data.n_users
    data = _longer(data, users=[row.user_id for row in fresh])
    data, taken = _with_taken(data, [row for row in fresh if row.kind in positive])
    showings = [row for row in fresh if row.kind == SHOWN]
    data = _with_shown(data, showings)
    counts = {
        "interactions": len(taken),
        "showings": len(showings),
        "withdrawn": len(gone),
        "new_users": data.n_users - n_users,
        "new_bundles": n_bundles,
        "changed_bundles": n_changed,
        "ended_bundles": n_ended,
        "described_bundles": told.bundles,
        "described_items": told.items,
        "of_unknown_bundles": sum(row.bundle_id not in data.bundles.index for row in wanted),
        "unfit_values": told.unfit,
    }
    return Merged(data, sorted([*kept, *taken, *showings]), counts)


def _withdrawn(recorded: Recorded, ledger: Collection[Row]) -> set[Row]:
    """Rows of the ledger that the source no longer holds.

    Only where it is the same source: it still holds others of them. What it forgot together with a bundle
    that was removed has happened all the same.
    """
    held = {row[:4] for row in recorded.rows}
    if not any(row[:4] in held for row in ledger):
        return set()
    removed = {bundle.bundle_id for bundle in recorded.bundles if bundle.item_ids is None}
    return {row for row in ledger if row[:4] not in held and row.bundle_id not in removed}


def _without(data: BundleData, gone: Collection[Row]) -> BundleData:
    """The data without these rows."""
    if not gone:
        return data
    users, bundles = pairs(data.user_bundle)
    showings = {(row.user_id, row.bundle_id, row.timestamp) for row in gone if row.kind == SHOWN}
    takings = _keys(data, [row for row in gone if row.kind != SHOWN])
    left = ~np.isin(users * data.n_bundles + bundles, takings)
    times = None if data.timestamps is None else data.timestamps[left]
    data = data.with_user_bundle(relation(users[left], bundles[left], data.user_bundle.shape), times)
    shown = data.shown
    if not showings or shown is None or shown.timestamps is None:
        return data
    places = zip(shown.users.tolist(), shown.bundles.tolist(), shown.timestamps.tolist(), strict=True)
    stays = [(data.users[user], data.bundles[bundle], at) not in showings for user, bundle, at in places]
    return replace(data, shown=shown.keep(np.array(stays, dtype=bool)))


def _keys(data: BundleData, rows: Sequence[Row]) -> Indices:
    """Each pair of a known user and a known bundle as one number."""
    users = np.array([data.users.index[row.user_id] for row in rows], dtype=np.int64)
    bundles = np.array([data.bundles.index[row.bundle_id] for row in rows], dtype=np.int64)
    return users * data.n_bundles + bundles


# --- bundles ------------------------------------------------------------------------------------


def _with_bundles(data: BundleData, written: Sequence[WrittenBundle]) -> tuple[BundleData, int, int, int]:
    """With the bundles as they were written; how many are new, have other items, and are ended."""
    there = {bundle.bundle_id: bundle.item_ids for bundle in written if bundle.item_ids is not None}
    new = [name for name in there if name not in data.bundles.index]
    changed = [name for name in there if name in data.bundles.index and _items(data, name) != {*there[name]}]
    items = (item for name in (*new, *changed) for item in there[name])
    data = _longer(data, bundles=new, items=items)
    if new or changed:
        data = replace(data, bundle_item=_exchanged(data, {name: there[name] for name in (*new, *changed)}))
    launched, ends = (_moments(data, times) for times in (data.launched, data.ends))
    for bundle in written:
        row = data.bundles.index.get(bundle.bundle_id)
        if row is None:  # made and removed before anything was collected
            continue
        if bundle.item_ids is None and bundle.removed is not None:
            ends[row] = np.fmin(ends[row], np.floor(bundle.removed))
        if bundle.item_ids is not None and bundle.published is not None:
            if np.isnan(launched[row]):
                launched[row] = np.floor(bundle.published)
            if ends[row] < bundle.published:  # it is back
                ends[row] = np.nan
    n_ended = int((~np.isnan(ends)).sum()) - int((~np.isnan(_moments(data, data.ends))).sum())
    data = replace(data, launched=_known(launched, data.launched), ends=_known(ends, data.ends))
    return data, len(new), len(changed), max(n_ended, 0)


def _items(data: BundleData, name: str) -> set[str]:
    row, matrix = data.bundles.index[name], data.bundle_item
    return {data.items[int(at)] for at in matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]}


def _exchanged(data: BundleData, items: Mapping[str, Sequence[str]]) -> Sparse:
    """The affiliations, with these of some bundles instead of theirs."""
    bundles, held = pairs(data.bundle_item)
    rows = {data.bundles.index[name]: names for name, names in items.items()}
    stays = ~np.isin(bundles, list(rows))
    more = [(row, data.items.index[name]) for row, names in rows.items() for name in names]
    added = np.array(more, dtype=np.int64).reshape(-1, 2)
    both = np.concatenate([bundles[stays], added[:, 0]]), np.concatenate([held[stays], added[:, 1]])
    return relation(*both, data.bundle_item.shape)


def _moments(data: BundleData, times: Moments | None) -> Moments:
    """One for each bundle, NaN where it is not known."""
    found = np.full(data.n_bundles, np.nan)
    if times is not None:
        found[: len(times)] = times
    return found


def _known(times: Moments, before: Moments | None) -> Moments | None:
    return None if before is None and np.isnan(times).all() else times


# --- interactions -------------------------------------------------------------------------------


def _with_taken(data: BundleData, rows: Sequence[Row]) -> tuple[BundleData, list[Row]]:
    """With these interactions, and those of them that were not there; of a pair the first."""
    before = data.user_bundle.nnz
    users, bundles = pairs(data.user_bundle)
    old = users * data.n_bundles + bundles
    keys = _keys(data, rows)
    _, first = np.unique(keys, return_index=True)
    added = first[~np.isin(keys[first], old)]
    both = np.concatenate([old, keys[added]])
    order = np.argsort(both)
    shape = data.user_bundle.shape
    matrix = relation(both // max(data.n_bundles, 1), both % max(data.n_bundles, 1), shape)
    times = None
    if data.timestamps is not None or not before:
        moments = np.array([rows[place].timestamp for place in added], dtype=np.int64)
        known = np.zeros(0, dtype=np.int64) if data.timestamps is None else data.timestamps
        times = np.concatenate([known, moments])[order]
    return data.with_user_bundle(matrix, times), [rows[place] for place in added]


def _with_shown(data: BundleData, rows: Sequence[Row]) -> BundleData:
    if not rows:
        return data
    users = np.array([data.users.index[row.user_id] for row in rows], dtype=np.int64)
    bundles = np.array([data.bundles.index[row.bundle_id] for row in rows], dtype=np.int64)
    times = np.array([row.timestamp for row in rows], dtype=np.int64)
    old = data.shown
    if old is None:
        return replace(data, shown=Shown(users, bundles, times))
    joined = None if old.timestamps is None else np.concatenate([old.timestamps, times])
    both = np.concatenate([old.users, users]), np.concatenate([old.bundles, bundles])
    return replace(data, shown=Shown(*both, joined))


def _longer(
    data: BundleData, users: Iterable[str] = (), bundles: Iterable[str] = (), items: Iterable[str] = ()
) -> BundleData:
    """The same data with further ids behind those that are there, of which nothing is known yet."""
    people, offers, things = (
        _with_ids(known, added)
        for known, added in ((data.users, users), (data.bundles, bundles), (data.items, items))
    )
    more = np.full(len(offers) - data.n_bundles, np.nan)
    return replace(
        data,
        users=people,
        bundles=offers,
        items=things,
        user_bundle=relation(*pairs(data.user_bundle), (len(people), len(offers))),
        user_item=relation(*pairs(data.user_item), (len(people), len(things))),
        bundle_item=relation(*pairs(data.bundle_item), (len(offers), len(things))),
        launched=None if data.launched is None else np.concatenate([data.launched, more]),
        ends=None if data.ends is None else np.concatenate([data.ends, more]),
    )


def _with_ids(vocabulary: Vocabulary, added: Iterable[str]) -> Vocabulary:
    new = [name for name in dict.fromkeys(added) if name not in vocabulary.index]
    return Vocabulary((*vocabulary.ids, *new), vocabulary.kind) if new else vocabulary
