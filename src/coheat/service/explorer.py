"""Answers about the whole: searching ids, and the model at a glance. Each is one question to the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from coheat.recommender import Recommender
from coheat.service.schemas import PopularityBin, Statistics
from coheat.service.state import State

SAMPLED_USERS = 200
USERS_AT_ONCE = 16
"""Lists computed in one go; whoever else asks waits no longer than for these."""
LIST_LENGTH = 20


def search(ids: Iterable[str], query: str, offset: int, limit: int) -> tuple[list[str], int | None]:
    """Ids that contain the query, those that begin with it first, whatever the case; one page of them.

    Also the offset of the next page, or None after the last.
    """
    wanted = query.casefold()
    found = [name for name in ids if wanted in name.casefold()] if wanted else list(ids)
    if wanted:
        found.sort(key=lambda name: not name.casefold().startswith(wanted))
    end = offset + limit
    return found[offset:end], end if end < len(found) else None


async def statistics(state: State) -> Statistics:
    """See `Statistics`; the sample of users is spread evenly over all, the same each time."""
    model = state.served.recommender
    users = _spread(model.user_ids, SAMPLED_USERS)
    places = cold = 0
    for start in range(0, len(users), USERS_AT_ONCE):
        block = users[start : start + USERS_AT_ONCE]
        found_cold, found = await state.ask(lambda recommender, block=block: _cold_places(recommender, block))  # type: ignore[misc]
        places, cold = places + found, cold + found_cold
    popularity = np.asarray(await state.ask(lambda recommender: recommender.popularity))
    n_cold = int((popularity == 0).sum())
    return Statistics(
        n_users=len(model.user_ids),
        n_bundles=len(popularity),
        n_items=len(model.item_ids),
        n_interactions=int(popularity.sum()),
        n_cold_bundles=n_cold,
        popularity=_bins(model, popularity),
        list_length=LIST_LENGTH,
        sampled_users=len(users),
        cold_share_of_lists=cold / places if places else 0.0,
        cold_share_of_bundles=n_cold / len(popularity) if len(popularity) else 0.0,
    )


def _spread(ids: Sequence[str], most: int) -> list[str]:
    step = max(1, len(ids) // most)
    return list(ids[::step][:most])


def _cold_places(recommender: Recommender, users: list[str]) -> tuple[int, int]:
    rows = recommender.recommend(users, k=LIST_LENGTH)
    return sum(recommender.bundle(row.bundle_id).popularity == 0 for row in rows), len(rows)


def _bins(model: Recommender, popularity: np.ndarray) -> list[PopularityBin]:
    """0, 1, 2-3, 4-7, 8-15, ... as far as there are bundles."""
    bins = []
    least, most = 0, 0
    while least <= popularity.max(initial=0):
        inside = popularity[(popularity >= least) & (popularity <= most)]
        values, counts = np.unique(inside, return_counts=True)
        weights = [model.history_weight(float(value)) for value in values]
        known = [w for w in weights if w is not None]
        mean = float(np.average(known, weights=counts)) if known else None
        bins.append(
            PopularityBin(
                least=least,
                most=most,
                bundles=len(inside),
                interactions=int(inside.sum()),
                mean_history_weight=mean,
            )
        )
        least, most = most + 1, 2 * most + 1
    return bins
