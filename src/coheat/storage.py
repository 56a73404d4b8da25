"""Files that are either whole or not there: written aside, flushed to the disk, then renamed.

Checkpoints, artifacts and run records are written through these functions, so a process killed at any
moment leaves the old version or the new one, never half of one. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import math
import mmap
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coheat.errors import ArtifactError, ConfigError, TrainingError
from coheat.reading import build, check_plain, parse_object, read_object

WITHOUT_LOCKS = "use Linux, macOS, WSL 2 or the container image (docs/deployment.md)"

DIMENSIONS = 8
# The element types of the safetensors format that we write and numpy has.
_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
_NAMES = {np.dtype(kind): name for name, kind in _DTYPES.items()}
STRETCH = 1 << 22
"""Numbers that are written at a time."""


def _flush(path: Path) -> None:
    """Force a file's or a directory's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Hand out a path beside `path` to write to; on success it takes the place of `path` at once."""
    # Machines that share a file system may give two processes the same number.
    aside = path.with_name(f".{path.name}.{platform.node()}-{os.getpid()}.part")
    aside.touch()
    mode = aside.stat().st_mode
    try:
        yield aside
        aside.chmod(mode)  # safetensors makes its files private; these are as open as the user's others
        _flush(aside)
        aside.replace(path)
        _flush(path.parent)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_directory(path: Path) -> Iterator[Path]:
    """The same for a directory: fill the one handed out; an existing one is removed only afterwards."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.parent.mkdir(parents=True, exist_ok=True)
    # What a killed process of the same number left: in containers the number repeats.
    if aside.exists():
        shutil.rmtree(aside)
    if old.exists():
        if path.exists():
            shutil.rmtree(old)
        else:  # it was killed between the two renames: this is the only copy
            old.rename(path)
    aside.mkdir()
    mode = aside.stat().st_mode & 0o666
    try:
        yield aside
        for file in aside.iterdir():
            file.chmod(mode)
            _flush(file)
        _flush(aside)
        if path.exists():
            path.rename(old)
        try:
            aside.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
        _flush(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def check_system() -> None:
    """A ConfigError where the system has no POSIX file locks, before anything is written there."""
    if importlib.util.find_spec("fcntl") is None:
        raise ConfigError(f"{platform.system()} has no POSIX file locks; {WITHOUT_LOCKS}")


def lock(handle: int, wait: bool = False) -> None:
    """Hold an open file or directory for this process; BlockingIOError where another one does."""
    check_system()
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextlib.contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Hold a directory for this process; two that train in one would spoil each other's files."""
    check_system()
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory, os.O_RDONLY)
    try:
        lock(handle)
        yield
    except BlockingIOError:
        raise TrainingError(
            f"{directory}: another process is training this run; wait for it to end"
        ) from None
    finally:
        os.close(handle)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON document in one piece."""
    text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)
    with replacing_file(path) as aside:
        aside.write_text(text + "\n", encoding="utf-8")


read_json = read_object
"""Read a JSON object; anything else at that path is an ArtifactError that names it."""


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a safetensors file from arrays as they stand, a stretch at a time: nothing is copied as a whole.

    What is mapped from the disk itself is let go again after it was read.
    """
    # As the format wants it: without gaps, and such that every array is aligned to its own type.
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header, end = {}, 0
    for name in order:
        start, end = end, end + arrays[name].nbytes
        kind = _NAMES[arrays[name].dtype]
        header[name] = {"dtype": kind, "shape": list(arrays[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    try:
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                flat = np.ascontiguousarray(arrays[name]).reshape(-1)
                for start in range(0, len(flat), STRETCH):
                    file.write(flat[start : start + STRETCH].data)
                    release_pages(flat)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written ({error.strerror}); is the disk full?") from None


def release_pages(*arrays: npt.NDArray[Any]) -> None:
    """Let the system take back the memory of arrays mapped from the disk; they are read again where needed.

    For whoever goes through a large array once: otherwise all of it would be held in the end.
    """
    for array in arrays:
        base: Any = array
        while getattr(base, "base", None) is not None:
            base = base.base
        if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            base.madvise(mmap.MADV_DONTNEED)


def map_arrays(path: Path, mode: Literal["r", "c"] = "r") -> dict[str, npt.NDArray[Any]]:
    """The arrays of a safetensors file, mapped from the disk rather than copied: read-only, or ("c") so that
    what is written to them stays in this process.

    Several processes that serve the same model so share one copy in memory.
    """
    check_plain(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise ArtifactError(f"{path}: its head is said to be longer than the file; it was cut off")
        header = parse_object(file.read(length), str(path))
    header.pop("__metadata__", None)
    return {name: _mapped(path, name, entry, 8 + length, size, mode) for name, entry in header.items()}


@dataclass(frozen=True)
class _Entry:
    """Where an array stands in a safetensors file."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _mapped(
    path: Path, name: str, entry: object, start: int, size: int, mode: Literal["r", "c"]
) -> npt.NDArray[Any]:
    where = f"{path}, {name[:60]!r}"
    found = build(_Entry, entry, where)
    if found.dtype not in _DTYPES or len(found.shape) > DIMENSIONS or min(found.shape, default=0) < 0:
        raise ArtifactError(f"{where}: not an array of a type and shape that we write")
    dtype, shape, (first, last) = np.dtype(_DTYPES[found.dtype]), tuple(found.shape), found.data_offsets
    if first < 0 or last - first != math.prod(shape) * dtype.itemsize or start + last > size:
        raise ArtifactError(f"{where}: its place in the file does not fit its shape")
    if 0 in shape:  # an empty range cannot be mapped
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, mode=mode, offset=start + first, shape=shape)
