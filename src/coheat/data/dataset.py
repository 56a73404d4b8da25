"""BundleData: three sparse relations and the ids behind their rows and columns.

The walk through the library starts here. A `BundleData` is immutable and checks itself, so whatever
stands after it (splits, models, evaluation) may rely on its invariants:

- `user_bundle`, `user_item`, `bundle_item` are CSR, 0/1 in float32, with sorted, distinct columns;
- their shapes agree with the three vocabularies;
- ids are distinct, non-empty strings; integers are positions in a vocabulary and never leave the library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from coheat.errors import DataError, UnknownIdError

Sparse: TypeAlias = Any  # a scipy.sparse.csr_array of float32 ones; scipy ships no types
Indices: TypeAlias = npt.NDArray[np.int64]
Moments: TypeAlias = npt.NDArray[np.float64]

DAY = 24 * 60 * 60


class Vocabulary:
    """Distinct string ids in a fixed order; position in it is the internal integer."""

    def __init__(self, ids: Iterable[str], kind: str):
        self.ids: tuple[str, ...] = tuple(ids)
        self.kind = kind
        if "" in self.index:
            raise DataError(f"a {kind} id is empty; every id must be a non-empty text")
        if len(self.index) != len(self.ids):
            seen: set[str] = set()
            twice = next(i for i in self.ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise DataError(f"the {kind} id {twice!r} stands twice in the vocabulary")

    @cached_property
    def index(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.ids)}

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, position: int) -> str:
        return self.ids[position]

    def __contains__(self, name: object) -> bool:
        return name in self.index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.ids == other.ids

    def __hash__(self) -> int:
        return hash(self.ids)

    def position(self, name: str) -> int:
        """The internal integer of an id; an unknown one is an error that names it."""
        try:
            return self.index[name]
        except KeyError:
            raise UnknownIdError(f"unknown {self.kind} id {name!r}") from None

    def positions(self, names: Sequence[str]) -> Indices:
        return np.fromiter((self.position(name) for name in names), dtype=np.int64, count=len(names))


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
    matrix = sparse.csr_array((ones, indices.astype(np.int32), indptr.astype(np.int32)), shape=shape)
    matrix.has_sorted_indices = True
    return matrix


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
    if matrix.nnz and not np.all(matrix.data == 1):
        raise DataError(f"{name} holds values other than 1; a relation only says who has what")
    gaps = np.diff(matrix.indices.astype(np.int64))
    starts = matrix.indptr[1:-1]
    inside = np.ones(len(gaps), dtype=bool)
    inside[starts[(starts > 0) & (starts < matrix.nnz)] - 1] = False
    if matrix.nnz and not np.all(gaps[inside] > 0):
        raise DataError(f"{name} has repeated or unsorted columns; build it with coheat.data.relation")


def _one_nan(moments: Moments) -> Moments:
    """The same moments with one spelling of NaN and of zero, of which floating point has several."""
    return np.where(np.isnan(moments), np.nan, moments.astype(np.float64)) + 0.0


@dataclass(frozen=True, eq=False)
class BundleData:
    """Users, bundles, items and the three relations between them.

    `timestamps`, where known, are Unix seconds of the user-bundle interactions, aligned with the
    entries of `user_bundle` in CSR order; `launched`, where known, those at which each bundle (n_bundles,)
    was first on offer, NaN for a bundle of which that is not known.
    """

    users: Vocabulary
    bundles: Vocabulary
    items: Vocabulary
    user_bundle: Sparse
    user_item: Sparse
    bundle_item: Sparse
    timestamps: Indices | None = None
    launched: Moments | None = None

    def __post_init__(self) -> None:
        for name, matrix, rows, columns in (
            ("user_bundle", self.user_bundle, self.users, self.bundles),
            ("user_item", self.user_item, self.users, self.items),
            ("bundle_item", self.bundle_item, self.bundles, self.items),
        ):
            check_relation(name, matrix, (len(rows), len(columns)))
            freeze(matrix)
        if self.timestamps is not None:
            if len(self.timestamps) != self.user_bundle.nnz:
                raise DataError(
                    f"{len(self.timestamps)} timestamps for {self.user_bundle.nnz} user-bundle interactions; "
                    "there must be one for each"
                )
            self.timestamps.flags.writeable = False
        if self.launched is not None:
            if len(self.launched) != len(self.bundles):
                raise DataError(
                    f"{len(self.launched)} launch times for {len(self.bundles)} bundles; there must be one "
                    "for each, NaN where it is not known"
                )
            self.launched.flags.writeable = False

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

    @property
    def last_moment(self) -> float:
        """The latest moment that the data tell of: of an interaction or, without any, of a launch."""
        if self.timestamps is not None and len(self.timestamps):
            return float(self.timestamps.max())
        if self.launched is not None and not np.isnan(self.launched).all():
            return float(np.nanmax(self.launched))
        return np.nan

    def new_bundles(self, young_days: float) -> npt.NDArray[np.bool_]:
        """(n_bundles,) which bundles are new: nobody took them yet, and they are not known to be older.

        A bundle that was on offer for more than `young_days` days before `last_moment` and that nobody took
        is not new but unwanted. Without a launch time a bundle that nobody took counts as new.
        """
        untaken: npt.NDArray[np.bool_] = self.popularity == 0
        if self.launched is None:
            return untaken
        age = self.last_moment - self.launched
        return untaken & ~(age > young_days * DAY)  # NaN is not above anything

    @cached_property
    def bundle_sizes(self) -> Indices:
        sizes: Indices = np.diff(self.bundle_item.indptr).astype(np.int64)
        return sizes

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything the data hold: two data sets with the same fingerprint are the same."""
        digest = hashlib.sha256()
        for vocabulary in (self.users, self.bundles, self.items):
            digest.update(f"{vocabulary.kind}:{len(vocabulary)}".encode())
            for name in vocabulary.ids:
                digest.update(name.encode("utf-8", "surrogatepass") + b"\0")
        for matrix in (self.user_bundle, self.user_item, self.bundle_item):
            digest.update(matrix.indptr.tobytes() + matrix.indices.tobytes())
        # What is not known adds nothing, so that data without times keep the fingerprint they always had.
        if self.timestamps is not None:
            digest.update(b"timestamps" + self.timestamps.astype(np.int64).tobytes())
        if self.launched is not None:
            digest.update(b"launched" + _one_nan(self.launched).tobytes())
        return digest.hexdigest()

    def with_user_bundle(self, user_bundle: Sparse, timestamps: Indices | None = None) -> BundleData:
        """The same world with other interactions: how a split makes its training part."""
        return replace(self, user_bundle=user_bundle, timestamps=timestamps)
