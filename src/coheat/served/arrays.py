"""A served model as named arrays, and back. What is no array stands in one of them, `form`, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from coheat.reading import build, parse_object
from coheat.served import checks
from coheat.served.blocks import Block
from coheat.served.curves import Curve, Knob
from coheat.served.fold_in import Layers
from coheat.served.forest import Forest
from coheat.served.overlap import Overlap
from coheat.served.relations import Csr, Relations

if TYPE_CHECKING:
    from coheat.served.form import Served

Array: TypeAlias = npt.NDArray[Any]
RELATIONS = tuple(field.name for field in fields(Relations))
LAYERS = ("users", "bundles", "items")
TREES = ("asked", "thresholds", "values")


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
    for block in served.blocks:
        arrays |= {} if block.items is None else {f"items.{block.name}": block.items}
        if block.forest is not None:
            arrays |= {f"forest.{block.name}.{name}": getattr(block.forest, name) for name in TREES}
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
    """What `Served.assemble` takes, checked (see `checks`)."""
    text = checks.wanted(arrays, "form", "u", (None,))
    form = build(checks.Form, parse_object(np.asarray(text).tobytes(), checks.WHERE), checks.WHERE)
    users, bundles = (checks.wanted(arrays, name, "f", (None, None)) for name in ("users", "bundles"))
    sizes = {"user": len(users), "bundle": form.n_bundles, "item": form.n_items}
    shapes = {name: [sizes[kind] for kind in name.split("_")] for name in RELATIONS}
    relations = Relations(**{name: checks.relation(arrays, name, *shape) for name, shape in shapes.items()})
    blocks = tuple(
        _part(
            Block, one, items=arrays.get(f"items.{one.get('name')}"), forest=_forest(arrays, one.get("name"))
        )
        for one in form.blocks
    )
    overlaps = tuple(
        _part(Overlap, one, item_weights=arrays.get(f"item_weights.{one.get('name')}"))
        for one in form.overlaps
    )
    checks.check_parts(users.shape[1], relations, blocks, overlaps)
    for name, vectors, n_rows in (("users", users, len(users)), ("bundles", bundles, form.n_bundles)):
        checks.check_array(vectors, name, (n_rows, users.shape[1]))
    youth = checks.wanted(arrays, "youth", "f", (form.n_bundles,))
    checks.check_finite("youth", youth)
    layers = None
    if form.normalise is not None:
        parts = {name: checks.wanted(arrays, f"layers.{name}", "f", (None,) * 3) for name in LAYERS}
        layers = Layers(**parts, normalise=form.normalise)
        checks.check_layers(layers, relations, blocks)
    return {
        "users": np.asarray(users),
        "vectors": bundles,
        "relations": relations,
        "is_new": np.asarray(checks.wanted(arrays, "is_new", "b", (form.n_bundles,))),
        "youth": np.asarray(youth),
        "blocks": blocks,
        "overlaps": overlaps,
        "bias": checks.check_curve("bias", _curve(form.bias)),
        "knobs": {
            name: checks.check_knob(name, build(Knob, one, f"{checks.WHERE}, knob {name!r}"))
            for name, one in form.knobs.items()
        },
        "layers": layers,
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
        found[field.name] = None if isinstance(value, np.ndarray | Forest) else value
    return found


Part = TypeVar("Part", Block, Overlap)


def _part(kind: type[Part], stored: dict[str, Any], **arrays: Array | Forest | None) -> Part:
    where = f"{checks.WHERE}, {str(stored.get('name'))[:60]!r}"
    return build(kind, stored, where, **arrays, curve=_curve(stored.get("curve")))


def _forest(arrays: Mapping[str, Array], block: object) -> Forest | None:
    trees = {part: f"forest.{block}.{part}" for part in TREES}
    if trees["asked"] not in arrays:
        return None
    return checks.check_forest(f"forest.{block}", **{part: arrays.get(name) for part, name in trees.items()})


def _curve(stored: object) -> Curve:
    lines = build(_Lines, stored, f"{checks.WHERE}, a curve")
    return Curve.through(lines.counts, lines.old, lines.young)


@dataclass(frozen=True)
class _Lines:
    """A curve as JSON holds it."""

    counts: list[float]
    old: list[float]
    young: list[float]
