"""Recommender: recommend bundles to users and users to bundles, from a trained model.

A score is the inner product of a user's and a bundle's vector, for some models plus what their items have in
common. A bundle that did not exist in training gets its vector from its items: their sum, divided by
size ** size_exponent. A model without vectors is asked for its scores instead (see `scoring.py`); it knows
what it was trained with, and no more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from coheat.artifact import KINDS, Artifact, Description, ServingVectors, load_artifact
from coheat.errors import ArtifactError, ConfigError, DataError
from coheat.recommender import explain as explaining
from coheat.recommender import lists, similar
from coheat.recommender.answers import (
    AddedBundles,
    BundleInfo,
    Explanation,
    Recommendation,
    Recommendations,
    Recorded,
    SimilarBundle,
    UserInfo,
)
from coheat.recommender.catalogue import Catalogue, Rows
from coheat.recommender.checks import Candidates, candidate_rows, check_id, check_ids, check_k, item_rows
from coheat.recommender.csr import Csr
from coheat.recommender.explain_overlap import explain_overlap
from coheat.recommender.holders import Holders
from coheat.recommender.ids import IdColumn, Ids, shortened, unknown
from coheat.recommender.profiles import Lookalikes, Profiles
from coheat.recommender.ranking import Floats, Positions, best
from coheat.recommender.scoring import InnerProducts, OwnScores, ProductsAndOverlap, Scoring, Subject
from coheat.recommender.taken import Taken
from coheat.recommender.views import ServedModel, no_vectors, welcoming

Relation: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]
EMPTY: Relation = (np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64))


class Recommender:
    """Recommend bundles to users, and users to bundles, from a trained model.

    >>> recommender = Recommender.load("runs/youshu")                    # doctest: +SKIP
    >>> recommender.recommend(["17"], k=3)                               # doctest: +SKIP
    >>> recommender.add_bundles({"summer": ["4", "8", "15"]})            # doctest: +SKIP
    >>> recommender.audience("summer", k=10)                             # doctest: +SKIP

    Threads: any number may ask while one changes. Changes (`add_bundles`, `replace_bundles`,
    `remove_bundles`, `record`) wait for each other; one that is refused changes nothing. A question never
    waits, and takes bundles, vectors and popularity from one moment. Who took what is looked up as it goes,
    so a pair that is being recorded may be hidden an instant before it counts, and an id that is removed and
    added anew meanwhile may be unknown to a question that began before.
    """

    def __init__(
        self,
        users: Ids,
        bundles: Ids,
        items: Ids,
        vectors: ServingVectors,
        user_bundle: Relation,
        user_item: Relation = EMPTY,
        bundle_item: Relation = EMPTY,
        description: Description | None = None,
        scoring: Scoring | None = None,
    ):
        """The relations are those of training in CSR form (indptr, indices); scores are inner products of
        the vectors, plus the overlap where there is one, unless `scoring` says otherwise."""
        self.users, self.items, self.description = users, items, description
        n_bundles, n_items = len(bundles.ids), len(items.ids)
        self.taken = Taken(Csr(*user_bundle), users)
        self.user_item, self.bundle_item = Csr(*user_item), Csr(*bundle_item)
        popularity = self.taken.trained.degrees(n_bundles)
        self.model = ServedModel(vectors, popularity, self.user_item.degrees(n_items))
        self.profiles: Profiles | None = None
        self.scoring = scoring or InnerProducts(self.model.users)
        if vectors.overlap is not None:
            self.profiles = Profiles(vectors.overlap, self.taken, self.contents)
            self.scoring = ProductsAndOverlap(self.model.users, self.profiles)
        self._lookalikes = Lookalikes(
            self.model.users, self.taken.trained, self.user_item, n_bundles, n_items
        )
        self._lock = threading.Lock()
        self._catalogue = Catalogue(
            ids=list(bundles.ids),
            rows=dict(bundles.rows),
            n_trained=n_bundles,
            served=Rows.of(vectors.bundles),
            plain=Rows.of(vectors.views.bundles if vectors.views else vectors.bundles),
            popularity=popularity,
            alive=np.ones(n_bundles, dtype=np.bool_),
            is_new=vectors.overlap.is_new.copy() if vectors.overlap else popularity == 0,
            contents={},
            holders=Holders.of_training(self.bundle_item, n_items) if self.profiles else None,
        )

    @classmethod
    def load(cls, path: str | Path, welcome: float | None = None) -> Self:
        """From a run's directory or from the artifact in it.

        `welcome` turns the knob of a model that has one (Ember): the list places of new bundles as a multiple
        of their fair share, 0 to hide them. Without it, the model welcomes them as it was trained to.
        """
        artifact = _open(Path(path))
        users = Ids(IdColumn(artifact.directory / KINDS["user"]), "user")
        bundles, items = (Ids(artifact.ids(kind), kind) for kind in ("bundle", "item"))
        taken, owned, held = (artifact.relation(name) for name in ("user_bundle", "user_item", "bundle_item"))
        vectors = artifact.vectors()
        scoring: Scoring | None = None
        if welcome is not None:
            vectors = welcoming(vectors, welcome)
        if vectors is None:
            vectors = no_vectors(len(users.ids), len(bundles.ids))
            scoring = OwnScores(artifact.model().scorer(), len(users.ids))
        return cls(users, bundles, items, vectors, taken, owned, held, artifact.description, scoring)

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
    ) -> Recommendations:
        """The k best bundles of each user, best first; `short` and `notes` of the answer say where fewer.

        `candidates`: all bundles, only new ones (taken by nobody in training, or added since), or the ids of
        some. `exclude_seen` leaves out what the user took, in training or recorded since; `exclude` leaves
        these bundles out for everybody. Equal scores stand in the order of rows: training's, then as added.

        A user who was not in training is folded in from the `items` and `bundles` given for that user id and
        the bundles recorded since; where there are none, the list is the most popular and the newest bundles
        by turns, and its score is 1 / rank. `sources` of the answer says which it was.
        """
        check_k(k)
        names = check_ids(
            users, "users", "recommend takes a list of user ids; for one user: recommend([user])"
        )
        moment = self.moment()
        columns = candidate_rows(moment.catalogue, candidates, exclude)
        asked = lists.Asked(names, k, columns, exclude_seen, items or {}, bundles or {})
        return lists.recommend(moment, asked)

    def audience(
        self,
        bundle: str | None = None,
        k: int = 20,
        exclude_seen: bool = True,
        *,
        items: Sequence[str] | None = None,
    ) -> Recommendations:
        """The k users of training whom this bundle suits best, best first; without those who took it.

        With `items` instead of a bundle: the audience it would have if it were added.
        """
        check_k(k)
        catalogue = self._catalogue
        notes: list[str] = []
        subject = self._subject(catalogue, bundle, items, notes)
        scores = self.scoring.of_bundle(subject, catalogue)
        if exclude_seen and subject.row is not None:
            scores[self.taken.takers(subject.name, subject.row, catalogue)] = -np.inf
        rows = [
            Recommendation(self.users.ids[user], subject.name, float(scores[user]), rank)
            for rank, user in enumerate(best(scores, k), start=1)
        ]
        found = Recommendations(lambda: rows, len(rows))
        found.notes += notes
        if len(found) < k:
            found.short[subject.name] = len(found)
            found.notes.append(f"only {len(found)} users instead of {k}: the model knows no more without it")
        return found

    def similar_bundles(
        self, bundle: str | None = None, k: int = 20, *, items: Sequence[str] | None = None
    ) -> list[SimilarBundle]:
        """The k bundles most like this one (or like one of these items), by cosine.

        Compared are the vectors of the affiliation view, which every bundle has, bought or not; for a model
        with one view, the vectors that score.
        """
        check_k(k)
        self.model.check_has_vectors("there is nothing to compare bundles by")
        moment = self.moment()
        subject = self._subject(moment.catalogue, bundle, items, [])
        return similar.similar_bundles(moment, subject, k, lambda row: self.contents(row, moment.catalogue))

    def explain(
        self, user: str, bundle: str, items: Sequence[str] = (), bundles: Sequence[str] = ()
    ) -> Explanation:
        """Why this bundle has this score for this user; see `Explanation` for what adds up to what.

        A user who was not in training is folded in from `items`, `bundles` and what was recorded.
        """
        self.model.check_has_vectors("its scores cannot be taken apart")
        moment = self.moment()
        catalogue = moment.catalogue
        row = catalogue.row(bundle)
        who = lists.known_of(moment, user, items, bundles)
        if who.source == "popular-and-new":
            raise unknown(user, "user", self.users.ids)
        if who.source == "model" and (self.model.views is not None or self.profiles is not None):
            user_row = self.users.rows[user]
            who = replace(
                who, item_rows=self.user_item.row(user_row), bundle_rows=self.taken.trained.row(user_row)
            )
        contents = self.contents(row, catalogue)
        if self.profiles is not None:
            return explain_overlap(moment, self.profiles, who, row, contents, self.bundle_item)
        return explaining.explain(self.model, catalogue, who, row, contents, self.items)

    # Changes. Each builds the next catalogue aside and puts it in place.

    def add_bundles(self, bundles: Mapping[str, Iterable[str]]) -> AddedBundles:
        """Make bundles known that did not exist before, from the ids of their items.

        Items the model does not know are left out and reported; a bundle with no known item is refused, and
        then none is added.
        """
        with self._lock:
            added, items = self._checked(bundles, self._check_free)
            if items:
                plain = self.model.pooled(items)
                served = self.model.weighed(plain, np.zeros(len(items), dtype=np.int64))
                self._catalogue = self._catalogue.added(added.bundle_ids, plain, served, items)
            return added

    def replace_bundles(self, bundles: Mapping[str, Iterable[str]]) -> AddedBundles:
        """Give bundles other items. What is known of them by their history stays."""
        with self._lock:
            added, items = self._checked(bundles, self._catalogue.row)
            if items:
                catalogue = self._catalogue
                rows = np.array([catalogue.row(name) for name in added.bundle_ids], dtype=np.int64)
                plain = self.model.with_affiliation(catalogue.plain.take(rows), self.model.pooled(items))
                served = self.model.weighed(plain, catalogue.popularity[rows])
                contents = dict(zip(added.bundle_ids, items, strict=True))
                self._catalogue = catalogue.changed(rows, plain, served, contents)
            return added

    def remove_bundles(self, bundles: Sequence[str]) -> None:
        """Never recommend these bundles again; an id may be added anew, as a new bundle."""
        names = check_ids(bundles, "bundles", "remove_bundles takes a list of bundle ids")
        with self._lock:
            self._catalogue = self._catalogue.removed(names)
            self.taken.forget(names)

    def record(self, user: str, bundle: str) -> Recorded:
        """This user took this bundle: hide it from the user and count it in the bundle's popularity.

        A pair that is known already changes nothing. See docs/recommender.md for what waits for training.
        """
        return self.record_many([(user, bundle)])[0]

    def record_many(self, pairs: Iterable[tuple[str, str]]) -> list[Recorded]:
        """`record` for many pairs at once; where one is refused, none is recorded."""
        with self._lock:
            catalogue = self._catalogue
            known = [(check_id(user, "user"), bundle, catalogue.row(bundle)) for user, bundle in pairs]
            popularity = catalogue.popularity.copy()
            rows = np.array([row for _, _, row in known], dtype=np.int64)
            trained = self.taken.in_training([user for user, _, _ in known], rows, catalogue)
            counted = [
                not before and self.taken.add(user, bundle)
                for (user, bundle, _), before in zip(known, trained.tolist(), strict=True)
            ]
            np.add.at(popularity, rows[counted], 1)
            catalogue = replace(catalogue, popularity=popularity)
            changed = {row: bundle for (_, bundle, row), new in zip(known, counted, strict=True) if new}
            if changed and self.model.views is not None:
                catalogue = self.model.weighed_anew(catalogue, changed, self.taken)
            self._catalogue = catalogue
        now = popularity[rows]
        weights = [None] * len(rows) if self.model.views is None else self.model.weights(now).tolist()
        return [
            Recorded(user, bundle, new, times, weight)
            for (user, bundle, _), new, times, weight in zip(
                known, counted, now.tolist(), weights, strict=True
            )
        ]

    def check_bundles(self, bundles: Mapping[str, Iterable[str]], replacing: bool = False) -> AddedBundles:
        """What `add_bundles` (or `replace_bundles`) would answer or raise, without doing it."""
        with self._lock:
            return self._checked(bundles, self._catalogue.row if replacing else self._check_free)[0]

    # What is there.

    @property
    def bundle_ids(self) -> list[str]:
        """Ids of all bundles that can be recommended now, in the order of rows."""
        return self._catalogue.names()

    def bundle_table(self) -> tuple[list[str], Floats]:
        """All bundles' ids and their vectors (n, width) as they score now."""
        self.model.check_has_vectors("there are none to export")
        if self.profiles is not None:
            raise ConfigError(
                "this model's score is an inner product plus what the user's items and the bundle's have in "
                "common, so its vectors alone would rank wrongly and are not exported; for lists in files "
                "use coheat batch"
            )
        catalogue = self._catalogue
        return catalogue.names(), catalogue.served.take(np.flatnonzero(catalogue.alive))

    def moment(self) -> lists.Moment:
        """All that questions are answered from, as it is now."""
        parts = self.model, self.scoring, self._catalogue, self.taken, self.items
        return lists.Moment(*parts, self.profiles, self._lookalikes)

    @property
    def new_bundle_ids(self) -> set[str]:
        """Ids of the bundles that nobody took in training, or that were added since."""
        catalogue = self._catalogue
        return {catalogue.ids[row] for row in np.flatnonzero(catalogue.is_new & catalogue.alive)}

    @property
    def popularity(self) -> Positions:
        """How often each of `bundle_ids` was taken, in training and since."""
        catalogue = self._catalogue
        return catalogue.popularity[catalogue.alive]

    def has_bundle(self, bundle: str) -> bool:
        return self._catalogue.find(bundle) is not None

    def is_new(self, bundle: str) -> bool:
        catalogue = self._catalogue
        return bool(catalogue.is_new[catalogue.row(bundle)])

    def bundle(self, bundle: str) -> BundleInfo:
        """What is known of a bundle now."""
        catalogue = self._catalogue
        row = catalogue.row(bundle)
        popularity = int(catalogue.popularity[row])
        return BundleInfo(
            bundle_id=bundle,
            item_ids=[self.items.ids[item] for item in self.contents(row, catalogue)],
            popularity=popularity,
            history_weight=self.model.weight(popularity),
            is_new=bool(catalogue.is_new[row]),
            origin="training" if row < catalogue.n_trained else "added",
        )

    def user(self, user: str) -> UserInfo:
        """What is known of a user now; of an unknown one only what was recorded."""
        catalogue = self._catalogue
        recorded = [name for name in self.taken.by_user.get(user, ()) if catalogue.find(name) is not None]
        row = self.users.rows.get(user)
        if row is None:
            return UserInfo(user, False, [], [], recorded)
        items = [self.items.ids[item] for item in self.user_item.row(row)]
        bundles = [catalogue.ids[bundle] for bundle in self.taken.trained.row(row)]
        return UserInfo(user, True, items, bundles, recorded)

    def contents(self, row: int, catalogue: Catalogue) -> Positions:
        """Rows of the items of a bundle."""
        replaced = catalogue.contents.get(catalogue.ids[row])
        if replaced is not None:
            return replaced
        known = row < min(catalogue.n_trained, len(self.bundle_item.indptr) - 1)
        return self.bundle_item.row(row) if known else np.zeros(0, dtype=np.int64)

    # Helpers.

    def _subject(
        self, catalogue: Catalogue, bundle: str | None, items: Sequence[str] | None, notes: list[str]
    ) -> Subject:
        """A bundle, or what these items would make."""
        if (bundle is None) == (items is None):
            raise ConfigError("name a bundle, or give the items of one that is not there yet")
        if bundle is not None:
            row = catalogue.row(bundle)
            plain, served = (table.take(np.array([row]))[0] for table in (catalogue.plain, catalogue.served))
            is_new = bool(catalogue.is_new[row])
            return Subject(bundle, row, self.contents(row, catalogue), plain, served, is_new)
        self.model.check_places_new()
        left_out: dict[str, list[str]] = {}
        rows = item_rows(self.items, "", items or (), left_out)
        plain = self.model.pooled([rows])
        notes += [
            f"the model does not know the item {shortened(name)}; left out" for name in left_out.get("", [])
        ]
        served = self.model.weighed(plain, np.zeros(1, dtype=np.int64))
        return Subject("", None, rows, plain[0], served[0], is_new=True)

    def _checked(
        self, bundles: Mapping[str, Iterable[str]], check_name: Any
    ) -> tuple[AddedBundles, list[Positions]]:
        """Ids and item rows of bundles to add or replace; raises before anything is changed."""
        self.model.check_places_new()
        left_out: dict[str, list[str]] = {}
        rows = []
        for name, items in bundles.items():
            check_name(check_id(name, "bundle"))
            rows.append(item_rows(self.items, name, items, left_out))
        return AddedBundles(list(bundles), left_out), rows

    def _check_free(self, name: str) -> None:
        if self._catalogue.find(name) is not None:
            raise DataError(
                f"the bundle id {shortened(name)} is taken already; choose another, or replace it"
            )


def _open(path: Path) -> Artifact:
    """The artifact at `path`, or in the run at `path`."""
    if (path / "artifact.json").exists() or not path.is_dir():
        return load_artifact(path)
    if (path / "run.json").exists() and not (path / "model").is_dir():
        raise ArtifactError(f"{path}: training is not finished; go on with the same command and --resume")
    if not (path / "model").is_dir():
        raise ArtifactError(f"{path}: neither a run nor an artifact; a run is what coheat train --out writes")
    return load_artifact(path / "model")
