"""Experiments from the TOML to the table: once, resumed, side by side, beside what was published."""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from quick_python import QuickProcess
from tiny import SMALL, write_experiment, write_plain, write_published

from coheat.cli import main
from coheat.data.files import read_data, read_split
from coheat.data.split import split
from coheat.data.synthetic import realistic_world
from coheat.data.writing import write_tables
from coheat.errors import ConfigError, DataError
from coheat.experiments.pages import decimal, fill_page, markdown, sheets
from coheat.experiments.plan import NAMES, OWN, TABLES, load_experiment, load_experiments, rows
from coheat.experiments.published import METRICS, published_counts, published_figures
from coheat.experiments.reproduce import Reproduction, rebuild, reproduce
from coheat.experiments.sources import Sources, find_datasets
from coheat.experiments.writing import read_document, write_report
from coheat.models import MODELS
from coheat.presets import origin_of
from coheat.runs import open_run

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
LONG = f"""
title = "Long"
view = "methods"
scenarios = ["cold"]
seeds = 2
models = [{{ name = "CoHeat", model = "coheat", settings = {{ epochs = 60, {SMALL} }} }}]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with data in the published layout, a tiny experiment, and its results in `out`."""
    directory = tmp_path_factory.mktemp("experiments")
    write_published(directory / "data")
    write_experiment(directory / "tiny.toml")
    return directory


@pytest.fixture(scope="module")
def found(place: Path) -> Reproduction:
    return reproduce(str(place / "tiny.toml"), place / "data", place / "out")


def table_of(document: dict[str, Any], division: str) -> dict[str, Any]:
    return next(table for table in document["tables"] if table["division"] == division)


def test_the_table_is_the_one_computed_by_hand(found: Reproduction, place: Path) -> None:
    """Every number again from the runs themselves, by way of `coheat evaluate`."""
    (document,) = found.documents
    figures = [sheet for sheet in sheets(document) if ": " not in sheet.title]
    for division, sheet in zip(("cold", "warm"), figures, strict=True):
        runs = [open_run(path) for path in sorted((place / "out/runs/Planted" / division).glob("*/seed-*"))]
        coheat = [run for run in runs if run.record.model == "coheat"]
        reports = [run.evaluate()["test"] for run in coheat]
        cells = ["CoHeat", "2"]
        for metric in METRICS:
            values = [report[metric] for report in reports]
            shown = f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"
            cells += [re.sub(r"\b0\.", ".", shown), "", ""]
        cells.append(", ".join(str(run.artifact.description.best_epoch) for run in coheat))
        assert sheet.rows[0] == tuple(cells)
        assert [row[0] for row in sheet.rows] == ["CoHeat", "Counting", "Popularity"]
        assert "Not run: Nobody (model nobody is not in this version)." in sheet.remarks
        assert sheet.title == f"Planted, {division}"
    assert document["environment"]["cores"] >= 1
    row = table_of(document, "cold")["rows"][0]
    assert row["settings"]["embedding_size"] == 8
    assert len(row["seconds_per_epoch"]) == 2


def test_every_row_has_an_interval_and_a_best_rival(found: Reproduction) -> None:
    """Counting solves the planted world, and popularity cannot know cold bundles."""
    cold = table_of(found.documents[0], "cold")
    rows = {row["name"]: row for row in cold["rows"] if row["seeds"]}
    means = {name: statistics.mean(row["test"]["recall@20"]) for name, row in rows.items()}
    first, second = sorted(means, key=lambda name: -means[name])[:2]
    for name, row in rows.items():
        interval = row["intervals"]["recall@20"]
        assert interval["low"] <= means[name] <= interval["high"]
        assert interval["rival"] == (second if name == first else first)
        assert interval["difference"][0] == pytest.approx(means[name] - means[interval["rival"]])
        assert 0 < interval["p"] <= 1
    (sheet,) = [sheet for sheet in sheets(found.documents[0]) if sheet.title == "Planted, cold: how sure"]
    assert [row[0] for row in sheet.rows] == ["CoHeat", "Counting", "Popularity"]


def test_who_is_seen_stands_below_the_figures(found: Reproduction, place: Path) -> None:
    (sheet,) = [sheet for sheet in sheets(found.documents[0]) if sheet.title == "Planted, warm: who is seen"]
    run = open_run(next((place / "out/runs/Planted/warm").glob("popularity-*/seed-0")))
    seen = run.evaluate()["test"]["exposure"]
    shown = f"{seen['coverage@20']:.1%}", f"{seen['young_share@20']:.1%}"
    assert (sheet.rows[-1][2], sheet.rows[-1][4]) == shown


