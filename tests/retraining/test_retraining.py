"""The whole cycle with a real service: recorded, collected, trained anew, judged, loaded."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer, programs
from quick_python import QuickProcess
from retraining_shop import PROGRAM, SETTINGS, ask, coheat, environment, news, serving, write_shop

from coheat.data.dataset import BundleData, pairs
from coheat.data.files import read_data
from coheat.recommender import Recommender
from coheat.runs import open_run

TRAIN = [word for setting in SETTINGS for word in ("--set", setting)]
Place = tuple[Path, Path]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A shop, its run, and a state directory that a service left behind."""
    place = tmp_path_factory.mktemp("shop")
    write_shop(place / "data")
    run = place / "runs" / "shop"
    coheat("train", place / "data", "--scenario", "everything", "--out", run, "--quiet", *TRAIN)
    with serving(run) as address:
        record(address)
    return place, run


def record(address: str) -> None:
    assert (
        ask(address, "POST", "/v1/bundles", {"bundle_id": "fresh", "item_ids": ["i0", "i4", "i999"]})[0]
        == 201
    )
    assert ask(address, "POST", "/v1/interactions", {"interactions": news()})[0] == 201
    shown = {"user_id": "u0", "bundle_id": "fresh", "kind": "shown", "timestamp": "2024-02-20T00:00:00Z"}
    assert ask(address, "POST", "/v1/interactions", shown)[0] == 201
    assert ask(address, "POST", "/v1/interactions", {"user_id": "u4", "bundle_id": "fresh"})[0] == 201
    assert ask(address, "DELETE", "/v1/bundles/b79")[0] in (200, 204)
    said = {"title": "Fresh", "available": False, "ends": "2031-05-01", "stock": 3}
    assert ask(address, "PATCH", "/v1/bundles/fresh", said)[0] == 200
    assert ask(address, "PATCH", "/v1/items/i4", {"category": "TEA"})[0] == 200


def taken(data: BundleData) -> set[tuple[str, str]]:
    return {(data.users[int(u)], data.bundles[int(b)]) for u, b in zip(*pairs(data.user_bundle), strict=True)}


def test_collecting_merges_once_and_again_changes_nothing(shop: Place, tmp_path: Path) -> None:
    place, run = shop
    words = [
        "data",
        "collect",
        f"{run}.service",
        "--data",
        place / "data",
        "--out",
        tmp_path / "both",
        "--json",
    ]
    first = coheat(*words)
    before, after = read_data(place / "data"), read_data(tmp_path / "both")
    recorded = {(one["user_id"], one["bundle_id"]) for one in news() if one["bundle_id"] != "b79"}
    assert taken(after) == taken(before) | recorded | {("u4", "fresh")}
    assert after.timestamps is not None
    assert after.launched is not None
    assert after.ends is not None
    assert after.shown is not None
    times = {
        (after.users[int(u)], after.bundles[int(b)]): int(t)
        for u, b, t in zip(*pairs(after.user_bundle), after.timestamps, strict=True)
    }
    assert all(times[one["user_id"], one["bundle_id"]] <= one["timestamp"] for one in news() if
               (one["user_id"], one["bundle_id"]) in times)  # fmt: skip
    assert after.launched[after.bundles.index["fresh"]] == pytest.approx(time.time(), abs=3600)
    assert after.ends[after.bundles.index["b79"]] == pytest.approx(time.time(), abs=3600)
    assert len(after.shown) == 1
    about = after.described_bundles().values(after.bundles.index["fresh"])
    assert {name: about[name] for name in ("title", "available", "ends", "stock")} == {
        "title": "Fresh", "available": False, "ends": "2031-05-01", "stock": 3,
    }  # fmt: skip
    assert after.item_attributes.values(after.items.index["i4"]) == {"category": "TEA"}
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "both").iterdir()}
    assert coheat(*words)["is_unchanged"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "both").iterdir()} == stamps
    chained = coheat(*[tmp_path / "both" if word == place / "data" else word for word in words[:-2]],
                     tmp_path / "again", "--json")  # fmt: skip
    assert chained["fingerprint"] == first["fingerprint"]


def test_a_running_service_gives_the_same_as_its_directory(shop: Place, tmp_path: Path) -> None:
    place, run = shop
    with serving(run) as address:
        found = [
            coheat("data", "collect", source, "--data", place / "data", "--out", tmp_path / name, "--json")
            for name, source in (("beside", f"{run}.service"), ("asked", address))
        ]
    assert found[0]["fingerprint"] == found[1]["fingerprint"]
    assert found[0]["counts"] == found[1]["counts"]


@pytest.mark.skipif(programs() is None, reason="there is no PostgreSQL here (Debian's package: postgresql)")
def test_a_database_gives_the_same_as_a_directory_and_is_trained_from(shop: Place, tmp_path: Path) -> None:
    place, run = shop
    mine = tmp_path / "shop"
    shutil.copytree(run, mine)
    server = PostgresServer(fsync="off")
    try:
        address = server.address()
        coheat("state", "copy", f"{run}.service", address)
        found = [
            coheat("data", "collect", source, "--data", place / "data", "--out", tmp_path / name, "--json")
            for name, source in (("beside", f"{run}.service"), ("asked", address))
        ]
        assert found[0]["fingerprint"] == found[1]["fingerprint"]
        assert found[0]["counts"] == found[1]["counts"]
        outcome = coheat("retrain", mine, "--from", address, "--out", tmp_path / "tuesday", "--json")
    finally:
        server.remove()
    assert outcome["collected"]["interactions"] > 0
    assert "fresh" in Recommender.load(tmp_path / "tuesday").bundle_ids


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nowhere", "nothing to collect from"),
        ("http://127.0.0.1:9", "no service answers there"),
        ("http://", "not the address"),
        ("{place}/data", "no such file"),
    ],
)
def test_a_bad_source_gets_a_sentence(shop: Place, tmp_path: Path, source: str, said: str) -> None:
    place, _ = shop
    words = [
        "data",
        "collect",
        source.format(place=place),
        "--data",
        place / "data",
        "--out",
        tmp_path / "out",
    ]
    assert said in coheat(*words, status=2)
    assert not (tmp_path / "out").exists()


