"""Files that are whole or not there, whatever a killed process left behind."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from coheat.storage import map_arrays, replacing_directory, replacing_file, write_arrays


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def test_what_a_process_of_the_same_number_left_does_not_stop_saving(tmp_path: Path) -> None:
    left = tmp_path / f".model.{os.getpid()}.part"
    left.mkdir()
    (left / "half").write_text("half")
    with replacing_directory(tmp_path / "model") as aside:
        (aside / "whole").write_text("whole")
    assert (names(tmp_path), names(tmp_path / "model")) == (["model"], ["whole"])


def test_killed_between_two_renames_the_old_one_comes_back(tmp_path: Path) -> None:
    old = tmp_path / f".model.{os.getpid()}.old"
    old.mkdir()
    (old / "kept").write_text("kept")

    def fail() -> None:
        with replacing_directory(tmp_path / "model"):
            raise RuntimeError("interrupted again")

    with pytest.raises(RuntimeError, match="interrupted again"):
        fail()
    assert (names(tmp_path), names(tmp_path / "model")) == (["model"], ["kept"])


def test_a_file_left_half_written_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / f".a.json.{platform.node()}-{os.getpid()}.part").write_text("half of something longer")
    with replacing_file(tmp_path / "a.json") as aside:
        aside.write_text("{}")
    assert (names(tmp_path), (tmp_path / "a.json").read_text()) == (["a.json"], "{}")


def test_arrays_are_written_as_safetensors_reads_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "flags": rng.random(5) < 0.5,
        "numbers": rng.normal(size=(7, 3)).astype(np.float32),
        "turned": rng.normal(size=(4, 5)).T,
        "nothing": np.zeros((0, 3), dtype=np.float32),
        "one": np.array(3.0, dtype=np.float32),
        "bytes": np.frombuffer(b"abc", dtype=np.uint8),
        "counts": np.arange(9),
    }
    write_arrays(tmp_path / "a.safetensors", arrays)
    read = load_file(tmp_path / "a.safetensors")
    mapped = map_arrays(tmp_path / "a.safetensors")
    for name, array in arrays.items():
        for found in (read[name], mapped[name]):
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert np.array_equal(found, array)
