"""BundleData: three sparse relations and the ids behind their rows and columns.

The walk through the library starts here. A `BundleData` is immutable and checks itself, so whatever
stands after it (splits, models, evaluation) may rely on its invariants:

- `user_bundle`, `user_item`, `bundle_item` are CSR, 0/1 in float32, with sorted, distinct columns;
- their shapes agree with the three vocabularies;
- ids are distinct, non-empty strings; integers are positions in a vocabulary and never leave the library.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from coheat.attributes import Attributes, Column
from coheat.display import html_facts
from coheat.errors import DataError
from coheat.ids import Vocabulary
from coheat.served.relations import Csr

Sparse: TypeAlias = "sparse.csr_array[np.float32, tuple[int, int]]"
"""A relation, its entries ones, or a matrix of weights."""
Indices: TypeAlias = npt.NDArray[np.int64]
Moments: TypeAlias = npt.NDArray[np.float64]

DAY = 24 * 60 * 60
STRETCH = 1 << 20
"""Pairs that are looked at together, where a relation may be mapped from the disk."""


def relation(rows: npt.ArrayLike, columns: npt.ArrayLike, shape: tuple[int, int]) -> Sparse:
    """A 0/1 CSR relation from pairs; repeated pairs count once, columns are sorted within a row."""
    row_array = np.asarray(rows, dtype=np.int64)
    column_array = np.asarray(columns, dtype=np.int64)
    keys = np.sort(row_array * shape[1] + column_array)
    keys = keys[first_of_runs(keys)]  # many times faster than np.unique, which hashes
    indptr = np.zeros(shape[0] + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys // max(shape[1], 1), minlength=shape[0]), out=indptr[1:])
    return _csr(indptr, keys % max(shape[1], 1), shape)


def first_of_runs(ordered: Indices) -> npt.NDArray[np.bool_]:
    """Which entries of a sorted array differ from the one before."""
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return first


def _csr(indptr: npt.NDArray[Any], indices: npt.NDArray[Any], shape: tuple[int, int]) -> Sparse:
    ones = np.ones(len(indices), dtype=np.float32)
    matrix: Sparse = sparse.csr_array((ones, indices.astype(np.int32), indptr.astype(np.int32)), shape=shape)
    matrix.has_sorted_indices = True
    return matrix


def relation_of(csr: Csr) -> Sparse:
    """A relation of the served form as one of the data's."""
    return _csr(np.array(csr.indptr), np.array(csr.indices), (len(csr), csr.n_columns))


def pairs(matrix: Sparse) -> tuple[Indices, Indices]:
    """Rows and columns of a relation's entries, in CSR order."""
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    return rows, matrix.indices.astype(np.int64)


def freeze(matrix: Sparse) -> None:
    """Make a relation's arrays read-only."""
    for array in (matrix.data, matrix.indices, matrix.indptr):
        array.flags.writeable = False


def check_relation(name: str, matrix: Sparse, shape: tuple[int, int]) -> None:
    """Refuse a matrix that is not a 0/1 CSR relation of this shape with sorted, distinct columns."""
    if not (sparse.issparse(matrix) and matrix.format == "csr"):
        raise DataError(f"{name} must be a scipy CSR array; build it with coheat.data.relation")
    if matrix.shape != shape:
        raise DataError(f"{name} has shape {matrix.shape}, but the ids make it {shape}")
    for first in range(0, matrix.nnz, STRETCH):
        part = slice(first, first + STRETCH)
        if not np.all(matrix.data[part] == 1):
            raise DataError(f"{name} holds values other than 1; a relation only says who has what")
        columns = matrix.indices[first : first + STRETCH + 1]
        rising = columns[1:] > columns[:-1]
        starts = matrix.indptr[slice(*np.searchsorted(matrix.indptr, [first + 1, first + len(columns)]))]
        rising[starts - first - 1] = True  # a row's first column follows another row's last
        if not rising.all():
            raise DataError(f"{name} has repeated or unsorted columns; build it with coheat.data.relation")
        if columns.min() < 0 or columns.max() >= shape[1]:
            raise DataError(f"{name} has columns outside 0..{shape[1] - 1}")