def test_retrained_loaded_and_counted_once(tmp_path: Path) -> None:
    write_shop(tmp_path / "data")
    run, new = tmp_path / "shop", tmp_path / "tuesday"
    coheat("train", tmp_path / "data", "--scenario", "everything", "--out", run, "--quiet", *TRAIN)
    with serving(run) as address:
        record(address)
        before = ask(address, "GET", "/v1/models")[1]["fingerprint"]
        counted = popularity(address)
        words = ["retrain", run, "--from", f"{run}.service", "--out", new, "--reload", address, "--json"]
        outcome = coheat(*words)
        assert outcome["judgement"]["users"] > 10
        assert outcome["started_warm"]
        served = ask(address, "GET", "/v1/models")[1]
        assert served["fingerprint"] == open_run(new).artifact.fingerprint != before
        assert served["waiting"] == 0
        assert popularity(address) == counted, "what was trained with is not counted again"
        assert ask(address, "POST", "/v1/interactions", {"user_id": "u4", "bundle_id": "fresh"})[0] == 200
        again = coheat(*words)  # nothing is left to do
        assert again["judgement"] == outcome["judgement"]
    assert run.is_symlink()
    assert (run.resolve(), (tmp_path / "shop.before" / "model").is_dir()) == (new, True)
    with serving(run) as address:  # after a restart, too
        assert popularity(address) == counted
    third = coheat("retrain", run, "--from", f"{run}.service", "--out", tmp_path / "wednesday", "--json")
    assert third["collected"]["interactions"] == 0
    assert open_run(tmp_path / "wednesday").record.start == str(new)


def popularity(address: str) -> dict[str, int]:
    page = ask(address, "GET", "/v1/bundles?limit=100")[1]
    return {row["bundle_id"]: row["popularity"] for row in page["bundles"]}


def test_a_new_model_that_is_clearly_worse_is_refused(shop: Place, tmp_path: Path) -> None:
    """The old run learned well; the settings that are remembered for the next one ruin it."""
    place, run = shop
    spoilt = tmp_path / "spoilt"
    settings = ["--set", "learning_rate=0.05", "--set", "batch_size=64", "--epochs", 20, "--quiet"]
    coheat(
        "train", place / "data", "--model", "mfbpr", "--scenario", "everything", "--out", spoilt, *settings
    )
    document = json.loads((spoilt / "run.json").read_text())
    document["run"]["overrides"] |= {"learning_rate": 1e-9}
    (spoilt / "run.json").write_text(json.dumps(document))
    words = ["retrain", spoilt, "--from", f"{run}.service", "--out", tmp_path / "new", "--fresh", "--json"]
    outcome = coheat(*words, status=1)
    assert outcome["run"] is None
    assert outcome["judgement"]["is_worse"]
    assert not (tmp_path / "new" / "model").exists()
    assert coheat(*words, "--force")["run"] == str(tmp_path / "new")


def test_killed_at_any_moment_the_same_command_goes_on(shop: Place, tmp_path: Path) -> None:
    _, run = shop
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    begun = time.monotonic()
    coheat("retrain", run, "--from", f"{run}.service", "--out", whole, "--json")
    seconds = time.monotonic() - begun
    # As if it had been killed while it wrote the data, and then the run's record.
    (cut / ".data.1.part").mkdir(parents=True)
    (cut / ".run.json.1.part").touch()
    words = [*PROGRAM, "retrain", str(run), "--from", f"{run}.service", "--out", str(cut), "--quiet"]
    kills = 0
    for share in (0.2, 0.4, 0.6):
        process = QuickProcess(words, env=environment(), stdout=subprocess.DEVNULL)
        try:
            process.wait(seconds * share)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    assert kills
    outcome = coheat("retrain", run, "--from", f"{run}.service", "--out", cut, "--json")
    assert outcome["run"] == str(cut)
    lists = [Recommender.load(path).recommend(["u0", "u1"], 5).rows for path in (whole, cut)]
    assert lists[0] == lists[1]
    assert not (cut / ".data.1.part").exists()


def test_retraining_says_what_is_missing(shop: Place, tmp_path: Path) -> None:
    place, run = shop
    state = f"{run}.service"
    assert "the old run itself" in coheat("retrain", run, "--from", state, "--out", run, status=2)
    moved = tmp_path / "moved"
    subprocess.run(["cp", "-r", run, moved], check=True)
    document: dict[str, Any] = json.loads((moved / "run.json").read_text())
    document["run"] |= {"data": "gone", "data_resolved": "/gone"}
    (moved / "run.json").write_text(json.dumps(document))
    out = tmp_path / "out"
    assert "--data DIR" in coheat("retrain", moved, "--from", state, "--out", out, status=2)
    assert not out.exists()
    coheat("retrain", moved, "--from", state, "--data", place / "data", "--out", out, "--quiet")
    other = coheat(
        "retrain", moved, "--from", state, "--data", place / "data", "--fresh", "--out", out, status=2
    )
    assert "another retraining" in other
    answer = coheat("retrain", run, "--from", state, "--out", tmp_path / "second", "--reload",
                    "http://127.0.0.1:9", status=2)  # fmt: skip
    assert "no service answers there" in answer
