"""A trained model as a directory that stands on its own: no data set and no pickle needed to use it.

    artifact.json            what it is: model, settings, seed, data, best epoch, metrics, checksums
    parameters.safetensors   the model's full state
    vectors.safetensors      users, bundles and (where the model has them) items and the tables of its two
                             views: all that serving needs
    relations.safetensors    the training relations as CSR
    users|bundles|items.parquet   the ids behind the rows, in order

It is written aside and renamed, so it is whole or absent; every file is checked against its checksum on
loading. Reading ids, vectors and relations needs no torch; only `Artifact.model` imports it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coheat import __version__
from coheat.errors import ArtifactError
from coheat.storage import map_arrays, read_json, replacing_directory, sha256, write_json

if TYPE_CHECKING:
    from coheat.data.dataset import BundleData
    from coheat.models.base import Model

FORMAT = 2
INDEX = "artifact.json"
KINDS = {"user": "users.parquet", "bundle": "bundles.parquet", "item": "items.parquet"}
RELATIONS = {
    "user_bundle": ("user", "bundle"),
    "user_item": ("user", "item"),
    "bundle_item": ("bundle", "item"),
}
VIEW_TABLES = ("bundles", "user_layers", "bundle_layers", "item_layers")
OVERLAP_TABLES = ("indptr", "items", "weights", "item_weights", "is_new")
OVERLAP_NUMBERS = ("own_item_weight", "scale", "weight", "new_weight", "new_offset")
ADVICE = "train again, or copy the artifact again from where it came"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Description:
    """What an artifact says about itself."""

    model: str
    config: dict[str, Any]
    training: dict[str, Any]
    seed: int
    scenario: str
    data_source: str
    data_fingerprint: str
    best_epoch: int
    metrics: dict[str, float]
    seconds: float
    reason: str


@dataclass(frozen=True)
class ServingViews:
    """`TwoViews` in numpy, mapped from the disk."""

    bundles: npt.NDArray[np.float32]
    temperature: float | None
    user_layers: npt.NDArray[np.float32]
    bundle_layers: npt.NDArray[np.float32]
    item_layers: npt.NDArray[np.float32]
    normalise_layers: bool


@dataclass(frozen=True)
class ServingOverlap:
    """`Overlap` in numpy, mapped from the disk; the profiles (n_users, n_items) in CSR form."""

    indptr: npt.NDArray[np.int64]
    items: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    item_weights: npt.NDArray[np.float32]
    is_new: npt.NDArray[np.bool_]
    own_item_weight: float
    scale: float
    weight: float
    new_weight: float
    new_offset: float
    offsets: tuple[tuple[float, float], ...] = ()
    """Values of the knob and the offsets that belong to them, rising; empty where there is no knob."""


@dataclass(frozen=True)
class ServingVectors:
    """`Vectors` in numpy, mapped from the disk: score(u, b) = users[u] . bundles[b], plus any overlap."""

    users: npt.NDArray[np.float32]
    bundles: npt.NDArray[np.float32]
    items: npt.NDArray[np.float32] | None
    size_exponent: float
    views: ServingViews | None = None
    overlap: ServingOverlap | None = None


@dataclass(frozen=True)
class Artifact:
    """A verified artifact; its parts are read when asked for."""

    directory: Path
    description: Description
    document: dict[str, Any]

    def ids(self, kind: str) -> tuple[str, ...]:
        """The ids of all users, bundles or items, in the order of rows."""
        from pyarrow import parquet

        table = parquet.read_table(self.directory / KINDS[kind])
        return tuple(table.column(f"{kind}_id").to_pylist())

    def vectors(self) -> ServingVectors | None:
        """The vectors, or None for a model that does not score by inner products."""
        if self.document["vectors"] is None:
            return None
        arrays = map_arrays(self.directory / "vectors.safetensors")
        exponent = float(self.document["vectors"]["size_exponent"])
        views = self.document["vectors"].get("views")
        if views is not None:
            tables: dict[str, Any] = {name: arrays[f"views.{name}"] for name in VIEW_TABLES}
            views = ServingViews(**tables, **views)
        overlap = self.document["vectors"].get("overlap")
        if overlap is not None:
            overlap = dict(overlap)
            tables = {name: arrays[f"overlap.{name}"] for name in OVERLAP_TABLES}
            offsets = tuple((welcome, offset) for welcome, offset in overlap.pop("offsets", ()))
            overlap = ServingOverlap(**tables, **overlap, offsets=offsets)
        return ServingVectors(
            arrays["users"], arrays["bundles"], arrays.get("items"), exponent, views, overlap
        )

    def relation(self, name: str) -> tuple[Array, Array]:
        """`indptr` and `indices` of a training relation's CSR form."""
        arrays = map_arrays(self.directory / "relations.safetensors")
        return arrays[f"{name}.indptr"], arrays[f"{name}.indices"]

    def training_data(self) -> BundleData:
        """The data the model was trained on, as it was."""
        from scipy import sparse

        from coheat.data.dataset import BundleData, Vocabulary

        vocabularies = {kind: Vocabulary(self.ids(kind), kind) for kind in KINDS}
        matrices = {}
        for name, (rows, columns) in RELATIONS.items():
            indptr, indices = self.relation(name)
            shape = (len(vocabularies[rows]), len(vocabularies[columns]))
            ones = np.ones(len(indices), dtype=np.float32)
            matrices[name] = sparse.csr_array((ones, np.array(indices), np.array(indptr)), shape=shape)
        return BundleData(vocabularies["user"], vocabularies["bundle"], vocabularies["item"], **matrices)

    def model(self) -> Model:
        """The trained model itself, for scoring with torch or for training on."""
        from safetensors.torch import load_file

        from coheat.models import MODELS
        from coheat.rng import Randomness

        name = self.description.model
        if name not in MODELS:
            raise ArtifactError(
                f"{self.directory}: made by model {name!r}, which this version of coheat does not have "
                f"(it has {', '.join(sorted(MODELS))})"
            )
        config = MODELS[name].Config.create(self.description.config, str(self.directory / INDEX))
        model = MODELS[name](self.training_data(), config, Randomness(self.description.seed))
        model.load_state_dict(load_file(self.directory / "parameters.safetensors"))
        return model.eval()


