"""Kept results against fresh ones, on tiny data; and data that are divided in other ways than the paper's."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import SMALL, write_experiment, write_published

from coheat.cli import main
from coheat.data.dataset import pairs, relation
from coheat.data.files import read_split
from coheat.data.split import split
from coheat.data.synthetic import planted_world, realistic_world
from coheat.data.writing import write_tables
from coheat.errors import ConfigError
from coheat.evaluation import evaluate
from coheat.experiments.check import check
from coheat.experiments.reproduce import reproduce
from coheat.runs import open_run

OWN = f"""
title = "Own"
view = "methods"
scenarios = ["cold"]
seeds = 2
models = [
    {{ name = "Factors", model = "mfbpr", settings = {{ epochs = 2, {SMALL} }} }},
    {{ name = "Counting", model = "counting", family = "yardstick" }},
]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data in the published layout, an experiment of one's own, and its results in `kept`."""
    directory = tmp_path_factory.mktemp("check")
    write_published(directory / "data")
    reproduce(write_experiment(directory / "own.toml", OWN), directory / "data", directory / "kept")
    return directory


def tampered(place: Path, to: Path, **changes: Any) -> Path:
    """The kept results with another figure or setting in the first row."""
    document = json.loads((place / "kept" / "own.json").read_text())
    row = document["tables"][0]["rows"][0]
    row["test"]["recall@20"][0] += changes.pop("recall", 0.0)
    row["settings"] |= changes
    to.mkdir()
    (to / "own.json").write_text(json.dumps(document))
    return to


def test_what_was_kept_is_measured_again(place: Path, tmp_path: Path) -> None:
    checked = check(str(place / "own.toml"), place / "data", place / "kept", tmp_path / "fresh")
    assert {(one.row, one.seed, one.metric) for one in checked} == {
        (row, 0, metric) for row in ("Factors", "Counting") for metric in ("recall@20", "ndcg@20")
    }
    assert not any(one.drifted for one in checked)
    assert (tmp_path / "fresh" / "runs").is_dir(), "they were trained, not read"


def test_only_chooses_what_is_trained(place: Path, tmp_path: Path) -> None:
    checked = check(str(place / "own.toml"), place / "data", place / "kept", tmp_path, only=["counting"])
    assert {one.row for one in checked} == {"Counting"}
    assert not list((tmp_path / "runs").rglob("mfbpr*"))


def test_a_tampered_figure_fails_by_name(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tampered(place, tmp_path / "kept", recall=0.05)
    words = ["reproduce", str(place / "own.toml"), "--check", "--data", str(place / "data")]
    monkeypatch.setattr(sys, "argv", ["coheat", *words, "--results", str(kept), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    out, errors = capsys.readouterr()
    report = json.loads(out)
    (drifted,) = [one for one in report["checked"] if one["drifted"]]
    assert (drifted["row"], drifted["metric"], report["drifted"]) == ("Factors", "recall@20", 1)
    assert drifted["committed"] == pytest.approx(drifted["fresh"] + 0.05)
    assert "own: Factors (Planted, cold): recall@20 with seed 0: committed" in errors


def test_a_row_with_settings_of_another_day_drifts_untrained(place: Path, tmp_path: Path) -> None:
    kept = tampered(place, tmp_path / "kept", weight_decay=0.5)
    (one,) = check(str(place / "own.toml"), place / "data", kept, tmp_path / "fresh", only=["mfbpr"])
    assert one.drifted
    assert one.problem.startswith("measured with other settings: weight_decay was 0.5 and is")
    with pytest.raises(ConfigError, match="no results of experiments"):
        check("ablation", place / "data", tmp_path / "nowhere", tmp_path / "fresh")


def test_other_shops_are_divided_by_time_or_as_they_come(tmp_path: Path) -> None:
    """Beside published splits: one with times, judged by what was on offer; one with a split that leaks."""
    world = realistic_world(150, 60, 200, 1500, 2000, 300, seed=1)
    assert world.timestamps is not None
    assert world.launched is not None
    middle = np.fmax(np.median(world.timestamps), world.launched + 1)
    ends = np.where(np.arange(60) < 20, middle, np.nan)
    write_published(tmp_path / "data")
    write_tables(replace(world, ends=ends), tmp_path / "data" / "dated")
    leaking = split(realistic_world(150, 60, 200, 1500, 2000, 300, seed=2, with_timestamps=False), "warm")
    taken = leaking.train.user_bundle + leaking.validation + leaking.test
    held = (leaking.train.user_item + taken @ leaking.train.bundle_item).tocsr()
    train = replace(leaking.train, user_item=relation(*pairs(held), held.shape))
    write_tables(replace(leaking, train=train), tmp_path / "data" / "leaking")
    found = reproduce("other-shops", tmp_path / "data", tmp_path / "out", 1, only=["counting", "popularity"])
    tables = {(table["dataset"], table["division"]): table for table in found.documents[0]["tables"]}
    assert list(tables) == [("dated", "time"), ("leaking", "published")]
    assert "users already have all items of" in tables["leaking", "published"]["parts"]["leaks_removed"]
    assert "leaks_removed" not in tables["dated", "time"]["parts"]
    run = open_run(next((tmp_path / "out/runs/dated/time").glob("popularity-*/seed-0")))
    judged = read_split(run.record.data_resolved)
    offered = judged.on_offer("test")
    assert 0 < offered.sum() < len(offered)
    served = run.artifact.served()
    by_hand = evaluate(served, judged.train, judged.test, candidates="offered", offered=offered)
    row = next(row for row in tables["dated", "time"]["rows"] if row["name"] == "Popularity")
    assert row["test"]["recall@20"] == [by_hand.metrics["recall@20"]]


def test_worlds_are_made_up_where_an_experiment_asks_for_them(tmp_path: Path) -> None:
    text = """
title = "Made up"
view = "methods"
scenarios = ["time"]
worlds = ["small-bundles"]
models = [{ name = "Popularity", model = "popularity", family = "yardstick" }]
"""
    write_tables(planted_world(), tmp_path / "data" / "cold" / "Planted")
    (document,) = reproduce(
        write_experiment(tmp_path / "own.toml", text), tmp_path / "data", tmp_path / "out"
    ).documents
    (table,) = document["tables"]
    assert (table["dataset"], table["division"]) == ("small-bundles", "time")
    assert 0 < table["rows"][0]["test"]["recall@20"][0] < 1
    with pytest.raises(ConfigError, match="choose among demo, small-bundles"):
        reproduce(
            write_experiment(tmp_path / "bad.toml", text.replace("small-bundles", "tiny")),
            tmp_path / "data",
            tmp_path / "out",
        )
