"""Artifacts and data directories that are wrong in every way we could think of, from good ones and a seed.

`service_mutants.py` feeds them to the command line and to a running service; the tests do so with a few.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from safetensors.numpy import load_file, save_file

from coheat.artifact import _digest
from coheat.storage import sha256

DIGITS = 5000
DEPTH = 100_000
scale = [10]
"""How large bombs are: 300 million rows, a gigabyte of text. Tests take a tenth."""
STRANGE: list[Any] = [None, True, -1, 0, 1 << 40, 1 << 80, 1e308, "x", "", [], {}, [None], {"a": 1}]
LITERALS = ["NaN", "Infinity", "-1e999", "9" * DIGITS, "[" * DEPTH, '{"a":' * DEPTH, "\\ud800", "tru", ""]
Mutation = Callable[[Path, random.Random], None]


def mutated(kind: str, base: Path, place: Path, rng: random.Random) -> str:
    """A copy of a good "artifact" or "data" directory at `place`, made wrong; what was done to it."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    shutil.copytree(base, place)
    mutations = ARTIFACT if kind == "artifact" else DATA
    chosen = rng.choice(mutations)
    chosen(place, rng)
    label = chosen.__name__.strip("_")
    if kind == "artifact" and rng.random() < 0.75 and reseal(place):
        label += ", with the right checksum"
    return label


def reseal(place: Path) -> bool:
    """Make the checksums right, as far as there is something to sum up."""
    index = place / "artifact.json"
    try:
        document = json.loads(index.read_text()) if index.is_file() else None
        if not isinstance(document, dict) or not isinstance(document.get("files"), dict):
            return False
        for name in document["files"]:
            file = place / name
            if file.is_file() and isinstance(document["files"][name], dict):
                document["files"][name] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
        document.pop("sha256", None)
        index.write_text(json.dumps({**document, "sha256": _digest(document)}))
    except (OSError, ValueError, RecursionError):
        return False
    return True


# --- any file -----------------------------------------------------------------------------------


def _victim(place: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(path for path in place.iterdir() if path.is_file()))


def flipped(place: Path, rng: random.Random) -> None:
    file = _victim(place, rng)
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice([1, 1, 8, 64])):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def cut_off(place: Path, rng: random.Random) -> None:
    file = _victim(place, rng)
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content) + 1)])


def grown(place: Path, rng: random.Random) -> None:
    file = _victim(place, rng)
    content = file.read_bytes()
    at = rng.randrange(len(content) + 1)
    more = rng.choice([b"\0" * 100, rng.randbytes(50), b"9" * DIGITS, content, b"\xff\xfe", b'"', b"\n"])
    file.write_bytes(content[:at] + more + content[at:])


def replaced_by_something_else(place: Path, rng: random.Random) -> None:
    file = _victim(place, rng)
    file.unlink()
    what = rng.choice(["nothing", "directory", "loop", "pipe", "unreadable", "empty", "dangling"])
    if what == "directory":
        file.mkdir()
    elif what == "loop":
        file.symlink_to(file.name)
    elif what == "pipe":
        os.mkfifo(file)
    elif what == "dangling":
        file.symlink_to("nowhere")
    elif what != "nothing":
        file.touch(0o000 if what == "unreadable" else 0o644)


# --- JSON ---------------------------------------------------------------------------------------


def strange_json(text: str, rng: random.Random) -> str:
    """A document with one value exchanged for a strange one, or a key gone, or one too many."""
    document = json.loads(text)
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    walk(document)
    if not places:
        return rng.choice(LITERALS)
    holder, key = rng.choice(places)
    what = rng.random()
    if what < 0.15:
        del holder[key]
    elif what < 0.25 and isinstance(holder, dict):
        holder["strange"] = rng.choice(STRANGE)
    elif what < 0.6:
        holder[key] = rng.choice(STRANGE)
    else:
        holder[key] = "\u2603"
        return json.dumps(document).replace('"\\u2603"', rng.choice(LITERALS))
    return json.dumps(document)


def _json(name: str) -> Mutation:
    def changed(place: Path, rng: random.Random) -> None:
        file = place / name
        if file.exists():
            file.write_text(strange_json(file.read_text(), rng))
        else:
            flipped(place, rng)

    changed.__name__ = f"strange {name}"
    return changed


# --- artifacts ----------------------------------------------------------------------------------


