"""The last step of every reader: pairs of positions become relations, and are checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from coheat.attributes import Attributes
from coheat.data.dataset import BundleData, Indices, Moments, Shown, Sparse, first_of_runs, pairs, relation
from coheat.data.facts import SplitFacts
from coheat.data.joins import Side, report_join
from coheat.data.problems import Problems, ShowRows, counted, listed, places
from coheat.data.split import PARTS, Split
from coheat.ids import Vocabulary


@dataclass(frozen=True)
class PairRows:
    """The pairs of one file as positions, row by row as they stand there."""

    source: str
    rows: Indices
    columns: Indices
    show_rows: ShowRows
    timestamps: Indices | None = None

    def keep(self, good: npt.NDArray[np.bool_]) -> PairRows:
        """The pairs marked `good`, which still know where they stand in the file."""
        kept = np.flatnonzero(good)
        timestamps = None if self.timestamps is None else self.timestamps[kept]
        show = self.show_rows
        return PairRows(
            self.source, self.rows[kept], self.columns[kept], lambda rows: show(kept[rows]), timestamps
        )


@dataclass(frozen=True)
class Interactions:
    """Distinct pairs in CSR order, with the earliest timestamp of each where known."""

    matrix: Sparse
    timestamps: Indices | None


@dataclass(frozen=True)
class Evidence:
    """What else is known: since and until when each bundle is on offer, who was shown them, and the further
    columns of bundles and items."""

    launched: Moments | None = None
    ends: Moments | None = None
    shown: PairRows | None = None
    bundle_attributes: Attributes = field(default_factory=Attributes)
    item_attributes: Attributes = field(default_factory=Attributes)


@dataclass(frozen=True)
class World:
    """Everything read from one place. `parts` holds "all", or "train", "validation" and "test"."""

    users: Vocabulary
    bundles: Vocabulary
    items: Vocabulary
    user_item: Interactions
    bundle_item: Sparse
    parts: Mapping[str, Interactions]
    launched: Moments | None = None
    ends: Moments | None = None
    shown: Shown | None = None
    bundle_attributes: Attributes = field(default_factory=Attributes)
    item_attributes: Attributes = field(default_factory=Attributes)
    user_item_source: str = "user_item"

    def data(self) -> BundleData:
        """All interactions, those of every part together."""
        return self._with(_union(list(self.parts.values())))

    def split(self, facts: SplitFacts) -> Split:
        train, validation, test = (self.parts[name] for name in PARTS)
        world = replace(self._with(train), as_of=facts.as_of)
        world = world.without_offer_times() if facts.offer_times_hidden else world
        return Split(
            world,
            validation.matrix,
            test.matrix,
            facts.scenario,
            facts.seed,
            facts.times,
            facts.warm_up(self.bundles),
        )

    def _with(self, interactions: Interactions) -> BundleData:
        return BundleData(
            self.users,
            self.bundles,
            self.items,
            interactions.matrix,
            self.user_item.matrix,
            self.bundle_item,
            interactions.timestamps,
            self.launched,
            self.ends,
            self.user_item.timestamps,
            self.shown,
            bundle_attributes=self.bundle_attributes,
            item_attributes=self.item_attributes,
        )


def build_world(
    vocabularies: tuple[Vocabulary, Vocabulary, Vocabulary],
    user_item: PairRows,
    bundle_item: PairRows,
    parts: Mapping[str, PairRows],
    problems: Problems,
    evidence: Evidence | None = None,
) -> World:
    """Relations from pairs; duplicates, shared pairs and lonely users and bundles are told to `problems`."""
    users, bundles, items = vocabularies
    evidence = evidence or Evidence()
    shown = evidence.shown
    world = World(
        users,
        bundles,
        items,
        _distinct(user_item, (len(users), len(items)), problems),
        _distinct(bundle_item, (len(bundles), len(items)), problems).matrix,
        {name: _distinct(part, (len(users), len(bundles)), problems) for name, part in parts.items()},
        evidence.launched,
        evidence.ends,
        None if shown is None else Shown(shown.rows, shown.columns, shown.timestamps),
        evidence.bundle_attributes,
        evidence.item_attributes,
        user_item.source,
    )
    _report_shared(world, parts, problems)
    report_world(world, {name: part.source for name, part in parts.items()}, bundle_item.source, problems)
    return world


def report_world(world: World, sources: Mapping[str, str], bundle_item: str, problems: Problems) -> None:
    """What relations tell on each other; `sources` names the table of every part."""
    _report_lonely(world, sources, world.user_item_source, bundle_item, problems)
    _report_times(world, sources, problems)


def _distinct(found: PairRows, shape: tuple[int, int], problems: Problems) -> Interactions:
    """A relation of the distinct pairs; of a repeated pair the earliest timestamp is kept."""
    matrix = relation(found.rows, found.columns, shape)
    if not len(found.rows):
        problems.warning(found.source, "there are no pairs in it")
    timestamps = found.timestamps
    repeated = len(found.rows) - matrix.nnz
    if timestamps is not None or repeated:
        keys = _keys(found, shape)
        order = np.argsort(keys, kind="stable")
        first = first_of_runs(keys[order])
    if timestamps is not None and len(timestamps):
        timestamps = np.minimum.reduceat(timestamps[order], np.flatnonzero(first))
    if repeated:
        where, row = places("row", np.sort(order[~first]), found.show_rows)
        problems.warning(
            found.source,
            f"{counted(repeated, 'repeated pair')} dropped ({where})",
            "each pair counts once; of its timestamps the earliest",
            row=row,
        )
    return Interactions(matrix, timestamps)


def _keys(found: PairRows, shape: tuple[int, int]) -> Indices:
    return found.rows * max(shape[1], 1) + found.columns


def _union(parts: list[Interactions]) -> Interactions:
    """All interactions of parts that share none; timestamps only where every part has them."""
    if len(parts) == 1:
        return parts[0]
    listed_pairs = [pairs(part.matrix) for part in parts]
    rows = np.concatenate([rows for rows, _ in listed_pairs])
    columns = np.concatenate([columns for _, columns in listed_pairs])
    matrix = relation(rows, columns, parts[0].matrix.shape)
    known = [part.timestamps for part in parts if part.timestamps is not None]
    if len(known) < len(parts):
        return Interactions(matrix, None)
    return Interactions(matrix, np.concatenate(known)[np.lexsort((columns, rows))])


def _report_shared(world: World, parts: Mapping[str, PairRows], problems: Problems) -> None:
    """A pair in two parts of a split is an error: what is judged must not have been learned."""
    names = list(parts)
    for place, name in enumerate(names):
        for earlier in names[:place]:
            shared = world.parts[earlier].matrix.multiply(world.parts[name].matrix).tocsr()
            if not shared.nnz:
                continue
            users, bundles = pairs(shared)
            found = parts[name]
            keys = _keys(found, shared.shape)
            rows = np.flatnonzero(np.isin(keys, users * shared.shape[1] + bundles))
            where, row = places("row", rows, found.show_rows)
            problems.error(
                found.source,
                f"{counted(len(rows), 'pair')} also in {parts[earlier].source} ({where})",
                "the parts of a split share no pair; delete them from one of the two files",
                row=row,
            )


def _report_lonely(
    world: World, sources: Mapping[str, str], user_item: str, bundle_item: str, problems: Problems
) -> None:
    """Tables that do not join, bundles that nothing is known about, and users that only one table knows."""
    has_bundle = np.zeros(len(world.users), dtype=bool)
    wanted, held, owned = (
        np.zeros(size, dtype=bool) for size in (len(world.bundles), *[len(world.items)] * 2)
    )
    for part in world.parts.values():
        has_bundle |= np.diff(part.matrix.indptr) > 0
        wanted[part.matrix.indices] = True
    has_item = np.diff(world.user_item.matrix.indptr) > 0
    filled = np.diff(world.bundle_item.indptr) > 0
    held[world.bundle_item.indices] = True
    owned[world.user_item.matrix.indices] = True
    interactions = " + ".join(sources.values())
    # Rows with errors are left out, so what is left of a table need not join.
    joins = (
        []
        if problems.of("error")
        else [
            (world.users, Side(user_item, has_item), Side(interactions, has_bundle)),
            (world.items, Side(user_item, owned), Side(bundle_item, held)),
            (world.bundles, Side(bundle_item, filled), Side(interactions, wanted)),
        ]
    )
    apart = [
        vocabulary.kind for vocabulary, one, other in joins if report_join(vocabulary, one, other, problems)
    ]
    if "bundle" not in apart:
        _report_empty(world, np.flatnonzero(wanted & ~filled), bundle_item, problems)
    for lonely, known, unknown in (
        (has_bundle & ~has_item, interactions, user_item),
        (has_item & ~has_bundle, user_item, interactions),
    ):
        count = int(lonely.sum())
        if count:
            problems.note(known, f"{count} of {len(world.users)} users stand here but not in {unknown}")


def _report_empty(world: World, empty: Indices, bundle_item: str, problems: Problems) -> None:
    if len(empty):
        names = listed([repr(world.bundles[int(bundle)]) for bundle in empty])
        problems.warning(
            bundle_item,
            f"{len(empty)} of the bundles that users have hold no item: {names}",
            "a bundle without items can be recommended by its history only, never while it is new",
        )


def _report_times(world: World, sources: Mapping[str, str], problems: Problems) -> None:
    """Interactions at moments at which their bundle was not on offer: possible, but worth knowing."""
    for name, part in world.parts.items():
        if part.timestamps is None:
            continue
        bundles = part.matrix.indices
        for what, early in (
            (
                "before the launch of the bundle",
                world.launched is not None and part.timestamps < world.launched[bundles],
            ),
            ("after its end", world.ends is not None and part.timestamps > world.ends[bundles]),
        ):
            count = int(np.sum(early))
            if count:
                problems.note(sources[name], f"{count} of {part.matrix.nnz} interactions lie {what}")