def test_a_row_says_where_its_settings_come_from(found: Reproduction) -> None:
    for name in (*NAMES, *OWN):
        for row in load_experiment(name).models:
            for preset in ("default", "youshu"):
                assert origin_of(row.model, preset), f"{row.model}: [{preset}] has no origin"
    (sheet,) = [sheet for sheet in sheets(found.documents[0]) if sheet.title == "Planted, cold"]
    assert "Settings of Popularity: nothing is set." in sheet.remarks
    assert any(text.startswith("Settings of CoHeat (epochs=4, embedding_size=8") for text in sheet.remarks)


def test_files_are_written_and_rebuilt_the_same(found: Reproduction, place: Path, tmp_path: Path) -> None:
    names = {path.name for path in found.files}
    assert names == {"tiny.json", "tiny.md", "tiny-planted.png", "tiny-planted.svg"}
    again = rebuild(str(place / "tiny.toml"), place / "out", tmp_path)
    for path in again.files:
        assert path.read_bytes() == (place / "out" / path.name).read_bytes(), f"{path.name} differs"


def test_what_is_finished_is_not_trained_again(found: Reproduction, place: Path) -> None:
    def moments() -> dict[Path, int]:
        files = [p for p in (place / "out").rglob("*") if p.is_file() and p.parent != place / "out"]
        return {path: path.stat().st_mtime_ns for path in files}

    before = moments()
    again = reproduce(str(place / "tiny.toml"), place / "data", place / "out")
    assert moments() == before
    assert again.documents == found.documents


def test_experiments_share_trainings_and_only_limits_them(found: Reproduction, place: Path) -> None:
    """Another experiment with the same row finds it trained; a row left out by `only` is not run."""
    text = f"""
title = "Other"
view = "bars"
scenarios = ["cold"]
models = [
    {{ name = "Ours", model = "coheat", settings = {{ epochs = 4, {SMALL} }} }},
    {{ name = "Ours again", model = "coheat", settings = {{ epochs = 5, {SMALL} }} }},
]
"""
    other = write_experiment(place / "other.toml", text)
    (document,) = reproduce(other, place / "data", place / "out", only=["counting"]).documents
    shared, new = document["tables"][0]["rows"]
    assert shared["test"] == table_of(found.documents[0], "cold")["rows"][0]["test"]
    assert shared["seeds"] == [0, 1], "a table shows every seed that was measured"
    assert new["seeds"] == []
    with pytest.raises(ConfigError, match="no model conting"):
        reproduce(other, place / "data", place / "out", only=["conting"])


def test_a_failure_is_told_and_the_others_go_on(place: Path, tmp_path: Path) -> None:
    text = f"""
title = "Failing"
view = "methods"
scenarios = ["cold"]
models = [
    {{ name = "Diverging", model = "coheat", settings = {{ epochs = 2, learning_rate = 1e30, {SMALL} }} }},
    {{ name = "Popularity", model = "popularity", family = "yardstick" }},
]
"""
    experiment = write_experiment(tmp_path / "failing.toml", text)
    for _ in range(2):  # the second time, what failed is tried again
        (document,) = reproduce(experiment, place / "data", tmp_path / "out").documents
        sheet = sheets(document)[0]
        assert sheet.rows[0][:3] == ("Diverging", "0", "failed")
        assert any("Diverging failed (seed 0): the loss is not finite" in text for text in sheet.remarks)
        assert sheet.rows[1][1] == "1"


