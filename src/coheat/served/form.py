"""Served: a trained model as a sum of terms, each weighed by how much evidence a bundle has.

    score(u, b) = sum over blocks    curve(e_b) <x_u, y_b>      learned vectors: history, items, companions
                + sum over overlaps  curve(e_b) phi(u, b)       what both have in common, counted exactly
                + bias(e_b) + what the knobs add

e_b is the evidence of b: how often it was taken and how young it is (`curves.py`). Evaluation ranks this
object, an artifact is its arrays, and a `Recommender` is it plus what changed since training. A bundle added
a minute ago has evidence 0 and, in the blocks that know items, the vector of its items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from coheat.errors import ConfigError
from coheat.served.arrays import Array, from_arrays, to_arrays
from coheat.served.blocks import ZERO, Aspect, Block
from coheat.served.bundles import Bundles, Rows
from coheat.served.curves import Curve, Knob
from coheat.served.explain import Breakdown, breakdown
from coheat.served.fold_in import Layers, lookalike
from coheat.served.overlap import Belongings, ItemIndex, Overlap, Shared, in_use
from coheat.served.ranking import Doubles, Floats, Positions, Ration
from coheat.served.relations import Relations
from coheat.storage import release_pages


@dataclass(frozen=True)
class People:
    """Users who are scored together: their rows in training (-1: not in it) and vectors (n, width).

    `since`: what one of them (by place) has beyond what was known in training.
    """

    rows: Positions
    vectors: Floats
    since: Mapping[int, Belongings] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Served:
    """See the module's text. Never changes; `bundles` are those of training, later ones are passed in."""

    users: Floats
    blocks: tuple[Block, ...]
    bundles: Bundles
    relations: Relations
    overlaps: tuple[Overlap, ...] = ()
    bias: Curve = ZERO
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    layers: Layers | None = None
    """How blocks pass vectors on along edges, for a model whose newcomers get theirs that way."""

    refusal: ClassVar[str | None] = None
    """Why this model can neither place, explain nor compare, where that is so."""

    @classmethod
    def create(
        cls,
        relations: Relations,
        blocks: Sequence[tuple[Block, Floats, Floats]] = (),
        *,
        is_new: npt.NDArray[np.bool_] | None = None,
        youth: Floats | None = None,
        **parts: Any,
    ) -> Self:
        """From each block with its users' and bundles' vectors; `parts` are the other fields.

        Without `is_new`, those bundles are new that nobody took; without `youth`, the new ones are young.
        """
        users = [vectors for _, vectors, _ in blocks]
        bundles = [vectors for _, _, vectors in blocks]
        n_users, n_bundles = len(relations.user_bundle), relations.user_bundle.n_columns
        return cls.assemble(
            _side_by_side(users, n_users),
            _side_by_side(bundles, n_bundles),
            relations,
            relations.user_bundle.degrees == 0 if is_new is None else is_new,
            youth,
            blocks=tuple(block for block, _, _ in blocks),
            **parts,
        )

    @classmethod
    def assemble(
        cls,
        users: Floats,
        vectors: Floats,
        relations: Relations,
        is_new: npt.NDArray[np.bool_],
        youth: Floats | None,
        **parts: Any,
    ) -> Self:
        """From matrices whose columns are the blocks', side by side."""
        taken, sizes = relations.user_bundle.degrees, relations.bundle_item.sizes
        young = is_new.astype(np.float32) if youth is None else youth
        rows = Rows.of(vectors)
        empty = np.zeros((0, len(taken)), dtype=np.float32)
        bundles = Bundles(rows, rows, taken, young, is_new, sizes, empty, empty, None)
        served = cls(users=users, bundles=bundles, relations=relations, **parts)
        return served._weighed_anew()

    def _weighed_anew(self) -> Self:
        """With all that follows from the evidence of the bundles of training."""
        bundles = self.bundles
        evidence = bundles.taken, bundles.youth
        index = ItemIndex(self.relations.bundle_item.transposed) if self.overlaps else None
        weighed = Rows.of(self.weighed(bundles.plain.base, *evidence))
        if weighed.base is not bundles.plain.base:
            release_pages(bundles.plain.base)  # lists are made from the weighed ones
        terms, divisors = self._terms(*evidence), self._divisors(bundles.sizes)
        return replace(
            self, bundles=replace(bundles, weighed=weighed, terms=terms, divisors=divisors, index=index)
        )

    # Scores.

    def scores(self, users: Positions) -> Floats:
        """Of all bundles of training for some users of training (len(users), n_bundles)."""
        return self.score(self.people(users), self.bundles)

    def people(self, rows: Positions, since: Mapping[int, Belongings] | None = None) -> People:
        return People(rows, self.users[rows], since or {})

    def score(
        self,
        people: People,
        bundles: Bundles,
        columns: Positions | None = None,
        scratch: Floats | None = None,
    ) -> Floats:
        """Scores of these columns (all where None) for each of the people (n, m), the caller's to write on.

        They may be written to the first rows of `scratch` (at least n, all columns): fresh memory is slow.
        """
        terms, divisors = bundles.terms, bundles.divisors
        if columns is None:
            found = bundles.weighed.product(people.vectors, scratch)
        else:
            found = people.vectors @ bundles.weighed.take(columns).T
            terms, divisors = terms[:, columns], divisors[:, columns]
        if self.has_bias:
            found += terms[0]
        for place, shared in self._shared(people.rows, people.since, bundles):
            at, lines = shared
            if columns is not None:
                at, lines = None, shared.dense(len(bundles))[:, :, columns]
            weights, sizes = (terms, divisors) if at is None else (terms.take(at, 1), divisors.take(at, 1))
            total = found[place] if at is None else found[place, at]
            for overlap, line, weight, size in zip(self.overlaps, lines, weights[1:], sizes, strict=True):
                part = overlap.measure(line, size)
                part *= weight
                total += part
            if at is not None:
                found[place, at] = total
        return found

    def _shared(
        self, rows: Positions, since: Mapping[int, Belongings], bundles: Bundles
    ) -> Iterator[tuple[slice, Shared]]:
        """What a few of the people at a time (by place) share with every bundle (overlaps, people, n)."""
        if bundles.index is None:
            return
        start = 0
        for shared in in_use[0](self.overlaps, self.relations, rows, since, bundles.index, len(bundles)):
            end = start + shared.sums.shape[1]
            yield slice(start, end), shared
            start = end

    def ration(self, bundles: Bundles) -> Ration | None:
        """How much of one list the young among these bundles may fill, where that is limited."""
        share = min((knob.share for knob in self.knobs.values()), default=1.0)
        return Ration(bundles.is_young, share) if share < 1 else None

    def parts(self, users: Positions) -> Floats:
        """The blocks' and overlaps' parts of `scores`, before weighing (parts, len(users), n_bundles)."""
        found = np.empty((len(self.blocks) + len(self.overlaps), len(users), len(self.bundles)), np.float32)
        for part, (_, columns) in zip(found, self.columns, strict=False):
            np.matmul(self.users[users][:, columns], self.bundles.plain.base[:, columns].T, out=part)
        for place, shared in self._shared(users, {}, self.bundles):
            lines = shared.dense(len(self.bundles))
            for number, (overlap, line) in enumerate(zip(self.overlaps, lines, strict=True)):
                found[len(self.blocks) + number, place] = overlap.measure(line, self.bundles.divisors[number])
        return found

    def scores_of_bundle(
        self,
        bundles: Bundles,
        row: int | None,
        items: Positions,
        since: Sequence[tuple[Positions, Positions]] = (),
    ) -> Floats:
        """Of one bundle with these items for all users of training (n_users,); without a row, of one that is
        not there yet. `since`: contents of bundles recorded since training, each with its takers' rows."""
        if row is None:
            bundles = self.added(bundles, [items])
            row = len(bundles) - 1
        found: Floats = self.users @ bundles.weighed.take(np.array([row]))[0]
        found += bundles.terms[0, row]
        for overlap, weight, size in zip(
            self.overlaps, bundles.terms[1:, row], bundles.divisors[:, row], strict=True
        ):
            found += weight * overlap.measure(self._shared_by_all(overlap, items, since), np.array([size]))
        return found

    def _shared_by_all(
        self, overlap: Overlap, items: Positions, since: Sequence[tuple[Positions, Positions]]
    ) -> Doubles:
        """The overlap of every user with these items: by what users have, and by what their bundles say."""
        worth = np.zeros(self.relations.bundle_item.n_columns)
        worth[items] = 1.0 if overlap.item_weights is None else overlap.item_weights[items]
        said = overlap.taken * np.maximum(self.relations.bundle_item.sizes, 1.0) ** -overlap.taken_exponent
        total = overlap.own * self.relations.user_item.sums(worth)
        total += self.relations.user_bundle.sums(said * self.relations.bundle_item.sums(worth))
        for contents, takers in since:
            brought = overlap.worth(contents, np.full(len(contents), len(contents)))
            total[takers] += brought[worth[contents] > 0].sum()
        return total

    # Bundles that come and change.

    @property
    def cannot_place(self) -> str | None:
        """Why bundles that were not in training mean nothing to this model, where that is so."""
        if self.refusal:
            advice = "it cannot place bundles that it was not trained with; train again with them"
            return f"{self.refusal}, so {advice}"
        if self.blocks and not self.overlaps and all(block.items is None for block in self.blocks):
            return "this model has no rule for bundles that it was not trained with; train again with them"
        return None

    def check_places(self) -> None:
        if reason := self.cannot_place:
            raise ConfigError(reason)

    def place(self, items: Sequence[Positions]) -> Floats:
        """Plain vectors (n, width) of bundles known only by their items (none of them empty)."""
        self.check_places()
        plain = np.zeros((len(items), self.users.shape[1]), dtype=np.float32)
        sizes = np.array([len(rows) for rows in items])
        for block, columns in self.columns:
            if block.items is not None:
                found = np.asarray(block.items)[np.concatenate(items)]
                # One sum per bundle: five times as fast as np.add.reduceat over all.
                sums = np.stack([part.sum(axis=0) for part in np.split(found, np.cumsum(sizes)[:-1])])
                plain[:, columns] = block.placed(sums, sizes)
        return plain

    def weighed(self, plain: Floats, taken: Positions, youth: Floats) -> Floats:
        """Bundles' vectors as they score, each block times its weight."""
        if all(np.array_equal(line, [1.0]) for b in self.blocks for line in (b.curve.old, b.curve.young)):
            return plain
        found = np.empty_like(plain, order="F")
        for block, columns in self.columns:
            np.multiply(plain[:, columns], block.curve.at(taken, youth)[:, None], out=found[:, columns])
        return found

    def added(self, bundles: Bundles, items: Sequence[Positions]) -> Bundles:
        """With new bundles after the last row."""
        n = len(bundles) + len(items)
        return self._changed(bundles.resized(n), np.arange(len(bundles), n), self.place(items), items)

    def replaced(self, bundles: Bundles, rows: Positions, items: Sequence[Positions]) -> Bundles:
        """With other items for some bundles; what is known of them by their history stays."""
        plain, placed = bundles.plain.take(rows), self.place(items)
        for block, columns in self.columns:
            if block.items is not None:
                plain[:, columns] = placed[:, columns]
        return self._changed(bundles, rows, plain, items)

    def recorded(
        self, bundles: Bundles, rows: Positions, taken: Positions, takers: Sequence[Positions]
    ) -> Bundles:
        """Further along their curves: so often are these bundles taken now; a new one, by its `takers` (rows
        of training; -1: not in it), also gets a history, where the model passes vectors on."""
        counts = bundles.taken.copy()
        counts[rows] = taken
        plain = bundles.plain.take(rows)
        if self.layers is not None:
            history = self.columns_about("history")
            for place, row in enumerate(rows.tolist()):
                if bundles.is_new[row]:
                    own = self.layers.own(row if row < len(self.bundles) else None)
                    plain[place, history] = own + self.layers.from_takers(takers[place], self.relations)
        return self._changed(replace(bundles, taken=counts), rows, plain, None)

    def _changed(
        self, bundles: Bundles, rows: Positions, plain: Floats, items: Sequence[Positions] | None
    ) -> Bundles:
        """With these vectors, and possibly items, for some rows, and with what follows from them."""
        n, evidence = len(bundles), (bundles.taken[rows], bundles.youth[rows])
        terms, sizes, divisors, index = bundles.terms.copy(), bundles.sizes, bundles.divisors, bundles.index
        terms[:, rows] = self._terms(*evidence)
        if items is not None:
            sizes, divisors = sizes.copy(), divisors.copy()
            sizes[rows] = [len(one) for one in items]
            divisors[:, rows] = self._divisors(sizes[rows])
            index = index and index.with_bundles(rows, items)
        return replace(
            bundles,
            plain=bundles.plain.with_rows(rows, plain, n),
            weighed=bundles.weighed.with_rows(rows, self.weighed(plain, *evidence), n),
            terms=terms,
            sizes=sizes,
            divisors=divisors,
            index=index,
        )

    def bias_at(self, taken: Positions, youth: Floats) -> Floats:
        """What bundles with this evidence get whoever asks: the bias, and what the knobs add."""
        found = self.bias.at(taken, youth)
        for knob in self.knobs.values():
            found = found + knob.curve.at(taken, youth)
        return found

    def _terms(self, taken: Positions, youth: Floats) -> Floats:
        return np.stack(
            [self.bias_at(taken, youth), *(overlap.curve.at(taken, youth) for overlap in self.overlaps)]
        )

    def _divisors(self, sizes: Positions) -> Floats:
        found = [overlap.divisors(sizes) for overlap in self.overlaps]
        return np.stack(found) if found else np.zeros((0, len(sizes)), dtype=np.float32)

    # People who come.

    def fold_in(self, items: Positions, bundles: Positions) -> Floats | None:
        """The vector (width,) of somebody who was not in training and has these items and bundles (-1: not of
        training); None where this model has no rule for newcomers, or what is given says nothing."""
        if self.layers is not None:
            vector = self._passed_on(self.layers, items, bundles)
            return vector if vector.any() else None
        if not self.overlaps:
            return None
        return lookalike(self.users, self.relations, items, bundles[bundles >= 0])

    @property
    def uses_more(self) -> bool:
        """Whether items and bundles that somebody has besides those of training change the scores."""
        return self.layers is not None or bool(self.overlaps)

    def with_more(self, row: int, items: Positions, bundles: Positions) -> Floats:
        """The vector (width,) of a user of training who has these items and bundles (-1: not of training)
        besides: what all of it passes on takes the place of what that of training did. Where vectors are not
        passed on, it stays as it was; overlaps count what is new."""
        vector: Floats = self.users[row]
        if self.layers is None or not (len(items) or len(bundles)):
            return vector
        had = self.relations.user_item.row(row), self.relations.user_bundle.row(row)
        now = np.concatenate([had[0], items]), np.concatenate([had[1], bundles])
        return vector + self._passed_on(self.layers, *now) - self._passed_on(self.layers, *had)

    def _passed_on(self, layers: Layers, items: Positions, bundles: Positions) -> Floats:
        given = layers.from_bundles(bundles, self.relations), layers.from_items(items, self.relations)
        return np.concatenate([part.sum(axis=0) for part in given])

    # Explanations.

    def explain(
        self,
        vector: Floats,
        items: Positions,
        taken: Sequence[tuple[int, Positions]],
        bundles: Bundles,
        row: int,
        contents: Positions,
    ) -> Breakdown:
        """Why a bundle with these `contents` has its score for somebody with this vector, these items and
        bundles `taken` (each by its row, -1 where it says nothing of the vector, and its contents)."""
        if self.refusal:
            raise ConfigError(f"{self.refusal}, so its scores cannot be taken apart")
        return breakdown(self, vector, items, taken, bundles, row, contents)

    # Knobs, and the form on the disk.

    def turned(self, **values: float) -> Self:
        """The same model with some of its knobs turned."""
        for name in values:
            if name not in self.knobs:
                known = (
                    f"it has {', '.join(self.knobs)}" if self.knobs else "train one that has, such as ember"
                )
                raise ConfigError(f"this model has no knob {name!r}; {known}")
        turned = {name: self.knobs[name].turned(name, value) for name, value in values.items()}
        return replace(self, knobs={**self.knobs, **turned})._weighed_anew() if turned else self

    def turned_bundles(self, bundles: Bundles) -> Bundles:
        """Bundles of the same model whose knobs stood otherwise: knobs add to scores and change no weight."""
        return replace(bundles, terms=self._terms(bundles.taken, bundles.youth))

    def arrays(self) -> dict[str, Array]:
        """All of it as named arrays, for the disk."""
        return to_arrays(self)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        return cls.assemble(**from_arrays(arrays))

    @cached_property
    def columns(self) -> list[tuple[Block, slice]]:
        """Each block with its columns."""
        ends = np.cumsum([0, *(block.width for block in self.blocks)]).tolist()
        return [(block, slice(*ends_of)) for block, ends_of in zip(self.blocks, pairwise(ends), strict=True)]

    def columns_about(self, about: Aspect) -> slice:
        return next(columns for block, columns in self.columns if block.about == about)

    def likeness(self, bundles: Bundles, row: int | None, items: Positions) -> Floats:
        """The cosine of each bundle with one (by its row, or by the items it would have): of the vectors that
        bundles have from their items; else of those that score; else of the sets of items."""
        if self.refusal or not (self.blocks or self.overlaps):
            reason = self.refusal or "this model has no vectors"
            raise ConfigError(f"{reason}, so there is nothing to compare bundles by")
        if not self.blocks and bundles.index is not None:
            shared = bundles.index.shared(items, np.ones((1, len(items))), len(bundles)).dense(len(bundles))[
                0
            ]
            return np.asarray(shared / np.sqrt(np.maximum(bundles.sizes, 1.0) * len(items)), np.float32)
        by_items = (columns for block, columns in self.columns if block.items is not None)
        part = next(by_items, slice(0, self.users.shape[1]))
        plain = self.place([items])[0] if row is None else bundles.plain.take(np.array([row]))[0]
        wanted = np.zeros_like(plain)
        wanted[part] = plain[part]
        lengths = bundles.plain.lengths(part) * np.linalg.norm(wanted)
        cosines: Floats = bundles.plain.product(wanted[None])[0] / np.where(lengths > 0, lengths, 1)
        return cosines

    @cached_property
    def has_bias(self) -> bool:
        return not self.bias.is_zero or bool(self.knobs)

    def history_weight(self, taken: float, youth: float) -> float | None:
        """The share of the history blocks in the weights of all, where it depends on evidence; else None."""
        if self.overlaps or len({block.about for block in self.blocks}) < 2:
            return None
        at = np.array([taken]), np.array([youth], dtype=np.float32)
        weights = [(block.about, float(block.curve.at(*at)[0])) for block in self.blocks]
        total = sum(weight for _, weight in weights)
        return sum(weight for about, weight in weights if about == "history") / total if total else 0.0


def _side_by_side(vectors: Sequence[Floats], n: int) -> Floats:
    if not vectors:
        return np.zeros((n, 0), dtype=np.float32)
    return np.ascontiguousarray(np.concatenate(vectors, axis=1), dtype=np.float32)
