"""A trained model as a directory that stands on its own: no data set and no pickle needed to use it.

    artifact.json                 what it is: model, settings, seed, data, metrics, version, checksums
    served.safetensors            the arrays of its served form (`coheat.served`), under their names
    users|bundles|items.parquet   the ids behind the rows, in order
    *_attributes.parquet          what else is said of bundles and items, by row, where anything is
    parameters.safetensors        the model's own state, for training on and for models that score themselves;
                                  and what a rehearsal leaves to the next one
    changes.json                  bundles and interactions since training, where a recommender was saved

It is written to a temporary directory and renamed, so it is whole or absent; every file is checked against
its checksum on loading. Only `Artifact.model` needs torch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coheat import __version__
from coheat.attributes import UNDERSTOOD, Attributes
from coheat.attributes.arrow import from_arrow, table_of
from coheat.errors import ArtifactError
from coheat.ids import Vocabulary
from coheat.reading import build, check_plain, read_parquet
from coheat.served import Served
from coheat.storage import map_arrays, read_json, replacing_directory, sha256, write_arrays, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from coheat.data.dataset import BundleData
    from coheat.models.base import Model

FORMAT = 3
INDEX = "artifact.json"
KINDS = ("user", "bundle", "item")
REQUIRED = {"served.safetensors", *(f"{kind}s.parquet" for kind in KINDS)}
ADVICE = "train again, or copy the artifact again from where it came"


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
    data_until: float | None = None
    """The latest moment that the data tell of (Unix seconds), where they have times."""


@dataclass(frozen=True)
class Changes:
    """What happened to bundles since training, as little as makes it happen again."""

    removed: list[str] = field(default_factory=list)
    added: dict[str, list[str]] = field(default_factory=dict)
    replaced: dict[str, list[str]] = field(default_factory=dict)
    recorded: list[tuple[str, str]] = field(default_factory=list)
    described: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """By kind ("bundle", "item") and id: columns that were set since training, and to what."""


@dataclass(frozen=True)
class Contents:
    """A model in its served form, the ids behind its rows, and what it says about itself.

    `parameters` is the model's own state, or the file that holds it, where there is one.
    """

    served: Served
    users: Vocabulary
    bundles: Vocabulary
    items: Vocabulary
    description: Description
    parameters: Path | Mapping[str, Tensor] | None = None
    bundle_attributes: Attributes = field(default_factory=Attributes)
    item_attributes: Attributes = field(default_factory=Attributes)


@dataclass(frozen=True)
class Artifact:
    """A verified artifact; its parts are read when asked for."""

    directory: Path
    description: Description
    scores_itself: bool
    fingerprint: str
    """Differs where anything in it does."""

    def ids(self, kind: str, count: int | None = None) -> Vocabulary:
        """The ids of all users, bundles or items, in the order of rows; as many as `count`, where given."""
        return Vocabulary.read(self.directory / f"{kind}s.parquet", kind, count)

    def served(self) -> Served:
        """The object that was evaluated; its arrays are mapped from the disk."""
        if self.scores_itself:
            return self.model().served()
        return self._stored()

    def _stored(self) -> Served:
        path = self.directory / "served.safetensors"
        try:
            return Served.from_arrays(map_arrays(path))
        except ArtifactError as error:
            said = str(error).removeprefix(f"{path}: ")
            raise ArtifactError(f"{path}: {said}; {ADVICE}") from None

    def contents(self) -> Contents:
        path = self.directory / "parameters.safetensors"
        served = self.served()
        users, bundles, items = self._vocabularies(served)
        parameters = path if path.exists() else None
        about = (self.attributes(ids) for ids in (bundles, items))
        return Contents(served, users, bundles, items, self.description, parameters, *about)

    def _vocabularies(self, served: Served) -> list[Vocabulary]:
        """Users, bundles and items; refused where there are not as many as the model has."""
        relations = served.relations
        counts = len(relations.user_bundle), len(relations.bundle_item), relations.bundle_item.n_columns
        return [self.ids(kind, count) for kind, count in zip(KINDS, counts, strict=True)]

    def attributes(self, ids: Vocabulary) -> Attributes:
        """What is said of the bundles or items with these ids."""
        import pyarrow as pa

        path = self.directory / f"{ids.kind}_attributes.parquet"
        if not path.exists():
            return Attributes()
        table = read_parquet(path, ArtifactError, len(ids))
        if table.num_rows != len(ids):
            raise ArtifactError(f"{path}: {table.num_rows} rows for {len(ids)} {ids.kind}s; {ADVICE}")
        if len(set(table.column_names)) < table.num_columns:
            raise ArtifactError(f"{path}: two columns have the same name; {ADVICE}")
        try:
            columns = {name: from_arrow(table.column(name)) for name in table.column_names}
        except pa.ArrowException as error:
            raise ArtifactError(f"{path}: {str(error)[:200]}; {ADVICE}") from None
        for name, column in columns.items():
            if column is None or (name in UNDERSTOOD and UNDERSTOOD[name] != column.kind):
                kind = table.column(name).type
                raise ArtifactError(f"{path}: the column {name!r} is of an unknown type {kind}; {ADVICE}")
        return Attributes({name: column for name, column in columns.items() if column is not None})

    def changes(self) -> Changes:
        path = self.directory / "changes.json"
        return build(Changes, read_json(path), str(path)) if path.exists() else Changes()

    def training_data(self) -> BundleData:
        """The data the model was trained on, as it was."""
        from coheat.data.dataset import BundleData, relation_of

        served = self._stored()
        found = served.relations
        users, bundles, items = (Vocabulary(one.ids, one.kind) for one in self._vocabularies(served))
        return BundleData(
            users,
            bundles,
            items,
            user_bundle=relation_of(found.user_bundle),
            user_item=relation_of(found.user_item),
            bundle_item=relation_of(found.bundle_item),
        )

    def model(self) -> Model:
        """The trained model itself, for training on and for models that score themselves."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        from coheat.models import MODELS
        from coheat.models.base import HANDED_ON
        from coheat.rng import Randomness

        name = self.description.model
        if name not in MODELS:
            raise ArtifactError(
                f"{self.directory}: made by model {name!r}, which this version of coheat does not have "
                f"(it has {', '.join(sorted(MODELS))})"
            )
        config = MODELS[name].Config.create(self.description.config, str(self.directory / INDEX))
        model = MODELS[name](self.training_data(), config, Randomness(self.description.seed))
        path = self.directory / "parameters.safetensors"
        check_plain(path)
        try:
            state = load_file(path)
            model.load_state_dict({k: v for k, v in state.items() if not k.startswith(HANDED_ON)})
        except (RuntimeError, ValueError, KeyError, SafetensorError) as error:
            reason = str(error).split("\n")[0][:200]
            raise ArtifactError(f"{path}: not the parameters of this model ({reason}); {ADVICE}") from None
        return model.eval()


