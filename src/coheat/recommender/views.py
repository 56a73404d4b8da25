"""How vectors come about while serving: a bundle from its items, its weights from its popularity, a newcomer
from its edges. For a model with one view, a bundle's vector is made of its items and that is all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from coheat.artifact import ServingVectors
from coheat.errors import ConfigError
from coheat.recommender.catalogue import Catalogue
from coheat.recommender.fold_in import contributions
from coheat.recommender.mapped import let_go
from coheat.recommender.ranking import Floats, Positions
from coheat.recommender.taken import Taken


def no_vectors(n_users: int, n_bundles: int) -> ServingVectors:
    """What stands for the vectors of a model that has none: rows without columns."""
    users, bundles = (np.zeros((n, 0), dtype=np.float32) for n in (n_users, n_bundles))
    return ServingVectors(users, bundles, None, 1.0)


def welcoming(vectors: ServingVectors | None, welcome: float) -> ServingVectors:
    """The same model with its knob for new bundles turned to `welcome`."""
    offsets = vectors.overlap.offsets if vectors is not None and vectors.overlap is not None else ()
    if vectors is None or vectors.overlap is None or not offsets:
        raise ConfigError(
            "this model has no knob for how welcome new bundles are; train one that has (ember)"
        )
    if not (math.isfinite(welcome) and welcome >= 0):
        raise ConfigError(
            f"welcome = {welcome}: 0 hides new bundles, 1 gives them their fair share of places, 2 twice that"
        )
    offset = float(np.interp(welcome, [value for value, _ in offsets], [offset for _, offset in offsets]))
    return replace(vectors, overlap=replace(vectors.overlap, new_offset=offset))


def _filled(items: Floats) -> slice:
    """The columns in which items have anything: a bundle has those from its items, and the others not."""
    columns = np.flatnonzero(np.asarray(items).any(axis=0))
    let_go(items)
    return slice(int(columns[0]), int(columns[-1]) + 1) if len(columns) else slice(0, 0)


class ServedModel:
    """A model's vectors and the rules of its views. Never changes."""

    def __init__(self, vectors: ServingVectors, bundle_degrees: Positions, item_degrees: Positions):
        """The degrees are those of training: takers of each bundle, owners of each item."""
        self.vectors, self.views = vectors, vectors.views
        self.users: Floats = np.asarray(vectors.users)
        self.bundle_degrees, self.item_degrees = bundle_degrees, item_degrees
        width = vectors.users.shape[1]
        half = width // 2 if self.views else 0
        self.history, self.affiliation = slice(0, half), slice(half, width)
        if vectors.overlap is not None and vectors.items is not None:
            self.affiliation = _filled(vectors.items)

    def weight(self, popularity: float) -> float | None:
        """Weight of the history view for a bundle taken this often; None for a model with one view."""
        return None if self.views is None else float(self.weights(np.array([popularity]))[0])

    def weights(self, popularity: Positions) -> Floats:
        """tanh(popularity / temperature), or 0.5 for all."""
        assert self.views is not None
        if self.views.temperature is None:
            return np.full(len(popularity), 0.5, dtype=np.float32)
        weights: Floats = np.tanh(popularity.astype(np.float32) / np.float32(self.views.temperature))
        return weights

    def weighed(self, plain: Floats, popularity: Positions) -> Floats:
        """Bundle vectors as they score: [g h ; (1 - g) a]."""
        if self.views is None:
            return plain
        weights = self.weights(popularity)[:, None]
        served = np.empty_like(plain)
        served[:, self.history] = weights * plain[:, self.history]
        served[:, self.affiliation] = (1 - weights) * plain[:, self.affiliation]
        return served

    def check_has_vectors(self, wanted: str) -> None:
        """Refuse what needs vectors for a model that scores in a way of its own."""
        if not self.users.shape[1]:
            raise ConfigError(f"this model scores in a way of its own, without vectors, so {wanted}")

    def check_places_new(self) -> None:
        self.check_has_vectors("it cannot place bundles that it was not trained with; train again with them")
        if self.vectors.items is None:
            raise ConfigError("this model knows bundles only by their history, so it cannot place new ones")

    def pooled(self, items: list[Positions]) -> Floats:
        """Plain vectors (n, width) of bundles known only by their items (none of them empty)."""
        assert self.vectors.items is not None
        sizes = np.array([len(rows) for rows in items])
        found = np.asarray(self.vectors.items)[np.concatenate(items), self.affiliation]
        # One sum per bundle: five times as fast as np.add.reduceat over all.
        sums = np.stack([part.sum(axis=0) for part in np.split(found, np.cumsum(sizes)[:-1])])
        plain = np.zeros((len(items), self.vectors.items.shape[1]), dtype=np.float32)
        plain[:, self.affiliation] = sums / (sizes[:, None] ** self.vectors.size_exponent * self._unseen)
        return plain

    @property
    def _unseen(self) -> float:
        """Weight of the affiliation view of a bundle that nobody took; the item vectors carry it already."""
        return 0.5 if self.views is not None and self.views.temperature is None else 1.0

    def with_affiliation(self, plain: Floats, pooled: Floats) -> Floats:
        """The history view of `plain`, the affiliation view of `pooled`."""
        mixed = plain.copy()
        mixed[:, self.affiliation] = pooled[:, self.affiliation]
        return mixed

    def item_shares(self, user: Floats, items: Positions, weight: float) -> Floats:
        """What each item of a bundle gives to the score (len(items),)."""
        assert self.vectors.items is not None
        found = np.asarray(self.vectors.items)[items, self.affiliation].astype(np.float64)
        scale = weight / self._unseen / max(len(items), 1) ** self.vectors.size_exponent
        shares: Floats = found @ user[self.affiliation].astype(np.float64) * scale
        return shares

    def from_bundles(self, bundles: Positions) -> Floats:
        """What each bundle (-1: not in training) gives to its taker's history vector (n, d)."""
        assert self.views is not None
        views = self.views
        return contributions(views.bundle_layers, self.bundle_degrees, bundles, views.normalise_layers)

    def from_items(self, items: Positions) -> Floats:
        """What each item gives to its owner's affiliation vector (n, d)."""
        assert self.views is not None
        return contributions(self.views.item_layers, self.item_degrees, items, self.views.normalise_layers)

    def folded(self, items: Positions, bundles: Positions) -> Floats:
        """The vector (width,) of a user who was not in training and has these items and bundles."""
        return np.concatenate([self.from_bundles(bundles).sum(axis=0), self.from_items(items).sum(axis=0)])

    def own_history(self, bundle: int | None) -> Floats:
        """Layer 0 of a bundle in the history view; zero for one added since."""
        assert self.views is not None
        layer = self.views.bundle_layers[0]
        own: Floats = np.zeros(layer.shape[1], dtype=np.float32) if bundle is None else layer[bundle]
        return own

    def history_from(self, takers: Positions, taken: Taken) -> Floats:
        """What a bundle gets from its takers (-1: not in training) by one propagation step (d,)."""
        assert self.views is not None
        degrees = np.diff(taken.trained.indptr)
        given = contributions(self.views.user_layers, degrees, takers, self.views.normalise_layers)
        total: Floats = given.sum(axis=0)
        return total

    def weighed_anew(self, catalogue: Catalogue, changed: Mapping[int, str], taken: Taken) -> Catalogue:
        """New weights for bundles (row: id) whose popularity changed, and a history for those without."""
        rows = np.array(sorted(changed), dtype=np.int64)
        plain = catalogue.plain.take(rows)
        for place, row in enumerate(rows.tolist()):
            if catalogue.is_new[row]:
                takers = taken.by_bundle[changed[row]]
                found = np.array([taken.users.rows.get(user, -1) for user in takers], dtype=np.int64)
                own = self.own_history(row if row < catalogue.n_trained else None)
                plain[place, self.history] = own + self.history_from(found, taken)
        return catalogue.changed(rows, plain, self.weighed(plain, catalogue.popularity[rows]))
