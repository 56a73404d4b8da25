"""Prepared data: ids as positions, relations as arrays that are mapped from the disk instead of read.

`coheat data prepare` makes such a directory from tables of any size (`preparing.py`); every reader of tables
reads it as it reads them, in a moment and without holding it in memory.

    prepared.json                      sizes, relations, and the bytes of every file
    users|bundles|items.parquet        the ids, in the order of their positions
    NAME.indptr.npy, NAME.indices.npy  a relation by rows, columns sorted: user_item, bundle_item, and
                                       user_bundle or user_bundle_train, _validation and _test
    NAME.timestamps.npy                Unix seconds of its pairs, where they have any
    shown.users|bundles|timestamps.npy who was shown what, where that is known
    about_bundles|about_items.parquet  the table of that name as it was, where there was one
    split.json                         what was told about a split
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from coheat.attributes import Attributes
from coheat.data.dataset import Moments, Shown, Sparse
from coheat.data.describing import read_attributes
from coheat.data.lists import offer_times
from coheat.data.problems import Problems
from coheat.data.sources import Source, read_parquet_table
from coheat.data.world import Interactions, World
from coheat.errors import ArtifactError
from coheat.ids import Vocabulary
from coheat.reading import build, read_object

INDEX = "prepared.json"
FORMAT = 1
KINDS = ("user", "bundle", "item")
AGAIN = "prepare the tables again with --overwrite"


@dataclass(frozen=True)
class Relation:
    """What is said of one relation: the table it came from, its pairs, and whether they have times."""

    source: str
    pairs: int
    dated: bool
    repeated: int = 0


@dataclass(frozen=True)
class Listing:
    """What is said of a table of bundles or items: its name, and whether its columns have types."""

    source: str
    typed: bool


@dataclass(frozen=True)
class Index:
    """prepared.json. `interactions` are the relations by part: "all", or train, validation and test."""

    format: int
    coheat: str
    sizes: dict[str, int]
    interactions: dict[str, Any]
    user_item: Any
    bundle_item: Any
    shown: Any = None
    about: dict[str, Any] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)


def is_prepared(directory: Path) -> bool:
    return (directory / INDEX).is_file()


def stem_of(part: str) -> str:
    """The name of a part's relation."""
    return "user_bundle" if part == "all" else f"user_bundle_{part}"


def read_index(directory: Path, problems: Problems) -> Index | None:
    """The index, and every file of the size that it says; else an error is told."""
    try:
        index = build(Index, read_object(directory / INDEX), INDEX)
        if index.format != FORMAT:
            problems.error(INDEX, f"format {index.format}, this version reads {FORMAT}", AGAIN)
            return None
        for relation in (*index.interactions.values(), index.user_item, index.bundle_item):
            build(Relation, relation, INDEX)
    except ArtifactError as error:
        problems.error(INDEX, str(error).removeprefix(f"{directory / INDEX}: "), AGAIN)
        return None
    for name, size in index.files.items():
        path = directory / name
        found = path.stat().st_size if path.is_file() and Path(name).name == name else None
        if found != size:
            what = "there is no such file" if found is None else f"{found} bytes instead of {size}"
            problems.error(name, what, AGAIN)
    return None if problems.of("error") else index


def read_world(directory: Path, parts: Mapping[str, str], problems: Problems) -> World | None:
    """Everything in a prepared directory; None where errors (told to `problems`) prevent it."""
    index = read_index(directory, problems)
    return None if index is None else world_of(directory, index, list(parts), problems)


def world_of(directory: Path, index: Index, parts: Sequence[str], problems: Problems) -> World | None:
    """The same for an index that is known already."""
    try:
        return _world(directory, index, parts, problems)
    except (ArtifactError, ValueError, OSError) as error:
        problems.error("", f"cannot be read ({str(error)[:200]})", AGAIN)
        return None


def _world(directory: Path, index: Index, parts: Sequence[str], problems: Problems) -> World:
    sizes = index.sizes
    users, bundles, items = (
        Vocabulary.read(directory / f"{kind}s.parquet", kind, sizes[kind]) for kind in KINDS
    )
    pairs = {part: build(Relation, index.interactions[part], INDEX) for part in parts}
    user_item = build(Relation, index.user_item, INDEX)
    times, attributes = _described(directory, index, problems)
    return World(
        users,
        bundles,
        items,
        _interactions(directory, "user_item", (len(users), len(items)), user_item.dated),
        _interactions(directory, "bundle_item", (len(bundles), len(items)), False).matrix,
        {
            part: _interactions(directory, stem_of(part), (len(users), len(bundles)), relation.dated)
            for part, relation in pairs.items()
        },
        _padded(times.get("launched"), len(bundles)),
        _padded(times.get("ends"), len(bundles)),
        None if index.shown is None else _shown(directory, build(Relation, index.shown, INDEX)),
        attributes["bundle"],
        attributes["item"],
        user_item.source,
    )


def mapped(path: Path) -> npt.NDArray[Any]:
    """An array that stays on the disk until it is looked at."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"{path.name} is not an array that we wrote")
        shape, _, _ = np.lib.format.read_array_header_1_0(file)
    # An empty range cannot be mapped.
    found: npt.NDArray[Any] = np.load(path, mmap_mode=None if 0 in shape else "r", allow_pickle=False)
    return np.asarray(found)  # a plain view of what is mapped: quicker to handle


def mapped_relation(indptr: npt.NDArray[Any], indices: npt.NDArray[Any], shape: tuple[int, int]) -> Sparse:
    """A relation over these arrays as they are; its ones are one number, however many pairs there are."""
    ones = np.broadcast_to(np.float32(1), len(indices))
    matrix: Sparse = sparse.csr_array((ones, indices, indptr), shape=shape)
    matrix.has_sorted_indices = True
    return matrix


def _interactions(directory: Path, stem: str, shape: tuple[int, int], dated: bool) -> Interactions:
    indptr, indices = (mapped(directory / f"{stem}.{name}.npy") for name in ("indptr", "indices"))
    if len(indptr) != shape[0] + 1 or indptr[0] != 0 or indptr[-1] != len(indices):
        raise ValueError(f"{stem}.indptr.npy does not fit {stem}.indices.npy")
    times = mapped(directory / f"{stem}.timestamps.npy") if dated else None
    return Interactions(mapped_relation(indptr, indices, shape), times)


def _shown(directory: Path, relation: Relation) -> Shown:
    names = ["users", "bundles", *(["timestamps"] if relation.dated else [])]
    return Shown(*(mapped(directory / f"shown.{name}.npy") for name in names))


def _described(
    directory: Path, index: Index, problems: Problems
) -> tuple[dict[str, Moments], dict[str, Attributes]]:
    """What the tables of bundles and items say of them in further columns."""
    times: dict[str, Moments] = {}
    attributes = {"bundle": Attributes(), "item": Attributes()}
    for kind, said in index.about.items():
        listing = build(Listing, said, INDEX)
        table = read_parquet_table(directory / f"about_{kind}s.parquet", problems)
        if table is None:
            continue
        source, rows = Source(listing.source, table, typed=listing.typed), np.arange(len(table))
        if kind == "bundle":
            times = offer_times(source, rows, len(rows), problems)
        read = {f"{kind}_id", *(times if kind == "bundle" else ())}
        attributes[kind] = read_attributes(source, rows, problems, read)
    return times, attributes


def _padded(moments: Moments | None, n: int) -> Moments | None:
    """Bundles that the table of bundles does not list stand after those it does."""
    return None if moments is None else np.pad(moments, (0, n - len(moments)), constant_values=np.nan)
