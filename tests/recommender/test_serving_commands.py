"""The commands around a trained model, as they are typed, with ids that are hard on shells and tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from coheat_served import serve, trained
from test_artifact import save

from coheat.cli import main
from coheat.data.split import Split
from coheat.models import MODELS
from coheat.rng import Randomness

WILD = "/ ? % # [red] \"q' 🧺 " + "x" * 900
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(planted: Split, tmp_path: Path) -> Path:
    serve(trained(planted.train, {}), tmp_path)
    return tmp_path / "model"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coheat", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int | None)
        return ended.value.code or 0, out, err

    return run


def document(answer: tuple[int, str, str]) -> Any:
    status, out, err = answer
    assert status == 0, err
    return json.loads(out)


def test_wild_ids_go_through_every_command(model: Path, call: Call, tmp_path: Path) -> None:
    new = ["--new-bundle", json.dumps({WILD: ["item-0-0", "item-1-1", "=,"]}), "--json"]
    audience = document(call("audience", model, WILD, "-k", 3, *new))
    assert [row["bundle_id"] for row in audience["audience"]] == [WILD] * 3
    assert audience["unknown_items"] == {WILD: ["=,"]}
    explained = document(call("explain", model, "user-0-0", WILD, *new))
    assert sum(term["share"] for term in explained["terms"]) == pytest.approx(explained["score"], abs=1e-6)
    assert document(call("similar", model, WILD, "-k", 2, *new))["similar"][1]["rank"] == 2
    found = document(
        call("recommend", model, "--user", WILD, "--item", "item-0-0", "--candidate", WILD, *new)
    )
    assert [(row["user_id"], row["bundle_id"]) for row in found["recommendations"]] == [(WILD, WILD)]
    assert (found["sources"], found["short"]) == ({WILD: "folded-in"}, {WILD: 1})
    report = document(call("batch", model, "--out", tmp_path / "lists", "-k", 5, *new))
    assert (report["users"], report["rows"]) == (48, 240)
    report = document(call("export", model, "--out", tmp_path / "vectors", "--index", "flat", *new))
    assert (report["counts"]["bundle"], report["recall"]) == (25, 1.0)


def test_tables_and_notes_for_people(model: Path, call: Call, tmp_path: Path) -> None:
    for arguments, shown in (
        (("audience", model, "bundle-0-0"), "user-"),
        (("explain", model, "user-0-0", "bundle-0-0"), "affiliation"),
        (("similar", model, "bundle-0-0"), "bundle-"),
        (("batch", model, "--out", tmp_path / "lists"), "48 users"),
        (("export", model, "--out", tmp_path / "vectors"), "users.parquet"),
        (("recommend", model, "--user", "nobody"), "nobody"),
    ):
        status, out, err = call(*arguments)
        assert status == 0, err
        assert shown in out
    assert "popular and new" in err


def test_what_was_shown_and_what_is_excluded_is_in_no_list(model: Path, call: Call, tmp_path: Path) -> None:
    first = document(call("recommend", model, "--user", "user-0-0", "-k", 5, "--json"))["recommendations"]
    before = [row["bundle_id"] for row in first]
    shown = tmp_path / "shown.csv"
    shown.write_text(f"user_id,bundle_id\nuser-0-0,{before[0]}\nuser-0-0,{before[2]}\nnobody,{before[1]}\n")
    without = ["--shown", shown, "--exclude", before[3], "-k", 5, "--json"]
    rows = document(call("recommend", model, "--user", "user-0-0", *without))["recommendations"]
    found = [row["bundle_id"] for row in rows]
    assert found[:2] == [before[1], before[4]]
    lists = tmp_path / "lists"
    document(call("batch", model, "--out", lists, *without))
    table = parquet.read_table(lists).to_pylist()
    assert [row["bundle_id"] for row in table if row["user_id"] == "user-0-0"] == found
    assert before[3] not in {row["bundle_id"] for row in table}
    assert document(call("batch", model, "--out", lists, *without))["parts_kept"] == 1
    shown.write_text(f"user_id,bundle_id\nuser-0-0,{before[0]}\n")
    status, _, err = call("batch", model, "--out", lists, *without)
    assert (status, "another shown" in " ".join(err.split())) == (2, True)
    only = document(call("batch", model, "--out", tmp_path / "one", "--candidate", before[0], "--json"))
    assert 0 < only["rows"] <= 48


@pytest.mark.parametrize(
    ("says", "arguments"),
    [
        ("there is no such file", ("recommend", "{model}", "--user", "a", "--shown", "{tmp}/none.csv")),
        ("there is no such file", ("batch", "{model}", "--out", "{tmp}/o", "--shown", "{tmp}/none.csv")),
        ("unknown bundle id 'nothing'", ("audience", "{model}", "nothing")),
        ("unknown bundle id 'nothing'", ("similar", "{model}", "nothing")),
        ("not valid JSON", ("audience", "{model}", "x", "--new-bundle", "{{")),
        ("write JSON as", ("audience", "{model}", "x", "--new-bundle", '{{"x": "item"}}')),
        ("names 'x' twice", ("audience", "{model}", "x", "--new-bundle", "x=a", "--new-bundle", "x=b")),
        ("i/n", ("batch", "{model}", "--out", "{tmp}/o", "--shard", "half")),
        ("choose parquet", ("export", "{model}", "--out", "{tmp}/o", "--format", "csv")),
        ("describe one user", ("recommend", "{model}", "--user", "a", "--user", "b", "--item", "c")),
        (
            "exclude each other",
            ("recommend", "{model}", "--user", "a", "--candidate", "b", "--candidates", "new"),
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    says: str, arguments: tuple[str, ...], model: Path, call: Call, tmp_path: Path
) -> None:
    status, out, err = call(*(text.format(model=model, tmp=tmp_path) for text in arguments))
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert says in err.replace("\n", " ")
    assert not (tmp_path / "o").exists()


def test_a_model_without_vectors_answers_the_same_commands(
    planted: Split, call: Call, tmp_path: Path
) -> None:
    model = MODELS["dam"](planted.train, MODELS["dam"].Config.create({}), Randomness(0))
    save(tmp_path / "model", model, "dam")
    run = tmp_path / "model"
    found = document(call("recommend", run, "--user", "user-0-0", "-k", 3, "--json"))
    assert [row["rank"] for row in found["recommendations"]] == [1, 2, 3]
    assert len(document(call("audience", run, "bundle-0-0", "-k", 4, "--json"))["audience"]) == 4
    assert document(call("batch", run, "--out", tmp_path / "lists", "-k", 5, "--json"))["rows"] == 240
    for refused in (
        ("recommend", run, "--user", "user-0-0", "--new-bundle", "new=item-0-0"),
        ("explain", run, "user-0-0", "bundle-0-0"),
        ("similar", run, "bundle-0-0"),
        ("export", run, "--out", tmp_path / "vectors"),
    ):
        status, _, err = call(*refused)
        assert status == 2
        assert "without vectors" in " ".join(err.split())
