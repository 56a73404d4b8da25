"""Recommender: bundles for users and users for bundles, from a trained model and what changed since."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from coheat.artifact import Changes, open_artifact, save_artifact
from coheat.attributes import Value, Where
from coheat.errors import ConfigError, DataError
from coheat.ids import shortened, text_id
from coheat.recommender import lists as listing
from coheat.recommender import standing, vectors
from coheat.recommender.answers import (
    AddedBundles,
    Explanation,
    Recommendations,
    Recorded,
    SimilarBundle,
)
from coheat.recommender.catalogue import Catalogue
from coheat.recommender.checks import (
    check_by_user,
    check_columns,
    check_id,
    check_ids,
    check_k,
    check_no_text,
    item_rows,
    keyed,
)
from coheat.recommender.choosing import Candidates, Choice, Chosen, choose, moment_of
from coheat.recommender.described import note_described
from coheat.recommender.explaining import explanation
from coheat.recommender.known import Moment
from coheat.recommender.rules import Arrangement, Rules
from coheat.recommender.shop import Shop
from coheat.recommender.taken import Pairs
from coheat.served.ranking import Floats, Positions, best
from coheat.served.relations import NOTHING


class Recommender(Shop):
    """Recommend bundles to users, and users to bundles, from a trained model.

    >>> recommender = Recommender.load("runs/youshu")                    # doctest: +SKIP
    >>> recommender.recommend(["17"], k=3)                               # doctest: +SKIP
    >>> recommender.add_bundles({"summer": ["4", "8", "15"]})            # doctest: +SKIP
    >>> recommender.audience("summer", k=10)                             # doctest: +SKIP

    Threads: any number may ask while one changes. Changes (`add_bundles`, `replace_bundles`,
    `remove_bundles`, `record`, `withdraw_many`) wait for each other; one that is refused changes nothing. A
    question never waits, and takes bundles, vectors and popularity from one moment. Who took what is looked
    up as it goes, so a pair that is being recorded may be hidden an instant before it counts, and an id that
    is removed and added anew meanwhile may be unknown to a question that began before.
    """

    @classmethod
    def load(cls, path: str | Path, **knobs: float) -> Self:
        """Load from a run's directory, from the artifact in it, or from what `save` wrote.

        `knobs` are set by name (docs/recommender.md); without them, the model is served as it was trained.
        """
        artifact = open_artifact(Path(path))
        contents = artifact.contents()
        found = cls(replace(contents, served=contents.served.turned(**knobs)))
        changes = artifact.changes()
        if changes.removed:
            found.remove_bundles(changes.removed)
        found.add_bundles(changes.added)
        found.replace_bundles(changes.replaced)
        found.record_many(changes.recorded)
        found.describe_bundles(changes.described.get("bundle", {}))
        found.describe_items(changes.described.get("item", {}))
        return found

    def save(self, path: str | Path) -> None:
        """Write the model with all changes made since training to a directory, replacing one that exists."""
        catalogue, contents = self._catalogue, self._contents
        n_trained = catalogue.n_trained

        def described(rows: Iterable[int]) -> dict[str, list[str]]:
            return {
                catalogue.ids[row]: list(one.item_ids)
                if (one := catalogue.strangers.get(row))
                else self._item_names(catalogue.items_of(row))
                for row in rows
                if catalogue.alive[row]
            }

        changes = Changes(
            removed=[catalogue.ids[row] for row in np.flatnonzero(~catalogue.alive[:n_trained])],
            added=described(range(n_trained, len(catalogue))),
            replaced=described(row for row in catalogue.contents if row < n_trained),
            recorded=[(user, name) for name, users in self._taken.by_bundle.items() for user in users],
            described={kind: dict(values) for kind, values in self._described.items() if values},
        )
        save_artifact(Path(path), contents, changes=changes)

    # Questions. Each takes the catalogue once and answers from it.

    def recommend(
        self,
        users: Sequence[str],
        k: int = 20,
        candidates: Candidates = "all",
        exclude_seen: bool = True,
        exclude: Sequence[str] = (),
        items: Mapping[str, Sequence[str]] | None = None,
        bundles: Mapping[str, Sequence[str]] | None = None,
        *,
        where: Where | None = None,
        fields: Sequence[str] | None = None,
        only_on_offer: bool = True,
        now: str | float | None = None,
        rules: Rules | Mapping[str, Any] | None = None,
        shown: Mapping[str, Sequence[str]] | None = None,
    ) -> Recommendations:
        """The k best bundles for each user, best first; `short` and `notes` of the answer say where there are
        fewer.

        `candidates`: all bundles, only new ones (taken by nobody in training, or added since), or a list of
        ids. `exclude_seen` leaves out what the user took, in training or recorded since; `exclude` leaves out
        these bundles for everybody. Unknown ids are ignored, with a note. Equal scores keep the order of
        rows: training's first, then as added.

        `where` filters by columns, as in {"category": {"in": ["TEA"]}, "price": {"at_most": 30}}; `fields`
        are columns to return with each row (docs/catalogue.md). If columns say what is on offer (`available`,
        `launched`, `ends`), only that is listed; `only_on_offer=False` lists everything, and `now`, such as
        "2024-05-31", asks as of another moment. `rules` rearrange the top of each list
        (`coheat.recommender.Rules`, or the same as a mapping); `shown` are bundles, by user id, that were
        shown lately and should not be shown again.

        `items` and `bundles` given for a user id are added to what is known about the user, for example a
        basket. A user who was not in training is folded in from them and from the bundles recorded since; if
        there are none, the list alternates between the most popular and the newest bundles, and the score is
        1 / rank. `sources` of the answer says which it was.
        """
        check_k(k)
        for what, given in (("items", items), ("bundles", bundles), ("shown", shown)):
            check_by_user(given, what)
        names = check_ids(
            users, "users", "recommend takes a list of user ids; for one user: recommend([user])"
        )
        moment = self._moment()
        choice = Choice(candidates, exclude, where, only_on_offer, now)
        chosen = self._chosen(moment.catalogue, choice, fields)
        asked = listing.Asked(
            names,
            k,
            chosen,
            exclude_seen,
            items or {},
            bundles or {},
            fields,
            Arrangement.of(rules, moment.catalogue, chosen.allowed, k),
            shown or {},
        )
        return listing.recommend(moment, asked)

    def lists(
        self,
        k: int = 20,
        candidates: Candidates = "all",
        exclude_seen: bool = True,
        part_size: int = 10_000,
        *,
        where: Where | None = None,
        fields: Sequence[str] | None = None,
        only_on_offer: bool = True,
        now: str | float | None = None,
        rules: Rules | Mapping[str, Any] | None = None,
        exclude: Sequence[str] = (),
        shown: Mapping[str, Sequence[str]] | None = None,
    ) -> listing.Lists:
        """Lists for everybody, to be computed part by part; all of them as of this moment."""
        check_k(k)
        check_by_user(shown, "shown")
        moment = self._moment()
        choice = Choice(candidates, exclude, where, only_on_offer, now)
        chosen = self._chosen(moment.catalogue, choice, fields)
        asked = listing.Asked(
            (),
            k,
            chosen,
            exclude_seen,
            fields=fields,
            arrangement=Arrangement.of(rules, moment.catalogue, chosen.allowed, k),
            shown=shown or {},
        )
        return listing.Lists(moment, asked, part_size)

    def moment(self, now: str | float | None = None) -> float:
        """What counts as `now`, in Unix seconds: the clock, or the end of data whose offers are long over."""
        return moment_of(self._catalogue, now, self.description.data_until)[0]

    def audience(
        self,
        bundle: str | None = None,
        k: int = 20,
        exclude_seen: bool = True,
        *,
        items: Sequence[str] | None = None,
    ) -> Recommendations:
        """The k trained users whom this bundle suits best, best first, without those who took it.

        With `items` instead of a bundle: the audience that a bundle of these items would have.
        """
        check_k(k)
        catalogue, notes = self._catalogue, list[str]()
        row, contents = self._subject(catalogue, bundle, items, notes)
        since = [
            (catalogue.items_of(other), takers[takers >= 0])
            for name, users in list(self._taken.by_bundle.items() if self._served.overlaps else ())
            if (other := catalogue.find(name)) is not None
            for takers in [self._taken.known_rows(users)]
        ]
        scores = self._served.scores_of_bundle(catalogue.bundles, row, contents, since)
        name, is_new = bundle or "", row is None or bool(catalogue.bundles.is_new[row])
        if exclude_seen and row is not None:
            scores[self._taken.takers(name, row, catalogue)] = -np.inf
        rows = best(scores, k)
        ids = [self._users.ids[user] for user in rows.tolist()]
        n, values = len(ids), scores[rows].tolist()
        found = Recommendations(lambda: (ids, [name] * n, values, range(1, n + 1), [is_new] * n), n)
        found.notes += notes
        if n < k:
            found.short[name] = n
            found.notes.append(f"only {n} users instead of {k}: the model knows no more without it")
        return found

    def similar_bundles(
        self,
        bundle: str | None = None,
        k: int = 20,
        *,
        items: Sequence[str] | None = None,
        where: Where | None = None,
        fields: Sequence[str] | None = None,
        only_on_offer: bool = True,
        now: str | float | None = None,
    ) -> list[SimilarBundle]:
        """The k bundles most similar to this one (or to one with these items), by cosine.

        It compares the vectors that bundles have from their items; else the vectors that score; for a model
        without vectors, the items themselves. `where`, `fields` and what is on offer work as in `recommend`.
        """
        check_k(k)
        catalogue = self._catalogue
        row, contents = self._subject(catalogue, bundle, items, [])
        chosen = self._chosen(catalogue, Choice("all", (), where, only_on_offer, now), fields).rows
        cosines = np.full(len(catalogue), -np.inf, dtype=np.float32)
        cosines[chosen] = self._served.likeness(catalogue.bundles, row, contents)[chosen]
        if row is not None:
            cosines[row] = -np.inf
        about, found = catalogue.described.bundles, []
        for rank, other in enumerate(best(cosines, k).tolist(), start=1):
            shared = np.intersect1d(contents, catalogue.items_of(other))
            ids = [self._items.ids[item] for item in shared]
            is_new = bool(catalogue.bundles.is_new[other])
            said = None if fields is None else about.values(other, fields)
            found.append(SimilarBundle(catalogue.ids[other], float(cosines[other]), rank, is_new, ids, said))
        return found

    def explain(
        self,
        user: str,
        bundle: str,
        items: Sequence[str] = (),
        bundles: Sequence[str] = (),
        *,
        fields: Sequence[str] | None = None,
    ) -> Explanation:
        """Why this bundle has this score for this user; see `Explanation` for what adds up to what.

        `items` and `bundles` are added to what is known about the user; one who was not in training is folded
        in from them and from what was recorded. `fields` are columns to return with bundles.
        """
        if isinstance(fields, str):
            raise ConfigError("fields takes a list of columns")
        check_no_text(items, "items")
        check_no_text(bundles, "bundles")
        return explanation(self._moment(), user, bundle, items, bundles, fields)

    # Changes. Each builds the next catalogue and puts it in place.

    def add_bundles(
        self,
        bundles: Mapping[str, Iterable[str]],
        columns: Mapping[str, Mapping[str, Value]] | None = None,
    ) -> AddedBundles:
        """Add bundles that did not exist before, by the ids of their items; `columns` describes them, as in
        `describe_bundles`.

        Items the model does not know are left out and reported. A bundle with no known item is placed like an
        average one of its category, or else of the catalogue: with the most frequent items there, as many as
        such a bundle has. `placed_by` of the answer, and a note with each list it is in, say so.
        """
        check_columns(columns or {}, "columns")
        with self._lock:
            added, items = self._checked(bundles, self._check_free)
            for name in columns or {}:
                if name not in bundles:
                    raise ConfigError(f"columns names {shortened(name)}, which is not among the bundles")
            if items:
                names, unknown = added.bundle_ids, added.unknown_items
                self._catalogue = self._catalogue.added(names, items, unknown, columns)
                note_described(self._described["bundle"], columns or {})
            return self._with_places(added)

    def replace_bundles(self, bundles: Mapping[str, Iterable[str]]) -> AddedBundles:
        """Give bundles other items. What their history says stays. Unknown items are treated as in
        `add_bundles`.
        """
        with self._lock:
            added, items = self._checked(bundles, self._catalogue.row)
            if items:
                rows = np.array([self._catalogue.row(name) for name in added.bundle_ids], dtype=np.int64)
                self._catalogue = self._catalogue.replaced(rows, items, added.unknown_items)
            return self._with_places(added)

    def _with_places(self, added: AddedBundles) -> AddedBundles:
        catalogue = self._catalogue
        rows = ((name, catalogue.rows[name]) for name in added.bundle_ids)
        placed = {name: one.placed_by for name, row in rows if (one := catalogue.strangers.get(row))}
        return replace(added, placed_by=placed)

    def remove_bundles(self, bundles: Sequence[str]) -> None:
        """Never recommend these bundles again; an id may be added again, as a new bundle."""
        names = check_ids(bundles, "bundles", "remove_bundles takes a list of bundle ids")
        with self._lock:
            self._catalogue = self._catalogue.removed(names)
            self._taken.forget(names)
            for name in names:
                self._described["bundle"].pop(name, None)

    def record(self, user: str, bundle: str) -> Recorded:
        """Record that this user took this bundle: hide it from the user and count it in the bundle's
        popularity.

        A pair that is already known changes nothing. See docs/recommender.md for what waits for training.
        """
        return self.record_many([(user, bundle)])[0]

    def record_many(self, pairs: Iterable[tuple[str, str]]) -> list[Recorded]:
        """`record` for many pairs at once; if one is refused, none is recorded."""
        found = Pairs.of(pairs)
        counted, rows = self.record_pairs(found)
        catalogue = self._catalogue
        weights = [catalogue.history_weight(row) for row in rows.tolist()]
        popularity = catalogue.bundles.taken[rows].tolist()
        columns = zip(found.users.tolist(), found.bundles.tolist(), counted.tolist(), strict=True)
        return [
            Recorded(found.user_ids[user], found.bundle_ids[bundle], new, popularity[bundle], weights[bundle])
            for user, bundle, new in columns
        ]

    def record_pairs(self, pairs: Pairs) -> tuple[npt.NDArray[np.bool_], Positions]:
        """The same for millions: which of the pairs are new, and the row of each of `pairs.bundle_ids`."""
        with self._lock:
            catalogue = self._catalogue
            for user in pairs.user_ids:
                check_id(user, "user")
            rows = np.array([catalogue.row(bundle) for bundle in pairs.bundle_ids], dtype=np.int64)
            counted = self._taken.add(pairs, rows[pairs.bundles], catalogue)
            more = np.bincount(pairs.bundles[counted], minlength=len(rows))
            self._move(dict(zip(rows.tolist(), more.tolist(), strict=True)))
        return counted, rows

    def _move(self, more: Mapping[int, int]) -> None:
        """Further along their curves: so many more (or fewer) took these bundles, by row."""
        catalogue, taken = self._catalogue, self._taken
        moving = np.array(sorted(row for row, count in more.items() if count), dtype=np.int64)
        if not len(moving):
            return
        changes = np.array([more[row] for row in moving.tolist()], dtype=np.int64)
        popularity = catalogue.bundles.taken[moving] + changes
        needs_takers = catalogue.bundles.is_new[moving] & (self._served.layers is not None)
        takers = [
            taken.known_rows(taken.by_bundle.get(catalogue.ids[row], ())) if needed else NOTHING
            for row, needed in zip(moving.tolist(), needs_takers.tolist(), strict=True)
        ]
        moved = self._served.recorded(catalogue.bundles, moving, popularity, takers)
        self._catalogue = replace(catalogue, bundles=moved)

    def withdraw_many(self, pairs: Iterable[tuple[str, str]]) -> int:
        """Take back what was recorded about these users and bundles, and return how many pairs that were.

        Pairs that were never recorded, or were part of training, stay as they are.
        """
        with self._lock:
            catalogue, taken = self._catalogue, self._taken
            gone = [
                row
                for user, bundle in pairs
                if (row := catalogue.find(text_id(bundle, "bundle"))) is not None
                and taken.discard(text_id(user, "user"), bundle)
            ]
            self._move({row: -count for row, count in Counter(gone).items()})
            return len(gone)

    def check_bundles(self, bundles: Mapping[str, Iterable[str]], replacing: bool = False) -> AddedBundles:
        """What `add_bundles` (or `replace_bundles`) would return or raise, without doing it."""
        with self._lock:
            check_name = self._catalogue.row if replacing else self._check_free
            return self._checked(bundles, check_name)[0]

    def takers(self, bundle: str) -> list[str]:
        """Who took a bundle, in training and since."""
        return standing.takers_of(self._moment(), bundle)

    def standing(self, bundle: str, users: Sequence[str], k: int = 20) -> standing.Standing:
        """In how many of these users' first k places a bundle is, and would be if it had been taken more or
        less often.
        """
        check_k(k)
        moment = self._moment()
        popularity = moment.catalogue.bundles.taken
        counts = standing.counts_around(
            int(popularity[moment.catalogue.row(bundle)]), int(popularity.max(initial=0))
        )
        chosen = self._chosen(moment.catalogue, Choice(), None)
        return standing.standing(moment, bundle, users, k, chosen, counts)

    def turned(self, **knobs: float) -> Self:
        """The same recommender with other knobs, to see what they would change; this one stays as it is."""
        found = copy.copy(self)
        found._served = self._served.turned(**knobs)
        bundles = found._served.turned_bundles(self._catalogue.bundles)
        found._catalogue = replace(self._catalogue, served=found._served, bundles=bundles)
        return found

    @property
    def beyond_vectors(self) -> str | None:
        """Which part of a score is not an inner product of vectors, in words; None if there is none."""
        return vectors.beyond(self._served)

    def vectors(self, dense_part: bool = False) -> dict[str, tuple[list[str], Floats]]:
        """Ids and vectors of users, bundles and (if there are any) items, whose inner products are the
        current scores; refused if scores are more than that, unless only that `dense_part` of them is
        wanted.
        """
        return vectors.vectors(self._catalogue, self._users, self._items, dense_part)

    def check_scores(self, users: Sequence[str]) -> bool:
        """Whether every score of these users is a finite number; what it takes is then in memory."""
        moment = self._moment()
        people = moment.people_of(users, self._taken.known_rows(users))
        return bool(np.isfinite(moment.served.score(people, moment.catalogue.bundles)).all())

    # Helpers.

    def _chosen(self, catalogue: Catalogue, choice: Choice, fields: Sequence[str] | None) -> Chosen:
        if isinstance(fields, str):
            raise ConfigError("fields takes a list of columns")
        catalogue.described.bundles.check_names(fields or ())
        return choose(catalogue, choice, self.description.data_until)

    def _moment(self) -> Moment:
        return Moment(self._catalogue, self._taken, self._items)

    def _subject(
        self, catalogue: Catalogue, bundle: str | None, items: Sequence[str] | None, notes: list[str]
    ) -> tuple[int | None, Positions]:
        """A bundle's row and items, or those of what these items would make."""
        if (bundle is None) == (items is None):
            raise ConfigError("name a bundle, or give the items of one that is not there yet")
        if bundle is not None:
            row = catalogue.row(bundle)
            notes += catalogue.about_strangers([row]).values()
            return row, catalogue.placing_items(row)
        self._served.check_places()
        left_out: dict[str, list[str]] = {}
        rows = item_rows(self._items, "", items or (), left_out)
        if not len(rows):
            notes.append("the model knows none of these items; placed like an average bundle")
            return None, catalogue.averages.items(None)[1]
        notes += [
            f"the model does not know the item {shortened(name)}; left out" for name in left_out.get("", [])
        ]
        return None, rows

    def _checked(
        self, bundles: Mapping[str, Iterable[str]], check_name: Callable[[str], object]
    ) -> tuple[AddedBundles, list[Positions]]:
        """Ids and item rows of bundles to add or replace; raises before anything is changed."""
        left_out: dict[str, list[str]] = {}
        rows = []
        for name, items in keyed(bundles, "bundles", '{"picnic": ["cup", "rug"]}').items():
            self._served.check_places()
            check_name(check_id(name, "bundle"))
            rows.append(item_rows(self._items, name, items, left_out))
            if not len(rows[-1]):
                self._catalogue.averages.items(None)  # raises where there is nothing to go by
        return AddedBundles(list(bundles), left_out), rows

    def _check_free(self, name: str) -> None:
        if self._catalogue.find(name) is not None:
            raise DataError(
                f"the bundle id {shortened(name)} is taken already; choose another, or replace it"
            )
