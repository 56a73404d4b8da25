"""An artifact is whole, stands on its own, and refuses by name whatever was done to it."""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factorisation import factorisation
from pyarrow import parquet
from safetensors.torch import save_file

from coheat import __version__
from coheat.artifact import INDEX, Artifact, Description, load_artifact, save_artifact
from coheat.checkpoint import model_state
from coheat.data.dataset import BundleData, relation
from coheat.data.split import Split
from coheat.errors import ArtifactError
from coheat.ids import Vocabulary
from coheat.models import MODELS
from coheat.models.base import Model
from coheat.rng import Randomness
from coheat.runs import contents_of
from coheat.served import OwnScores
from coheat.storage import map_arrays, write_arrays

FILES = [
    INDEX,
    "bundles.parquet",
    "items.parquet",
    "parameters.safetensors",
    "served.safetensors",
    "users.parquet",
]


def describe(model: Model, name: str = "coheat") -> Description:
    return Description(
        model=name,
        config=model.config.model_dump(mode="json"),
        training={"epochs": 3},
        seed=4,
        scenario="planted",
        data_source="somewhere",
        data_fingerprint="abc",
        best_epoch=2,
        metrics={"recall@20": 0.5, "ndcg@20": 0.25},
        seconds=1.5,
        reason="all epochs done",
    )


def save(directory: Path, model: Model, name: str = "coheat") -> Artifact:
    """The artifact of a model as `train_run` writes it."""
    return save_artifact(directory, contents_of(model, describe(model, name)), model_state(model))


def build(name: str, data: BundleData) -> Model:
    return MODELS[name](data, MODELS[name].Config.create({}), Randomness(4))


@pytest.fixture
def saved(planted: Split, tmp_path: Path) -> Artifact:
    model = build("coheat", planted.train)
    return save(tmp_path / "model", model)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_round_trip(name: str, planted: Split, tmp_path: Path) -> None:
    model = build(name, planted.train).eval()
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.mul_(1.5)  # not what a fresh model would have
    save(tmp_path / "model", model, name)
    artifact = load_artifact(tmp_path / "model")
    assert artifact.description == describe(model, name)
    assert artifact.training_data().fingerprint == planted.train.fingerprint
    again = artifact.model()
    assert all(torch.equal(again.state_dict()[k], v) for k, v in model.state_dict().items())
    users = np.arange(planted.train.n_users)
    assert np.array_equal(again.served().scores(users), model.eval().served().scores(users))


def test_vectors_are_the_models(planted: Split, tmp_path: Path) -> None:
    model = factorisation(planted.train)
    served = save(tmp_path / "model", model).served()
    (block,), (expected,) = served.blocks, model.served().blocks
    assert np.array_equal(served.users, model.users.detach().numpy())
    assert np.array_equal(served.bundles.plain.base, model.bundles.detach().numpy())
    assert block.items is not None
    assert expected.items is not None
    assert np.array_equal(block.items, expected.items)
    assert block.size_exponent == 0.5
    for array in (served.users, served.bundles.plain.base, block.items):
        assert is_mapped(array), "vectors should be mapped, so that processes share them"
        assert not array.flags.writeable


def is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def test_only_a_model_with_its_own_scoring_needs_its_parameters(planted: Split, tmp_path: Path) -> None:
    assert not save(tmp_path / "counting", build("counting", planted.train), "counting").scores_itself
    artifact = save(tmp_path / "dam", build("dam", planted.train), "dam")
    assert artifact.scores_itself
    assert isinstance(artifact.served(), OwnScores)


def test_wild_ids_survive(tmp_path: Path) -> None:
    wild = [
        "a b",
        "a/b",
        'quo"te',
        "it's",
        "🧺",
        "0",
        "00",
        "NULL",
        "nan",
        "\n",
        "é",
        "e\u0301",
        "[red]",
        "\0",
    ]
    data = BundleData(
        Vocabulary(wild, "user"),
        Vocabulary(reversed(wild), "bundle"),
        Vocabulary(["x" * 10_000, *wild], "item"),
        relation([0, 1], [1, 2], (len(wild), len(wild))),
        relation([0], [0], (len(wild), len(wild) + 1)),
        relation([3], [4], (len(wild), len(wild) + 1)),
    )
    model = build("popularity", data)
    artifact = save(tmp_path / "model", model, "popularity")
    assert tuple(artifact.ids("user").ids) == tuple(wild)
    assert tuple(artifact.ids("bundle").ids) == tuple(reversed(wild))
    assert tuple(artifact.ids("item").ids) == ("x" * 10_000, *wild)
    assert artifact.training_data().fingerprint == data.fingerprint


