"""Vectors with their ids for other systems, and a FAISS index that has proved its recall.

    OUT/users.* bundles.* [items.*]   vectors with ids, in the format chosen
    OUT/bundles.faiss                 an index whose answers, by inner product, are rows of bundles.*

The vectors are those that score now: score(u, b) = users[u] . bundles[b].
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from coheat.errors import ConfigError
from coheat.recommender import Recommender
from coheat.served.ranking import Floats, best_of_rows
from coheat.storage import replacing_directory

Format = Literal["parquet", "npy", "safetensors"]
IndexKind = Literal["flat", "ivf", "hnsw"]
RECALL_BOUND = 0.95
"""Least share of the exact 20 best that an index must find."""
K, PROBES = 20, 500


@dataclass(frozen=True)
class ExportReport:
    """What was written; `recall` is that of the index against exact search, where one was asked for."""

    files: list[str]
    width: int
    counts: dict[str, int]
    index: str | None = None
    recall: float | None = None


def export(
    recommender: Recommender,
    out: Path,
    format: Format = "parquet",
    index: IndexKind | None = None,
    recall_bound: float = RECALL_BOUND,
) -> ExportReport:
    """Write the vectors, and an index if asked; a directory that is there is refused.

    An index whose recall at 20, measured on up to 500 users, is below `recall_bound` is refused, and then
    nothing is written.
    """
    if format not in get_args(Format):
        raise ConfigError(f"format {format!r}: choose {', '.join(get_args(Format))}")
    if index is not None and index not in get_args(IndexKind):
        raise ConfigError(f"index {index!r}: choose {', '.join(get_args(IndexKind))}")
    if out.exists():
        raise ConfigError(f"{out}: is there already; export to a new directory")
    tables = recommender.vectors()
    built, recall = (None, None) if index is None else _build(index, tables, recall_bound)
    with replacing_directory(out) as aside:
        for kind, (ids, vectors) in tables.items():
            _write(aside, kind, ids, vectors, format)
        if built is not None:
            import faiss

            faiss.write_index(built, str(aside / "bundles.faiss"))
        files = sorted(path.name for path in aside.iterdir())
    width = int(tables["user"][1].shape[1])
    counts = {kind: len(ids) for kind, (ids, _) in tables.items()}
    return ExportReport(files, width, counts, index, recall)


def _write(directory: Path, kind: str, ids: list[str], vectors: Floats, format: Format) -> None:
    """A table's ids and vectors: in one Parquet file, or vectors beside a JSON list of ids."""
    if format == "parquet":
        import pyarrow
        from pyarrow import parquet

        flat = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1), pyarrow.float32())
        column = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
        table = pyarrow.table({f"{kind}_id": pyarrow.array(ids, pyarrow.string()), "vector": column})
        parquet.write_table(table, directory / f"{kind}s.parquet")
        return
    if format == "npy":
        np.save(directory / f"{kind}s.npy", vectors)
    else:
        from safetensors.numpy import save_file

        save_file({"vectors": np.ascontiguousarray(vectors)}, directory / f"{kind}s.safetensors")
    text = json.dumps(ids, ensure_ascii=False)
    (directory / f"{kind}s.ids.json").write_text(text + "\n", encoding="utf-8")


def _build(kind: IndexKind, tables: dict[str, tuple[list[str], Floats]], bound: float) -> tuple[Any, float]:
    """The index and its recall; one below the bound is refused."""
    try:
        import faiss
    except ImportError:
        raise ConfigError(
            "a FAISS index needs faiss; install it with: pip install 'coheat[export]'"
        ) from None
    users, bundles = (np.ascontiguousarray(tables[name][1]) for name in ("user", "bundle"))
    width, metric = bundles.shape[1], faiss.METRIC_INNER_PRODUCT
    index: Any
    if kind == "flat":
        index = faiss.IndexFlatIP(width)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(width, 32, metric)
    else:
        n_lists = max(int(np.sqrt(len(bundles))), 1)
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, n_lists, metric)
        index.nprobe = max(n_lists // 8, 1)
        index.train(bundles)
    index.add(bundles)
    # Users evenly over all rows: the same ones each time, and not just the first.
    probes = users[np.unique(np.linspace(0, len(users) - 1, min(PROBES, len(users))).astype(np.int64))]
    recall = recall_of(index, bundles, probes)
    if recall < bound:
        raise ConfigError(
            f"the {kind} index finds {recall:.1%} of the exact {K} best, fewer than {bound:.1%}; "
            "approximate search often fails on raw inner products: use --index flat, which is exact"
        )
    return index, recall


def recall_of(index: Any, bundles: Floats, users: Floats) -> float:
    """Mean share of the exact K best that the index finds. A bundle that scores as much as the K-th best
    counts as one of them, since which of equals is listed is chance."""
    k = min(K, len(bundles))
    _, found = index.search(users, k)
    shares = []
    for start in range(0, len(users), 64):
        scores = users[start : start + 64] @ bundles.T
        for line, exact, listed in zip(
            scores, best_of_rows(scores, k), found[start : start + 64], strict=True
        ):
            least = line[exact[-1]]
            slack = 1e-5 * max(abs(float(line[exact[0]])), abs(float(least)))
            shares.append(np.mean(line[listed[listed >= 0]] >= least - slack) * np.sum(listed >= 0) / k)
    return float(np.mean(shares))
