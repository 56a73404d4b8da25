"""Lists for users: who is asked about, scoring and ranking in blocks, and what to say about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, cycle, repeat
from typing import TypeVar

import numpy as np

from coheat.recommender.answers import Recommendation, Recommendations, Source
from coheat.recommender.catalogue import Catalogue
from coheat.recommender.holders import Profile
from coheat.recommender.ids import Ids, shortened
from coheat.recommender.profiles import Lookalikes, Profiles
from coheat.recommender.ranking import Floats, Positions, rank_rows
from coheat.recommender.scoring import BLOCK, People, Scoring
from coheat.recommender.taken import Taken
from coheat.recommender.views import ServedModel

NOTHING: Positions = np.zeros(0, dtype=np.int64)
NO_SCORES: Floats = np.zeros(0, dtype=np.float32)
T = TypeVar("T")


@dataclass(frozen=True)
class Moment:
    """All that a question is answered from; the catalogue is that of the moment it was asked."""

    model: ServedModel
    scoring: Scoring
    catalogue: Catalogue
    taken: Taken
    items: Ids
    profiles: Profiles | None = None
    """For a model whose score has an overlap; then there are also `lookalikes`, for newcomers."""
    lookalikes: Lookalikes | None = None


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
    since: Profile | None = None
    """See `People`."""


@dataclass(frozen=True)
class Ranked:
    """Lists of several users, one after the other: bundle rows, scores, and the length of each list."""

    bundles: Positions
    scores: Floats
    counts: Positions

    @staticmethod
    def joined(parts: Sequence[Ranked]) -> Ranked:
        """The lists of all parts, one after the other."""
        return Ranked(
            np.concatenate([NOTHING, *(part.bundles for part in parts)]),
            np.concatenate([NO_SCORES, *(part.scores for part in parts)]),
            np.concatenate([NOTHING, *(part.counts for part in parts)]),
        )

    def split(self) -> list[tuple[Positions, Floats]]:
        """Bundle rows and scores of each list."""
        ends = np.cumsum(self.counts)[:-1]
        return list(zip(np.split(self.bundles, ends), np.split(self.scores, ends), strict=True))


UNSEEN = (NOTHING, NOTHING)


@dataclass(frozen=True)
class Scored:
    """A block of people, scored: (n, columns), or (n, all bundles) where `columns` is None."""

    scores: Floats
    columns: Positions | None
    seen: tuple[Positions, Positions]
    """Bundle rows that are not to be listed, and for whom (row of `scores`)."""

    def ranked(self, k: int) -> Ranked:
        """The k best of each. Writes on the scores."""
        self._hide()
        places, counts = rank_rows(self.scores, k)
        found = self.scores[np.repeat(np.arange(len(counts)), counts), places]
        return Ranked(places if self.columns is None else self.columns[places], found, counts)

    def _hide(self) -> None:
        bundles, people = self.seen
        if self.columns is None:
            self.scores[people, bundles] = -np.inf
            return
        places = np.searchsorted(self.columns, bundles)
        inside = places < len(self.columns)
        inside[inside] = self.columns[places[inside]] == bundles[inside]
        self.scores[people[inside], places[inside]] = -np.inf


def score(
    moment: Moment,
    people: People,
    columns: Positions,
    seen: tuple[Positions, Positions],
    scratch: Floats | None = None,
) -> Scored:
    """Scores of the columns for each of the people. Few columns are scored alone, many among all."""
    everything = len(moment.catalogue)
    if 2 * len(columns) < everything:
        return Scored(moment.scoring.of_people(people, moment.catalogue, columns, None), columns, seen)
    scores = moment.scoring.of_people(people, moment.catalogue, None, scratch)
    if len(columns) < everything:
        hidden = np.ones(everything, dtype=np.bool_)
        hidden[columns] = False
        scores[:, hidden] = -np.inf
    return Scored(scores, None, seen)


def ahead(jobs: Iterable[Callable[[], T]]) -> Iterator[T]:
    """What each job returns; while that is used, the next one runs in a second thread.

    The next block is multiplied while this one is ranked: neither can use all cores alone. Jobs are drawn in
    the caller's thread, so that the second one hardly ever needs Python's lock.
    """
    with ThreadPoolExecutor(1, "coheat-ahead") as thread:
        running: Future[T] | None = None
        for job in jobs:
            before, running = running, thread.submit(job)
            if before is not None:
                yield before.result()
        if running is not None:
            yield running.result()


def scratches(moment: Moment, n: int) -> list[Floats]:
    """Memory for the scores of n users, block by block: one is ranked while the other is filled."""
    shape = (min(n, BLOCK), len(moment.catalogue))
    return [np.empty(shape, dtype=np.float32) for _ in range(2 if n > BLOCK else 1)]


def known_of(moment: Moment, user: str, items: Sequence[str], bundles: Sequence[str]) -> Known:
    """The fallback chain: trained vector; else folded in; else nothing."""
    model, catalogue, taken, all_items = moment.model, moment.catalogue, moment.taken, moment.items
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
        since = moment.profiles.recorded(user, catalogue) if moment.profiles else None
        return Known(user, "model", model.users[row], seen, NOTHING, NOTHING, notes, since)
    distinct = list(dict.fromkeys(items))
    found = [all_items.rows[item] for item in distinct if item in all_items.rows]
    item_rows = np.array(sorted(found), dtype=np.int64)
    notes = tuple(
        f"user {shortened(user)}: the model does not know the item {shortened(item)}; left out"
        for item in distinct
        if item not in all_items.rows
    )
    if len(item_rows) or len(seen):
        vector, since = _folded(moment, item_rows, seen)
        if vector is not None:
            return Known(user, "folded-in", vector, seen, item_rows, seen, notes, since)
    # Looking for a similar id would take longer than the list, and strangers are many.
    why = "from what was given no vector can be made" if distinct or len(seen) else "unknown user id"
    notes += (f"user {shortened(user)}: {why}; answered with popular and new bundles",)
    return Known(user, "popular-and-new", None, seen, item_rows, seen, notes)


def _folded(moment: Moment, items: Positions, bundles: Positions) -> tuple[Floats | None, Profile | None]:
    """A newcomer's vector and profile; no vector where the model has no rule for newcomers."""
    model, n_trained = moment.model, moment.catalogue.n_trained
    if moment.profiles is not None and moment.lookalikes is not None:
        of_bundles = moment.profiles.of_bundles(bundles, moment.catalogue)
        since = Profile.joined([moment.profiles.of_items(items), *of_bundles])
        return moment.lookalikes.vector(items, bundles[bundles < n_trained]), since
    if model.views is None:
        return None, None
    vector = model.folded(items, np.where(bundles < n_trained, bundles, -1))
    return vector if vector.any() else None, None


