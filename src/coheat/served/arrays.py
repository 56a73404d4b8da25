"""A served model as named arrays, and back. What is no array stands in one of them, `form`, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from coheat.served.blocks import Block
from coheat.served.curves import Curve, Knob
from coheat.served.fold_in import Layers
from coheat.served.overlap import Overlap
from coheat.served.relations import Csr, Relations

if TYPE_CHECKING:
    from coheat.served.form import Served

Array: TypeAlias = npt.NDArray[Any]
RELATIONS = tuple(field.name for field in fields(Relations))
LAYERS = ("users", "bundles", "items")


def to_arrays(served: Served) -> dict[str, Array]:
    bundles, relations = served.bundles, served.relations
    arrays: dict[str, Array] = {
        "users": served.users,
        "bundles": bundles.plain.base,
        "is_new": bundles.is_new,
        "youth": bundles.youth,
    }
    for name in RELATIONS:
        relation: Csr = getattr(relations, name)
        arrays[f"{name}.indptr"] = relation.indptr.astype(np.int64)
        arrays[f"{name}.indices"] = relation.indices.astype(np.int32)
    arrays |= {f"items.{b.name}": b.items for b in served.blocks if b.items is not None}
    arrays |= {
        f"item_weights.{o.name}": o.item_weights for o in served.overlaps if o.item_weights is not None
    }
    if served.layers is not None:
        arrays |= {f"layers.{name}": getattr(served.layers, name) for name in LAYERS}
    form = {
        "n_bundles": relations.user_bundle.n_columns,
        "n_items": relations.user_item.n_columns,
        "blocks": [_plain(block) for block in served.blocks],
        "overlaps": [_plain(overlap) for overlap in served.overlaps],
        "bias": _plain(served.bias),
        "knobs": {name: _plain(knob) for name, knob in served.knobs.items()},
        "normalise": served.layers.normalise if served.layers else None,
    }
    arrays["form"] = np.frombuffer(json.dumps(form).encode(), dtype=np.uint8)
    return arrays


def from_arrays(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """What `Served.assemble` takes."""
    form = json.loads(np.asarray(arrays["form"]).tobytes())
    columns = {"user_bundle": form["n_bundles"], "user_item": form["n_items"], "bundle_item": form["n_items"]}
    layers = {name: arrays[f"layers.{name}"] for name in LAYERS if f"layers.{name}" in arrays}
    return {
        "users": np.asarray(arrays["users"]),
        "vectors": arrays["bundles"],
        "relations": Relations(
            **{n: Csr(arrays[f"{n}.indptr"], arrays[f"{n}.indices"], columns[n]) for n in RELATIONS}
        ),
        "is_new": np.asarray(arrays["is_new"]),
        "youth": np.asarray(arrays["youth"]),
        "blocks": tuple(
            Block(**{**_with_curve(one), "items": arrays.get(f"items.{one['name']}")})
            for one in form["blocks"]
        ),
        "overlaps": tuple(
            Overlap(**{**_with_curve(one), "item_weights": arrays.get(f"item_weights.{one['name']}")})
            for one in form["overlaps"]
        ),
        "bias": Curve.through(**form["bias"]),
        "knobs": {name: _knob(one) for name, one in form["knobs"].items()},
        "layers": Layers(**layers, normalise=form["normalise"]) if layers else None,
    }


def _plain(part: Any) -> dict[str, Any]:
    """A part without its large arrays, which are stored under their names; curves as lists."""
    found = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, Curve):
            value = {name: getattr(value, name).tolist() for name in ("counts", "old", "young")}
        elif isinstance(part, Curve):
            value = value.tolist()
        found[field.name] = None if isinstance(value, np.ndarray) else value
    return found


def _knob(stored: dict[str, Any]) -> Knob:
    lists = {name: tuple(stored[name]) for name in ("values", "counts", "shares")}
    return Knob(**{**stored, **lists, "lines": tuple(tuple(line) for line in stored["lines"])})


def _with_curve(stored: dict[str, Any]) -> dict[str, Any]:
    return {**stored, "curve": Curve.through(**stored["curve"])}
