"""The vectors behind scores, for systems that search by inner product."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.errors import ConfigError
from coheat.ids import Vocabulary
from coheat.recommender.catalogue import Catalogue
from coheat.served import Served
from coheat.served.ranking import Floats


def beyond(served: Served) -> str | None:
    """What of a score is no inner product of vectors, in words; None where nothing is."""
    names = ", ".join(overlap.name for overlap in served.overlaps)
    return f"what the user's items and the bundle's have in common ({names})" if names else None


def vectors(
    catalogue: Catalogue, users: Vocabulary, items: Vocabulary, dense_part: bool
) -> dict[str, tuple[list[str], Floats]]:
    """Ids and vectors of users, bundles and (where there are any) items; see `Recommender.vectors`."""
    served = catalogue.served
    if served.refusal or not served.blocks:
        raise ConfigError(
            "this model scores in a way of its own, without vectors, so there are none to export"
        )
    if (more := beyond(served)) and not dense_part:
        raise ConfigError(
            f"this model's score is an inner product plus {more}, so its vectors alone would rank "
            "differently and are not exported. --dense-part exports them and measures how much of the true "
            "lists they find; for lists in files use coheat batch"
        )
    rows, ones = np.flatnonzero(catalogue.alive), np.ones(len(served.users))
    bundles = catalogue.bundles
    found = {
        "user": (list(users.ids), _with_bias(served, served.users, ones)),
        "bundle": (catalogue.names(), _with_bias(served, bundles.weighed.take(rows), bundles.terms[0, rows])),
    }
    if any(block.items is not None for block in served.blocks):
        alone = served.place([np.array([item]) for item in range(len(items))])
        new = np.zeros(len(alone), dtype=np.int64), np.ones(len(alone), dtype=np.float32)
        found["item"] = list(items.ids), _with_bias(served, served.weighed(alone, *new), served.bias_at(*new))
    return found


def _with_bias(served: Served, vectors: Floats, bias: npt.NDArray[Any]) -> Floats:
    """Vectors with one more column for the bias, where the model has one: so it is part of the product."""
    if not served.has_bias:
        return vectors
    return np.concatenate([vectors, np.asarray(bias, np.float32)[:, None]], axis=1)