def strange_form(place: Path, rng: random.Random) -> None:
    arrays = load_file(place / "served.safetensors")
    text = strange_json(arrays["form"].tobytes().decode(), rng)
    arrays["form"] = np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8)
    save_file(arrays, place / "served.safetensors")


def strange_head(place: Path, rng: random.Random) -> None:
    file = place / "served.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    head = strange_json(content[8 : 8 + length].decode(), rng).encode("utf-8", "replace")
    stated = rng.choice([len(head), len(head), len(head) + 1, 0, 1 << 40, (1 << 64) - 1])
    file.write_bytes(stated.to_bytes(8, "little") + head + content[8 + length :])


def huge_shape(place: Path, rng: random.Random) -> None:
    file = place / "served.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    entry = head[rng.choice(sorted(set(head) - {"__metadata__"}))]
    entry["shape"] = rng.choice([[10**12], [10**6, 10**6], [1 << 62, 4], [-1], [0], [1] * 100])
    if rng.random() < 0.5:
        entry["data_offsets"] = rng.choice([[0, 10**12], [-5, 5], [10**9, 10**9 + 8], [8, 0]])
    text = json.dumps(head).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def strange_numbers(place: Path, rng: random.Random) -> None:
    arrays = load_file(place / "served.safetensors")
    name = rng.choice(sorted(arrays))
    array = arrays[name] = arrays[name].copy()
    if array.size and array.dtype.kind == "f":
        array.flat[rng.randrange(array.size)] = rng.choice([np.nan, np.inf, -np.inf, 3e38])
    elif array.size and array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        array.flat[rng.randrange(array.size)] = rng.choice([0, 1, limits.max, limits.min])
    elif array.size:
        array.flat[rng.randrange(array.size)] ^= True
    save_file(arrays, place / "served.safetensors")


def strange_arrays(place: Path, rng: random.Random) -> None:
    arrays = load_file(place / "served.safetensors")
    name = rng.choice(sorted(arrays))
    array = arrays.pop(name)
    what = rng.randrange(5)
    if what == 0:
        arrays[name] = np.ascontiguousarray(array[:-1])
    elif what == 1:
        arrays[name] = array.astype(rng.choice([np.float64, np.int8, np.int64, np.bool_]))
    elif what == 2:
        arrays[name] = array[None].copy()
    elif what == 3:
        arrays[name] = np.zeros((0,), array.dtype)
    save_file(arrays, place / "served.safetensors")


def strange_ids(place: Path, rng: random.Random) -> None:
    kind = rng.choice(["user", "bundle", "item"])
    file = place / f"{kind}s.parquet"
    ids = parquet.read_table(file).column(0).to_pylist()
    at = rng.randrange(len(ids))
    what = rng.choice(["null", "twice", "fewer", "more", "empty", "numbers", "two", "none", "long", "bomb"])
    columns: dict[str, Any] = {}
    if what in ("null", "twice", "empty"):
        ids[at] = {"null": None, "twice": ids[at - 1], "empty": ""}[what]
    elif what in ("fewer", "more"):
        ids = ids[:-1] if what == "fewer" else [*ids, "one more"]
    elif what == "numbers":
        ids = list(range(len(ids)))
    elif what == "two":
        columns["more"] = ids
    elif what == "bomb":
        return bomb(file, f"{kind}_id", None)
    elif what == "long":
        codes = pa.array(np.zeros(len(ids), dtype=np.int32))
        columns[f"{kind}_id"] = pa.DictionaryArray.from_arrays(codes, pa.array(["x" * 5_000_000]))
    table = pa.table({} if what == "none" else {f"{kind}_id": ids, **columns})
    parquet.write_table(table, file, store_schema=False)
    return None


def bomb(file: Path, first: str, second: str | None) -> None:
    """A Parquet file of some megabytes at most that holds this many rows."""
    file.write_bytes(_bomb(first, second, 30_000_000 * scale[0]))