def start(*arguments: object) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", "from coheat.cli import main; main()"]
    return QuickProcess(
        [*program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_epochs(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Until all runs that have begun have so many epochs behind them together."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        histories = list((out / "runs").rglob("history.jsonl"))
        if sum(path.read_bytes().count(b"\n") for path in histories) >= count:
            return
        time.sleep(0.01)
    raise AssertionError("no epoch was trained")


def test_killed_and_interrupted_it_goes_on_exactly(place: Path, tmp_path: Path) -> None:
    """Killed with two at a time, interrupted in one process, finished here: as if never stopped."""
    experiment = write_experiment(tmp_path / "long.toml", LONG)
    whole = reproduce(experiment, place / "data", tmp_path / "whole").documents[0]["tables"][0]["rows"][0]
    out = tmp_path / "cut"
    command = ("reproduce", experiment, "--data", place / "data", "--out", out)
    process = start(*command, "--jobs", 2)
    wait_for_epochs(out, 3, process)
    workers = psutil.Process(process.pid).children()
    assert workers
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=240)
    assert not alive, "a worker goes on without whoever asked for it"
    process = start(*command)
    wait_for_epochs(out, 40, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert "The same command goes on" in errors
    assert "Traceback" not in errors
    assert not list((out / "measured").rglob("*.json")), "an interruption is not a failure"
    row = reproduce(experiment, place / "data", out).documents[0]["tables"][0]["rows"][0]
    for part in ("seeds", "epochs", "test", "validation", "settings"):
        assert row[part] == whole[part]


def test_data_without_a_split_is_divided_for_every_seed(tmp_path: Path) -> None:
    text = """
title = "Shares"
view = "lines"
cold_shares = [0.0, 1.0]
seeds = 2
models = [{ name = "Counting", model = "counting" }, { name = "Popularity", model = "popularity" }]
"""
    data = write_plain(tmp_path)
    experiment = write_experiment(tmp_path / "shares.toml", text)
    found = reproduce(experiment, data, tmp_path / "out")
    (document,) = found.documents
    shares = [table["parts"]["test"]["cold_interaction_share"] for table in document["tables"]]
    assert shares == [0.0, 1.0]
    splits = [read_split(path) for path in sorted((tmp_path / "out/splits/Shop").glob("cold-ratio-1-*"))]
    assert [split.seed for split in splits] == [0, 1]
    assert (splits[0].test - splits[1].test).count_nonzero() > 0
    sheet = next(sheet for sheet in sheets(document) if sheet.title == "Shop, cold ratio")
    assert [row[:2] for row in sheet.rows[:3]] == [
        ("0%", "Counting"), ("0%", "Popularity"), ("100%", "Counting"),
    ]  # fmt: skip
    counting = document["tables"][0]["rows"][0]
    assert counting["intervals"]["recall@20"]["difference"][0] == pytest.approx(
        statistics.mean(counting["test"]["recall@20"])
        - statistics.mean(document["tables"][0]["rows"][1]["test"]["recall@20"])
    ), "users of both splits count"
    assert {path.suffix for path in found.files} == {".json", ".md", ".png", ".svg"}


def test_the_warm_up_table_has_every_model_of_the_library() -> None:
    assert {row.model for row in load_experiment("warm-up").models} == set(MODELS)
    shortened = {row.model: row.settings.get("epochs") for row in rows(load_experiment("warm-up"), epochs=3)}
    assert shortened["ember"] == shortened["dam"] == 3
    assert shortened["counting"] is None, "its epochs are exponents to choose from"


def test_the_warm_up_table_is_the_one_computed_by_hand(tmp_path: Path) -> None:
    """By level as `coheat evaluate` has it; also where splits are published, the thinned one is made."""
    world = realistic_world(200, 80, 300, n_user_bundle=3000, n_user_item=4000, n_bundle_item=900, seed=1)
    write_tables(split(world, "cold"), tmp_path / "data" / "cold" / "Shop")
    only = ["counting", "popularity", "mfbpr"]
    found = reproduce("warm-up", tmp_path / "data", tmp_path / "out", 1, only=only, epochs=2)
    (document,) = found.documents
    sheet = sheets(document)[0]
    runs = {
        run.record.model: run for run in map(open_run, (tmp_path / "out/runs/Shop/warm-up").glob("*/seed-0"))
    }
    assert runs["mfbpr"].record.training["epochs"] == 2
    assert [row[0] for row in sheet.rows] == ["MFBPR", "Counting", "Popularity"]
    for row in sheet.rows:
        report = runs[row[0].lower()].evaluate()["test"]
        values = [report["warm_up"][level]["recall@20"] for level in sheet.heads[2:9]]
        mean = statistics.mean(values[1:-1])
        assert row[2:11] == tuple(map(decimal, (*values, mean, report["recall@20"])))
    assert sheet.heads[2:10] == ("0", "1", "2", "4", "8", "16", "others", "mean of 1 to 16")
    assert sheet.best == 1, "popularity and two epochs of factors know nothing of young bundles"
    assert any(remark.startswith("Not run: DropoutNet, CB2CF") for remark in sheet.remarks)
    assert {path.name for path in found.files} >= {"warm-up-shop.png", "warm-up-shop.svg"}
    again = rebuild("warm-up", tmp_path / "out", tmp_path / "again")
    for path in again.files:
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes(), f"{path.name} differs"


def test_a_view_of_levels_needs_the_scenario_that_has_them(tmp_path: Path) -> None:
    text = (TABLES / "warm-up.toml").read_text().replace('scenarios = ["warm-up"]', 'scenarios = ["warm"]')
    with pytest.raises(ConfigError, match=r'scenarios = \["warm-up"\]'):
        load_experiment(write_experiment(tmp_path / "own.toml", text))


def test_a_grid_marks_the_usual_value_as_published(tmp_path: Path) -> None:
    experiment = load_experiment("temperature")
    values = [row.at for row in rows(experiment)]
    assert values == [*(10.0**n for n in range(1, 7)), None], "counting has no temperature: one row"
    assert [row.settings["max_temperature"] for row in rows(experiment)[:-1]] == values[:-1]
    assert {row.seeds for row in rows(experiment, seeds=4)} == {4}
    own = tmp_path / "own.toml"
    own.write_text((TABLES / "temperature.toml").read_text().replace("max_temperature", "heat"))
    with pytest.raises(ConfigError, match=r"grid\.heat: none of its models"):
        load_experiment(str(own))


def test_layouts_of_data(place: Path, tmp_path: Path) -> None:
    (dataset,) = find_datasets(place / "data")
    assert (dataset.name, set(dataset.published)) == ("Planted", {"cold", "warm"})
    plain = write_plain(tmp_path)
    assert [(d.name, d.published) for d in find_datasets(plain)] == [("Shop", {})]
    assert [d.name for d in find_datasets(plain / "Shop")] == ["Shop"]
    with pytest.raises(DataError, match=r"no data for the scenario cold.*the name of a directory"):
        reproduce("cold-methods", place / "data" / "cold" / "Planted", tmp_path / "nothing")
    with pytest.raises(DataError, match="no data set found"):
        find_datasets(place / "out")
    (tmp_path / "nested" / "Other").mkdir(parents=True)
    (tmp_path / "nested" / "Other" / "cold").symlink_to(place / "data" / "cold" / "Planted")
    (other,) = find_datasets(tmp_path / "nested")
    assert (other.name, set(other.published)) == ("Other", {"cold"})
    sources = Sources(tmp_path / "out")
    assert not sources.has(dataset, "all"), "what was published is not divided anew"
    assert sources.has(dataset, "cold-ratio-0.5")


def test_every_experiment_of_the_paper_is_readable() -> None:
    assert [experiment.name for experiment in load_experiments("all")] == [*NAMES, *OWN]
    for name in (*NAMES, *OWN):
        experiment = load_experiment(name)
        assert experiment.title
        assert {row.seeds for row in rows(experiment)} <= {3, 5}
        for row in experiment.models:
            assert row.model == row.model.lower()
    cold = [row.model for row in load_experiment("cold-methods").models]
    assert cold[:9] == [
        "dropoutnet",
        "cb2cf",
        "heater",
        "gar-cf",
        "gar-gnn",
        "cvar",
        "clcrec",
        "ccfcrec",
        "coheat",
    ]
    assert "counting" in cold
    warm = [row.model for row in load_experiment("warm-methods").models]
    assert warm[:9] == [
        "mfbpr",
        "lightgcn",
        "sgl",
        "simgcl",
        "lightgcl",
        "dam",
        "bundlenet",
        "bgcn",
        "crosscbr",
    ]
    with pytest.raises(ConfigError, match="choose one of datasets"):
        load_experiment("cold")


def test_a_mistake_in_an_experiment_is_named(tmp_path: Path) -> None:
    path = write_experiment(tmp_path / "wrong.toml", 'title = "x"\nview = "methods"\nscenarois = ["cold"]\n')
    with pytest.raises(ConfigError, match="did you mean 'scenarios'"):
        load_experiment(path)
    path = write_experiment(tmp_path / "empty.toml", 'title = "x"\nview = "methods"\n')
    with pytest.raises(ConfigError, match="needs models"):
        load_experiment(path)


def test_the_report_has_every_table_and_stands_alone(
    found: Reproduction, place: Path, tmp_path: Path
) -> None:
    statistics_of = reproduce("datasets", place / "data", place / "out")
    (sheet,) = sheets(statistics_of.documents[0])
    data = read_data(place / "data" / "cold" / "Planted")
    assert ("users", str(data.n_users), "", "") in sheet.rows
    page = write_report([*statistics_of.documents, *found.documents], tmp_path).read_text(encoding="utf-8")
    assert page.count("<table>") == 1 + 2 * 3 + 1
    assert page.count("<svg") == 1 + 2
    assert not re.search(r'(src|href)="(?!#)', page), "it needs another file"
    assert "Counting" in page


def test_a_page_is_filled_between_its_marks(found: Reproduction, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- results: tiny -->\nstale\n<!-- end -->\nafter <!-- end -->\n", encoding="utf-8"
    )
    fill_page(page, "tiny", markdown(found.documents[0]))
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- results: tiny -->\n### Tiny\n")
    assert text.endswith("\n<!-- end -->\nafter <!-- end -->\n")
    assert "stale" not in text
    with pytest.raises(DataError, match="write the lines"):
        fill_page(page, "other", "")


def test_the_command_speaks_json_and_refuses_politely(
    found: Reproduction, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["coheat", "reproduce", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())

    code, out, _ = call(place / "tiny.toml", "--results", place / "out", "--out", place / "again", "--json")
    assert code == 0
    assert json.loads(out)["experiments"] == json.loads(json.dumps(found.documents))
    code, _, errors = call("cold-methods", "--out", place / "again")
    assert (code, "--data DIR" in errors) == (2, True)
    code, out, _ = call("--help")
    assert code == 0
    assert "coheat reproduce cold-methods" in out


@pytest.mark.real_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="the published files are not here")
def test_published_figures_are_the_papers() -> None:
    paper = json.loads((SHARED / "paper-results.json").read_text(encoding="utf-8"))
    count = 0
    for name, methods in paper["cold_start_methods"].items():
        for dataset, scenarios in methods.items():
            for scenario, figures in scenarios.items():
                ours = published_figures(dataset, scenario, name)
                assert ours == {"recall@20": figures["recall"], "ndcg@20": figures["ndcg"]}
                count += 1
    for table, scenario in (("warm_start_methods", "warm"), ("ablation_cold", "cold")):
        for name, datasets in paper[table].items():
            for dataset, figures in datasets.items():
                ours = published_figures(dataset, scenario, name)
                assert ours == {"recall@20": figures["recall"], "ndcg@20": figures["ndcg"]}
                count += 1
    assert count == 9 * 9 + 10 * 3 + 5 * 3
    for dataset, counts in paper["datasets"].items():
        counts["average_bundle_size"] = counts.pop("avg_bundle_size")
        assert published_counts(dataset) == counts


@pytest.mark.real_data
@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="the published files are not here")
def test_the_published_parts_together_are_the_whole_data(tmp_path: Path) -> None:
    """All counts are Table 1's but one: the files hold 49,351 interactions, the table says 51,377."""
    (document,) = reproduce("datasets", SHARED / "data", tmp_path).documents
    assert [entry["dataset"] for entry in document["datasets"]] == ["Youshu", "grocery", "meal"]
    [entry] = [entry for entry in document["datasets"] if entry["dataset"] == "Youshu"]
    published, found = entry["published"], entry["statistics"]
    assert {"measured": found["user_bundle"], "paper": published.pop("user_bundle")} == {
        "measured": 49351,
        "paper": 51377,
    }
    for name, count in published.items():
        assert found[name] == pytest.approx(count, abs=0.005)
    wholes = [read_data(SHARED / "data" / scenario / "Youshu") for scenario in ("cold", "warm", "all")]
    assert len({data.fingerprint for data in wholes}) == 1, "the three divide the same interactions"


KEPT = [path for path in (ROOT / "docs" / "results").glob("*.json") if path.stem in (*NAMES, *OWN)]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_long_tables_are_those_of_the_kept_results(path: Path) -> None:
    """If not: coheat reproduce NAME --results docs/results --out docs/results."""
    document = read_document(path.parent, path.stem)
    assert path.with_suffix(".md").read_text(encoding="utf-8").strip() == markdown(document)
