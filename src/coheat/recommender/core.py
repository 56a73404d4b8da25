"""Recommender: recommend bundles to users and users to bundles, from a trained model's vectors.

A score is the inner product of a user's and a bundle's vector. A bundle that did not exist in training
gets its vector from its items: their sum, divided by size ** size_exponent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from coheat.artifact import Artifact, Description, ServingVectors, load_artifact
from coheat.errors import ArtifactError, ConfigError, DataError, UnknownIdError
from coheat.recommender import explain as explaining
from coheat.recommender import lists
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
from coheat.recommender.checks import check_id, check_ids, check_k
from coheat.recommender.ids import Ids, shortened, unknown
from coheat.recommender.ranking import Floats, Positions, best
from coheat.recommender.taken import Csr, Taken
from coheat.recommender.views import ServedModel

Candidates: TypeAlias = Literal["all", "new"] | Sequence[str]
Relation: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]
EMPTY: Relation = (np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64))


class Recommender:
    """Recommend bundles to users, and users to bundles, from a trained model's vectors.

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
    ):
        """The relations are those of training in CSR form (indptr, indices)."""
        self.users, self.items, self.description = users, items, description
        n_bundles = len(bundles.ids)
        self.taken = Taken(Csr(*user_bundle), users)
        self.user_item, self.bundle_item = Csr(*user_item), Csr(*bundle_item)
        popularity = self.taken.trained.degrees(n_bundles)
        self.model = ServedModel(vectors, popularity, self.user_item.degrees(len(items.ids)))
        _ = users.rows, items.rows  # made now, so that the first question is not slower than the others
        self._lock = threading.Lock()
        self._catalogue = Catalogue(
            ids=list(bundles.ids),
            rows=dict(bundles.rows),
            n_trained=n_bundles,
            served=Rows.of(vectors.bundles),
            plain=Rows.of(vectors.views.bundles if vectors.views else vectors.bundles),
            popularity=popularity,
            alive=np.ones(n_bundles, dtype=np.bool_),
            is_new=popularity == 0,
            contents={},
        )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a run's directory or from the artifact in it."""
        artifact = _open(Path(path))
        vectors = artifact.vectors()
        if vectors is None:
            raise ArtifactError(
                f"{path}: the model {artifact.description.model!r} does not score by vectors, so it can be "
                "evaluated but not served; train a model with vectors, such as coheat"
            )
        users, bundles, items = (Ids(artifact.ids(kind), kind) for kind in ("user", "bundle", "item"))
        taken, owned, held = (artifact.relation(name) for name in ("user_bundle", "user_item", "bundle_item"))
        return cls(users, bundles, items, vectors, taken, owned, held, artifact.description)

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
        catalogue = self._catalogue
        columns = self._columns(catalogue, candidates, exclude)
        asked = lists.Asked(names, k, columns, exclude_seen, items or {}, bundles or {})
        return lists.recommend(self.model, catalogue, self.taken, self.items, asked)

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
        name, row, _, served = self._bundle_or_items(catalogue, bundle, items, notes)
        scores = self.model.vectors.users @ served
        if exclude_seen and row is not None:
            scores[self.taken.takers(name, row, catalogue)] = -np.inf
        found = Recommendations(
            Recommendation(self.users.ids[user], name, float(scores[user]), rank)
            for rank, user in enumerate(best(scores, k), start=1)
        )
        found.notes += notes
        if len(found) < k:
            found.short[name] = len(found)
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
        catalogue = self._catalogue
        _, row, plain, _ = self._bundle_or_items(catalogue, bundle, items, [])
        own = self.contents(row, catalogue) if row is not None else self._item_rows("", items or (), {})
        half = self.model.affiliation
        matrix = catalogue.plain.take(np.arange(len(catalogue)))[:, half]
        lengths = np.linalg.norm(matrix, axis=1) * np.linalg.norm(plain[half])
        cosines = (matrix @ plain[half] / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        cosines[~catalogue.alive] = -np.inf
        if row is not None:
            cosines[row] = -np.inf
        found = []
        for rank, other in enumerate(best(cosines, k), start=1):
            shared = np.intersect1d(own, self.contents(int(other), catalogue))
            ids = [self.items.ids[item] for item in shared]
            found.append(SimilarBundle(catalogue.ids[other], float(cosines[other]), rank, ids))
        return found

    def explain(
        self, user: str, bundle: str, items: Sequence[str] = (), bundles: Sequence[str] = ()
    ) -> Explanation:
        """Why this bundle has this score for this user; see `Explanation` for what adds up to what.

        A user who was not in training is folded in from `items`, `bundles` and what was recorded.
        """
        catalogue = self._catalogue
        row = catalogue.row(bundle)
        who = lists.known_of(self.model, catalogue, self.taken, self.items, user, items, bundles)
        if who.source == "popular-and-new":
            raise unknown(user, "user", self.users.ids)
        if who.source == "model" and self.model.views is not None:
            user_row = self.users.rows[user]
            who = replace(
                who, item_rows=self.user_item.row(user_row), bundle_rows=self.taken.trained.row(user_row)
            )
        contents = self.contents(row, catalogue)
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
            counted = []
            for user, bundle, row in known:
                counted.append(not self.taken.has(user, bundle, row, catalogue))
                if counted[-1]:
                    self.taken.add(user, bundle)
                    popularity[row] += 1
            catalogue = replace(catalogue, popularity=popularity)
            changed = {row: bundle for (_, bundle, row), new in zip(known, counted, strict=True) if new}
            if changed and self.model.views is not None:
                catalogue = self._weighed_anew(catalogue, changed)
            self._catalogue = catalogue
        return [
            Recorded(user, bundle, new, int(popularity[row]), self.model.weight(popularity[row]))
            for (user, bundle, row), new in zip(known, counted, strict=True)
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
        catalogue = self._catalogue
        return catalogue.names(), catalogue.served.take(np.flatnonzero(catalogue.alive))

    def snapshot(self, k: int, candidates: Candidates) -> tuple[Catalogue, Positions]:
        """The bundles as they are now and the rows of the candidates, for a long list of questions."""
        check_k(k)
        catalogue = self._catalogue
        return catalogue, self._columns(catalogue, candidates, ())

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

    def _columns(self, catalogue: Catalogue, candidates: Candidates, exclude: Sequence[str]) -> Positions:
        """Rows of the bundles that may be listed, in order."""
        if isinstance(candidates, str):
            if candidates not in ("all", "new"):
                raise ConfigError(
                    f"candidates = {candidates!r}: choose 'all', 'new', or a list of bundle ids"
                )
            allowed = catalogue.alive & catalogue.is_new if candidates == "new" else catalogue.alive.copy()
        else:
            names = check_ids(candidates, "candidates", "choose 'all', 'new', or a list of bundle ids")
            allowed = np.zeros(len(catalogue), dtype=np.bool_)
            allowed[[catalogue.row(name) for name in names]] = True
        if isinstance(exclude, str):
            raise ConfigError("exclude takes a list of bundle ids")
        allowed[[catalogue.row(name) for name in exclude]] = False
        return np.flatnonzero(allowed)

    def _bundle_or_items(
        self, catalogue: Catalogue, bundle: str | None, items: Sequence[str] | None, notes: list[str]
    ) -> tuple[str, int | None, Floats, Floats]:
        """Id, row, plain and served vector of a bundle, or of what these items would make."""
        if (bundle is None) == (items is None):
            raise ConfigError("name a bundle, or give the items of one that is not there yet")
        if bundle is not None:
            row = catalogue.row(bundle)
            rows = np.array([row])
            return bundle, row, catalogue.plain.take(rows)[0], catalogue.served.take(rows)[0]
        self.model.check_places_new()
        left_out: dict[str, list[str]] = {}
        plain = self.model.pooled([self._item_rows("", items or (), left_out)])
        notes += [
            f"the model does not know the item {shortened(name)}; left out" for name in left_out.get("", [])
        ]
        return "", None, plain[0], self.model.weighed(plain, np.zeros(1, dtype=np.int64))[0]

    def _checked(
        self, bundles: Mapping[str, Iterable[str]], check_name: Any
    ) -> tuple[AddedBundles, list[Positions]]:
        """Ids and item rows of bundles to add or replace; raises before anything is changed."""
        self.model.check_places_new()
        left_out: dict[str, list[str]] = {}
        rows = []
        for name, items in bundles.items():
            check_name(check_id(name, "bundle"))
            rows.append(self._item_rows(name, items, left_out))
        return AddedBundles(list(bundles), left_out), rows

    def _check_free(self, name: str) -> None:
        if self._catalogue.find(name) is not None:
            raise DataError(
                f"the bundle id {shortened(name)} is taken already; choose another, or replace it"
            )

    def _item_rows(self, name: str, items: Iterable[str], left_out: dict[str, list[str]]) -> Positions:
        """Rows of a bundle's items, in order; those the model does not know go to `left_out`."""
        bundle = f"bundle {shortened(name)}" if name else "these items"
        if isinstance(items, str):
            raise ConfigError(f"{bundle}: give a list of item ids, not one text")
        distinct = list(dict.fromkeys(items))
        found = list(map(self.items.rows.get, distinct))
        rows = np.array([row for row in found if row is not None], dtype=np.int64)
        if not distinct:
            raise UnknownIdError(f"{bundle}: without items there is nothing to place it by")
        if not len(rows):
            shown = ", ".join(shortened(item) for item in distinct[:5])
            raise UnknownIdError(f"{bundle}: the model knows none of its items ({shown})")
        if len(rows) < len(distinct):
            left_out[name] = [item for item, row in zip(distinct, found, strict=True) if row is None]
        return np.sort(rows)

    def _weighed_anew(self, catalogue: Catalogue, changed: Mapping[int, str]) -> Catalogue:
        """New weights for bundles whose popularity changed, and a history for those that had none."""
        rows = np.array(sorted(changed), dtype=np.int64)
        plain = catalogue.plain.take(rows)
        for place, row in enumerate(rows.tolist()):
            if catalogue.is_new[row]:
                takers = self.taken.by_bundle[changed[row]]
                found = np.array([self.users.rows.get(user, -1) for user in takers], dtype=np.int64)
                own = self.model.own_history(row if row < catalogue.n_trained else None)
                plain[place, self.model.history] = own + self.model.history_from(found, self.taken)
        return catalogue.changed(rows, plain, self.model.weighed(plain, catalogue.popularity[rows]))


def _open(path: Path) -> Artifact:
    """The artifact at `path`, or in the run at `path`."""
    if (path / "artifact.json").exists() or not path.is_dir():
        return load_artifact(path)
    if (path / "run.json").exists() and not (path / "model").is_dir():
        raise ArtifactError(f"{path}: training is not finished; go on with the same command and --resume")
    if not (path / "model").is_dir():
        raise ArtifactError(f"{path}: neither a run nor an artifact; a run is what coheat train --out writes")
    return load_artifact(path / "model")
