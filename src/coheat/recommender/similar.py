"""Bundles that are alike: the cosine of their vectors, and the items they share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coheat.recommender.answers import SimilarBundle
from coheat.recommender.lists import Moment
from coheat.recommender.ranking import Positions, best
from coheat.recommender.scoring import Subject


def similar_bundles(
    moment: Moment, subject: Subject, k: int, contents: Callable[[int], Positions]
) -> list[SimilarBundle]:
    """The k bundles most like this one; `contents` gives the items of a bundle's row."""
    catalogue, part = moment.catalogue, moment.model.affiliation
    wanted = np.zeros_like(subject.plain)
    wanted[part] = subject.plain[part]
    lengths = catalogue.plain.lengths(part) * np.linalg.norm(wanted)
    cosines = catalogue.plain.product(wanted[None])[0] / np.where(lengths > 0, lengths, 1)
    cosines[~catalogue.alive] = -np.inf
    if subject.row is not None:
        cosines[subject.row] = -np.inf
    found = []
    for rank, other in enumerate(best(cosines, k), start=1):
        shared = np.intersect1d(subject.items, contents(int(other)))
        ids = [moment.items.ids[item] for item in shared]
        found.append(SimilarBundle(catalogue.ids[other], float(cosines[other]), rank, ids))
    return found