def _canonical(moments: Indices | Moments) -> Indices | Moments:
    """The same moments in one type, with one spelling of NaN and of zero, of which floats have several."""
    if np.issubdtype(moments.dtype, np.integer):
        return moments.astype(np.int64)
    return np.where(np.isnan(moments), np.nan, moments.astype(np.float64)) + 0.0


@dataclass(frozen=True, eq=False)
class Shown:
    """Who was shown which bundle, and when: one entry for each time, so a pair may stand here repeatedly.

    `users`, `bundles` and, where known, `timestamps` (Unix seconds) are all (n,); they are put in order of
    user, bundle and time, so that the same showings are always the same arrays.
    """

    users: Indices
    bundles: Indices
    timestamps: Indices | None = None

    def __post_init__(self) -> None:
        if len(self.users) != len(self.bundles) or len(self.users) != len(
            self.users if self.timestamps is None else self.timestamps
        ):
            raise DataError("showings need as many users as bundles and, where they have any, timestamps")
        times = (
            (self.bundles, self.users)
            if self.timestamps is None
            else (self.timestamps, self.bundles, self.users)
        )
        order = np.lexsort(times)
        for name, values in self.arrays().items():
            ordered = np.asarray(values, dtype=np.int64)[order]
            ordered.flags.writeable = False
            object.__setattr__(self, name, ordered)

    def arrays(self) -> dict[str, Indices]:
        """What is known of the showings, by name."""
        found = {"users": self.users, "bundles": self.bundles}
        return found if self.timestamps is None else {**found, "timestamps": self.timestamps}

    def __len__(self) -> int:
        return len(self.users)

    def keep(self, wanted: npt.NDArray[np.bool_]) -> Shown:
        """The showings marked `wanted` (n,)."""
        return Shown(**{name: values[wanted] for name, values in self.arrays().items()})


