"""Serving needs no torch, numba, scipy or matplotlib: the wheel alone, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from coheat import __version__, fit_recommender
from coheat.data.synthetic import planted_world

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "numba", "llvmlite", "scipy", "matplotlib", "psutil")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel of this tree and what serving needs."""
    place = tmp_path_factory.mktemp("light")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "wheel", "--no-deps", "--wheel-dir", str(place), str(ROOT)])
    [wheel] = place.glob("*.whl")
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    constraints = str(ROOT / "constraints.txt")
    wanted = f"coheat[serve] @ {wheel.as_uri()}"
    _run([*pip, "--python", str(python), "install", "--no-compile", "--constraint", constraints, wanted])
    return place / "venv" / "bin"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shop") / "shop"
    settings: dict[str, Any] = {"epochs": 2, "embedding_size": 8, "batch_size": 64, "companion_size": 4}
    fit_recommender(planted_world().train, model="ember", **settings).save(place)
    return place


def _run(words: list[str], expected: int = 0) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=_outside())
    assert done.returncode == expected, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def _outside() -> dict[str, str]:
    """This tree must not be found from the other environment."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_the_wheel_brings_what_serving_needs_and_no_more(environment: Path) -> None:
    code = "import importlib.util as u, sys; print([n for n in sys.argv[1:] if u.find_spec(n)])"
    assert _run([str(environment / "python"), "-c", code, *HEAVY]).strip() == "[]"
    assert _run([str(environment / "coheat"), "--version"]).strip() == f"coheat {__version__}"


def test_a_model_works_without_torch(environment: Path, shop: Path, tmp_path: Path) -> None:
    code = f"""
import sys
from coheat import Recommender
r = Recommender.load({str(shop)!r})
user = r.user_ids[0]
rows = r.recommend([user], k=3)
assert len(rows) == 3 and rows.to_arrow().num_rows == 3
r.add_bundles({{"new": list(r.item_ids[:3])}})
assert len(r.audience("new", k=3)) == 3
assert abs(r.explain(user, rows[0].bundle_id).score - rows[0].score) < 1e-4
assert r.similar_bundles("new", k=2)
r.record(user, "new")
assert not set(sys.modules) & {set(HEAVY)!r}
"""
    _run([str(environment / "python"), "-c", code])
    lists = tmp_path / "lists"
    report = json.loads(
        _run([str(environment / "coheat"), "batch", str(shop), "--out", str(lists), "-k", "3", "--json"])
    )
    assert report["users"] > 0
    assert list(lists.glob("part-*.parquet"))


def test_a_command_that_needs_an_extra_says_which(environment: Path, shop: Path, tmp_path: Path) -> None:
    words = [str(environment / "coheat"), "train", str(tmp_path), "--out", str(tmp_path / "run")]
    said = " ".join(_run(words, expected=2).split())
    assert "pip install 'coheat[train]'" in said
    code = "import coheat\ntry: coheat.fit_recommender\nexcept ModuleNotFoundError as e: print(e)"
    assert "coheat[train]" in _run([str(environment / "python"), "-c", code])


@pytest.fixture
def address(environment: Path, shop: Path, tmp_path: Path) -> Iterator[str]:
    words = ["serve", str(shop), "--port", "0", "--state", str(tmp_path / "state"), "--json"]
    with subprocess.Popen(
        [str(environment / "coheat"), *words], stdout=subprocess.PIPE, text=True, env=_outside()
    ) as process:
        assert process.stdout is not None
        lines = ""
        while not lines.rstrip().endswith("}"):
            lines += process.stdout.readline()
        yield json.loads(lines)["url"]
        process.terminate()
        process.wait(240)


def test_the_service_runs_without_torch(address: str) -> None:
    user = _ask(f"{address}/v1/users?limit=1")["users"][0]["user_id"]
    assert len(_ask(f"{address}/v1/recommendations/{user}?k=3")["recommendations"]) == 3


def _ask(url: str) -> Any:
    """The answer; the address is announced a moment before the first request can come."""
    deadline = time.monotonic() + 240
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)
        except (URLError, TimeoutError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
