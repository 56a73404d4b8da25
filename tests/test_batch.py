"""Batch lists: those of `recommend`, in parts that are whole, restartable and divided without a gap."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import NOWHERE
from factorisation import factorisation
from pyarrow import parquet
from quick_python import QuickProcess
from test_artifact import save

from coheat.artifact import Contents
from coheat.batch import recommend_all
from coheat.data.split import Split
from coheat.errors import ArtifactError, ConfigError
from coheat.ids import Vocabulary
from coheat.recommender import Recommender
from coheat.served import Block, Csr, Relations, Served


@pytest.fixture
def recommender(planted: Split, tmp_path: Path) -> Recommender:
    model = factorisation(planted.train)
    save(tmp_path / "model", model)
    return Recommender.load(tmp_path / "model")


def rows(out: Path) -> list[tuple[Any, ...]]:
    found = []
    for path in sorted(out.glob("part-*.parquet")):
        table = parquet.read_table(path)
        assert table.column_names == ["user_id", "bundle_id", "score", "rank"]
        found += [tuple(row.values()) for row in table.to_pylist()]
    return found


def same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> bool:
    keys = [(user, bundle, rank) for user, bundle, _, rank in found]
    wanted = [(user, bundle, rank) for user, bundle, _, rank, _ in expected]
    return keys == wanted and [row[2] for row in found] == pytest.approx([r[2] for r in expected], abs=1e-6)


@pytest.mark.parametrize("exclude_seen", [True, False])
@pytest.mark.parametrize("candidates", ["all", "new"])
def test_lists_are_those_of_recommend(
    recommender: Recommender, tmp_path: Path, candidates: Any, exclude_seen: bool
) -> None:
    recommender.add_bundles({"new [red] 🧺/": ["item-0-0"]})
    recommender.record("user-0-1", "bundle-0-0")
    report = recommend_all(
        recommender, tmp_path / "out", 9, candidates, exclude_seen=exclude_seen, part_size=7
    )
    expected = recommender.recommend(list(recommender.user_ids), 9, candidates, exclude_seen)
    assert same(rows(tmp_path / "out"), [tuple(row) for row in expected])
    assert (report.parts_written, report.parts_kept, report.users) == (7, 0, 48)
    assert (report.rows, report.short_lists) == (len(expected), len(expected.short))


def test_shards_do_all_parts_between_them(recommender: Recommender, tmp_path: Path) -> None:
    recommend_all(recommender, tmp_path / "whole", 3, part_size=5)
    written = [
        recommend_all(recommender, tmp_path / "out", 3, shard=(number, 3), part_size=5).parts_written
        for number in (2, 1, 3)
    ]
    assert written == [3, 4, 3]
    assert rows(tmp_path / "out") == rows(tmp_path / "whole")


def test_a_restart_keeps_what_is_there(recommender: Recommender, tmp_path: Path) -> None:
    out = tmp_path / "out"
    recommend_all(recommender, out, 3, part_size=10)
    first = rows(out)
    kept = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    (out / "part-00002-of-00005.parquet").unlink()
    report = recommend_all(recommender, out, 3, part_size=10)
    assert (report.parts_written, report.parts_kept, report.users) == (1, 4, 10)
    assert rows(out) == first
    again = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert {name for name in kept if kept[name] != again[name]} == {"part-00002-of-00005.parquet"}


def test_another_question_in_the_same_place_is_refused(recommender: Recommender, tmp_path: Path) -> None:
    recommend_all(recommender, tmp_path / "out", 3)
    with pytest.raises(ArtifactError, match="made with another k;"):
        recommend_all(recommender, tmp_path / "out", 4)
    recommender.add_bundles({"new": ["item-0-0"]})
    with pytest.raises(ArtifactError, match="another bundles"):
        recommend_all(recommender, tmp_path / "out", 3)
    (tmp_path / "out" / "part-00000-of-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match="not a part that this command wrote"):
        recommend_all(recommender, tmp_path / "out", 3)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="in the way"):
        recommend_all(recommender, tmp_path / "file", 3)


def test_bad_questions(recommender: Recommender, tmp_path: Path) -> None:
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"shard": (0, 2)}, "shard 0/2"),
        ({"shard": (3, 2)}, "shard 3/2"),
        ({"part_size": 0}, "part_size"),
        ({"k": 0}, "k = 0"),
        ({"candidates": "cold"}, "'all', 'new'"),
    ]
    for options, says in mistakes:
        with pytest.raises(ConfigError, match=says):
            recommend_all(recommender, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def mapped_megabytes() -> float:
    """Memory that this process holds of files mapped from the disk."""
    found = re.search(r"RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says what it holds")
def test_what_was_read_of_the_users_is_let_go(tmp_path: Path) -> None:
    n_users, width = 60_000, 256
    rng = np.random.default_rng(0)
    rng.standard_normal((n_users, width), dtype=np.float32).tofile(tmp_path / "users")
    users = np.memmap(tmp_path / "users", np.float32, mode="r", shape=(n_users, width))
    bundles = rng.standard_normal((5, width), dtype=np.float32)
    nobody = np.zeros(n_users + 1, dtype=np.int64)
    taken = np.memmap(tmp_path / "users", np.int32, mode="r", shape=(n_users,))[:0]
    known = Relations(Csr(nobody, taken, 5), Csr(nobody, taken, 1), Csr(nobody[:6], taken, 1))
    served = Served.assemble(
        users, bundles, known, np.ones(5, dtype=np.bool_), None, blocks=(Block("score", "history", width),)
    )
    names = Vocabulary([str(n) for n in range(n_users)], "user")
    recommender = Recommender(
        Contents(served, names, Vocabulary("abcde", "bundle"), Vocabulary("i", "item"), NOWHERE)
    )
    held: list[float] = []
    recommend_all(recommender, tmp_path / "out", 1, on_part=lambda *_: held.append(mapped_megabytes()))
    assert users.nbytes > 50e6
    assert held[-1] - held[0] < 10
    last = parquet.read_table(tmp_path / "out" / "part-00005-of-00006.parquet").to_pylist()[-1]
    assert last["bundle_id"] == "abcde"[int(np.argmax(bundles @ users[-1]))]


SLOW = """
import sys, time
from pathlib import Path
from coheat.batch import recommend_all
from coheat.recommender import Recommender
recommend_all(Recommender.load(sys.argv[1]), Path(sys.argv[2]), 3, part_size=1,
              on_part=lambda done, parts: time.sleep(0.02 if done < 40 else 600))  # it is not to end
