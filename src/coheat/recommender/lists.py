"""Lists for users: who is asked about, their vectors, the ranking in blocks, and what to say about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from coheat.recommender.answers import Recommendation, Recommendations, Source
from coheat.recommender.catalogue import Catalogue
from coheat.recommender.ids import Ids, shortened
from coheat.recommender.ranking import Floats, Positions, best_of_rows
from coheat.recommender.taken import Taken
from coheat.recommender.views import ServedModel

BLOCK = 256
"""Users scored at once: enough for a matrix product at full speed; memory is BLOCK x n_bundles scores."""

NOTHING: Positions = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Asked:
    """A question: lists of k for these users out of these columns (bundle rows)."""

    users: Sequence[str]
    k: int
    columns: Positions
    exclude_seen: bool
    items: Mapping[str, Sequence[str]]
    bundles: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Known:
    """What a user's list can be made from; `vector` is None where nothing is known."""

    user_id: str
    source: Source
    vector: Floats | None
    seen: Positions
    item_rows: Positions
    bundle_rows: Positions
    notes: tuple[str, ...] = ()


def known_of(
    model: ServedModel,
    catalogue: Catalogue,
    taken: Taken,
    all_items: Ids,
    user: str,
    items: Sequence[str],
    bundles: Sequence[str],
) -> Known:
    """The fallback chain: trained vector; else folded in; else nothing."""
    seen = taken.rows_of(user, catalogue)
    if bundles:
        seen = np.union1d(seen, [catalogue.row(name) for name in bundles]).astype(np.int64)
    row = taken.users.rows.get(user)
    notes: tuple[str, ...] = ()
    if row is not None:
        if items or bundles:
            notes = (
                f"user {shortened(user)} is known from training; what was given is not used for the scores",
            )
        return Known(user, "model", model.users[row], seen, NOTHING, NOTHING, notes)
    distinct = list(dict.fromkeys(items))
    found = [all_items.rows[item] for item in distinct if item in all_items.rows]
    item_rows = np.array(sorted(found), dtype=np.int64)
    notes = tuple(
        f"user {shortened(user)}: the model does not know the item {shortened(item)}; left out"
        for item in distinct
        if item not in all_items.rows
    )
    if model.views is not None and (len(item_rows) or len(seen)):
        bundle_rows = np.where(seen < catalogue.n_trained, seen, -1)
        vector = model.folded(item_rows, bundle_rows)
        if vector.any():
            return Known(user, "folded-in", vector, seen, item_rows, seen, notes)
    # Looking for a similar id would take longer than the list, and strangers are many.
    why = "from what was given no vector can be made" if distinct or len(seen) else "unknown user id"
    notes += (f"user {shortened(user)}: {why}; answered with popular and new bundles",)
    return Known(user, "popular-and-new", None, seen, item_rows, seen, notes)


def recommend(
    model: ServedModel, catalogue: Catalogue, taken: Taken, all_items: Ids, asked: Asked
) -> Recommendations:
    """The answer to a question: blocks of users with vectors are scored at once."""
    answer = Recommendations()
    scratch = np.empty((min(len(asked.users), BLOCK), len(catalogue)), dtype=np.float32)
    for start in range(0, len(asked.users), BLOCK):
        names = asked.users[start : start + BLOCK]
        block = [
            known_of(
                model,
                catalogue,
                taken,
                all_items,
                name,
                asked.items.get(name, ()),
                asked.bundles.get(name, ()),
            )
            for name in names
        ]
        ranked = iter(
            _ranked(catalogue, [known for known in block if known.vector is not None], asked, scratch)
        )
        for known in block:
            rows, scores = _popular_and_new(catalogue, known, asked) if known.vector is None else next(ranked)
            _append(answer, known, catalogue, rows, scores, asked.k)
    return answer


def _append(
    answer: Recommendations, known: Known, catalogue: Catalogue, rows: Positions, scores: Floats, k: int
) -> None:
    user, ids = known.user_id, catalogue.ids
    columns = repeat(user), map(ids.__getitem__, rows.tolist()), scores.tolist(), range(1, len(rows) + 1)
    answer.extend(map(Recommendation._make, zip(*columns, strict=False)))
    answer.sources[user] = known.source
    answer.notes.extend(known.notes)
    if len(rows) < k:
        answer.short[user] = len(rows)
        answer.notes.append(
            f"user {shortened(user)}: {len(rows)} instead of {k}, there are no more candidates"
        )


def _ranked(
    catalogue: Catalogue, block: list[Known], asked: Asked, scratch: Floats
) -> Iterator[tuple[Positions, Floats]]:
    """Rows and scores of the list of each user of a block."""
    if not block:
        return
    vectors = np.stack([known.vector for known in block if known.vector is not None])
    seen = [known.seen if asked.exclude_seen else NOTHING for known in block]
    yield from ranked(catalogue, vectors, seen, asked.columns, asked.k, scratch)


def ranked(
    catalogue: Catalogue,
    vectors: Floats,
    seen: Sequence[Positions],
    columns: Positions,
    k: int,
    scratch: Floats | None = None,
) -> Iterator[tuple[Positions, Floats]]:
    """For each of `vectors` (n, width): rows and scores of the k best of `columns` not in `seen`."""
    few = 2 * len(columns) < len(catalogue)
    if few:
        scores = vectors @ catalogue.served.take(columns).T
    else:
        scores = catalogue.served.product(vectors, scratch)
        if len(columns) < len(catalogue):
            hidden = np.ones(len(catalogue), dtype=np.bool_)
            hidden[columns] = False
            scores[:, hidden] = -np.inf
    for row, own in enumerate(seen):
        if few:
            place = np.searchsorted(columns, own)
            inside = place < len(columns)
            inside[inside] = columns[place[inside]] == own[inside]
            scores[row, place[inside]] = -np.inf
        else:
            scores[row, own] = -np.inf
    for line, chosen in zip(scores, best_of_rows(scores, k), strict=True):
        yield (columns[chosen] if few else chosen), line[chosen]


def _popular_and_new(catalogue: Catalogue, known: Known, asked: Asked) -> tuple[Positions, Floats]:
    """By turns the most popular bundle and the newest new one (of equally often recorded ones)."""
    columns = np.setdiff1d(asked.columns, known.seen) if asked.exclude_seen else asked.columns
    new = columns[catalogue.is_new[columns]]
    old = columns[~catalogue.is_new[columns]]
    popular = old[np.lexsort((old, -catalogue.popularity[old]))][: asked.k]
    newest = new[np.lexsort((-new, -catalogue.popularity[new]))][: asked.k]
    turns = np.concatenate([2 * np.arange(len(popular)), 2 * np.arange(len(newest)) + 1])
    rows = np.concatenate([popular, newest])[np.argsort(turns)][: asked.k]
    return rows, (1 / np.arange(1, len(rows) + 1)).astype(np.float32)