@dataclass(frozen=True, eq=False)
class BundleData:
    """Users, bundles, items and the three relations between them, and what is known of times.

    All times are Unix seconds, and each of them may be missing. `timestamps` are those of the user-bundle
    interactions, aligned with the entries of `user_bundle` in CSR order, `item_timestamps` the same for
    `user_item`. `launched` and `ends` say from when and until when each bundle (n_bundles,) is on offer, NaN
    for a bundle of which that is not known. `shown` counts exposure. `as_of` is the moment up to which the
    data tell, where a split made it earlier than the latest moment in them.

    `bundle_attributes` and `item_attributes` are the further columns of the tables of bundles and items. No
    model learns from them. Where a split hides launches and ends from the model, they stand there.
    """

    users: Vocabulary
    bundles: Vocabulary
    items: Vocabulary
    user_bundle: Sparse
    user_item: Sparse
    bundle_item: Sparse
    timestamps: Indices | None = None
    launched: Moments | None = None
    ends: Moments | None = None
    item_timestamps: Indices | None = None
    shown: Shown | None = None
    as_of: float | None = None
    bundle_attributes: Attributes = field(default_factory=Attributes)
    item_attributes: Attributes = field(default_factory=Attributes)

    def __post_init__(self) -> None:
        for name, matrix, rows, columns in (
            ("user_bundle", self.user_bundle, self.users, self.bundles),
            ("user_item", self.user_item, self.users, self.items),
            ("bundle_item", self.bundle_item, self.bundles, self.items),
        ):
            check_relation(name, matrix, (len(rows), len(columns)))
            freeze(matrix)
        for what, moments, pairs_of, matrix in (
            ("timestamps", self.timestamps, "user-bundle interactions", self.user_bundle),
            ("item timestamps", self.item_timestamps, "user-item pairs", self.user_item),
        ):
            if moments is None:
                continue
            if len(moments) != matrix.nnz:
                raise DataError(
                    f"{len(moments)} {what} for {matrix.nnz} {pairs_of}; there must be one for each"
                )
            moments.flags.writeable = False
        for what, times in (("launch times", self.launched), ("end times", self.ends)):
            if times is None:
                continue
            if len(times) != len(self.bundles):
                raise DataError(
                    f"{len(times)} {what} for {len(self.bundles)} bundles; there must be one for each, "
                    "NaN where it is not known"
                )
            times.flags.writeable = False
        if self.shown is not None and len(self.shown):
            for positions, vocabulary in ((self.shown.users, self.users), (self.shown.bundles, self.bundles)):
                if positions.min() < 0 or positions.max() >= len(vocabulary):
                    raise DataError(
                        f"showings of {vocabulary.kind}s that are not among the {vocabulary.kind}s"
                    )

    def __repr__(self) -> str:
        return f"BundleData({', '.join(f'{count:,} {name}' for name, count in self._counts().items())})"

    def _repr_html_(self) -> str:
        return html_facts(self._counts())

    def _counts(self) -> dict[str, int]:
        return {
            "users": self.n_users,
            "bundles": self.n_bundles,
            "items": self.n_items,
            "user-bundle pairs": self.user_bundle.nnz,
            "user-item pairs": self.user_item.nnz,
            "bundle-item pairs": self.bundle_item.nnz,
        }

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_bundles(self) -> int:
        return len(self.bundles)

    @property
    def n_items(self) -> int:
        return len(self.items)

    @cached_property
    def popularity(self) -> Indices:
        """Interactions of each bundle: n_b in the paper."""
        return np.bincount(self.user_bundle.indices, minlength=self.n_bundles).astype(np.int64)

    @cached_property
    def now(self) -> float:
        """The moment the data describe: the latest moment in them; a launch counts only if there is no other.

        NaN if nothing has a time. A launch planned for next month does not make it next month.
        """
        if self.as_of is not None:
            return self.as_of
        shown = None if self.shown is None else self.shown.timestamps
        known = [times for times in (self.timestamps, self.item_timestamps, shown) if times is not None]
        latest = [float(times.max()) for times in known if len(times)]
        if not latest and self.launched is not None:
            latest = [float(moment) for moment in self.launched[~np.isnan(self.launched)]]
        return max(latest, default=np.nan)

    @cached_property
    def first_seen(self) -> Moments:
        """(n_bundles,) when each bundle was first taken or shown, NaN if no such time is known."""
        first = np.full(self.n_bundles, np.inf)
        if self.timestamps is not None:
            np.minimum.at(first, self.user_bundle.indices, self.timestamps)
        if self.shown is not None and self.shown.timestamps is not None:
            np.minimum.at(first, self.shown.bundles, self.shown.timestamps)
        first[np.isinf(first)] = np.nan
        return first

    @cached_property
    def age_days(self) -> Moments:
        """(n_bundles,) for how many days each bundle was on offer: since its launch, else since first seen.

        NaN if neither is known; 0 for a launch after `now`.
        """
        begun = self.first_seen
        if self.launched is not None:
            begun = np.where(np.isnan(self.launched), begun, self.launched)
        return np.maximum(self.now - begun, 0) / DAY

    @cached_property
    def exposure(self) -> Indices | None:
        """(n_bundles,) how often each bundle was shown; None if the data do not say."""
        if self.shown is None:
            return None
        return np.bincount(self.shown.bundles, minlength=self.n_bundles).astype(np.int64)

    def on_offer(self, start: float, stop: float | None = None) -> npt.NDArray[np.bool_]:
        """(n_bundles,) which bundles were on offer at a moment, or at any moment from `start` to `stop`.

        A bundle whose launch or end is not known counts as on offer on that side.
        """
        offered = np.ones(self.n_bundles, dtype=bool)
        if self.launched is not None:
            offered &= ~(self.launched > (start if stop is None else stop))  # NaN is not above anything
        if self.ends is not None:
            offered &= ~(self.ends < start)
        return offered

    def new_bundles(self, young_days: float) -> npt.NDArray[np.bool_]:
        """(n_bundles,) which bundles are new: nobody took them yet, and they are not known to be older.

        A bundle that was on offer for more than `young_days` days before `now` and that nobody took
        is not new but unwanted. Of unknown age, a bundle that nobody took counts as new.
        """
        untaken: npt.NDArray[np.bool_] = self.popularity == 0
        return untaken & ~(self.age_days > young_days)  # NaN is not above anything

    @cached_property
    def bundle_sizes(self) -> Indices:
        sizes: Indices = np.diff(self.bundle_item.indptr).astype(np.int64)
        return sizes

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything in the data: two data sets with the same fingerprint are the same."""
        digest = hashlib.sha256()
        for vocabulary in (self.users, self.bundles, self.items):
            digest.update(f"{vocabulary.kind}:{len(vocabulary)}".encode())
            for name in vocabulary.ids:
                digest.update(name.encode("utf-8", "surrogatepass") + b"\0")
        for matrix in (self.user_bundle, self.user_item, self.bundle_item):
            digest.update(np.ascontiguousarray(matrix.indptr).data)
            digest.update(np.ascontiguousarray(matrix.indices).data)
        # What is not known adds nothing, so that data without times keep the fingerprint they always had.
        shown = {} if self.shown is None else self.shown.arrays()
        for name, moments in {
            "timestamps": self.timestamps,
            "launched": self.launched,
            "ends": self.ends,
            "item_timestamps": self.item_timestamps,
            **{f"shown {name}": values for name, values in shown.items()},
            "as_of": None if self.as_of is None else np.array([self.as_of]),
        }.items():
            if moments is not None:
                digest.update(f"{name}:{len(moments)}".encode() + _canonical(moments).tobytes())
        for ids, attributes in ((self.bundles, self.bundle_attributes), (self.items, self.item_attributes)):
            if attributes:
                digest.update(ids.kind.encode() + attributes.digest(len(ids)))
        return digest.hexdigest()

    @property
    def offer_times(self) -> dict[str, Moments]:
        """From when (`launched`) until when (`ends`) bundles are on offer, as far as that is known."""
        times = {"launched": self.launched, "ends": self.ends}
        return {name: moments for name, moments in times.items() if moments is not None}

    def described_bundles(self) -> Attributes:
        """All columns of bundles, including times."""
        times = {name: Column("time", moments) for name, moments in self.offer_times.items()}
        return self.bundle_attributes.with_columns(times)

    def without_offer_times(self) -> BundleData:
        """The same world, but no model can see from when until when bundles are on offer."""
        return replace(self, launched=None, ends=None, bundle_attributes=self.described_bundles())

    def with_user_bundle(self, user_bundle: Sparse, timestamps: Indices | None = None) -> BundleData:
        """The same world with other interactions: how a split makes its training part."""
        return replace(self, user_bundle=user_bundle, timestamps=timestamps)

    def with_user_item(self, kept: npt.NDArray[np.bool_]) -> BundleData:
        """The same world with only the user-item pairs marked `kept`, in CSR order."""
        users, items = pairs(self.user_item)
        times = None if self.item_timestamps is None else self.item_timestamps[kept]
        return replace(
            self,
            user_item=relation(users[kept], items[kept], self.user_item.shape),
            item_timestamps=times,
        )


def column_kinds(data: BundleData) -> dict[str, dict[str, str]]:
    """The further columns of the tables of bundles and items, and what each is taken for."""
    tables = {"bundles": data.described_bundles(), "items": data.item_attributes}
    return {name: table.kinds() for name, table in tables.items()}
