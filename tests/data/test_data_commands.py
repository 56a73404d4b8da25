"""coheat data: what people see, what scripts parse, and what the exit status says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from quick_python import quick
from typer.testing import CliRunner, Result

from coheat.cli.data import data_app
from coheat.data import LIKE, read_data, read_split, write_tables
from coheat.data.stats import stats
from coheat.data.synthetic import realistic_world
from coheat.errors import ConfigError, DataError

COUNTS = ["--users", "60", "--bundles", "30", "--items", "40"]
PAIRS = ["--user-bundle", "400", "--user-item", "300", "--bundle-item", "120"]
WORLD = realistic_world(60, 30, 40, 400, 300, 120, seed=0)


def run(*words: object) -> Result:
    return CliRunner().invoke(data_app, list(map(str, words)))


def run_json(*words: object) -> Any:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    write_tables(WORLD, tmp_path / "shop")
    return tmp_path / "shop"


@pytest.mark.parametrize("file_format", ["parquet", "research"])
def test_synth_writes_the_world_of_its_seed(file_format: str, tmp_path: Path) -> None:
    told = run_json("synth", *COUNTS, *PAIRS, "--out", tmp_path / "new", "--format", file_format)
    assert told["user_bundle"] == 400
    # The text layout has no place for the times of interactions.
    expected = WORLD if file_format == "parquet" else replace(WORLD, timestamps=None)
    assert read_data(tmp_path / "new").fingerprint == expected.fingerprint


def test_synth_like_a_preset_with_another_count(tmp_path: Path) -> None:
    done = run("synth", "--like", "demo", "--users", "500", "--user-item", "9000", "--out", tmp_path / "new")
    assert done.exit_code == 0
    assert "500 users" in done.stdout
    assert stats(read_data(tmp_path / "new")).items == LIKE["demo"]["n_items"]


def test_synth_refuses_an_unknown_preset(tmp_path: Path) -> None:
    done = run("synth", "--like", "amazon", "--out", tmp_path / "new")
    assert isinstance(done.exception, ConfigError)
    assert "choose one of demo" in str(done.exception)


def test_check_tells_people_and_scripts_the_same(shop: Path) -> None:
    told = run_json("check", shop)
    assert told["ok"]
    assert told["counts"]["user_bundle"] == 400
    done = run("check", shop)
    assert done.exit_code == 0
    assert "usable: 0 errors, 0 warnings" in done.stdout


def test_check_exits_with_1_when_there_are_errors(shop: Path) -> None:
    (shop / "user_item.parquet").unlink()
    (shop / "user_item.csv").write_text("user_id,item_id\n[red]u,i\n,i\n[red]u,i\n")
    done = run("check", shop)
    assert done.exit_code == 1
    assert "user_item.csv:3: 1 row without user_id (row 3)" in done.stdout
    assert "fill it in or delete the row" in done.stdout
    assert "not usable: 1 errors" in done.stdout
    done = run("check", shop, "--json")
    assert done.exit_code == 1
    problems = json.loads(done.stdout)["problems"]
    assert {(p["severity"], p["file"], p["row"]) for p in problems} >= {
        ("error", "user_item.csv", 3),
        ("warning", "user_item.csv", 4),
    }


def test_check_of_nothing(tmp_path: Path) -> None:
    done = run("check", tmp_path / "nowhere")
    assert done.exit_code == 1
    assert "there is no such directory" in done.stdout


def test_stats_prints_table_1_a_sketch_and_draws_when_asked(shop: Path, tmp_path: Path) -> None:
    done = run("stats", shop)
    assert done.exit_code == 0
    for text in ("users", "60", "user-bundle", "400", "22.22%", "4.00", "│", "30 bundles, most taken first"):
        assert text in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shop"]
    told = run_json("stats", shop, "--plot", tmp_path / "skew.svg")
    assert told == stats(WORLD).to_dict() | {"plot": str(tmp_path / "skew.svg")}
    assert (tmp_path / "skew.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("scenario", "more"),
    [
        ("warm", []),
        ("cold", ["--format", "research"]),
        ("all", []),
        ("cold-ratio", ["--cold-share", "0.3"]),
        ("time", []),
        ("time", ["--times", "2024-01-01", "2024-06-01"]),
        ("warm", ["--ratios", "8:1:1"]),
        ("warm-up", []),
        ("warm-up", ["--at-least", "12", "--format", "research"]),
    ],
)
def test_split_writes_what_it_reports(scenario: str, more: list[str], shop: Path, tmp_path: Path) -> None:
    told = run_json("split", shop, "--scenario", scenario, "--seed", 2, "--out", tmp_path / "made", *more)
    assert told.pop("out") == str(tmp_path / "made")
    made = read_split(tmp_path / "made")
    assert made.report() == told
    assert (made.scenario, made.seed) == (scenario, 2)
    assert sum(part.nnz for part in made.parts.values()) == 400
    if "2024-01-01" in more:
        assert made.train.timestamps is not None
        assert made.train.timestamps.max() < 1_704_067_200


def test_split_shows_people_a_table_and_overwrites_only_when_told(shop: Path, tmp_path: Path) -> None:
    words = ["split", shop, "--scenario", "cold", "--out", tmp_path / "made"]
    done = run(*words)
    assert done.exit_code == 0
    for text in ("validation", "cold bundles", "100.0%", "written"):
        assert text in done.stdout
    assert isinstance(run(*words).exception, DataError)
    assert run(*words, "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--scenario", "colder"], "no scenario 'colder'"),
        (["--scenario", "warm", "--ratios", "a:b:c"], "--ratios 'a:b:c': write three numbers"),
        (["--scenario", "time", "--times", "soon", "later"], "--times soon later: write dates"),
        (["--scenario", "cold-ratio"], "the scenario cold-ratio needs the share of cold interactions"),
    ],
)
def test_split_refuses_in_a_sentence(more: list[str], message: str, shop: Path, tmp_path: Path) -> None:
    done = run("split", shop, "--out", tmp_path / "made", *more)
    assert isinstance(done.exception, ConfigError | DataError)
    assert message in str(done.exception)
    assert not (tmp_path / "made").exists()


def coheat(*words: object) -> subprocess.CompletedProcess[str]:
    command = [quick("coheat"), "data", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_real_command_says_errors_in_a_sentence_and_exits_with_2(tmp_path: Path) -> None:
    done = coheat("stats", tmp_path / "nowhere", "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "there is no such directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_real_command_keeps_warnings_out_of_json(shop: Path) -> None:
    (shop / "user_item.parquet").unlink()
    (shop / "user_item.csv").write_text("user_id,item_id\nuser-00,item-00\nuser-00,item-00\n")
    done = coheat("stats", shop, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["user_item"] == 1
    assert "1 repeated pair dropped (row 3)" in done.stderr
    assert "Warning" not in done.stderr


def test_help_does_not_wait_for_heavy_imports() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from coheat.cli import app, data; "
        "assert CliRunner().invoke(app, ['data', '--help']).exit_code == 0; "
        "print(sorted({'torch', 'pyarrow', 'matplotlib', 'scipy', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
