"""Exported vectors give the scores back; an index is written only when it has proved its recall."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from by_hand import recommender_of, relations
from pyarrow import parquet
from safetensors.numpy import load_file

from coheat.errors import ConfigError
from coheat.export import export, recall_of
from coheat.recommender import Recommender
from coheat.served import Block, Curve, Overlap, Served

WILD = ["/ ? % #", "🧺", "x" * 1000]


def recommender(
    n_bundles: int = 30, spread: float = 0.0, seed: int = 0, overlap_weight: float = 0.0
) -> Recommender:
    """Random vectors; with `spread`, bundles are of very different lengths, which HNSW cannot search well."""
    rng = np.random.default_rng(seed)
    bundles = rng.standard_normal((n_bundles, 16)) * np.exp(spread * rng.standard_normal((n_bundles, 1)))
    users, items = rng.standard_normal((40, 16)), rng.standard_normal((5, 16))
    block = Block("score", "items", 16, items=items.astype("f4"))
    known = relations(np.zeros((40, n_bundles)), np.zeros((40, 5)), np.zeros((n_bundles, 5)))
    overlaps: tuple[Overlap, ...] = ()
    if overlap_weight:
        shapes = ((40, n_bundles), (40, 5), (n_bundles, 5))
        known = relations(
            *(rng.random(shape) < share for shape, share in zip(shapes, (0.1, 0.4, 0.4), strict=True))
        )
        overlaps = (Overlap("shared items", "log", Curve.constant(overlap_weight)),)
    views = [(block, users.astype("f4"), bundles.astype("f4"))]
    served = Served.create(known, views, overlaps=overlaps)
    return recommender_of(served, [*WILD, *(f"u{n}" for n in range(37))])


def read(out: Path, kind: str, format: str) -> tuple[list[str], Any]:
    if format == "parquet":
        table = parquet.read_table(out / f"{kind}s.parquet")
        return table.column(f"{kind}_id").to_pylist(), np.array(table.column("vector").to_pylist())
    ids = json.loads((out / f"{kind}s.ids.json").read_text(encoding="utf-8"))
    if format == "npy":
        return ids, np.load(out / f"{kind}s.npy", allow_pickle=False)
    return ids, load_file(out / f"{kind}s.safetensors")["vectors"]


@pytest.mark.parametrize("format", ["parquet", "npy", "safetensors"])
def test_exported_vectors_give_the_scores(format: Any, tmp_path: Path) -> None:
    served = recommender()
    served.add_bundles({"new 🧺": ["i0", "i3"]})
    served.remove_bundles(["b4"])
    report = export(served, tmp_path / "out", format)
    assert report.counts == {"user": 40, "bundle": 30, "item": 5}
    assert report.files == sorted(path.name for path in (tmp_path / "out").iterdir())
    users, user_vectors = read(tmp_path / "out", "user", format)
    bundles, bundle_vectors = read(tmp_path / "out", "bundle", format)
    assert users == list(served.user_ids)
    assert set(bundles) == set(served.bundle_ids)
    scores = user_vectors @ bundle_vectors.T
    for row in served.recommend(WILD, k=99):
        found = scores[users.index(row.user_id), bundles.index(row.bundle_id)]
        assert found == pytest.approx(row.score, abs=1e-5)
    assert read(tmp_path / "out", "item", format)[0] == list(served.item_ids)


def test_a_flat_index_finds_everything(tmp_path: Path) -> None:
    served = recommender(600, spread=1.5)
    report = export(served, tmp_path / "out", index="flat", recall_bound=1.0)
    assert report.recall == 1.0
    index = faiss.read_index(str(tmp_path / "out" / "bundles.faiss"))
    bundles = read(tmp_path / "out", "bundle", "parquet")[0]
    _, found = index.search(served.vectors()["user"][1][:1], 5)
    expected = [row.bundle_id for row in served.recommend(["/ ? % #"], k=5)]
    assert [bundles[row] for row in found[0]] == expected


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_an_index_below_the_bound_is_refused_and_nothing_is_written(kind: Any, tmp_path: Path) -> None:
    served = recommender(3000, spread=1.5)
    with pytest.raises(
        ConfigError, match=rf"the {kind} index finds .* of the exact 20 best, less than 99\.9%"
    ):
        export(served, tmp_path / "out", index=kind, recall_bound=0.999)
    assert list(tmp_path.iterdir()) == []
    report = export(served, tmp_path / "out", index=kind, recall_bound=0.0)
    assert report.recall is not None
    assert 0 < report.recall < 0.999


def test_recall_is_that_of_counting() -> None:
    class Fixed:
        def search(self, users: Any, k: int) -> Any:
            return None, np.tile(np.r_[np.arange(10, 15), np.full(k - 5, -1)], (len(users), 1))

    bundles = np.arange(25, 0, -1, dtype=np.float32)[:, None]  # the 20 best are rows 0 to 19
    assert recall_of(Fixed(), bundles, np.ones((3, 1), dtype=np.float32)) == 5 / 20


def test_bad_questions(tmp_path: Path) -> None:
    served = recommender()
    for options, says in (
        ({"format": "csv"}, "choose parquet, npy"),
        ({"index": "tree"}, "choose flat, ivf"),
    ):
        with pytest.raises(ConfigError, match=says):
            export(served, tmp_path / "out", **options)  # type: ignore[arg-type]
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        export(served, tmp_path / "out")


def test_what_the_dense_part_finds_alone_is_measured(tmp_path: Path) -> None:
    """Against a count one by one; the less the overlap weighs, the more is found."""
    found = []
    for weight in (0.01, 20.0):
        served = recommender(150, overlap_weight=weight)
        served.record("u1", "b7")
        report = export(served, tmp_path / str(weight), dense_part=True)
        assert report.left_out is not None
        assert "shared items" in report.left_out
        (users, one), (bundles, other) = (served.vectors(True)[kind] for kind in ("user", "bundle"))
        dense, shares = one @ other.T, []
        for place, user in enumerate(users):
            about = served.user(user)
            free = [name for name in bundles if name not in (*about.bundle_ids, *about.recorded_ids)]
            ranked = sorted(free, key=lambda name, at=place: -dense[at, bundles.index(name)])[:20]  # type: ignore[misc]
            best = {row.bundle_id for row in served.recommend([user], k=20)}
            shares.append(len(best & set(ranked)) / len(best))
        assert report.dense_recall is not None
        assert report.dense_recall["20"] == pytest.approx(np.mean(shares))
        assert report.dense_recall["20"] <= report.dense_recall["100"] <= report.dense_recall["500"] == 1
        kept = json.loads((tmp_path / str(weight) / "_export.json").read_text())
        assert kept["dense_recall"] == report.dense_recall
        found.append(report.dense_recall["20"])
    assert found[0] > 0.95 > 0.7 > found[1]


def test_what_is_on_offer_today_does_not_change_what_is_measured(tmp_path: Path) -> None:
    served = recommender(150, overlap_weight=20.0)
    before = export(served, tmp_path / "before", dense_part=True).dense_recall
    served.hide_bundles([f"b{n}" for n in range(0, 150, 2)])
    assert export(served, tmp_path / "after", dense_part=True).dense_recall == before
