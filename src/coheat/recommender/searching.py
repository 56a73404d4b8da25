"""Finding bundles and items by their id or title."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from coheat.attributes import Column
from coheat.errors import ConfigError
from coheat.ids import shortened
from coheat.recommender.answers import FoundId, SearchResult

SECONDS = 0.2
"""How long a search may look; what was found until then is the answer."""
STRETCH = 5_000


def search(
    ids: Sequence[str],
    there: npt.NDArray[np.bool_],
    titles: Column | None,
    text: str,
    limit: int,
    seconds: float = SECONDS,
) -> SearchResult:
    """At most `limit` of the rows that are `there`: their id holds the text, or their title all its words,
    upper or lower case.

    First those whose id is the text, then those whose id or title begins with it, then the others; of equals
    in the order of rows.
    """
    if not isinstance(text, str):
        raise ConfigError(f"search for a text, not {shortened(str(text))}")
    wanted, until, n = text.casefold().strip(), time.monotonic() + seconds, len(there)
    words = wanted.split()
    by_title, complete = np.zeros(n, dtype=np.int8), True
    if titles is not None:  # first: many rows may share a title, and people know it better than an id
        found = _looked_at(titles.texts, len(titles.texts), words, wanted, until)
        complete = bool((found >= 0).all())
        by_title = np.append(found, np.int8(0))[titles.resized(n)]
    by_id = _looked_at(islice(ids, n), n, [wanted], wanted, until)
    complete = complete and bool((by_id >= 0).all())
    # A title that is the text is no more than one that begins with it: several may have it.
    ranks = np.where(there, np.maximum(by_id, np.minimum(by_title, 2)), 0)
    rows = [row for rank in (3, 2, 1) for row in np.flatnonzero(ranks == rank)[:limit].tolist()][:limit]
    named = [(ids[row], None if titles is None else titles.value(row)) for row in rows]
    found_ids = [FoundId(name, None if title is None else str(title)) for name, title in named]
    return SearchResult(found_ids, complete)


def _rank(folded: str, words: Sequence[str], wanted: str) -> int:
    """3: it is what is wanted; 2: it begins so; 1: it has all words; 0: none of these."""
    if not all(word in folded for word in words):
        return 0
    return 3 if folded == wanted else 2 if folded.startswith(wanted) else 1


def _looked_at(
    texts: Iterable[str], n: int, words: Sequence[str], wanted: str, until: float
) -> npt.NDArray[np.int8]:
    """The rank of each text (n,); -1 for those for which there was no time."""
    found, reading, first = np.full(n, -1, dtype=np.int8), iter(texts), words[0] if words else ""
    for start in range(0, n, STRETCH):
        if time.monotonic() > until:
            break
        folded = map(str.casefold, islice(reading, STRETCH))
        ranks = [_rank(text, words, wanted) if first in text else 0 for text in folded]
        found[start : start + len(ranks)] = ranks
    return found