def save_artifact(
    directory: Path,
    contents: Contents,
    state: Mapping[str, Tensor] | None = None,
    changes: Changes | None = None,
) -> Artifact:
    """Write the artifact of a trained model; one that is already there is replaced, and nothing else.

    `state` are the model's own tensors, for whoever trains on.
    """
    import pyarrow
    from pyarrow import parquet

    is_file = directory.exists() and not directory.is_dir()
    is_model = (directory / "artifact.json").exists()
    if is_file or (directory.is_dir() and any(directory.iterdir()) and not is_model):
        raise ArtifactError(f"{directory}: holds something else than a model; choose another place")
    with replacing_directory(directory) as partial:
        arrays = contents.served.arrays()
        write_arrays(partial / "served.safetensors", arrays)
        for vocabulary in (contents.users, contents.bundles, contents.items):
            kind = vocabulary.kind
            try:
                column = vocabulary.column()
            except UnicodeEncodeError as error:
                raise ArtifactError(
                    f"a {kind} id is not valid Unicode and cannot be saved: {error}"
                ) from None
            parquet.write_table(pyarrow.table({f"{kind}_id": column}), partial / f"{kind}s.parquet")
        about = (contents.bundles, contents.bundle_attributes), (contents.items, contents.item_attributes)
        for vocabulary, attributes in about:
            if attributes:
                table = table_of(attributes, len(vocabulary))
                parquet.write_table(table, partial / f"{vocabulary.kind}_attributes.parquet")
        own = contents.parameters if state is None else state
        if isinstance(own, Path):
            shutil.copyfile(own, partial / "parameters.safetensors")
        elif own is not None:
            from coheat.checkpoint import write_tensors

            write_tensors(partial / "parameters.safetensors", own)
        if changes is not None and changes != Changes():
            write_json(partial / "changes.json", asdict(changes))
        document = {
            "format": FORMAT,
            "coheat": __version__,
            "description": asdict(contents.description),
            "scores_itself": contents.served.refusal is not None,
            "files": {
                path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
                for path in sorted(partial.iterdir())
            },
        }
        write_json(partial / INDEX, {**document, "sha256": _digest(document)})
    return load_artifact(directory)


