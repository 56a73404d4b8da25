"""The documentation site, built in strict mode: every link, anchor and documented name has to exist."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FETCHED = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(?:https?:)?//[^>]*>")
LINKED = re.compile(r"<link[^>]*\shref=[\"']?(?:https?:)?//[^>]*>")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")):
        pytest.skip("the site needs mkdocs: pip install 'coheat[docs]'")
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return place


def test_the_reference_has_signatures_and_docstrings(site: Path) -> None:
    page = (site / "reference/recommender/index.html").read_text(encoding="utf-8")
    assert 'id="coheat.recommender.Recommender.add_bundles"' in page
    assert "doc-signature" in page


def test_the_search_finds_commands_and_functions(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    titles = " ".join(entry["title"] for entry in index["docs"])
    assert "add_bundles" in titles
    assert any("coheat retrain" in entry["text"] for entry in index["docs"])


def test_nothing_is_fetched_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        found = FETCHED.findall(text) + LINKED.findall(text)
        assert not found, f"{page.relative_to(site)}: {found[0]}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style
