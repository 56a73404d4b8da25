"""The last step of every reader: pairs of positions become relations, and are checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coheat.data.dataset import BundleData, Indices, Moments, Sparse, first_of_runs, pairs, relation
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
    """Distinct user-bundle pairs in CSR order, with the earliest timestamp of each where known."""

    matrix: Sparse
    timestamps: Indices | None


@dataclass(frozen=True)
class World:
    """Everything read from one place. `parts` holds "all", or "train", "validation" and "test"."""

    users: Vocabulary
    bundles: Vocabulary
    items: Vocabulary
    user_item: Sparse
    bundle_item: Sparse
    parts: Mapping[str, Interactions]
    launched: Moments | None = None

    def data(self) -> BundleData:
        """All interactions, those of every part together."""
        return self._with(_union(list(self.parts.values())))

    def split(self, scenario: str, seed: int | None) -> Split:
        train, validation, test = (self.parts[name] for name in PARTS)
        return Split(self._with(train), validation.matrix, test.matrix, scenario, seed)

    def _with(self, interactions: Interactions) -> BundleData:
        return BundleData(
            self.users,
            self.bundles,
            self.items,
            interactions.matrix,
            self.user_item,
            self.bundle_item,
            interactions.timestamps,
            self.launched,
        )


def build_world(
    vocabularies: tuple[Vocabulary, Vocabulary, Vocabulary],
    user_item: PairRows,
    bundle_item: PairRows,
    parts: Mapping[str, PairRows],
    problems: Problems,
    launched: Moments | None = None,
) -> World:
    """Relations from pairs; duplicates, shared pairs and lonely users and bundles are told to `problems`."""
    users, bundles, items = vocabularies
    world = World(
        users,
        bundles,
        items,
        _distinct(user_item, (len(users), len(items)), problems).matrix,
        _distinct(bundle_item, (len(bundles), len(items)), problems).matrix,
        {name: _distinct(part, (len(users), len(bundles)), problems) for name, part in parts.items()},
        launched,
    )
    _report_shared(world, parts, problems)
    _report_lonely(world, parts, user_item.source, bundle_item.source, problems)
    return world


def _distinct(found: PairRows, shape: tuple[int, int], problems: Problems) -> Interactions:
    """A relation of the distinct pairs; of a repeated pair the earliest timestamp is kept."""
    matrix = relation(found.rows, found.columns, shape)
    if not len(found.rows):
        problems.warning(found.source, "there are no pairs in it")
    timestamps = found.timestamps
    if timestamps is not None:
        order = np.lexsort((timestamps, found.columns, found.rows))
        timestamps = timestamps[order][first_of_runs(_keys(found, shape)[order])]
    repeated = len(found.rows) - matrix.nnz
    if repeated:
        keys = _keys(found, shape)
        order = np.argsort(keys, kind="stable")
        again = np.sort(order[~first_of_runs(keys[order])])
        where, row = places("row", again, found.show_rows)
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
    world: World, parts: Mapping[str, PairRows], user_item: str, bundle_item: str, problems: Problems
) -> None:
    """Bundles that nothing is known about, and users that only one table knows."""
    has_bundle = np.zeros(len(world.users), dtype=bool)
    wanted = np.zeros(len(world.bundles), dtype=bool)
    for part in world.parts.values():
        has_bundle |= np.diff(part.matrix.indptr) > 0
        wanted[part.matrix.indices] = True
    empty = np.flatnonzero((np.diff(world.bundle_item.indptr) == 0) & wanted)
    if len(empty):
        names = listed([repr(world.bundles[int(bundle)]) for bundle in empty])
        problems.warning(
            bundle_item,
            f"{len(empty)} of the bundles that users have hold no item: {names}",
            "a bundle without items can be recommended by its history only, never while it is new",
        )
    has_item = np.diff(world.user_item.indptr) > 0
    interactions = " + ".join(part.source for part in parts.values())
    for lonely, known, unknown in (
        (has_bundle & ~has_item, interactions, user_item),
        (has_item & ~has_bundle, user_item, interactions),
    ):
        count = int(lonely.sum())
        if count:
            problems.note(known, f"{count} of {len(world.users)} users stand here but not in {unknown}")