def open_artifact(path: Path) -> Artifact:
    """The artifact at `path`, or in the run at `path`."""
    if not path.exists():
        raise ArtifactError(f"{path}: does not exist; give a run's directory (what coheat train --out wrote)")
    if (path / INDEX).exists() or not path.is_dir():
        return load_artifact(path)
    if (path / "model").is_dir():
        return load_artifact(path / "model")
    if (path / "run.json").exists():
        raise ArtifactError(
            f"{path}: training is not finished; continue it with the same command and --resume"
        )
    raise ArtifactError(f"{path}: neither a run nor an artifact; a run is what coheat train --out writes")


def load_artifact(directory: Path) -> Artifact:
    """Open an artifact and verify every file; whatever is wrong is refused by the file's name."""
    if not directory.is_dir():
        raise ArtifactError(f"{directory}: there is no artifact here (a directory with {INDEX})")
    index = directory / INDEX
    document = read_json(index)
    if document.get("format") != FORMAT:
        raise ArtifactError(
            f"{index}: written by coheat {document.get('coheat')} in format {document.get('format')!r}; "
            f"this is coheat {__version__}, which reads format {FORMAT}; train again, or use the version "
            "that wrote it"
        )
    stated = document.pop("sha256", None)
    if stated != _digest(document):
        raise ArtifactError(f"{index}: altered since it was written; {ADVICE}")
    files = document.get("files")
    if not isinstance(files, dict) or not set(files) >= REQUIRED:
        raise ArtifactError(f"{index}: does not name its files; {ADVICE}")
    for name, entry in files.items():
        if Path(name).name != name:
            raise ArtifactError(f"{index}: {name!r} is not the name of a file in it; {ADVICE}")
        _verify(directory / name, build(File, entry, f"{index}, {name}"))
    description = build(Description, document.get("description"), f"{index}, description")
    if not isinstance(document.get("scores_itself"), bool):
        raise ArtifactError(f"{index}: does not say whether it scores itself; {ADVICE}")
    return Artifact(directory, description, document["scores_itself"], stated)


@dataclass(frozen=True)
class File:
    """What an artifact says of one of its files."""

    bytes: int
    sha256: str


def _verify(path: Path, stated: File) -> None:
    if not path.exists():
        raise ArtifactError(f"{path}: missing from the artifact; {ADVICE}")
    check_plain(path)
    size = path.stat().st_size
    if size != stated.bytes:
        raise ArtifactError(f"{path}: {size} bytes instead of {stated.bytes}; {ADVICE}")
    if sha256(path) != stated.sha256:
        raise ArtifactError(f"{path}: altered since it was written (its checksum differs); {ADVICE}")


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