def people_of(moment: Moment, names: Sequence[str], rows: Positions) -> People:
    """Users of training as they are now."""
    since = moment.profiles.since(names, moment.catalogue) if moment.profiles else {}
    return People(rows, moment.model.users[rows], since)


@dataclass(frozen=True)
class Block:
    """Some of the users asked about. `known` is None where all of them are just rows of training."""

    names: Sequence[str]
    known: list[Known] | None
    people: People
    """Those with a vector, in their order."""
    seen: tuple[Positions, Positions]


def recommend(moment: Moment, asked: Asked) -> Recommendations:
    """The answer to a question."""
    memory = scratches(moment, len(asked.users))
    starts = range(0, len(asked.users), BLOCK)

    def scored(block: Block, scratch: Floats) -> tuple[Block, Scored]:
        return block, score(moment, block.people, asked.columns, block.seen, scratch)

    blocks = (_block(moment, asked, asked.users[start : start + BLOCK]) for start in starts)
    jobs = (partial(scored, block, scratch) for block, scratch in zip(blocks, cycle(memory), strict=False))
    found = Found(asked.k, moment.catalogue.ids)
    for block, scores in ahead(jobs) if len(starts) > 1 else (job() for job in jobs):
        ranked = scores.ranked(asked.k)
        if block.known and len(block.people) < len(block.known):
            ranked = _with_strangers(moment.catalogue, asked, block.known, ranked)
        found.add(block, ranked)
    return found.answer()


