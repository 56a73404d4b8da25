"""Ember: one model for bundles with history and for bundles that nobody has taken yet.

CoHeat's idea, views of history and of items weighed by how much evidence a bundle has, with other parts and
with weights that the shop's own data set:

    y_ub = w_h <h_u, h_b> + w_a <a_u, a_b>                 two views, learned as in CrossCBR
         + w_c <c_u, c_b>                                  bundles that go together (`companions`)
         + w_p p_b                                         how popular b may become (`prospects`)
         + sum over overlaps j of v_j k_j(o_j / s_j)       what the items of both have in common, exactly
         + bias

Every weight is a curve over the evidence of b: how often it was taken and how young it is
(`coheat.served`). There are four overlaps, of which the data choose: own items and items of the user's
bundles, rare ones counting more; own items by number; items of the user's bundles by number; and whether
(nearly) all of the bundle is owned, (own items / |b|)^4, which says most where bundles are small.

**Weights** are learned out of fold from the training part alone (`stand_ins`, `curves`). Some bundles stand
in for young ones with no or few takers, some interactions are held out, the same model is trained on the
rest for a few epochs (`rehearsal`), and the curves are those that would have found what was held out. They
start from, and with few data stay at, hand-set ones: history counts more the more is known, items less. Only
how much it says by itself that many took an established bundle is learned from few data too.

**Youth.** Where the data tell since when a bundle is on offer, its youth is 1 / (1 + (age / young_days)^2): 1
at its launch, one half at `young_days`. Where they tell how often it was shown, the same with showings in the
place of days, and with as many as `FADE` takers take on average in the place of `young_days`; the smaller of
the two counts. Without either nobody can tell young from unwanted one by one, only in numbers: if a third of
the history were missing, chance would leave so many of the taken bundles untaken. As far as there are more
untaken ones than that, they count as young (`share_by_chance`). One that was taken n times has 2^-n of that.

**The knob** is `welcome` (`contest.py`): how many places in the lists new bundles get, as a multiple of their
fair share. 0 hides new bundles, 1 treats them as the known, more favours them; its effect fades with
evidence. However well they suit a user, one list holds at most `welcome` times the share that young bundles
have of the catalogue, or `welcome` times a twelfth where they are few. Where nobody asks for another, it is 4
where few of the bundles on offer are young, and the closer to 1 the more there are.
Negatives are drawn among bundles with history only, so that a new one is not trained downwards before it had
a chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from coheat.data.dataset import BundleData, Indices, Sparse
from coheat.graph.overlap import FloatArray, rarity, shared_with_taken
from coheat.models.base import Model, Progress, Validation, numpy
from coheat.models.companions import companions
from coheat.models.contest import LOW, Contest, trusted
from coheat.models.crosscbr import CrossCBR, CrossCBRConfig
from coheat.models.curves import COUNTS, Choices, Numbers, by_knot, candidates, learn
from coheat.models.prospects import Prospects, prospects
from coheat.models.rehearsed import Rehearsed, left_by
from coheat.models.stand_ins import StandIns, divide
from coheat.rng import Randomness
from coheat.served import Block, Csr, Curve, Knob, Overlap, Relations, Served
from coheat.served.ranking import ahead

WELCOMES = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0)
"""Values of the knob that a trained model can be served with; others are interpolated."""
MEANING = "0 hides new bundles, 1 gives them their fair share of places, 2 twice that"
KNOTS = np.array(COUNTS)
OWN = 0.4
"""What an own item says in the overlap, beside 1 / sqrt(size) from each of the user's bundles with it."""
LEARNERS, JUDGES, AT_ONCE = 2000, 600, 64
"""Users from whose choices curves are learned, in whose lists places are counted, and scored at a time."""
SCORES_AT_ONCE = 1 << 21
"""Numbers of one part of a score that are held together: among many bundles fewer users at a time."""
HEAD = 100
"""Candidates that stand to choice for a user among the established bundles, and as many among the young."""
FEW = 1 / 12
"""What young bundles count as in the shares of lists where they are a smaller part of the catalogue."""
FAVOUR = 4.0
"""`welcome` where young bundles are few and nothing else was asked for."""
PROSPECTS = 0.5
"""Weight of a young bundle's prospects before it is learned. Were all users alike, it would be 1; but what
makes a bundle popular partly shows in the other parts too."""
FADE = 8.0
"""Takers at which half of what youth changes by hand is gone."""
FADING = (1 + KNOTS / FADE) ** -0.5 * np.interp(KNOTS, [16, 64], [1, 0])
"""How much of what holds for a new bundle holds for one with so many takers, where nothing was measured."""

