"""Lists for those who ask: those asked for while the model computes are computed together next.

Quick ones are computed where they are asked for, in the event loop: to hand a list that takes a millisecond
to another thread, and Python's lock back and forth while it is computed, takes longer than to wait for it.
What takes longer, or may, is computed in the model's thread, and the event loop stays free meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Literal, NamedTuple

from coheat.ids import shortened
from coheat.recommender import Recommendation, Recommendations
from coheat.recommender.known import STRANGER
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


QUICK_SECONDS = 0.004
"""Of the processor, for one list: what the event loop may be kept for."""
QUICK_K = 100
MOST_HERE = 32
"""People whose lists the event loop computes together; for more it would be kept for too long."""
LEARNED = 0.1
"""How much the latest list tells of how long one takes."""
INSTEAD = " instead of "
"""In the sentence about a list that is shorter than asked for."""
ListOrError = UserList | Exception
Waiting = list[tuple[Asker, "asyncio.Future[UserList]"]]


class Kind(NamedTuple):
    """Lists that are computed together. `is_plain`: nothing in the question may make one take long."""

    side: str
    wanted: Wanted
    is_plain: bool


class Lists:
    """Who waits for which kind of list, and where they are computed."""

    def __init__(self, models: Callable[[str], LoadedModel], thread: Executor):
        self.models, self.thread = models, thread
        self._waiting: dict[Kind, Waiting] = {}
        self._queueing = threading.Lock()  # whoever joins a list must not miss its being taken away
        self.seconds: dict[str, float] = {}
        """By side: how long a plain list takes, as far as it is known."""

    async def recommend(self, side: str, asker: Asker, wanted: Wanted) -> UserList:
        """One user's list, computed together with those of the same kind that wait at that moment."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[UserList] = loop.create_future()
        kind = Kind(side, wanted, _is_plain(asker, wanted))
        with self._queueing:
            waiting = self._waiting.setdefault(kind, [])
            waiting.append((asker, answer))
            is_first = len(waiting) == 1
        if is_first and kind.is_plain and self.seconds.get(side, QUICK_SECONDS) < QUICK_SECONDS:
            loop.call_soon(self._recommend_here, loop, kind)  # after those who ask at the same moment
        elif is_first:
            self.thread.submit(self._recommend_aside, loop, kind)
        return await answer

    def _recommend_here(self, loop: asyncio.AbstractEventLoop, kind: Kind) -> None:
        if len(self._waiting[kind]) > MOST_HERE:
            self.thread.submit(self._recommend_aside, loop, kind)
        else:
            _deliver(*self._recommend_waiting(kind))

    def _recommend_aside(self, loop: asyncio.AbstractEventLoop, kind: Kind) -> None:
        loop.call_soon_threadsafe(_deliver, *self._recommend_waiting(kind))

    def _recommend_waiting(self, kind: Kind) -> tuple[Waiting, dict[Asker, ListOrError]]:
        with self._queueing:
            waiting = self._waiting.pop(kind)
        started = time.thread_time()
        askers = [asker for asker, _ in waiting]
        try:
            lists = _lists(self.models(kind.side), kind.side, askers, kind.wanted)
        except Exception as error:  # whatever it is: somebody waits for an answer
            lists = dict.fromkeys(askers, error)
        if kind.is_plain:
            latest = (time.thread_time() - started) / len(lists)
            before = self.seconds.get(kind.side, latest)
            self.seconds[kind.side] = before + LEARNED * (latest - before)
        return waiting, lists


def _is_plain(asker: Asker, wanted: Wanted) -> bool:
    said = asker.item_ids or asker.bundle_ids or asker.shown
    asked = wanted.where or wanted.rules or wanted.exclude or wanted.fields
    return wanted.k <= QUICK_K and isinstance(wanted.candidates, str) and not (said or asked)


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
    """What there is to say about a list: what was left out, why it is short, and which of its bundles are
    placed by an average. That nobody knows the user is no news: `source` says so."""
    own, about = f"user {shortened(user_id)}: ", found.about_bundles
    others = set(about.values()) - {about[row.bundle_id] for row in rows if row.bundle_id in about}
    for_all = [one for one in found.notes if not one.startswith("user ") and one not in others]
    about_user = [one.removeprefix(own) for one in found.notes if one.startswith(own)]
    told = [
        one.replace(", ", ": ", 1) if user_id in found.short and INSTEAD in one else one
        for one in about_user
        if not one.startswith(STRANGER)
    ]
    return "; ".join([*for_all, *told]) or None


def _deliver(waiting: Waiting, lists: dict[Asker, ListOrError]) -> None:
    for asker, answer in waiting:
        found = lists[asker]
        if answer.done():  # whoever asked has gone
            continue
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)
