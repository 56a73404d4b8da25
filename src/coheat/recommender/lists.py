"""Lists for users: who is asked about, scoring and ranking in blocks, and what to say about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, cycle, repeat

import numpy as np

from coheat.attributes import UNDERSTOOD, Attributes, column_of
from coheat.ids import shortened, text_id
from coheat.recommender.answers import Columns, Recommendations, Source
from coheat.recommender.catalogue import Catalogue
from coheat.recommender.choosing import Chosen
from coheat.recommender.known import Known, Moment, known_of
from coheat.recommender.rules import Arrangement
from coheat.served import People
from coheat.served.ranking import ROWS, Floats, Positions, Ranked, Ration, Scored, ahead
from coheat.served.relations import NOTHING
from coheat.storage import release_pages

UNSEEN = (NOTHING, NOTHING)


@dataclass(frozen=True)
class Asked:
    """A question: lists of k for these users out of what was chosen, with these columns of each bundle."""

    users: Sequence[str]
    k: int
    chosen: Chosen
    exclude_seen: bool = True
    items: Mapping[str, Sequence[str]] = field(default_factory=dict)
    bundles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fields: Sequence[str] | None = None
    arrangement: Arrangement | None = None
    shown: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By user: bundles that were shown to them lately, and are not to be shown again."""

    @property
    def depth(self) -> int:
        """How many bundles are ranked: more than are listed where rules choose among them."""
        return self.k if self.arrangement is None else self.arrangement.rules.depth(self.k)

    @property
    def columns(self) -> Positions:
        """Rows of the bundles that may be listed."""
        return self.chosen.rows

    @property
    def why_no_more(self) -> str:
        """Why a list is shorter than asked for."""
        if self.arrangement is None or np.count_nonzero(self.chosen.allowed) <= self.k:
            return self.chosen.why_no_more
        return f"no more of the {self.depth} best fit the rules and were not taken or shown before"

    @property
    def notes(self) -> list[str]:
        """What there is to say before any list is looked at."""
        return [*self.chosen.notes, *(() if self.arrangement is None else self.arrangement.notes)]


@dataclass(frozen=True)
class Block:
    """Some of the users asked about. `known` is None where all of them are just rows of training."""

    names: Sequence[str]
    known: list[Known] | None
    people: People
    """Those with a vector, in their order."""
    seen: tuple[Positions, Positions]


def _block(moment: Moment, asked: Asked, names: Sequence[str], rows: Positions | None = None) -> Block:
    """Look the users up, unless their rows in training are given."""
    rows = moment.taken.known_rows(names) if rows is None else rows
    if (rows >= 0).all() and not (asked.items or asked.bundles):
        seen = moment.taken.pairs_of(names, rows, moment.catalogue) if asked.exclude_seen else UNSEEN
        return Block(names, None, moment.people_of(names, rows), _also(seen, moment, asked, names))
    known = [known_of(moment, name, asked.items.get(name, ()), asked.bundles.get(name, ())) for name in names]
    placed = [(who, who.vector) for who in known if who.vector is not None]
    vectors = np.zeros((len(placed), moment.served.users.shape[1]), dtype=np.float32)
    for place, (_, vector) in enumerate(placed):
        vectors[place] = vector
    since = {place: who.since for place, (who, _) in enumerate(placed) if who.since is not None}
    people = People(np.array([who.row for who, _ in placed], dtype=np.int64), vectors, since)
    seen = UNSEEN
    if placed and asked.exclude_seen:
        takers = np.repeat(np.arange(len(placed)), [len(who.seen) for who, _ in placed])
        seen = np.concatenate([who.seen for who, _ in placed]), takers
    return Block(names, known, people, _also(seen, moment, asked, [who.user_id for who, _ in placed]))


def _also(
    seen: tuple[Positions, Positions], moment: Moment, asked: Asked, names: Sequence[str]
) -> tuple[Positions, Positions]:
    """With what was shown lately to each of these people."""
    if not asked.shown:
        return seen
    shown = [_shown(moment.catalogue, asked, name) for name in names]
    whose = np.repeat(np.arange(len(names)), [len(rows) for rows in shown])
    return np.concatenate([seen[0], *shown]), np.concatenate([seen[1], whose])


