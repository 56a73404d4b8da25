"""Ember: one model for bundles with history and for bundles that nobody has taken yet.

CoHeat's idea, views of history and of items weighed by how much evidence a bundle has, with other parts. A
bundle that was taken is scored by everything known of it:

    y_ub = <h_u, h_b> + <a_u, a_b>                     two views, learned as in CrossCBR
           + companion_weight * <c_u, c_b>             bundles that go together (`companions`)
           + overlap_weight * log(1 + o_ub / o)        what its items share with the user's, exactly

A bundle that nobody took yet has no history to learn from, and is scored by its items:

    y_ub = <a_u, a_b> + new_overlap_weight * log(1 + o_ub / o) + offset

o_ub is the overlap of `coheat.served`: the user's own items and those of the user's bundles, rare
items counting more, summed (not averaged) over the bundle's items; o is its mean over training interactions,
each without the bundle's own contribution to the profile. Negatives are drawn among bundles with history
only, so that a new one is not trained downwards before it had a chance.

The knob is `welcome`: how many places in the lists new bundles get, as a multiple of their fair share. A
fifth of the bundles with history is held out as if nobody had taken them yet; the offset is the number at
which they fill `welcome` times the share of places that their share of the interactions would give them. 0
hides new bundles, 1 treats them as the known, more favours them. Because held-out bundles are ordinary ones,
a bundle that is unseen because nobody wants what is in it stays behind: its overlaps are small. Where the
data tell when bundles were launched, only young ones are new; a bundle that was on offer for longer than
`young_days` and that nobody took is scored as one with history, of which there is none:

    y_ub = <a_u, a_b> + overlap_weight * log(1 + o_ub / o)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from scipy import sparse
from torch import Tensor

from coheat.data.dataset import BundleData, Indices
from coheat.graph.overlap import FloatArray, rarity
from coheat.models.base import Progress, numpy
from coheat.models.companions import companions
from coheat.models.crosscbr import CrossCBR, CrossCBRConfig
from coheat.rng import Randomness
from coheat.served import Block, Csr, Curve, Knob, Overlap, Served

LIST = 20
"""Length of the lists in which places are counted."""
SAMPLE = 1000
"""Users whose lists are looked at to find the offset."""
HELD_OUT = 0.2
"""Share of the bundles with history that stand in for new ones."""

USERS_AT_ONCE = 4096
"""Users whose profiles are looked at together."""

MEANING = "0 hides new bundles, 1 gives them their fair share of places, 2 twice that"
WELCOMES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0)
"""Values of the knob that a trained model can be served with; others are interpolated."""

Metrics = dict[str, float]


class EmberConfig(CrossCBRConfig):
    """Settings of Ember. Those of the learned views are CrossCBR's."""

    negatives: Literal["all", "warm"] = Field(
        "warm", description="draw negatives from all bundles, or from those with training interactions"
    )
    welcome: float = Field(
        2.0, ge=0, description="list places of new bundles, as a multiple of their fair share; 0 hides them"
    )
    young_days: float = Field(
        90.0,
        ge=0,
        description="days after its launch, where known, in which a bundle that nobody took counts as new",
    )
    companion_weight: float = Field(5.0, ge=0, description="weight of the bundles that go together")
    companion_size: int = Field(64, ge=1, description="width of the companions' vectors")
    companion_ridge: float = Field(100.0, gt=0, description="ridge of the companions' regression")
    companion_content: float = Field(
        20.0, ge=0, description="how many joint interactions alike items are worth in it"
    )
    companion_limit: int = Field(
        12_000, ge=2, description="most popular bundles among which companions are sought"
    )
    own_item_weight: float = Field(
        0.4, ge=0, description="weight of the user's own items beside the items of the user's bundles"
    )
    overlap_weight: float = Field(0.6, ge=0, description="weight of the overlap for bundles with history")
    new_overlap_weight: float = Field(3.0, gt=0, description="weight of the overlap for new bundles")
    choose: Literal["fixed", "validation"] = Field(
        "validation",
        description="take welcome and the weights as they are, or let validation choose them at the end",
    )


# What validation may choose, one setting after the other.
CHOICES: dict[str, tuple[float, ...]] = {
    "welcome": (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 100.0),
    "overlap_weight": (0.0, 0.3, 0.6, 1.0),
    "companion_weight": (0.0, 2.5, 5.0, 10.0),
    "new_overlap_weight": (2.0, 3.0, 4.0),
}