Metrics = dict[str, float]


class EmberConfig(CrossCBRConfig):
    """Settings of Ember. Those of the learned views are CrossCBR's, with more contrast and decay."""

    contrast_weight: float = Field(
        0.15, ge=0, description="weight of the contrast between the views (lambda_1)"
    )
    weight_decay: float = Field(4e-4, ge=0, description="L2 weight (lambda_2)")

    negatives: Literal["all", "warm"] = Field(
        "warm", description="draw negatives from all bundles, or from those with training interactions"
    )
    welcome: float | None = Field(
        None,
        ge=0,
        description="list places of new bundles, as a multiple of their fair share; 0 hides them; by default "
        "from 4, where young bundles are few, down to 1, where all are young",
    )
    young_days: float = Field(
        90.0,
        ge=0,
        description="days on offer, where known, after which half of a bundle's youth is over",
    )
    companion_weight: float = Field(
        5.0, ge=0, description="weight of the bundles that go together, before it is learned"
    )
    companion_size: int = Field(64, ge=1, description="width of the companions' vectors")
    companion_ridge: float = Field(100.0, gt=0, description="ridge of the companions' regression")
    companion_content: float = Field(
        20.0, ge=0, description="how many joint interactions alike items are worth in it"
    )
    companion_limit: int = Field(
        6_000, ge=2, description="most popular bundles among which companions are sought"
    )
    rehearsal_epochs: int = Field(
        20, ge=0, description="epochs on a part of the training data to learn weights from; 0: hand-set ones"
    )
    choose: Literal["fixed", "validation"] = Field(
        "validation", description="take welcome as it is, or let validation choose it at the end"
    )


