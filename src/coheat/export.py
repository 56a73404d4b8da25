"""Vectors with their ids for other systems, and a FAISS index that has proved its recall.

    OUT/users.* bundles.* [items.*]   vectors with ids, in the format chosen
    OUT/bundles.faiss                 an index whose answers, by inner product, are rows of bundles.*
    OUT/_export.json                  the model, what was written, and what it is worth

The vectors are those that score now: score(u, b) = users[u] . bundles[b]. Where a score is more than that
(Ember counts what items have in common, which is no inner product), its dense part can be written when asked
for, with the share of the true lists that it finds by itself.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from coheat.errors import ConfigError
from coheat.recommender import Recommender
from coheat.served.ranking import Floats, Positions, best_of_rows
from coheat.storage import replacing_directory, write_json

Format = Literal["parquet", "npy", "safetensors"]
IndexKind = Literal["flat", "ivf", "hnsw"]
RECALL_BOUND = 0.95
"""Least share of the exact 20 best that an index must find."""
K, PROBES = 20, 500
DEPTHS = (20, 100, 500)
"""How many bundles a vector database may be asked for, of which the model then chooses the best."""
INDEX = "_export.json"


@dataclass(frozen=True)
class ExportReport:
    """What was written; `recall` is that of the index against exact search, where one was asked for.

    `dense_recall`, where vectors are the dense part of a score only: the share of the model's own 20 best
    that is among so many best by the vectors (what the user took is left out of both).
    """

    files: list[str]
    width: int
    counts: dict[str, int]
    index: str | None = None
    recall: float | None = None
    left_out: str | None = None
    dense_recall: dict[str, float] | None = None


def export(
    recommender: Recommender,
    out: Path,
    format: Format = "parquet",
    index: IndexKind | None = None,
    recall_bound: float = RECALL_BOUND,
    dense_part: bool = False,
) -> ExportReport:
    """Write the vectors, and an index if asked; a directory that is there is refused.

    With `dense_part`, a model whose score is more than an inner product gives the vectors of that part, and
    it is measured what they find alone; without, it is refused.

    An index whose recall at 20, measured on up to 500 users, is below `recall_bound` is refused, and then
    nothing is written.
    """
    if format not in get_args(Format):
        raise ConfigError(f"format {format!r}: choose {', '.join(get_args(Format))}")
    if index is not None and index not in get_args(IndexKind):
        raise ConfigError(f"index {index!r}: choose {', '.join(get_args(IndexKind))}")
    if out.exists():
        raise ConfigError(f"{out}: exists already; export to a new directory")
    tables = recommender.vectors(dense_part)
    left_out = recommender.beyond_vectors
    found = None if left_out is None else dense_recall(recommender, tables)
    built, recall = (None, None) if index is None else _build(index, tables, recall_bound)
    with replacing_directory(out) as aside:
        for kind, (ids, vectors) in tables.items():
            _write(aside, kind, ids, vectors, format)
        if built is not None:
            import faiss

            faiss.write_index(built, str(aside / "bundles.faiss"))
        files = sorted([INDEX, *(path.name for path in aside.iterdir())])
        counts = {kind: len(ids) for kind, (ids, _) in tables.items()}
        width = int(tables["user"][1].shape[1])
        report = ExportReport(files, width, counts, index, recall, left_out, found)
        about = {"model": asdict(recommender.description), "knobs": recommender.knobs}
        write_json(aside / INDEX, {**asdict(report), **about})
    return report


def dense_recall(recommender: Recommender, tables: dict[str, tuple[list[str], Floats]]) -> dict[str, float]:
    """For each depth, the mean share of the model's own K best that the vectors find within it."""
    (people, users), (names, bundles) = tables["user"], tables["bundle"]
    probes, rows = _probes(len(users)), {name: row for row, name in enumerate(names)}
    shares: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for start in range(0, len(probes), 64):
        some = probes[start : start + 64]
        wanted: dict[str, list[int]] = {people[user]: [] for user in some.tolist()}
        # What is on offer today is another matter: the vectors are those of all bundles.
        for one in recommender.recommend(list(wanted), k=K, only_on_offer=False):
            wanted[one.user_id].append(rows[one.bundle_id])
        scores = users[some] @ bundles.T
        for line, (user, best_rows) in zip(scores, wanted.items(), strict=True):
            known = recommender.user(user)
            seen = [rows[name] for name in {*known.bundle_ids, *known.recorded_ids} if name in rows]
            line[seen] = -np.inf
            if best_rows:
                above = np.array([int((line > line[row]).sum()) for row in best_rows])
                for depth in DEPTHS:
                    shares[depth].append(float((above < depth).mean()))
    return {str(depth): float(np.mean(found)) for depth, found in shares.items() if found}


def _probes(n_users: int) -> Positions:
    """Users evenly over all rows: the same ones each time, and not just the first."""
    return np.unique(np.linspace(0, n_users - 1, min(PROBES, n_users)).astype(np.int64))


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
    recall = recall_of(index, bundles, users[_probes(len(users))])
    if recall < bound:
        raise ConfigError(
            f"the {kind} index finds {recall:.1%} of the exact {K} best, less than {bound:.1%}; "
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