class Ember(CrossCBR):
    """See the module's text. Parameters are CrossCBR's; companions and profiles follow from the data."""

    Config = EmberConfig
    places_cold_bundles = True
    # Chosen by validation, a setting would depend on held-out interactions, as it is meant to.
    contract_settings: ClassVar[Mapping[str, Any]] = {"choose": "fixed"}
    contract_exceptions: ClassVar[Mapping[str, str]] = {}
    knobs: Tensor
    taken: Tensor
    wanted: Tensor
    is_new: Tensor

    def __init__(self, data: BundleData, config: EmberConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.register_buffer("knobs", torch.tensor([getattr(config, name) for name in CHOICES]))
        # Part of the state, because a saved model does not keep the launch times.
        self.register_buffer("is_new", torch.from_numpy(data.new_bundles(config.young_days)))
        # Filled before the first epoch; part of the state, so that a saved model need not solve them again.
        self.register_buffer("taken", torch.zeros(data.n_bundles, config.companion_size))
        self.register_buffer("wanted", torch.zeros(data.n_bundles, config.companion_size))

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        if not self.wanted.any():
            config, rng = self.config, self.rng.generator("companions")
            found = companions(
                self.data,
                config.companion_size,
                config.companion_ridge,
                config.companion_content,
                config.companion_limit,
                rng,
            )
            self.taken.copy_(torch.from_numpy(found.taken))
            self.wanted.copy_(torch.from_numpy(found.wanted))

    def knob(self, name: str) -> float:
        """The present value of a setting that validation may have chosen."""
        return float(self.knobs[list(CHOICES).index(name)])

    def facts(self) -> dict[str, float]:
        return {"welcome": self.knob("welcome")}

    def finish(self, validate: Callable[[], Metrics]) -> Metrics | None:
        """Let validation choose, one setting after the other, where asked to; the new metrics."""
        best = validate()
        if self.config.choose == "fixed" or not best:
            return None
        for at, values in enumerate(CHOICES.values()):
            kept = self.knobs[at].clone()
            for value in values:
                self.knobs[at] = value
                found = validate()
                if sum(found.values()) > sum(best.values()):
                    best, kept = found, self.knobs[at].clone()
            self.knobs[at] = kept
        return best

    @cached_property
    def overlap(self) -> Overlap:
        """What a user's items and a bundle's have in common, compared with its mean over training
        interactions, each without what the bundle itself brought."""
        data, rare = self.data, rarity(self.data.bundle_item)
        sizes = np.maximum(np.diff(data.bundle_item.indptr), 1)
        said, own = sparse.diags_array(sizes**-0.5) @ data.bundle_item, self.config.own_item_weight
        total = 0.0
        for start in range(0, data.n_users, USERS_AT_ONCE):
            users = slice(start, start + USERS_AT_ONCE)
            taken = data.user_bundle[users]
            profiles = (taken @ said + own * data.user_item[users]) @ sparse.diags_array(rare)
            total += float(profiles.multiply(taken @ data.bundle_item).sum())
        itself = (data.bundle_item @ rare) / np.sqrt(sizes)
        total -= float(itself @ data.popularity)
        scale = max(total / max(data.user_bundle.nnz, 1), 1e-3)
        curve = Curve.constant(1.0)
        return Overlap("overlap", "log", curve, own, taken_exponent=0.5, scale=scale, item_weights=rare)

    @torch.no_grad()
    def served(self) -> Served:
        ones = Curve.constant(1.0)
        (history, users, bundles), affiliation = self.served_blocks(ones, ones)
        bundles[self.data.popularity == 0] = 0  # its own vector was never learned from
        together = Block(
            "companions", "history", self.wanted.shape[1], Curve.constant(self.knob("companion_weight"))
        )
        of_users = np.asarray(self.data.user_bundle @ numpy(self.taken), dtype=np.float32)
        weights = Curve.constant(self.knob("overlap_weight"), self.knob("new_overlap_weight"))
        served = Served.create(
            self.relations,
            [(history, users, bundles), affiliation, (together, of_users, numpy(self.wanted))],
            is_new=self.is_new.cpu().numpy(),
            overlaps=(replace(self.overlap, curve=weights),),
        )
        offsets = self._offsets(served)
        knob = Knob(
            self.knob("welcome"), tuple(offsets), tuple(offsets.values()), Curve.constant(0, 1), MEANING
        )
        return replace(served, knobs={"welcome": knob}).turned(welcome=knob.value)

    @cached_property
    def _stand_ins(self) -> tuple[Indices, Indices, FloatArray]:
        """Sampled users, bundles held out as if new, and the users' overlaps without them (n, n_bundles)."""
        data, rng = self.data, self.rng.generator("stand-ins")
        held_out = rng.permutation(self.warm_bundles)[: max(int(HELD_OUT * len(self.warm_bundles)), 1)]
        keep = np.ones(data.n_bundles)
        keep[held_out] = 0
        without = sparse.csr_array(data.user_bundle @ sparse.diags_array(keep))
        without.eliminate_zeros()
        users = rng.permutation(np.flatnonzero(np.diff(data.user_bundle.indptr)))[:SAMPLE]
        relations = replace(self.relations, user_bundle=Csr(without.indptr, without.indices, data.n_bundles))
        found = Served.create(relations, overlaps=(self.overlap,)).scores(users)
        return users, np.sort(held_out), found

    def _offsets(self, served: Served) -> dict[float, float]:
        """For values of `welcome`, its own included, the number that gives the stand-ins so many places."""
        sample, held_out, matched = self._stand_ins
        welcomes = sorted({*WELCOMES, self.knob("welcome")})
        if not len(sample):
            return dict.fromkeys(welcomes, 0.0)
        people, bundles = served.users[sample], served.bundles
        scores = bundles.weighed.product(people) + self.knob("overlap_weight") * matched
        scores[self.data.user_bundle[sample].nonzero()] = -np.inf
        known = np.setdiff1d(self.warm_bundles, held_out)
        items = served.columns_about("items")
        newcomers = people[:, items] @ bundles.weighed.take(held_out)[:, items].T
        newcomers += self.knob("new_overlap_weight") * matched[:, held_out]
        fair = float(self.data.popularity[held_out].sum() / self.data.popularity.sum())
        best = _best(scores[:, known]), _best(newcomers)
        return {welcome: offset_for_share(*best, min(welcome * fair, 1.0)) for welcome in welcomes}


def _best(scores: FloatArray) -> FloatArray:
    """The LIST best of every row, best first; -inf where there are fewer."""
    short = LIST - scores.shape[1]
    if short > 0:
        scores = np.pad(scores, ((0, 0), (0, short)), constant_values=-np.inf)
    best: FloatArray = -np.sort(np.partition(-scores, LIST - 1, axis=1)[:, :LIST], axis=1)
    return best


def offset_for_share(known: FloatArray, new: FloatArray, share: float) -> float:
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
