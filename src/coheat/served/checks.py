"""What stands in the arrays of a served model, checked before any of it is used.

Types, shapes that fit each other, rows and columns within range, finite numbers: a damaged or strange
artifact is refused as a whole, and never found out by a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coheat.errors import ArtifactError
from coheat.served.blocks import Block
from coheat.served.curves import Curve, Knob
from coheat.served.fold_in import Layers
from coheat.served.forest import FEATURES, STATISTICS, Forest
from coheat.served.overlap import KINDS, Overlap
from coheat.served.relations import STRETCH, Csr, Relations
from coheat.storage import release_pages

Array = npt.NDArray[Any]
WHERE = "the served form"
DEEPEST = 10
"""Questions that a tree may ask: it has two to the power of that many answers."""


@dataclass(frozen=True)
class Form:
    """What of a served model is no array, as its JSON says it."""

    n_bundles: int
    n_items: int
    blocks: list[dict[str, Any]]
    overlaps: list[dict[str, Any]]
    bias: dict[str, Any]
    knobs: dict[str, dict[str, Any]]
    normalise: bool | None


def wanted(arrays: Mapping[str, Array], name: str, kinds: str, shape: tuple[int | None, ...]) -> Array:
    """An array of one of these kinds (letters of numpy) and of this shape, where None is any length."""
    found = arrays.get(name)
    if found is None:
        raise ArtifactError(f"{WHERE}: the array {name!r} is missing")
    fits = len(found.shape) == len(shape) and all(
        expected in (None, length) for length, expected in zip(found.shape, shape, strict=True)
    )
    if found.dtype.kind not in kinds or not fits:
        said = " x ".join("any" if length is None else str(length) for length in shape)
        raise ArtifactError(f"{WHERE}: {name!r} is {found.dtype} of shape {found.shape}, not {said}")
    return found


def check_finite(name: str, array: Array) -> None:
    flat = array.reshape(-1)
    for start in range(0, len(flat), STRETCH):
        if not np.isfinite(flat[start : start + STRETCH]).all():
            raise ArtifactError(f"{WHERE}: {name!r} holds a value that is not a finite number")
        release_pages(array)


def relation(arrays: Mapping[str, Array], name: str, n_rows: int | None, n_columns: int) -> Csr:
    """A relation whose rows follow each other and whose columns exist, each once in a row and in order."""
    last = None if n_rows is None else n_rows + 1
    indptr = np.asarray(wanted(arrays, f"{name}.indptr", "iu", (last,)))
    indices = wanted(arrays, f"{name}.indices", "iu", (None,))
    if not len(indptr) or indptr[0] != 0 or indptr[-1] != len(indices) or (indptr[1:] < indptr[:-1]).any():
        raise ArtifactError(f"{WHERE}: the rows of {name!r} do not fit its entries")
    is_start = np.zeros(len(indices) + 1, dtype=np.bool_)
    is_start[indptr] = True
    for start in range(0, len(indices), STRETCH):
        part = np.asarray(indices[start : start + STRETCH + 1])
        if part.min() < 0 or part.max() >= n_columns:
            raise ArtifactError(f"{WHERE}: {name!r} points to something that does not exist")
        rises = (part[1:] > part[:-1]) | is_start[start + 1 : start + len(part)]
        if not rises.all():
            raise ArtifactError(f"{WHERE}: a row of {name!r} is not in order")
        release_pages(indices)
    return Csr(indptr, indices, n_columns)


def check_curve(name: str, curve: Curve) -> Curve:
    lines = (curve.counts, curve.old, curve.young)
    same = len({line.shape for line in lines}) == 1 and curve.counts.ndim == 1 and len(curve.counts) > 0
    if not same or not all(np.isfinite(line).all() for line in lines) or (np.diff(curve.counts) <= 0).any():
        raise ArtifactError(f"{WHERE}: the curve of {name!r} is not a curve")
    return curve


def check_knob(name: str, knob: Knob) -> Knob:
    sizes = {len(line) for line in knob.lines}
    values = np.array(knob.values)
    if len(knob.lines) != len(values) or not len(values) or (np.diff(values) < 0).any() or len(sizes) != 1:
        raise ArtifactError(f"{WHERE}: the knob {name!r} is not a knob")
    if sizes != {len(knob.counts)} or not knob.counts or (np.diff(knob.counts) <= 0).any():
        raise ArtifactError(f"{WHERE}: the knob {name!r} is none")
    if len(knob.shares) != len(values) or not all(0 <= share <= 1 for share in knob.shares):
        raise ArtifactError(f"{WHERE}: the knob {name!r} has no shares from 0 to 1")
    return knob.turned(name, knob.value)


def check_forest(name: str, **trees: Array | None) -> Forest:
    """A forest whose trees ask as many questions as they have answers for, about features that exist."""
    arrays = {f"{name}.{part}": found for part, found in trees.items() if found is not None}
    asked = wanted(arrays, f"{name}.asked", "iu", (None, None))
    n_trees, depth = asked.shape
    if depth > DEEPEST or (asked.size and not 0 <= asked.min() <= asked.max() < FEATURES):
        raise ArtifactError(f"{WHERE}: the trees of {name!r} ask for something that does not exist")
    thresholds = wanted(arrays, f"{name}.thresholds", "f", (n_trees, depth))
    values = wanted(arrays, f"{name}.values", "f", (n_trees, 1 << depth))
    check_finite(f"{name}.thresholds", thresholds)
    check_finite(f"{name}.values", values)
    return Forest(np.asarray(asked), np.asarray(thresholds), np.asarray(values))


def check_parts(
    width: int, relations: Relations, blocks: Iterable[Block], overlaps: Iterable[Overlap]
) -> None:
    """Whether the blocks fill the vectors, and what they and the overlaps know of items fits the items."""
    n_items = relations.bundle_item.n_columns
    blocks, overlaps = list(blocks), list(overlaps)
    if any(block.width < 0 for block in blocks) or sum(block.width for block in blocks) != width:
        raise ArtifactError(f"{WHERE}: its blocks do not fill the {width} columns of its vectors")
    names = [*(block.name for block in blocks), *(overlap.name for overlap in overlaps)]
    if len(set(names)) != len(names):
        raise ArtifactError(f"{WHERE}: two of its parts have the same name")
    for block in blocks:
        check_curve(block.name, block.curve)
        if block.forest is not None and (block.items is None or block.width != 1):
            raise ArtifactError(f"{WHERE}: the forest of {block.name!r} needs items, and gives one number")
        if block.items is not None:
            width = block.width if block.forest is None else STATISTICS
            check_array(block.items, f"items.{block.name}", (n_items, width))
    for overlap in overlaps:
        check_curve(overlap.name, overlap.curve)
        if overlap.kind not in KINDS or not overlap.scale > 0:
            raise ArtifactError(f"{WHERE}: {overlap.name!r} is an overlap of no known kind")
        if overlap.item_weights is not None:
            check_array(overlap.item_weights, f"item_weights.{overlap.name}", (n_items,))


def check_layers(layers: Layers, relations: Relations, blocks: Iterable[Block]) -> None:
    widths: dict[str, int] = {block.about: block.width for block in blocks}
    n_users, n_bundles = len(relations.user_bundle), relations.user_bundle.n_columns
    if len(layers.users) != len(layers.bundles) or {"history", "items"} - set(widths):
        raise ArtifactError(f"{WHERE}: its layers do not fit its blocks")
    for name, rows, about in (("users", n_users, "history"), ("bundles", n_bundles, "history"),
                              ("items", relations.bundle_item.n_columns, "items")):  # fmt: skip
        check_array(getattr(layers, name), f"layers.{name}", (None, rows, widths[about]))


def check_array(array: Array, name: str, shape: tuple[int | None, ...]) -> None:
    wanted({name: array}, name, "f", shape)
    check_finite(name, array)
