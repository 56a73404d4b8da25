"""What an average bundle holds: by it a bundle is placed none of whose items the model knows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from coheat.attributes import Attributes, matching
from coheat.errors import UnknownIdError
from coheat.recommender.answers import PlacedBy
from coheat.served.ranking import Positions
from coheat.served.relations import Csr


@dataclass(frozen=True, eq=False)
class Averages:
    """The bundles of training, with their categories then.

    Nothing that changed since plays a part, so that a bundle gets the same place whenever it is placed: at
    once, or in one go with many others after a restart.
    """

    bundle_item: Csr
    bundles: Attributes
    known: dict[str | None, tuple[PlacedBy, Positions]] = field(default_factory=dict)
    """Of the categories that were asked for."""

    def items(self, category: str | None) -> tuple[PlacedBy, Positions]:
        """The most frequent items of the bundles of a category, or of all where it is None or has none: as
        many as such a bundle has."""
        found = self.known.get(category)
        if found is None:
            found = self.known[category] = self._items(category)
        return found

    def _items(self, category: str | None) -> tuple[PlacedBy, Positions]:
        sizes = self.bundle_item.sizes
        meant = sizes > 0
        placed_by: PlacedBy = "catalogue"
        if category is not None and "category" in self.bundles:
            alike = meant & matching(self.bundles, {"category": {"is": category}}, len(sizes))
            if alike.any():
                meant, placed_by = alike, "category"
        rows = np.flatnonzero(meant)
        if not len(rows):
            raise UnknownIdError(
                "there is no bundle with items that the model knows, so there is none to place it like"
            )
        counts = np.bincount(self.bundle_item.entries(rows)[0])
        size = min(max(1, int(np.median(sizes[rows]))), np.count_nonzero(counts))
        return placed_by, np.sort(np.argsort(-counts, kind="stable")[:size])
