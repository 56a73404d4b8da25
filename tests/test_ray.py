"""Batch, experiments and searches on real Ray nodes: the same files as here, also where a node dies."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_on_ray import kill_half_way, parts_in
from batch_speed import write_model
from quick_python import quick
from ray_nodes import Nodes, nodes

from coheat.batch import recommend_all
from coheat.data.split import Split
from coheat.data.writing import write_tables
from coheat.experiments.reproduce import reproduce
from coheat.recommender import Recommender
from coheat.tasks.running import TRIES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install 'coheat[ray]'"),
]

MAIN = "from coheat.cli import main; main()"
EXPERIMENT = """
title = "On a cluster"
view = "methods"
scenarios = ["cold"]
seeds = 2
[[models]]
name = "CoHeat"
model = "coheat"
settings = { epochs = 2, batch_size = 64, embedding_size = 8 }
"""
REFUSED = """
import sys
from pathlib import Path
from slow_task import SlowTask
from coheat.errors import CoheatError
from coheat.tasks import place_for, run_tasks

address, out = sys.argv[1], Path(sys.argv[2])
for reads, text in (["/no/such/run"], ""), ([], "refuse"), ([], "die"):
    try:
        with place_for(address, out=out, reads=map(Path, reads)) as place:
            run_tasks([SlowTask(str(out / text), text=text)], place)
    except CoheatError as error:
        print("said:", error)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Two nodes with one core each. The last test kills one of them."""
    with nodes() as found, pytest.MonkeyPatch.context() as patch:
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))  # nodes find the tasks of tests too
        found.start_head()
        found.start_node()
        yield found


def run(cluster: Nodes, *words: object) -> tuple[str, str]:
    """Have Python run this as somebody who has the cluster's token, which Ray reads when it is imported."""
    done = subprocess.run(
        [quick("python"), *map(str, words)],
        env={**os.environ, **cluster.environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_trainings_are_those_of_this_machine(cluster: Nodes, planted: Split, tmp_path: Path) -> None:
    write_tables(planted, tmp_path / "data" / "cold" / "Planted")
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)
    words = ("--data", tmp_path / "data", "--out", tmp_path / "there", "--on", cluster.address, "--json")
    out, said = run(cluster, "-c", MAIN, "reproduce", tmp_path / "tiny.toml", *words)
    here = reproduce(str(tmp_path / "tiny.toml"), tmp_path / "data", tmp_path / "here").documents[0]
    there = json.loads(out)["experiments"][0]
    for key in ("seeds", "epochs", "test", "validation", "settings"):
        assert there["tables"][0]["rows"][0][key] == here["tables"][0]["rows"][0][key]
    models = [trained(tmp_path / name / "runs") for name in ("here", "there")]
    assert len(models[0]) >= 2
    assert models[0] == models[1]
    assert "2 nodes" in said, "progress shows the cluster"


def test_a_search_is_that_of_this_machine(cluster: Nodes, planted: Split, tmp_path: Path) -> None:
    write_tables(planted, tmp_path / "data")
    (tmp_path / "space.toml").write_text("[mfbpr]\nlearning_rate = { low = 1e-3, high = 1e-1, log = true }\n")
    wanted = ("--model", "mfbpr", "--space", tmp_path / "space.toml", "--trials", 2, "--jobs", 2)
    words = ("tune", tmp_path / "data", *wanted, "--set", "epochs=2", "--set", "embedding_size=8", "--json")
    found = {}
    for name, where in (("here", "here"), ("there", cluster.address)):
        out, _ = run(cluster, "-c", MAIN, *words, "--out", tmp_path / name, "--on", where)
        found[name] = [(trial["settings"], trial["value"]) for trial in json.loads(out)["trials"]]
    assert len(found["here"]) == 2
    assert found["here"] == found["there"]
    best = [(tmp_path / name / "best.toml").read_bytes() for name in found]
    assert best[0] == best[1]


def trained(directory: Path) -> dict[str, bytes]:
    found = [*directory.rglob("*.safetensors")]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_what_cannot_be_done_is_said_in_a_sentence(cluster: Nodes, tmp_path: Path) -> None:
    """What a node does not see, before anything is begun; a task that refuses; one that fells its process."""
    out, _ = run(cluster, "-c", REFUSED, cluster.address, tmp_path / "out")
    said = [line.removeprefix("said: ") for line in out.splitlines() if line.startswith("said: ")]
    assert len(said) == 3, out
    unseen, refused, died = said
    assert "does not see /no/such/run. Every machine must have the same files under the same path" in unseen
    assert refused == "refuse: the data is not to its liking"
    assert died.startswith("die: its machine or process died")
    assert died.endswith(f"it was begun {TRIES} times")
    assert len((tmp_path / "out" / "die.begun").read_text().split()) == TRIES
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"refuse.begun", "die.begun"}


def test_a_batch_with_a_killed_node_is_the_batch_of_this_machine(cluster: Nodes, tmp_path: Path) -> None:
    model, here, there = tmp_path / "model", tmp_path / "here", tmp_path / "there"
    write_model(model, 12_000, 20_000)
    recommend_all(Recommender.load(model), here, part_size=300)
    expected = parts_in(here)
    assert len(expected) == 40
    there.mkdir()
    (there / "part-00001-of-00040.parquet").write_bytes(expected["part-00001-of-00040.parquet"])
    report, _ = kill_half_way(cluster, model, there, 300, 40)
    assert 13 <= report["at_kill"] < 40, "the kill is to come in the middle"
    assert parts_in(there) == expected
    assert {path.name for path in there.iterdir()} == set(expected), "nothing half-written stays"
    assert (report["parts_written"], report["parts_kept"]) == (39, 1)
    assert (report["users"], report["rows"]) == (11_700, 234_000)