"""


def test_killed_and_started_again(recommender: Recommender, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = QuickProcess([sys.executable, "-c", SLOW, str(tmp_path / "model"), str(out)])
    deadline = time.monotonic() + 240
    while len(list(out.glob("part-*"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = len(list(out.glob("part-*")))
    assert 5 <= done < 48, "the kill is to come in the middle"
    report = recommend_all(recommender, out, 3, part_size=1)
    assert (report.parts_kept, report.parts_written) == (done, 48 - done)
    expected = recommender.recommend(list(recommender.user_ids), 3)
    assert same(rows(out), [tuple(row) for row in expected])


@pytest.mark.parametrize("reader", ["pandas", "polars", "duckdb", "pyarrow"])
def test_the_directory_is_read_as_it_is(reader: str, recommender: Recommender, tmp_path: Path) -> None:
    """What we note beside the parts is hidden from those who read all of a directory."""
    recommend_all(recommender, tmp_path / "lists", 3, part_size=10)
    out, module = str(tmp_path / "lists"), pytest.importorskip(reader)
    if reader == "pandas":
        found = list(module.read_parquet(out).itertuples(index=False, name=None))
    elif reader == "polars":
        found = module.read_parquet(out).rows()
    elif reader == "duckdb":
        found = module.sql(f"SELECT * FROM '{out}/*.parquet'").fetchall()
    else:
        found = [tuple(row.values()) for row in parquet.read_table(out).to_pylist()]
    assert sorted(found) == sorted(rows(tmp_path / "lists"))