class Ember(CrossCBR):
    """See the module's text. Parameters are CrossCBR's; companions and profiles follow from the data."""

    Config = EmberConfig
    config: EmberConfig
    places_cold_bundles = True
    # Chosen by validation, a setting would depend on held-out interactions, as it is meant to.
    contract_settings: ClassVar[Mapping[str, Any]] = {"choose": "fixed"}
    contract_exceptions: ClassVar[Mapping[str, str]] = {}
    learned_buffers = ("curves", "lines")
    # Networks tend to generalise worse from a warm start; this is a remedy (docs/lab-notes/warm-start.md).
    warm_part = 0.25
    knobs: Tensor
    taken: Tensor
    wanted: Tensor
    is_new: Tensor
    youth: Tensor
    curves: Tensor
    lines: Tensor
    _rehearsed: Rehearsed | None = None
    """The rehearsal of the model that this one started from."""

    def __init__(self, data: BundleData, config: EmberConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self._left: dict[str, Tensor] = {}
        # Part of the state, because a saved model does not keep the times.
        youth = youth_of(data, config.young_days)
        self.register_buffer("is_new", torch.from_numpy(data.new_bundles(config.young_days)))
        self.register_buffer("youth", torch.from_numpy(youth))
        welcome = usual_welcome(data, youth) if config.welcome is None else config.welcome
        self.register_buffer("knobs", torch.tensor([welcome], dtype=torch.float64))
        # Filled before the first epoch; part of the state, so that a saved model need not solve them again.
        self.register_buffer("taken", torch.zeros(data.n_bundles, config.companion_size))
        self.register_buffer("wanted", torch.zeros(data.n_bundles, config.companion_size))
        # Learned after the last epoch: the curves of all parts and of the bias, and what the knob adds.
        self.register_buffer("curves", torch.from_numpy(_numbers(self._prior())))
        # Until then, and where nothing can be learned, the knob does no more than hide new bundles at 0.
        by_hand = -LOW * FADING * (np.array(WELCOMES) == 0)[:, None]
        self.register_buffer("lines", torch.from_numpy(by_hand))

    def begin_epoch(self, progress: Progress) -> None:
        super().begin_epoch(progress)
        if self.is_served and not numpy(self.wanted).any():
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

    def facts(self) -> dict[str, float]:
        return {"welcome": float(self.knobs[0])}

    def _prior(self) -> dict[str, Curve]:
        """Hand-set curves: all parts where much is known of a bundle, its items where nothing is."""
        young = 1 / (1 + KNOTS / FADE)
        together = self.config.companion_weight
        return {
            "history": by_knot(1.0, 1 - young),
            "affiliation": by_knot(1.0),
            "companions": by_knot(together, together * (1 - young)),
            "prospects": by_knot(0.0, PROSPECTS),
            "overlap": by_knot(0.6, 0.6 + 2.4 * young),
            "own items": by_knot(0.0),
            "items of own bundles": by_knot(0.0),
            "owned share": by_knot(0.0),
            "bias": by_knot(0.0),
        }

    def _curves(self) -> dict[str, Curve]:
        """The curves as they stand, by part."""
        rows, half = self.curves.cpu().numpy(), len(COUNTS)
        found = (Curve.through(COUNTS, row[:half], row[half:]) for row in rows)
        return dict(zip(self._prior(), found, strict=True))

    @cached_property
    def overlaps(self) -> tuple[Overlap, ...]:
        """The overlaps, each before its curve. The first is compared with its mean over training
        interactions, each without what the bundle itself brought."""
        data, rare = self.data, rarity(self.data.bundle_item)
        sizes = np.maximum(np.diff(data.bundle_item.indptr), 1)
        total = shared_with_taken(self.relations, sizes**-0.5, OWN, rare)
        total -= float(((data.bundle_item @ rare) / np.sqrt(sizes)) @ data.popularity)
        scale, one = max(total / max(data.user_bundle.nnz, 1), 1e-3), Curve.constant(1.0)
        return (
            Overlap("overlap", "log", one, OWN, taken_exponent=0.5, scale=scale, item_weights=rare),
            Overlap("own items", "log", one, taken=0.0),
            Overlap("items of own bundles", "log", one, own=0.0),
            Overlap("owned share", "fourth", one, taken=0.0, size_exponent=1.0),
        )

    @cached_property
    def prospects(self) -> Prospects:
        """How popular every bundle is likely to become, and what tells it of a new one."""
        return prospects(self.data, self.youth.cpu().numpy())

    @torch.no_grad()
    def served(self) -> Served:
        found = self._served(self._curves())
        lines = tuple(tuple(line) for line in self.lines.tolist())
        knob = Knob(float(self.knobs[0]), WELCOMES, COUNTS, lines, self._shares(), MEANING)
        return replace(found, knobs={"welcome": knob}).turned(welcome=knob.value)

    def _shares(self) -> tuple[float, ...]:
        """Of one list young bundles fill at most `welcome` times their share of the catalogue; where they are
        few, `welcome` times `FEW`."""
        share = max(float(self.youth.mean()), FEW)
        return tuple(min(welcome * share, 1.0) for welcome in WELCOMES)

    def _served(self, curves: Mapping[str, Curve], relations: Relations | None = None) -> Served:
        """With these curves and no knob; with other relations, overlaps are those of what they say."""
        (history, users, bundles), affiliation = self.served_blocks(curves["history"], curves["affiliation"])
        # The own vector of a bundle that nobody took was never learned from.
        bundles = np.where(self.data.popularity[:, None] > 0, bundles, np.float32(0))
        together = Block("companions", "history", self.wanted.shape[1], curves["companions"])
        of_users = np.asarray(self.data.user_bundle @ numpy(self.taken), dtype=np.float32)
        known = self.prospects
        foretold = Block("prospects", "items", 1, curves["prospects"], known.items, forest=known.forest)
        everybody = np.ones((self.data.n_users, 1), dtype=np.float32)
        expected = foretold, everybody, known.bundles[:, None]
        return Served.create(
            relations or self.relations,
            [(history, users, bundles), affiliation, (together, of_users, numpy(self.wanted)), expected],
            is_new=self.is_new.cpu().numpy(),
            youth=self.youth.cpu().numpy().astype(np.float32),
            overlaps=tuple(replace(overlap, curve=curves[overlap.name]) for overlap in self.overlaps),
            bias=curves["bias"],
        )

    # What is learned after the last epoch.

    @cached_property
    def _stand_ins(self) -> StandIns:
        before = None if self._rehearsed is None else self._rehearsed.before
        return divide(self.data, self.rng.generator("stand-ins"), before=before)

    def take_over(self, learned: Mapping[str, Tensor], rows: Mapping[str, Indices]) -> None:
        self._rehearsed = Rehearsed.found(learned, rows, self.config.embedding_size)

    def handed_on(self) -> dict[str, Tensor]:
        return self._left

    def rehearsal(self) -> tuple[Model, int] | None:
        epochs = self.config.rehearsal_epochs
        if not epochs or not self._stand_ins.held_out.nnz:
            return None
        config = self.config.model_copy(update={"rehearsal_epochs": 0, "choose": "fixed"})
        inner = Ember(self._stand_ins.kept, config, self.rng.child("rehearsal"))
        # What stands in for a young bundle is one, and tells nothing of the prospects of others.
        inner.youth.copy_(torch.from_numpy(np.maximum(self.youth.cpu().numpy(), self._stand_ins.is_stand_in)))
        if self._rehearsed is not None and self._stand_ins.goes_on:
            self._rehearsed.start(inner)
        return inner.to(self.users.device), epochs

    @torch.no_grad()
    def learn_from(self, rehearsal: Model) -> None:
        """The curves that would have found what was held out of the rehearsal, and the knob's lines."""
        assert isinstance(rehearsal, Ember)
        self._left = left_by(rehearsal, self._stand_ins)
        inner, apart = rehearsal._served(self._prior()), self._stand_ins
        young, rng = apart.is_stand_in, self.rng.generator("choices")
        taken = inner.bundles.taken
        youth = np.maximum(self.youth.cpu().numpy(), young)
        excluded = self.data.popularity == 0  # nobody could have taken it
        choices = self._choices(inner, youth, excluded, rng)
        curves = learn(choices, taken, youth, self._prior(), young)
        self.curves.copy_(torch.from_numpy(_numbers(curves)))
        users = rng.permutation(np.flatnonzero(np.diff(apart.kept.user_bundle.indptr)))[:JUDGES]
        if not len(users):
            return
        contest = self._contest(inner, users, curves, youth, apart.kept.user_bundle, excluded, young, taken)
        # The model that is served knows established bundles better than the rehearsal did, so new ones have
        # to be lifted further: by how much shows where bundles stand beside them of which nothing was kept.
        new = young & (taken == 0)
        csr = Csr(apart.kept.user_bundle.indptr, apart.kept.user_bundle.indices, self.data.n_bundles)
        final = self._served(curves, replace(self.relations, user_bundle=csr))
        for block, columns in final.columns:
            if block.about == "history":
                final.bundles.plain.base[new, columns] = 0
        known = np.where(new, 0, self.data.popularity)
        youth = np.where(new, 1.0, self.youth.cpu().numpy())
        later = self._contest(final, users, curves, youth, self.data.user_bundle, excluded, new, known)
        shift = later.offsets(1.0, KNOTS)[0] - contest.offsets(1.0, KNOTS)[0] if new.any() else 0.0
        lines = [contest.offsets(welcome, KNOTS) + shift * FADING for welcome in WELCOMES[1:]]
        self.lines.copy_(torch.from_numpy(np.stack([contest.hidden() * FADING, *lines])))

    def _choices(
        self, inner: Served, youth: Numbers, excluded: npt.NDArray[np.bool_], rng: np.random.Generator
    ) -> Choices:
        """What users of whom something was held out could choose from, and what they took."""
        apart, young = self._stand_ins, self._stand_ins.is_stand_in
        users = rng.permutation(np.flatnonzero(np.diff(apart.held_out.indptr)))[:LEARNERS]
        parts, bundles, marks = [], [], []
        groups = [~young & ~excluded, young & ~excluded]

        def scored(block: Indices) -> tuple[Indices, FloatArray, FloatArray]:
            of_block = inner.parts(block)
            return block, of_block, _sum(of_block, self._prior(), inner.bundles.taken, youth)

        for block, of_block, scores in ahead(partial(scored, block) for block in _blocks(users, len(youth))):
            scores[:, excluded] = -np.inf
            scores[apart.kept.user_bundle[block].nonzero()] = -np.inf
            chosen, real = candidates(scores, groups, HEAD)
            took = np.take_along_axis(apart.held_out[block].toarray() > 0, chosen, axis=1)
            parts.append(np.stack([np.take_along_axis(part, chosen, axis=1) for part in of_block], axis=-1))
            bundles.append(chosen)
            marks.append(np.where(real, took, -1).astype(np.int8))
        return Choices(np.concatenate(parts), np.concatenate(bundles), np.concatenate(marks))

    def _contest(
        self,
        served: Served,
        users: Indices,
        curves: Mapping[str, Curve],
        youth: Numbers,
        seen: Sparse,
        excluded: npt.NDArray[np.bool_],
        young: npt.NDArray[np.bool_],
        taken: Indices,
    ) -> Contest:
        """The best scores of these users, some users at a time."""

        def scored(block: Indices) -> FloatArray:
            scores = _sum(served.parts(block), curves, taken, youth)
            scores[:, excluded] = -np.inf
            rows, columns = seen[block].nonzero()
            kept = ~young[columns] | (taken[columns] > 0)  # what stands in as new was not seen yet
            scores[rows[kept], columns[kept]] = -np.inf
            return scores

        blocks = ahead(partial(scored, block) for block in _blocks(users, len(taken)))
        return Contest.of_blocks(blocks, young, taken, self.data.popularity)

    def finish(self, validate: Validation) -> Metrics | None:
        """Let validation choose the knob, where asked to; the metrics then."""
        if self.config.choose == "fixed" or not validate.possible:
            return None
        served = self.served().turned(welcome=1.0)
        # Values between those that were measured too: another costs one more ranking of the same scores.
        between = [(low + high) / 2 for low, high in pairwise(WELCOMES[:-1])]
        usual, rng = float(self.knobs[0]), self.rng.generator("knob")
        values = sorted({*WELCOMES, *between, usual})
        found, added = validate.turned(served, "welcome", values)
        established = np.array([one.pop("established", 0.0) for one in found])
        place = trusted(np.array(values), added, established, usual, rng)
        self.knobs[0] = values[place]
        return found[place]


def _numbers(curves: Mapping[str, Curve]) -> Numbers:
    """The values of curves at their knots, of the old and then of the young (n, 2 * n_knots)."""
    return np.stack([np.concatenate([one.old, one.young]) for one in curves.values()])


def youth_of(data: BundleData, young_days: float) -> Numbers:
    """(n_bundles,) how young each bundle is, from 1 to 0: see the module's text."""
    found = 1 / (1 + (data.age_days / max(young_days, 1e-9)) ** 2)
    shown = data.exposure
    if shown is not None:
        per_taker = shown.sum() / max(data.user_bundle.nnz, 1)
        found = np.fmin(found, 1 / (1 + (shown / max(FADE * per_taker, 1e-9)) ** 2))
    unknown = (1 - share_by_chance(data.popularity) ** 4) * 2.0 ** -np.minimum(data.popularity, 60)
    return np.where(np.isnan(found), unknown, found)


def usual_welcome(data: BundleData, youth: Numbers) -> float:
    """`FAVOUR` where no bundle on offer is young, 1 where all are: there is nobody to favour them over."""
    offered = youth[data.on_offer(data.now)]
    return round(1 + (FAVOUR - 1) * (1 - float(offered.mean() if len(offered) else youth.mean())), 2)


def share_by_chance(popularity: Indices) -> float:
    """How many of the untaken bundles, from 0 to 1, chance explains: as many of the taken ones would be
    untaken if each interaction had been missed with a probability of one third."""
    untaken = int((popularity == 0).sum())
    by_chance = float((3.0 ** -np.minimum(popularity[popularity > 0], 60)).sum())
    return min(by_chance / untaken, 1.0) if untaken else 1.0


def _sum(parts: FloatArray, curves: Mapping[str, Curve], taken: Indices, youth: Numbers) -> FloatArray:
    """Scores (n, n_bundles) from parts (j, n, n_bundles), weighed by these curves, whose last is the bias."""
    *weights, bias = (one.at(taken, youth) for one in curves.values())
    found = np.broadcast_to(bias, parts.shape[1:]).copy()
    for part, weight in zip(parts, weights, strict=True):
        found += part * weight
    return found


def _blocks(users: Indices, n_bundles: int) -> list[Indices]:
    """Users to be scored together."""
    size = int(np.clip(SCORES_AT_ONCE // max(n_bundles, 1), 1, AT_ONCE))
    return [users[start : start + size] for start in range(0, len(users), size)]