def test_an_id_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    data = BundleData(
        Vocabulary(["\ud800"], "user"),
        Vocabulary(["b"], "bundle"),
        Vocabulary(["i"], "item"),
        relation([0], [0], (1, 1)),
        relation([0], [0], (1, 1)),
        relation([0], [0], (1, 1)),
    )
    model = build("popularity", data)
    with pytest.raises(ArtifactError, match="user id is not valid Unicode"):
        save(tmp_path / "model", model)
    assert list(tmp_path.iterdir()) == []


def test_files_are_those_described(saved: Artifact) -> None:
    assert sorted(path.name for path in saved.directory.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_one_altered_byte_is_refused_by_name(name: str, saved: Artifact) -> None:
    path = saved.directory / name
    content = path.read_bytes()
    for position in (len(content) // 3, len(content) // 2, len(content) - 3):
        altered = bytearray(content)
        altered[position] ^= 1
        path.write_bytes(altered)
        with pytest.raises(ArtifactError, match=name):
            load_artifact(saved.directory)
    path.write_bytes(content)
    load_artifact(saved.directory)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kept", [0, 0.5, 0.99])
def test_a_truncated_file_is_refused_by_name(name: str, kept: float, saved: Artifact) -> None:
    path = saved.directory / name
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ArtifactError, match=name):
        load_artifact(saved.directory)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused_by_name(name: str, saved: Artifact) -> None:
    (saved.directory / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        load_artifact(saved.directory)


def test_another_format_names_the_version_that_wrote_it_and_this_one(saved: Artifact) -> None:
    document = json.loads((saved.directory / INDEX).read_text())
    (saved.directory / INDEX).write_text(json.dumps({**document, "format": 99, "coheat": "9.9"}))
    said = (
        rf"written by coheat 9\.9 in format 99; this is coheat {re.escape(__version__)}, which reads format 3"
    )
    with pytest.raises(ArtifactError, match=said):
        load_artifact(saved.directory)


@pytest.mark.parametrize("content", ["", "{", "[]", '"text"', "\xff"])
def test_an_index_that_is_no_json_object_is_refused(content: str, saved: Artifact) -> None:
    (saved.directory / INDEX).write_bytes(content.encode("latin-1"))
    with pytest.raises(ArtifactError, match=INDEX):
        load_artifact(saved.directory)


def test_no_artifact_there(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no artifact here"):
        load_artifact(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match="no such file"):
        load_artifact(tmp_path)


def test_a_model_this_version_does_not_have(planted: Split, tmp_path: Path) -> None:
    model = build("popularity", planted.train)
    artifact = save(tmp_path / "model", model, "oracle")
    assert len(artifact.served().users) == planted.train.n_users
    with pytest.raises(ArtifactError, match=r"model 'oracle', which this version .* does not have"):
        artifact.model()


class Unfinished(Exception):
    pass


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("call", range(1, 6))
def test_a_failure_in_the_middle_leaves_the_old_one_or_nothing(
    call: int, existing: bool, planted: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions that fail are those which write the files."""
    target = tmp_path / "model"
    old = factorisation(planted.train, seed=1)
    if existing:
        save(target, old)
    calls = 0

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                raise Unfinished
            return function(*arguments, **options)

        return wrapped

    monkeypatch.setattr("coheat.checkpoint.write_arrays", failing(write_arrays))
    monkeypatch.setattr("coheat.artifact.write_arrays", failing(write_arrays))
    monkeypatch.setattr("pyarrow.parquet.write_table", failing(parquet.write_table))
    new = factorisation(planted.train, seed=2)
    with pytest.raises(Unfinished):
        save(target, new)
    assert [path.name for path in tmp_path.iterdir()] == (["model"] if existing else [])
    if existing:
        assert np.array_equal(load_artifact(target).served().users, old.users.detach().numpy())


def test_a_failing_rename_puts_the_old_one_back(
    planted: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = factorisation(planted.train, seed=1), factorisation(planted.train, seed=2)
    save(tmp_path / "model", old)
    rename = Path.rename

    def fail_into_place(self: Path, target: Path) -> Path:
        if self.name.endswith(".part"):
            raise OSError(13, "Permission denied", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_into_place)
    with pytest.raises(OSError, match="Permission denied"):
        save(tmp_path / "model", new)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert np.array_equal(load_artifact(tmp_path / "model").served().users, old.users.detach().numpy())


def test_mapped_arrays_are_what_was_written(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {
        "floats": np.arange(12, dtype=np.float32).reshape(3, 4),
        "whole": np.array([[1], [-2]], dtype=np.int64),
        "flags": np.array([True, False, True]),
        "empty": np.zeros((0, 5), dtype=np.float32),
        "single": np.array(2.5),
    }
    save_file({name: torch.tensor(array) for name, array in arrays.items()}, tmp_path / "arrays.safetensors")
    found = map_arrays(tmp_path / "arrays.safetensors")
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
        assert found[name].shape == array.shape