@cache
def _bomb(first: str, second: str | None, rows: int) -> bytes:
    group = pa.array(np.zeros(10_000_000, dtype=np.int64))
    table = pa.table({first: group, **({second: group} if second else {})})
    sink = pa.BufferOutputStream()
    with parquet.ParquetWriter(sink, table.schema, compression="zstd") as writer:
        for _ in range(rows // len(group)):
            writer.write_table(table, row_group_size=len(group))
    content: bytes = sink.getvalue().to_pybytes()
    pa.default_memory_pool().release_unused()  # whoever measures memory is not to find ours
    return content


@cache
def _packed(scale: int) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    parts = [packer.compress(b"user_id,item_id\n")]
    parts += [packer.compress(b"a,b\n" * 25_000_000) for _ in range(scale)]
    return b"".join([*parts, packer.flush()])


ANY: list[Mutation] = [flipped, flipped, cut_off, grown, replaced_by_something_else]
ARTIFACT: list[Mutation] = [
    *ANY, _json("artifact.json"), _json("artifact.json"), _json("changes.json"), strange_form, strange_form,
    strange_form, strange_head, huge_shape, strange_numbers, strange_numbers, strange_arrays, strange_ids,
    strange_ids,
]  # fmt: skip


# --- data ---------------------------------------------------------------------------------------


def huge_size(place: Path, rng: random.Random) -> None:
    """What a research directory declares; elsewhere a column of 5,000-digit integers."""
    for file in place.glob("*_data_size.txt"):
        words = file.read_text().split()
        words[rng.randrange(3)] = rng.choice(
            ["1000000000", "9" * DIGITS, "-1", "1e9", "", "0", "999999999999999999"]
        )
        return void(file.write_text("\t".join(words)))
    return strange_cell(place, rng)


def void(_: object) -> None:
    return None


def strange_cell(place: Path, rng: random.Random) -> None:
    texts = [path for path in place.iterdir() if path.suffix in (".csv", ".tsv", ".txt")]
    if not texts:
        return strange_table(place, rng)
    file = rng.choice(sorted(texts))
    lines = file.read_bytes().split(b"\n")
    at = rng.randrange(len(lines))
    cell = rng.choice([b"9" * DIGITS, b"NaN", b"", b"\0\0", b"\xff\xfe", b'"', b"1,2,3,4", b"-1", b"1e400",
                       b"x" * 5_000_000, "\u202e\x1b[31m".encode(), b",", b"\t"])  # fmt: skip
    separator = b"," if file.suffix == ".csv" else b"\t"
    cells = lines[at].split(separator)
    cells[rng.randrange(len(cells))] = cell
    lines[at] = separator.join(cells)
    file.write_bytes(b"\n".join(lines))
    return None


def strange_table(place: Path, rng: random.Random) -> None:
    """A Parquet table in the place of one that is there, with types and values of all kinds."""
    files = sorted(path for path in place.iterdir() if path.stem.startswith(("user_", "bundle_")))
    file = rng.choice(files)
    stem = file.name.split(".")[0]
    first, second = (
        ("user_id", "bundle_id") if "user_bundle" in stem else (f"{p}_id" for p in stem.split("_"))
    )
    file.unlink()
    target = place / f"{stem}.parquet"
    what = rng.choice(["bomb", "text bomb", "lists", "bools", "nulls", "structs", "floats", "empty", "times"])
    if what == "bomb":
        return bomb(target, first, second)
    columns: dict[str, Any] = {
        "text bomb": pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(100_000, dtype=np.int32)), pa.array(["x" * 1_000_000])
        ),
        "lists": [["a"]] * 5,
        "bools": [True] * 5,
        "nulls": [None, "a", None],
        "structs": [{"a": 1}] * 5,
        "floats": [float("nan"), float("inf"), 1e300, 0.5],
        "empty": pa.array([], pa.string()),
        "times": pa.array([0, 2**60], pa.timestamp("ns")),
    }
    values = columns[what]
    table = pa.table({first: values, second: values})
    if rng.random() < 0.3:
        table = table.append_column("timestamp", table.column(0))
    parquet.write_table(table, target, store_schema=False)
    return None


def packed_bomb(place: Path, rng: random.Random) -> None:
    """A gzip file that unpacks to far more, in the place of a table."""
    files = sorted(path for path in place.iterdir() if path.suffix in (".csv", ".tsv", ".parquet"))
    if not files:
        return flipped(place, rng)
    file = rng.choice(files)
    file.unlink()
    (place / f"{file.name.split('.')[0]}.csv.gz").write_bytes(_packed(scale[0]))
    return None


DATA: list[Mutation] = [
    *ANY, _json("split.json"), huge_size, huge_size, strange_cell, strange_cell, strange_cell, strange_table,
    strange_table, packed_bomb,
]  # fmt: skip