def save_artifact(directory: Path, model: Model, description: Description) -> Artifact:
    """Write the artifact of a trained model; one that is already there is replaced."""
    with replacing_directory(directory) as aside:
        _write_parameters(aside, model)
        vectors = _write_vectors(aside, model)
        _write_data(aside, model.data)
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
            for path in sorted(aside.iterdir())
        }
        document = {
            "format": FORMAT,
            "coheat": __version__,
            "description": asdict(description),
            "vectors": vectors,
            "files": files,
        }
        write_json(aside / INDEX, {**document, "sha256": _digest(document)})
    return load_artifact(directory)


def _write_parameters(directory: Path, model: Model) -> None:
    from coheat.checkpoint import model_state, write_tensors

    write_tensors(directory / "parameters.safetensors", model_state(model))


def _write_vectors(directory: Path, model: Model) -> dict[str, Any] | None:
    """The vectors' file and what artifact.json says of it; None for a model without vectors."""
    import torch

    from coheat.checkpoint import write_tensors
    from coheat.models.base import Model

    if type(model).scorer is not Model.scorer:  # it scores in a way of its own, not by inner products
        return None
    with torch.no_grad():
        vectors, views = model.vectors(), model.two_views()
    tensors = {"users": vectors.users, "bundles": vectors.bundles}
    if vectors.items is not None:
        tensors["items"] = vectors.items
    if views is not None:
        tensors |= {f"views.{name}": getattr(views, name) for name in VIEW_TABLES}
    copies = {
        name: t.detach().to("cpu", torch.float32, copy=True).contiguous() for name, t in tensors.items()
    }
    if (overlap := vectors.overlap) is not None:
        copies |= {
            "overlap.indptr": torch.tensor(overlap.profiles.indptr, dtype=torch.int64),
            "overlap.items": torch.tensor(overlap.profiles.indices, dtype=torch.int32),
            "overlap.weights": torch.tensor(overlap.profiles.data, dtype=torch.float32),
            "overlap.item_weights": torch.tensor(overlap.item_weights, dtype=torch.float32),
            "overlap.is_new": torch.tensor(overlap.is_new),
        }
    write_tensors(directory / "vectors.safetensors", copies)
    described: dict[str, Any] = {
        "size_exponent": float(vectors.size_exponent),
        "width": int(vectors.users.shape[1]),
    }
    if views is not None:
        described["views"] = {"temperature": views.temperature, "normalise_layers": views.normalise_layers}
    if overlap is not None:
        described["overlap"] = {name: float(getattr(overlap, name)) for name in OVERLAP_NUMBERS}
        described["overlap"]["offsets"] = sorted(overlap.offsets.items())
    return described


def _write_data(directory: Path, data: BundleData) -> None:
    import pyarrow
    import torch
    from pyarrow import parquet

    from coheat.checkpoint import write_tensors

    tensors = {
        f"{name}.{part}": torch.tensor(getattr(getattr(data, name), part), dtype=torch.int32)
        for name in RELATIONS
        for part in ("indptr", "indices")
    }
    write_tensors(directory / "relations.safetensors", tensors)
    for kind, vocabulary in (("user", data.users), ("bundle", data.bundles), ("item", data.items)):
        try:
            column = pyarrow.array(vocabulary.ids, pyarrow.string())
        except UnicodeEncodeError as error:
            raise ArtifactError(f"a {kind} id is not valid Unicode and cannot be saved: {error}") from None
        parquet.write_table(pyarrow.table({f"{kind}_id": column}), directory / KINDS[kind])


def load_artifact(directory: Path) -> Artifact:
    """Open an artifact and verify every file; whatever is wrong is refused by the file's name."""
    if not directory.is_dir():
        raise ArtifactError(f"{directory}: there is no artifact here (a directory with {INDEX})")
    index = directory / INDEX
    document = read_json(index)
    if document.get("format") != FORMAT:
        raise ArtifactError(
            f"{index}: format {document.get('format')!r}; this version of coheat ({__version__}) reads "
            f"format {FORMAT}; use the version that wrote it ({document.get('coheat')}), or train again"
        )
    stated = document.pop("sha256", None)
    if stated != _digest(document):
        raise ArtifactError(f"{index}: altered since it was written; {ADVICE}")
    for name, entry in document["files"].items():
        _verify(directory / name, entry)
    return Artifact(directory, Description(**document["description"]), document)


def _verify(path: Path, entry: dict[str, Any]) -> None:
    if not path.is_file():
        raise ArtifactError(f"{path}: missing from the artifact; {ADVICE}")
    size = path.stat().st_size
    if size != entry["bytes"]:
        raise ArtifactError(f"{path}: {size} bytes instead of {entry['bytes']}; {ADVICE}")
    if sha256(path) != entry["sha256"]:
        raise ArtifactError(f"{path}: altered since it was written (its checksum differs); {ADVICE}")


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
