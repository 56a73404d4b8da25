"""Judging: rivals, later interactions, runs side by side, levels of warm-up; each against a known answer."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coheat.cli import main
from coheat.data.dataset import pairs, relation
from coheat.data.leaks import leakage, without_leaks
from coheat.data.problems import DataWarning
from coheat.data.split import Split, split
from coheat.data.synthetic import planted_world, realistic_world
from coheat.data.writing import write_tables
from coheat.errors import ConfigError, DataError
from coheat.evaluation import bootstrap, difference, evaluate
from coheat.judging import beside_rivals, judge, judge_on_file, sentence
from coheat.models.counting import Counting, CountingConfig
from coheat.models.popularity import Popularity, PopularityConfig
from coheat.plots import plot_warm_up
from coheat.rng import Randomness
from coheat.runs import Run, open_run, train_run
from coheat.training import Watcher


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    place = tmp_path_factory.mktemp("runs")
    write_tables(planted_world(), place / "data")
    found = {}
    for name in ("counting", "popularity"):
        found[name] = train_run(place / "data", place / name, name, watcher=Watcher())
    found["everything"] = train_run(
        place / "data", place / "everything", "counting", scenario="everything", watcher=Watcher()
    )
    return found


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    monkeypatch.setattr(sys, "argv", ["coheat", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    return capsys.readouterr().out


def test_an_interval_covers_the_mean_and_narrows_with_more_users() -> None:
    rng = np.random.default_rng(0)
    few, many = (bootstrap(rng.normal(0.1, 1.0, n)) for n in (50, 5000))
    assert few.low < few.mean < few.high
    assert many.high - many.low < (few.high - few.low) / 5
    # The bootstrap of a mean is close to what its standard error says.
    assert many.high - many.mean == pytest.approx(1.96 / np.sqrt(5000), rel=0.1)
    assert (many.verdict, bootstrap(np.full(10, -1.0)).verdict) == ("better", "worse")


def test_a_difference_is_paired_over_the_users_of_both(planted: Split) -> None:
    counting = Counting(planted.train, CountingConfig(), Randomness(0)).served()
    found = evaluate(counting, planted.train, planted.test)
    assert difference(found, found, "recall@20").to_dict() == {
        "mean": 0.0, "low": 0.0, "high": 0.0, "verdict": "level"
    }  # fmt: skip
    half = replace(
        found, users=found.users[::2], per_user={n: v[::2] + 0.5 for n, v in found.per_user.items()}
    )
    assert difference(half, found, "recall@20").mean == pytest.approx(0.5)


def test_rivals_stand_beside_a_model_and_the_sentence_says_who_won(planted: Split) -> None:
    popular = Popularity(planted.train, PopularityConfig(), Randomness(0)).served()
    found = beside_rivals(popular, planted, "popularity", k=5, seed=0)
    assert set(found["models"]) == {"popularity", "counting"}
    assert found["against"]["counting"]["recall@5"]["verdict"] == "worse"
    said = sentence(found, "popularity")
    assert "worse than counting" in said
    assert "--model counting" in said
    assert found["bundles"] == found["of_bundles"] == planted.train.n_bundles
    taken = int((np.bincount(planted.validation.indices, minlength=planted.train.n_bundles) > 0).sum())
    ended = replace(planted.train, ends=np.zeros(planted.train.n_bundles))
    later = replace(planted, train=ended, times=(10.0, 20.0, 30.0))
    assert beside_rivals(popular, later, "popularity", k=5, seed=0)["bundles"] == taken < found["of_bundles"]
    nothing = relation([], [], planted.validation.shape)
    assert beside_rivals(popular, replace(planted, validation=nothing), "popularity", 5, 0) == {}


def test_training_keeps_what_came_of_its_rivals(runs: dict[str, Run]) -> None:
    assert set(runs["counting"].rivals["against"]) == {"popularity"}
    assert runs["everything"].rivals == {}
    assert runs["everything"].artifact.description.metrics == {}


def test_everything_is_all_parts_together(runs: dict[str, Run]) -> None:
    world = planted_world()
    total = world.train.user_bundle.nnz + world.validation.nnz + world.test.nnz
    assert runs["everything"].artifact.training_data().user_bundle.nnz == total
    with pytest.raises(DataError, match="--on FILE"):
        runs["everything"].evaluate()


def test_a_file_of_later_interactions_judges_like_the_test_part(runs: dict[str, Run], tmp_path: Path) -> None:
    world = planted_world()
    users, bundles = pairs(world.test)
    lines = [f"{world.train.users[u]},{world.train.bundles[b]}" for u, b in zip(users, bundles, strict=True)]
    seen = world.train.user_bundle.nonzero()
    lines += [f"{world.train.users[seen[0][0]]},{world.train.bundles[seen[1][0]]}", "stranger,nothing"]
    path = tmp_path / "later.csv"
    path.write_text("user_id,bundle_id\n" + "\n".join(lines) + "\n")
    found, notes = judge_on_file(runs["counting"].artifact, path)
    expected = judge(runs["counting"].artifact.served(), world, "test")
    assert expected is not None
    assert found.metrics == pytest.approx(expected.metrics)
    assert sum("was not trained with" in note for note in notes) == 2
    path.write_text("user_id,bundle_id\nstranger,nothing\n")
    with pytest.raises(DataError, match="none of its interactions"):
        judge_on_file(runs["counting"].artifact, path)
    with pytest.raises(DataError, match="no such file"):
        judge_on_file(runs["counting"].artifact, tmp_path / "nowhere.csv")


def test_compare_and_evaluate_as_typed(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = runs["popularity"].path, runs["counting"].path
    report = json.loads(call(monkeypatch, capsys, "compare", first, second, "--k", 5, "--json"))
    assert report["against"] == str(first)
    gap = report["differences"][str(second)]["recall@5"]
    assert gap["mean"] == pytest.approx(
        report["runs"][str(second)]["recall@5"] - report["runs"][str(first)]["recall@5"]
    )
    assert gap["low"] <= gap["mean"] <= gap["high"]
    shown = call(monkeypatch, capsys, "compare", first, second)
    assert "better" in shown or "level" in shown
    world = planted_world()
    path = tmp_path / "later.csv"
    path.write_text(
        f"user_id,bundle_id\n{world.train.users[0]},{world.train.bundles[int(world.test.indices[0])]}\n"
    )
    words = ("evaluate", second, "--on", path, "--json")
    assert json.loads(call(monkeypatch, capsys, *words))["later"]["users"] == 1


def test_warm_up_counts_what_was_found_by_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = realistic_world(200, 80, 300, n_user_bundle=3000, n_user_item=4000, n_bundle_item=900, seed=1)
    thinned = split(data, "warm-up", seed=0)
    write_tables(thinned, tmp_path / "data")
    run = train_run(tmp_path / "data", tmp_path / "run", "counting", watcher=Watcher())
    report = json.loads(call(monkeypatch, capsys, "evaluate", run.path, "--json"))["test"]["warm_up"]
    assert thinned.warm_up is not None
    levels = thinned.warm_up.levels
    served = run.artifact.served()
    scores = served.scores(np.arange(data.n_users))
    scores[thinned.train.user_bundle.nonzero()] = -np.inf
    top = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    users, bundles = thinned.test.nonzero()
    hit = np.array([bundle in top[user] for user, bundle in zip(users, bundles, strict=True)])
    assert sum(group["positives"] for group in report.values()) == thinned.test.nnz
    for name, group in report.items():
        own = levels[bundles] == (-1 if name == "others" else int(name))
        assert group["positives"] == own.sum()
        assert group["recall@20"] == pytest.approx(hit[own].mean() if own.any() else 0.0)

    # Beside another run: the same figures by run, and a picture with a line for each.
    other = train_run(tmp_path / "data", tmp_path / "other", "popularity", watcher=Watcher())
    words = ("compare", run.path, other.path, "--plot", tmp_path / "new/levels.svg")
    assert json.loads(call(monkeypatch, capsys, *words, "--json"))["warm_up"][str(run.path)] == report
    picture = (tmp_path / "new" / "levels.svg").read_text(encoding="utf-8")
    assert all(f">{text}<" in picture for text in (run.path, other.path, *report))
    shown = call(monkeypatch, capsys, *words)
    assert all(f"{group['recall@20']:.4f}" in shown for group in report.values())
    call(monkeypatch, capsys, "evaluate", run.path, "--plot", tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_levels_needs_levels_and_a_name_that_says_its_format(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    report = runs["counting"].evaluate()
    with pytest.raises(ConfigError, match="--scenario warm-up"):
        plot_warm_up({"counting": report["test"].get("warm_up", {})}, tmp_path / "a.png", "recall@20", "")
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        plot_warm_up({}, tmp_path / "a.gif", "recall@20", "")


def test_training_warns_of_leaks_and_removes_them(tmp_path: Path) -> None:
    world = planted_world()
    data = world.train
    everything = (data.user_bundle + world.validation + world.test).tocsr()
    users, items = ((everything @ data.bundle_item) + data.user_item).nonzero()
    leaky = replace(world, train=replace(data, user_item=relation(users, items, data.user_item.shape)))
    assert leakage(leaky).is_suspicious
    write_tables(leaky, tmp_path / "data")
    settings: dict[str, Any] = {"model_name": "counting", "watcher": Watcher()}
    with pytest.warns(DataWarning, match="--without-leaks"):
        train_run(tmp_path / "data", tmp_path / "leaky", **settings)
    clean = train_run(tmp_path / "data", tmp_path / "clean", **settings, remove_leaks=True)
    assert clean.artifact.training_data().user_item.nnz == without_leaks(leaky).train.user_item.nnz
    assert open_run(clean.path).evaluate()["warnings"] == []


def test_a_run_is_judged_as_its_knob_is_turned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tables(split(planted_world().train, "cold", 0), tmp_path / "data")
    run = train_run(tmp_path / "data", tmp_path / "run", "ember", watcher=Watcher(),
                    overrides={"epochs": 2, "rehearsal_epochs": 2, "embedding_size": 8})  # fmt: skip
    hidden = json.loads(call(monkeypatch, capsys, "evaluate", run.path, "--welcome", 0, "-k", 3, "--json"))
    assert hidden["test"]["cold_share@3"] == 0
    favoured = run.evaluate(ks=(3,), knobs={"welcome": 100.0})
    assert favoured["test"]["cold_share@3"] > 0
    with pytest.raises(ConfigError, match="welcome"):
        run.evaluate(knobs={"welcome": -1.0})
