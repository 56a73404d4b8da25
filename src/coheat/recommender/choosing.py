"""Which bundles may be listed: candidates, filters by columns, and what is on offer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from coheat.attributes import Where, fitting, matching
from coheat.errors import ConfigError
from coheat.ids import shortened, text_id
from coheat.recommender.catalogue import Catalogue
from coheat.served.ranking import Positions

Candidates: TypeAlias = Literal["all", "new"] | Sequence[str]


@dataclass(frozen=True)
class Choice:
    """Which bundles may be listed.

    `candidates`: all, only new ones, or the ids of some; `exclude`: none of these. `where`: conditions by
    column, such as {"price": {"at_most": 30}} (`coheat.attributes.where`). With `only_on_offer`, what is
    launched, has not ended and is available `now` (a time or Unix seconds; without it, the clock's).
    """

    candidates: Candidates = "all"
    exclude: Sequence[str] = ()
    where: Where | None = None
    only_on_offer: bool = True
    now: str | float | None = None


@dataclass(frozen=True)
class Chosen:
    """Which bundles (by row) may be listed; what there is to say about them; and, where lists are short, why
    there are no more."""

    allowed: npt.NDArray[np.bool_]
    notes: tuple[str, ...] = ()
    why_no_more: str = "there are no more candidates"

    @cached_property
    def rows(self) -> Positions:
        """Rows of those that may be listed, in order."""
        return np.flatnonzero(self.allowed)


def choose(catalogue: Catalogue, choice: Choice, data_until: float | None) -> Chosen:
    """The rows that may be listed. Ids that are not there are noted, and looked for nowhere else."""
    allowed, notes = _candidates(catalogue, choice)
    total, reasons = int(np.count_nonzero(allowed)), list[str]()
    if choice.where:
        allowed &= matching(catalogue.described.bundles, choice.where, len(catalogue))
        reasons.append("meet `where`")
    if choice.only_on_offer and catalogue.described.has_offers:
        now, note = moment_of(catalogue, choice.now, data_until)
        offered = catalogue.described.on_offer(len(catalogue), now)
        if not offered.all():
            allowed &= offered
            reasons.append("are on offer")
        notes += [note] if note else []
    if not reasons:
        return Chosen(allowed, tuple(notes))
    what = "bundles" if choice.candidates == "all" else "candidates"
    why = f"no more of the {total} {what} {' and '.join(reasons)}"
    return Chosen(allowed, tuple(notes), why)


def moment_of(
    catalogue: Catalogue, now: str | float | None, data_until: float | None
) -> tuple[float, str | None]:
    """The moment that counts as now, and a note where it is neither given nor the clock's."""
    if now is None:
        return catalogue.described.moment(time.time(), data_until, catalogue.n_trained)
    return float(fitting(now, "time", "now") or 0), None


def _candidates(catalogue: Catalogue, choice: Choice) -> tuple[npt.NDArray[np.bool_], list[str]]:
    candidates, notes = choice.candidates, list[str]()
    advice = "choose 'all', 'new', or a list of bundle ids"
    if isinstance(candidates, str):
        if candidates not in ("all", "new"):
            raise ConfigError(f"candidates = {candidates!r}: {advice}")
        allowed = catalogue.alive.copy()
        if candidates == "new":
            allowed &= catalogue.bundles.is_new
    else:
        if not len(candidates):
            raise ConfigError(f"candidates is an empty list; {advice}")
        allowed = np.zeros(len(catalogue), dtype=np.bool_)
        allowed[_found(catalogue, candidates, "candidates", notes)] = True
    if isinstance(choice.exclude, str):
        raise ConfigError("exclude takes a list of bundle ids")
    if len(choice.exclude):
        allowed[_found(catalogue, choice.exclude, "bundles to exclude", notes)] = False
    return allowed, notes


def _found(catalogue: Catalogue, names: Sequence[str], what: str, notes: list[str]) -> list[int]:
    """Rows of those of the bundles that are there; a note tells of the others."""
    found = [catalogue.find(text_id(name, "bundle")) for name in names]
    missing = [name for name, row in zip(names, found, strict=True) if row is None]
    if missing:
        is_or_are = "is" if len(missing) == 1 else "are"
        notes.append(
            f"{len(missing)} of {len(found)} {what} {is_or_are} not in the catalogue, such as "
            f"{shortened(missing[0])}; left out"
        )
    return [row for row in found if row is not None]
