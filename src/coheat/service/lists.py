"""Lists for those who ask: those asked for while the model computes are computed together next."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Literal

from coheat.ids import shortened
from coheat.recommender import Recommendation, Recommendations
from coheat.service.served import LoadedModel


@dataclass(frozen=True)
class Wanted:
    """What kind of list is asked for; those of one kind are computed together."""

    k: int
    candidates: Literal["all", "new"] | tuple[str, ...] = "all"
    exclude_seen: bool = True
    exclude: tuple[str, ...] = ()
    where: str = ""
    """Conditions by column, as JSON: what is asked for together has to be comparable."""
    fields: tuple[str, ...] | None = None
    only_on_offer: bool = True
    now: float | None = None
    rules: str = ""
    """As JSON."""


@dataclass(frozen=True)
class Asker:
    """For whom: a user's id, or nobody's, and what they have."""

    user_id: str
    item_ids: tuple[str, ...] = ()
    bundle_ids: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    """Bundles that are not to be shown again."""


@dataclass(frozen=True)
class UserList:
    """One user's list, why it is short, where it is, and who made it."""

    source: str
    rows: list[Recommendation]
    note: str | None
    side: str
    model: str
    """The fingerprint."""


INSTEAD = " instead of "
"""In the sentence about a list that is shorter than asked for."""
ListOrError = UserList | Exception
Waiting = list[tuple[Asker, "asyncio.Future[UserList]"]]


class Lists:
    """Who waits for which kind of list of which side, and the thread that computes them."""

    def __init__(self, models: Callable[[str], LoadedModel], thread: Executor):
        self.models, self.thread = models, thread
        self._waiting: dict[tuple[str, Wanted], Waiting] = {}
        self._queueing = threading.Lock()  # whoever joins a list must not miss its being taken away

    async def recommend(self, side: str, asker: Asker, wanted: Wanted) -> UserList:
        """One user's list, computed together with those of the same kind that wait at that moment."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[UserList] = loop.create_future()
        with self._queueing:
            waiting = self._waiting.setdefault((side, wanted), [])
            waiting.append((asker, answer))
            is_first = len(waiting) == 1
        if is_first:
            self.thread.submit(self._recommend_waiting, loop, side, wanted)
        return await answer

    def _recommend_waiting(self, loop: asyncio.AbstractEventLoop, side: str, wanted: Wanted) -> None:
        with self._queueing:
            waiting = self._waiting.pop((side, wanted))
        lists = _lists(self.models(side), side, [asker for asker, _ in waiting], wanted)
        loop.call_soon_threadsafe(_deliver, waiting, lists)


def _lists(
    loaded: LoadedModel, side: str, askers: Sequence[Asker], wanted: Wanted
) -> dict[Asker, ListOrError]:
    """A list for each asker, or the error that stands in its place.

    Those of whom nothing more is said are computed together; so are the others, under names that nobody in
    training has: ids are never empty, and these begin with a character that no text holds. Where one of
    several is refused, each is asked alone.
    """
    distinct = list(dict.fromkeys(askers))
    names = {asker: asker.user_id or f"\udcff{place}" for place, asker in enumerate(distinct)}
    said = [asker for asker in distinct if asker.item_ids or asker.bundle_ids or asker.shown]
    shared = Counter(names.values())
    if any(shared[names[asker]] > 1 for asker in said):
        return _one_by_one(loaded, side, distinct, wanted)
    try:
        found = loaded.recommender.recommend(
            list(names.values()),
            wanted.k,
            wanted.candidates,
            wanted.exclude_seen,
            wanted.exclude,
            items={names[asker]: asker.item_ids for asker in said},
            bundles={names[asker]: asker.bundle_ids for asker in said},
            where=json.loads(wanted.where) if wanted.where else None,
            fields=wanted.fields,
            only_on_offer=wanted.only_on_offer,
            now=wanted.now,
            rules=json.loads(wanted.rules) if wanted.rules else None,
            shown={names[asker]: asker.shown for asker in said},
        )
    except Exception as error:
        if len(distinct) == 1 or not said:
            return dict.fromkeys(distinct, error)
        return _one_by_one(loaded, side, distinct, wanted)
    rows: dict[str, list[Recommendation]] = {}
    for row in found:
        rows.setdefault(row.user_id, []).append(row)
    return {
        asker: UserList(
            found.sources[name],
            rows.get(name, []),
            note(found, name, rows.get(name, [])),
            side,
            loaded.fingerprint,
        )
        for asker, name in names.items()
    }


def _one_by_one(
    loaded: LoadedModel, side: str, askers: Sequence[Asker], wanted: Wanted
) -> dict[Asker, ListOrError]:
    return {asker: found for one in askers for asker, found in _lists(loaded, side, [one], wanted).items()}


def note(found: Recommendations, user_id: str, rows: Sequence[Recommendation]) -> str | None:
    """What there is to say about a list: what was left out for everybody, why it is short, and which of its
    bundles are placed by an average."""
    own, about = f"user {shortened(user_id)}: ", found.about_bundles
    others = set(about.values()) - {about[row.bundle_id] for row in rows if row.bundle_id in about}
    for_all = [one for one in found.notes if not one.startswith("user ") and one not in others]
    short = [one.removeprefix(own).replace(", ", ": ", 1) for one in found.notes if one.startswith(own)]
    return "; ".join([*for_all, *(one for one in short if user_id in found.short and INSTEAD in one)]) or None


def _deliver(waiting: Waiting, lists: dict[Asker, ListOrError]) -> None:
    for asker, answer in waiting:
        found = lists[asker]
        if answer.done():  # whoever asked has gone
            continue
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)
