"""Answers about the whole: searching ids, and the model at a glance. Each is one question to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from coheat.errors import ConfigError
from coheat.recommender import Recommender, SearchResult
from coheat.service.schemas import PopularityBin, Statistics
from coheat.service.state import State

T = TypeVar("T")
SAMPLED_USERS = 200
USERS_AT_ONCE = 16
"""Lists computed in one go; whoever else asks waits no longer than for these."""
LIST_LENGTH = 20
TURNED_USERS = 96
EXPLAINED_USERS = 24


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


def search_named(
    find: Callable[[str, int], SearchResult], ids: Sequence[str], query: str, offset: int, limit: int
) -> tuple[list[str], int | None]:
    """The same for what has titles, too: `find` looks for ids and titles."""
    if not query.strip():
        return search(ids, "", offset, limit)
    end = offset + limit
    names = [one.id for one in find(query, end + 1).found]
    return names[offset:end], end if end < len(names) else None


async def statistics(state: State) -> Statistics:
    """See `Statistics`; the sample of users is spread evenly over all, the same each time."""
    model = state.served.recommender
    users = _spread(model.user_ids, SAMPLED_USERS)
    found = await _of_blocks(state, users, _cold_places)
    cold, places = sum(cold for cold, _ in found), sum(places for _, places in found)
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


async def standing(state: State, bundle_id: str, popularity: int) -> dict[str, Any]:
    """How a bundle stands in the lists of a sample of users, and would with more or fewer takers."""
    users = _spread(state.served.recommender.user_ids, SAMPLED_USERS)
    total = None
    for found in await _of_blocks(
        state, users, lambda block, model: model.standing(bundle_id, block, LIST_LENGTH)
    ):
        # Somebody may have taken it between two blocks; then the counts are not the same any more.
        total = found if total is None or total.taken != found.taken else total + found
    if total is None:
        return {"list_length": LIST_LENGTH, "sampled_users": 0, "in_lists": 0, "steps": [], "rises_at": None}
    steps = list(zip(total.taken, total.in_lists, strict=True))
    now = next((lists for taken, lists in steps if taken == popularity), 0)
    return {
        "list_length": LIST_LENGTH,
        "sampled_users": total.users,
        "in_lists": now,
        "steps": [{"taken": taken, "in_lists": lists} for taken, lists in steps],
        "rises_at": next((taken for taken, lists in steps if taken > popularity and lists > now), None),
    }


async def turned(state: State, name: str, value: float) -> dict[str, Any]:
    """What the lists of a sample of users would be with a knob turned."""
    users = _spread(state.served.recommender.user_ids, TURNED_USERS)
    other = await state.ask(lambda model: model.turned(**{name: value}))
    now = [rows for block in await _of_blocks(state, users, _lists) for rows in block]
    turned = await _of_blocks(state, users, lambda block, _: _lists(block, other))
    then = [rows for block in turned for rows in block]
    places = sum(map(len, now))
    cold, cold_now = (sum(is_cold for rows in lists for _, is_cold in rows) for lists in (then, now))
    return {
        "name": name,
        "value": value,
        "cold_share": cold / places if places else 0.0,
        "cold_share_now": cold_now / places if places else 0.0,
        "changed_lists": sum(set(one) != set(other) for one, other in zip(now, then, strict=True)),
        "list_length": LIST_LENGTH,
        "sampled_users": len(users),
    }


async def _of_blocks(
    state: State, users: Sequence[str], question: Callable[[Sequence[str], Recommender], T]
) -> list[T]:
    """The answers to a question about some users, put for a few of them at a time."""
    blocks = (users[start : start + USERS_AT_ONCE] for start in range(0, len(users), USERS_AT_ONCE))
    return [await state.ask(partial(question, block)) for block in blocks]


def _lists(users: Sequence[str], recommender: Recommender) -> list[list[tuple[str, bool]]]:
    """Of each user the bundles listed, and whether nobody has taken them."""
    found: dict[str, list[tuple[str, bool]]] = {user: [] for user in users}
    for row in recommender.recommend(users, k=LIST_LENGTH):
        found[row.user_id].append((row.bundle_id, recommender.bundle(row.bundle_id).popularity == 0))
    return list(found.values())


async def parts(state: State) -> list[dict[str, Any]]:
    """Of a few users' lists, what scores are made of, by bins of popularity; [] where that cannot be told."""
    users = _spread(state.served.recommender.user_ids, EXPLAINED_USERS)
    sums: dict[tuple[int, int], list[float]] = {}
    for user in users:
        try:
            found = await state.ask(lambda model, user=user: _parts(model, user))  # type: ignore[misc]
        except ConfigError:
            return []
        for bin_, sizes in found:
            total = sums.setdefault(bin_, [0.0, 0.0, 0.0, 0.0])
            sums[bin_] = [one + other for one, other in zip(total, [*sizes, 1.0], strict=True)]
    return [
        {
            "least": least,
            "most": most,
            "history": history / (history + items + youth),
            "items": items / (history + items + youth),
            "youth": youth / (history + items + youth),
            "places": int(places),
        }
        for (least, most), (history, items, youth, places) in sorted(sums.items())
    ]


def _parts(recommender: Recommender, user: str) -> list[tuple[tuple[int, int], list[float]]]:
    """Of a user's list, the bin of each bundle's popularity and the sizes of the parts of its score."""
    found = []
    for row in recommender.recommend([user], k=LIST_LENGTH):
        why = recommender.explain(user, row.bundle_id)
        sizes = [abs(why.history), abs(why.items), abs(why.youth)]
        if any(sizes):
            popularity = recommender.bundle(row.bundle_id).popularity
            least = 0 if popularity == 0 else 1 << (popularity.bit_length() - 1)
            found.append(((least, 2 * least - 1 if least else 0), sizes))
    return found


def _spread(ids: Sequence[str], most: int) -> list[str]:
    step = max(1, len(ids) // most)
    return list(ids[::step][:most])


def _cold_places(users: Sequence[str], recommender: Recommender) -> tuple[int, int]:
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