def _block(moment: Moment, asked: Asked, names: Sequence[str]) -> Block:
    """Look the users up."""
    rows = np.array([moment.taken.users.rows.get(name, -1) for name in names], dtype=np.int64)
    if (rows >= 0).all() and not (asked.items or asked.bundles):
        seen = moment.taken.pairs_of(names, rows, moment.catalogue) if asked.exclude_seen else UNSEEN
        return Block(names, None, people_of(moment, names, rows), seen)
    known = [known_of(moment, name, asked.items.get(name, ()), asked.bundles.get(name, ())) for name in names]
    placed = [who for who in known if who.vector is not None]
    vectors = np.zeros((len(placed), moment.model.users.shape[1]), dtype=np.float32)
    for place, who in enumerate(placed):
        vectors[place] = who.vector
    since = {place: who.since for place, who in enumerate(placed) if who.since is not None}
    people = People(rows[[who.vector is not None for who in known]], vectors, since)
    if not (placed and asked.exclude_seen):
        return Block(names, known, people, UNSEEN)
    takers = np.repeat(np.arange(len(placed)), [len(who.seen) for who in placed])
    return Block(names, known, people, (np.concatenate([who.seen for who in placed]), takers))


def _with_strangers(catalogue: Catalogue, asked: Asked, known: list[Known], ranked: Ranked) -> Ranked:
    """With lists for those of whom nothing is known, each in its place."""
    others = iter(ranked.split())
    lists = [_popular_and_new(catalogue, asked, who) if who.vector is None else next(others) for who in known]
    counts = np.array([len(bundles) for bundles, _ in lists], dtype=np.int64)
    bundles, scores = (np.concatenate(parts) for parts in zip(*lists, strict=True))
    return Ranked(bundles, scores, counts)


def _popular_and_new(catalogue: Catalogue, asked: Asked, known: Known) -> tuple[Positions, Floats]:
    """By turns the most popular bundle and the newest new one (of equally often recorded ones)."""
    columns = np.setdiff1d(asked.columns, known.seen) if asked.exclude_seen else asked.columns
    new = columns[catalogue.is_new[columns]]
    old = columns[~catalogue.is_new[columns]]
    popular = old[np.lexsort((old, -catalogue.popularity[old]))][: asked.k]
    newest = new[np.lexsort((-new, -catalogue.popularity[new]))][: asked.k]
    turns = np.concatenate([2 * np.arange(len(popular)), 2 * np.arange(len(newest)) + 1])
    rows = np.concatenate([popular, newest])[np.argsort(turns)][: asked.k]
    return rows, (1 / np.arange(1, len(rows) + 1)).astype(np.float32)


@dataclass
class Found:
    """Lists as they are found, block by block; `ids` are those of the bundles."""

    k: int
    ids: Sequence[str]
    names: list[str] = field(default_factory=list)
    parts: list[Ranked] = field(default_factory=list)
    sources: dict[str, Source] = field(default_factory=dict)
    short: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, block: Block, ranked: Ranked) -> None:
        """Keep a block's lists, and what there is to say about them."""
        self.names.extend(block.names)
        self.parts.append(ranked)
        if block.known is None:
            self.sources.update(dict.fromkeys(block.names, "model"))
        for place, (user, count) in enumerate(zip(block.names, ranked.counts.tolist(), strict=True)):
            if block.known is not None:
                self.sources[user] = block.known[place].source
                self.notes.extend(block.known[place].notes)
            if count < self.k:
                self.short[user] = count
                said = f"user {shortened(user)}: {count} instead of {self.k}, there are no more candidates"
                self.notes.append(said)

    def answer(self) -> Recommendations:
        answer = Recommendations(self._rows, sum(len(part.bundles) for part in self.parts))
        answer.sources, answer.short, answer.notes = self.sources, self.short, self.notes
        return answer

    def _rows(self) -> Iterator[Recommendation]:
        whole = Ranked.joined(self.parts)
        counts = whole.counts.tolist()
        columns = (
            chain.from_iterable(map(repeat, self.names, counts)),
            map(self.ids.__getitem__, whole.bundles.tolist()),
            whole.scores.tolist(),
            chain.from_iterable(range(1, count + 1) for count in counts),
        )
        return map(Recommendation._make, zip(*columns, strict=True))
