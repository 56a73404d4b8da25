"""What the explorer's files promise without a browser: no markup from data, nothing from elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import coheat.service

WEB = Path(coheat.service.__file__).parent / "web"
SOURCES = sorted(path for path in WEB.iterdir() if path.suffix in {".js", ".html", ".css", ".svg", ".json"})
MARKUP = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment"
CODE = r"\beval\(|new Function|setTimeout\(\s*[\"'`]|javascript:"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_text_never_becomes_markup_or_code(path: Path) -> None:
    assert re.findall(f"{MARKUP}|{CODE}", path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"https?://|//[a-z]+\.|@import|url\(", text) == []


def test_the_page_has_no_inline_code_or_style() -> None:
    text = (WEB / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"\son\w+=|\sstyle=|<style", text) == []
    assert [tag for tag in re.findall(r"<script[^>]*>", text) if "src=" not in tag] == []


def test_every_file_that_is_named_is_there() -> None:
    html = (WEB / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'(?:src|href)="([^"#]+)"', html))
    for path in WEB.glob("*.js"):
        named |= set(re.findall(r'from "\./([^"]+)"', path.read_text(encoding="utf-8")))
    languages = re.search(r"LANGUAGES = (\[.*?\])", (WEB / "words.js").read_text(encoding="utf-8"))
    assert languages is not None
    named |= {f"sentences.{tag}.json" for tag in json.loads(languages[1])}
    assert named <= {path.name for path in SOURCES}
    assert {path.name for path in SOURCES} - named == {"index.html"}
