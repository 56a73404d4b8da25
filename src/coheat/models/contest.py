"""Welcome: how many places in the lists young bundles get, as a multiple of their fair share.

The fair share of some bundles is their share of all interactions. What a young bundle's share will be nobody
knows, but of stand-ins (`coheat.models.stand_ins`) it is known. So for each number n of takers that they
kept, an offset is sought with which they fill

    1 + (welcome - 1) / sqrt(1 + n / FADE)      times their fair share

of the places in the lists of some users: `welcome` times for a new bundle, and the closer to once the more is
known of it. The offsets are added to the young curve of the bias, so they end, too, with a bundle's youth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from coheat.data.dataset import Indices
from coheat.models.curves import Floats, Numbers

LIST = 20
"""Length of the lists in which places are counted, where there are bundles enough."""
CHOICE = 4
"""Bundles per place that a list needs at least: where it holds most of a small shop, places tell nothing."""
MOST = 0.9
"""Share of the places within a group's reach that it may be asked to fill. All of them, or more than it has
bundles for, would take an offset without bounds, and one group would stand far above its neighbours."""
FADE = 8.0
"""Takers at which a welcome has lost three tenths of its effect (1 - 1 / sqrt(2))."""
LOW = 20.0
"""What hides a bundle where nothing could be measured."""
SWEEPS = 4
"""Times that the offset of each group is sought in turn; later ones hardly move any."""
CREDIBLE = 20.0
"""Bundles at which a group's own offset counts as much as the one that all stand-ins share: a group of few is
ruled by how popular one or two of them happen to be."""
SACRIFICE = 0.25
"""How much of what is found of established bundles validation may give up for young ones."""
LITTLE = 0.03
"""Share of all held-out interactions that it may give up in any case."""
DRAWS = 200
"""Times that the bundles of validation are drawn anew."""
DOUBT = float(np.log(2))
"""How far from the usual welcome the right one may well be, in its logarithm: half of it or twice as much."""
LEAST = 0.25
"""Added to a welcome before its logarithm is taken: 0 and hardly anything are not far apart."""


@dataclass(frozen=True, eq=False)
class Contest:
    """The best scores of some users among established bundles and among each group of stand-ins.

    `established` (n_users, length) and `groups` (n_groups, n_users, length) are sorted, best first, -inf
    where there are fewer. A group of so many `bundles` kept `takers` takers each and deserves a share `fair`
    of all places.
    """

    established: Floats
    groups: Floats
    takers: Numbers
    fair: Numbers
    bundles: Indices

    @staticmethod
    def of(scores: Floats, is_stand_in: npt.NDArray[np.bool_], kept: Indices, popularity: Indices) -> Contest:
        """From scores (n_users, n_bundles), -inf for what is no candidate.

        `kept` (n_bundles,) counts the takers that stand-ins kept, `popularity` those that they really had.
        """
        return Contest.of_blocks([scores], is_stand_in, kept, popularity)

    @staticmethod
    def of_blocks(
        blocks: Iterable[Floats], is_stand_in: npt.NDArray[np.bool_], kept: Indices, popularity: Indices
    ) -> Contest:
        """The same from the scores of some users after the other; no two blocks are held together."""
        takers = np.unique(kept[is_stand_in])
        members = [is_stand_in & (kept == number) for number in takers]
        best: list[list[Floats]] = [[] for _ in range(1 + len(members))]
        candidates = [np.zeros(0)]
        for scores in blocks:
            candidates.append(np.isfinite(scores).sum(axis=1))
            for found, of_group in zip(best, (~is_stand_in, *members), strict=True):
                found.append(_best(scores[:, of_group], LIST))
        of_user = np.concatenate(candidates)
        length = int(np.clip(of_user.mean() // CHOICE if len(of_user) else 0, 1, LIST))
        established, *groups = (np.concatenate(found)[:, :length] for found in best)
        fair = [popularity[each].sum() / max(popularity.sum(), 1) for each in members]
        return Contest(
            established,
            np.stack(groups) if groups else np.zeros((0, len(of_user), length), dtype=np.float32),
            takers.astype(np.float64),
            np.array(fair, dtype=np.float64),
            np.array([each.sum() for each in members], dtype=np.int64),
        )

    @cached_property
    def everybody(self) -> Floats:
        """The best scores among all stand-ins."""
        return _best(np.concatenate(list(self.groups), axis=1), self.established.shape[1])

    def hidden(self) -> float:
        """What takes every stand-in off the lists."""
        if not len(self.takers) or not len(self.established):
            return -LOW
        return offset_for_share(self.established, self.everybody, 0.0)

    def offsets(self, welcome: float, counts: Numbers) -> Numbers:
        """What to add to the young curve of the bias at each of its knots (n_knots,).

        Beyond the most takers that a stand-in kept, the offset falls to nothing within four times as many.
        """
        if not len(self.takers) or not len(self.established):
            return np.zeros(len(counts))
        wanted = self.fair * (1 + (welcome - 1) / np.sqrt(1 + self.takers / FADE))
        wanted *= min(1.0, 1.0 / max(wanted.sum(), 1e-12))
        wanted = np.minimum(wanted, MOST * np.isfinite(self.groups).mean(axis=(1, 2)))
        everybody = self.everybody
        shared = offset_for_share(
            self.established, everybody, min(float(wanted.sum()), float(np.isfinite(everybody).mean()))
        )
        found = np.full(len(self.takers), shared)
        for _ in range(SWEEPS):
            for at, share in enumerate(wanted):
                rest = [group + found[k] for k, group in enumerate(self.groups) if k != at]
                others = _best(np.concatenate([self.established, *rest], axis=1), everybody.shape[1])
                own = offset_for_share(others, self.groups[at], float(share))
                found[at] = shared + (own - shared) * self.bundles[at] / (self.bundles[at] + CREDIBLE)
        last = self.takers[-1]
        return np.asarray(np.interp(counts, [*self.takers, max(4 * last, 1.0)], [*found, 0.0]))


def _best(scores: Floats, length: int) -> Floats:
    """So many of the best of every row, best first; -inf where there are fewer."""
    short = length - scores.shape[1]
    if short > 0:
        scores = np.pad(scores, ((0, 0), (0, short)), constant_values=-np.inf)
    best: Floats = -np.sort(np.partition(-scores, length - 1, axis=1)[:, :length], axis=1)
    return best


def offset_for_share(known: Floats, new: Floats, share: float) -> float:
    """The number to add to `new` so that it fills `share` of the places when both are ranked together.

    Both (n, k) are sorted, best first. In a list of k, the j-th of the new has a place where it stands above
    the (k - j + 1)-th of the known: so each has a number at which it enters; the answer is their quantile.
    """
    gaps = np.where(np.isneginf(new), np.inf, known[:, ::-1] - np.maximum(new, np.finfo(np.float32).min))
    entry = np.sort(gaps.ravel())  # one number per place: the offset at which it goes to a new bundle
    finite = entry[np.isfinite(entry)]
    lowest, highest = np.min(finite, initial=0.0) - 10.0, np.max(finite, initial=0.0) + 10.0
    place = round(share * len(entry))
    return float(np.clip(entry[place - 1], lowest, highest)) if place else float(lowest)


def trusted(
    values: Numbers, added: Numbers, established: Numbers, usual: float, rng: np.random.Generator
) -> int:
    """Which of the welcomes `values` (n,) to choose: the best by validation as far as that is sure, and
    else the usual one.

    `added` (n, n_bundles) is what each bundle's takers add to the judgement. How popular the few bundles are
    that happen to be held out is chance, so these are drawn anew, and how far the best value then moves says
    how sure it is: it is averaged with the usual one as two measurements of one number are, by variances.

    `established` (n,) is the share of all that people took that is found and not young. It must not pay for
    that chance beyond a limit, or beyond what it pays where nobody validates, at the usual welcome.
    """
    paid = established.max() - established
    admitted = np.flatnonzero((paid <= max(SACRIFICE * established.max(), LITTLE)) | (values <= usual))
    held_out, logs = added[admitted][:, added.any(axis=0)], np.log(values[admitted] + LEAST)
    wanted = np.log(usual + LEAST)
    if held_out.size:
        drawn = logs[(rng.poisson(1.0, (DRAWS, held_out.shape[1])) @ held_out.T).argmax(axis=1)]
        share = DOUBT**2 / (DOUBT**2 + drawn.var())
        wanted = share * logs[held_out.sum(axis=1).argmax()] + (1 - share) * wanted
    return int(admitted[np.abs(logs - wanted).argmin()])