def _shown(catalogue: Catalogue, asked: Asked, name: str) -> Positions:
    """Rows of what was shown to somebody lately."""
    found = (catalogue.find(text_id(bundle, "bundle")) for bundle in asked.shown.get(name, ()))
    return np.array([row for row in found if row is not None], dtype=np.int64)


def _ranked(moment: Moment, asked: Asked, blocks: Iterable[Block], n: int) -> Iterator[tuple[Block, Ranked]]:
    """Each block with its people's lists; n people in all. The next block is scored while one is ranked."""
    everything, together = len(moment.catalogue), min(n, ROWS)
    # Few columns are scored alone, many among all: to copy what is scored costs as much as to score 12.
    alone = (together + 12) * np.count_nonzero(asked.chosen.allowed) < together * everything
    columns = asked.columns if alone else NOTHING
    hidden = ~asked.chosen.allowed
    own = moment.served.ration(moment.catalogue.bundles)
    ration = own if asked.arrangement is None else asked.arrangement.ration(own)
    memory = [np.empty((0 if alone else min(n, ROWS), everything), np.float32) for _ in range(1 + (n > ROWS))]

    def scored(block: Block, scratch: Floats) -> tuple[Block, Scored]:
        parts = (columns, None) if alone else (None, scratch)
        scores = moment.served.score(block.people, moment.catalogue.bundles, *parts)
        return block, Scored(scores, columns if alone else None, block.seen, hidden, ration)

    jobs = (partial(scored, *job) for job in zip(blocks, cycle(memory), strict=False))
    for block, found in ahead(jobs) if n > ROWS else (job() for job in jobs):
        yield block, _arranged(asked, found.ranked(asked.depth), found, own)


def _arranged(asked: Asked, ranked: Ranked, scored: Scored, ration: Ration | None) -> Ranked:
    """Lists of k in the order of the rules, from longer ones; where there are no rules, as they are."""
    arrangement = asked.arrangement
    if arrangement is None:
        return ranked
    pins = np.array(sorted(arrangement.pins), dtype=np.int64)
    pinned = scored.of_rows(pins)
    lists = []
    for (rows, scores), known in zip(ranked.split(), pinned.tolist(), strict=False):  # nobody: one empty list
        own = {row: score for row, score in zip(pins.tolist(), known, strict=True) if score > -np.inf}
        lists.append(arrangement.arranged(rows, scores, own, asked.k, ration))
    return ranked_of(lists)


def ranked_of(lists: Sequence[Sequence[tuple[int, float]]]) -> Ranked:
    """Lists of bundle rows with their scores."""
    rows, scores = ([pair[side] for one in lists for pair in one] for side in (0, 1))
    counts = np.array([len(one) for one in lists], dtype=np.int64)
    return Ranked(np.array(rows, dtype=np.int64), np.array(scores, dtype=np.float32), counts)


def recommend(moment: Moment, asked: Asked) -> Recommendations:
    """The answer to a question."""
    n, found = len(asked.users), Found(asked, moment.catalogue, notes=asked.notes)
    blocks = (_block(moment, asked, asked.users[start : start + ROWS]) for start in range(0, n, ROWS))
    for block, ranked in _ranked(moment, asked, blocks, n):
        if block.known and len(block.people) < len(block.known):
            ranked = _with_strangers(moment.catalogue, asked, block.known, ranked)
        found.add(block, ranked)
    return found.answer()


