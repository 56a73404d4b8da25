"""The study of Ember runs, and its two protocols are what it says they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from coheat.data.files import read_split
from coheat.data.split import split
from coheat.data.synthetic import planted_world, realistic_world
from coheat.data.writing import write_tables
from coheat.evaluation import evaluate
from coheat.runs import open_run

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import beyond
import selection_rules


def test_one_training_serves_both_protocols(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted = planted_world()
    for scenario in ("cold", "warm"):
        write_tables(split(planted.train, scenario, 0), tmp_path / "data" / scenario / "tiny")
    arguments = ["--data", str(tmp_path / "data"), "--name", "tiny", "--out", str(tmp_path / "out")]
    arguments += ["--seeds", "0", "--scenarios", "cold", "warm", "--preset", "demo", "--no-coheat"]
    beyond.main([*arguments, "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())["runs"]["cold-0"]
    run = open_run(tmp_path / "out" / "ember-cold-0")
    assert found["P"]["recall@20"] == pytest.approx(run.evaluate()["test"]["recall@20"], abs=1e-6)
    shop = run.artifact.served().turned(welcome=found["default"])
    cold = read_split(tmp_path / "data" / "cold" / "tiny")
    again = evaluate(shop, cold.train, cold.test).metrics["recall@20"]
    assert found["S"]["recall@20"] == pytest.approx(again)
    assert found["left_out"]["everything"]["recall@20"] == found["S"]["recall@20"]
    assert found["left_out"]["no overlaps"]["ndcg@20"] != found["S"]["ndcg@20"]
    assert found["left_out"].keys() == {*beyond.LEFT_OUT, beyond.HAND_SET}
    assert found["curve"]["0.0"]["cold_share@20"] <= found["curve"]["100.0"]["cold_share@20"]
    assert "| cold shelf |" in capsys.readouterr().out
    assert (tmp_path / "out" / "knob.png").stat().st_size > 1000


def test_rivals_stand_beside_and_launch_times_can_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = realistic_world(80, 60, 50, 900, 500, 240)
    made = split(world, "time", 0)
    launched = made.train.launched
    assert launched is not None
    assert (made.train.popularity == 0).any()
    write_tables(made, tmp_path / "data" / "time" / "tiny")
    arguments = ["--data", str(tmp_path / "data"), "--name", "tiny", "--out", str(tmp_path / "out")]
    arguments += ["--seeds", "0", "--scenarios", "time", "--preset", "default", "--no-coheat", "--again"]
    beyond.main([*arguments, "--rivals", "counting", "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    left_out = found["runs"]["time-0"]["left_out"]
    # By the number of takers alone, young bundles with some lose their youth, and places go to others.
    assert left_out["everything"] != left_out[beyond.LAUNCH_TIMES]
    assert left_out["everything"] != left_out[beyond.HAND_SET]
    again = open_run(tmp_path / "out" / "negatives-among-all-bundles-time-0")
    assert again.record.config["negatives"] == "all"
    counting = open_run(tmp_path / "out" / "counting-time-0").evaluate()["test"]["recall@20"]
    assert found["rivals"]["counting"]["time-0"]["recall@20"] == pytest.approx(counting, abs=1e-6)
    assert "| counting |" in capsys.readouterr().out


def test_rules_choose_among_the_same_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    validation = {
        "5": {"recall@20": 0.2, "ndcg@20": 0.1},
        "10": {"recall@20": 0.4, "ndcg@20": 0.2},
        "15": {"recall@20": 0.3, "ndcg@20": 0.4},
        "20": {"recall@20": 0.5, "ndcg@20": 0.3},
    }
    chosen = {rule: selection_rules.chosen_epoch(validation, rule) for rule in selection_rules.RULES}
    assert chosen == {"both": 20, "recall": 20, "ndcg": 15}

    write_tables(split(realistic_world(80, 60, 50, 900, 500, 240), "cold", 0), tmp_path / "cold")
    arguments = ["--data", str(tmp_path / "cold"), "--out", str(tmp_path / "out"), "--preset", "demo"]
    selection_rules.main([*arguments, "--splits", "4", "--seeds", "0"])
    kept = json.loads((tmp_path / "out" / "split-4-seed-0.json").read_text())
    run = open_run(tmp_path / "out" / "run-4-0")
    at = str(selection_rules.chosen_epoch(kept["validation"], run.record.training["selection"]))
    assert kept["test"][at]["recall@20"] == pytest.approx(run.evaluate()["test"]["recall@20"], abs=1e-6)
    assert "| ndcg |" in capsys.readouterr().out