@dataclass(frozen=True)
class Lists:
    """Lists for everybody as of one moment, computed part by part: users in the order of rows."""

    moment: Moment
    asked: Asked
    part_size: int

    @property
    def n_users(self) -> int:
        return len(self.moment.taken.users)

    @property
    def n_candidates(self) -> int:
        return len(self.asked.columns)

    @property
    def n_parts(self) -> int:
        return max(-(-self.n_users // self.part_size), 1)

    def part(self, number: int) -> tuple[Sequence[str], Ranked]:
        """The users of a part and their lists; memory does not grow with the number of parts."""
        first, last = number * self.part_size, min((number + 1) * self.part_size, self.n_users)
        ids, relations = self.moment.taken.users.ids, self.moment.served.relations

        def block(start: int) -> Block:
            end = min(start + ROWS, last)
            return _block(self.moment, self.asked, ids[start:end], np.arange(start, end))

        blocks = map(block, range(first, last, ROWS))
        lists = [ranked for _, ranked in _ranked(self.moment, self.asked, blocks, last - first)]
        for relation in (relations.user_bundle, relations.user_item):
            release_pages(self.moment.served.users, relation.indptr, relation.indices)
        return ids[first:last], Ranked.joined(lists)

    def bundle_id(self, row: int) -> str:
        return self.moment.catalogue.ids[row]

    def fields(self, rows: Positions) -> Attributes:
        """What was asked for of the columns of these bundles, in their order."""
        return fields_of(self.moment.catalogue, rows, self.asked.fields or ())


def fields_of(catalogue: Catalogue, rows: Positions, names: Sequence[str]) -> Attributes:
    """These columns of these bundles, in their order; one that is understood and not there is empty."""
    table = catalogue.described.bundles
    table.check_names(names)
    columns = {name: table.get(name) or column_of((), UNDERSTOOD[name], name) for name in names}
    return Attributes({name: column.only(rows) for name, column in columns.items()})


def _with_strangers(catalogue: Catalogue, asked: Asked, known: list[Known], ranked: Ranked) -> Ranked:
    """With lists for those of whom nothing is known, each in its place."""
    others = iter(ranked.split())
    lists = [_popular_and_new(catalogue, asked, who) if who.vector is None else next(others) for who in known]
    counts = np.array([len(bundles) for bundles, _ in lists], dtype=np.int64)
    bundles, scores = (np.concatenate(parts) for parts in zip(*lists, strict=True))
    return Ranked(bundles, scores, counts)


def _popular_and_new(catalogue: Catalogue, asked: Asked, known: Known) -> tuple[Positions, Floats]:
    """By turns the most popular bundle and the newest new one (of equally often recorded ones)."""
    barred = [_shown(catalogue, asked, known.user_id), *([known.seen] if asked.exclude_seen else [])]
    columns, k = np.setdiff1d(asked.columns, np.concatenate(barred)), asked.depth
    is_new, popularity = catalogue.bundles.is_new, catalogue.bundles.taken
    new, old = columns[is_new[columns]], columns[~is_new[columns]]
    popular = old[np.lexsort((old, -popularity[old]))][:k]
    newest = new[np.lexsort((-new, -popularity[new]))][:k]
    turns = np.concatenate([2 * np.arange(len(popular)), 2 * np.arange(len(newest)) + 1])
    rows = np.concatenate([popular, newest])[np.argsort(turns)][:k]
    scores = (1 / np.arange(1, len(rows) + 1)).astype(np.float32)
    if asked.arrangement is not None:
        own = dict.fromkeys(set(asked.arrangement.pins) & set(columns.tolist()), 0.0)
        found = asked.arrangement.arranged(rows, scores, own, asked.k)
        rows = np.array([row for row, _ in found], dtype=np.int64)
        scores = (1 / np.arange(1, len(rows) + 1)).astype(np.float32)
    return rows, scores


@dataclass
class Found:
    """Lists as they are found, block by block."""

    asked: Asked
    catalogue: Catalogue
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
            if count < self.asked.k:
                self.short[user] = count
                why = self.asked.why_no_more
                self.notes.append(f"user {shortened(user)}: {count} instead of {self.asked.k}, {why}")

    def answer(self) -> Recommendations:
        fields = None if self.asked.fields is None else self._fields
        answer = Recommendations(self._columns, sum(len(part.bundles) for part in self.parts), fields)
        answer.sources, answer.short = self.sources, self.short
        strangers = self.catalogue.strangers
        listed = set(Ranked.joined(self.parts).bundles.tolist()) & strangers.keys() if strangers else set()
        answer.about_bundles = self.catalogue.about_strangers(sorted(listed))
        answer.notes = [*self.notes, *answer.about_bundles.values()]
        return answer

    def _fields(self) -> Attributes:
        return fields_of(self.catalogue, Ranked.joined(self.parts).bundles, self.asked.fields or ())

    def _columns(self) -> Columns:
        whole = Ranked.joined(self.parts)
        counts = whole.counts.tolist()
        return (
            chain.from_iterable(map(repeat, self.names, counts)),
            map(self.catalogue.ids.__getitem__, whole.bundles.tolist()),
            whole.scores.tolist(),
            chain.from_iterable(range(1, count + 1) for count in counts),
            self.catalogue.bundles.is_new[whole.bundles].tolist(),
        )
