"""What users named is printed as it is, and never obeyed."""

from __future__ import annotations

import pytest

from coheat.cli import output
from coheat.cli.serving import show

ESCAPE = "\x1b[31mred\x1b]0;title\x07"


def test_ids_neither_become_pictures_nor_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (":x:", ":smiley: id", ESCAPE, "a\x9b2Jb", "\u202egnp.exe", "[red]x[/]"):
        show(("user", "bundle"), [(name, 1.0)])
        output.console.print(name, markup=False, highlight=False)
        output.problem(f"unknown id {name}")
        output.note(f"unknown id {name}")
    found = capsys.readouterr()
    for text in (found.out, found.err):
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "❌", "😃"} & set(text)
        assert ":smiley: id" in text
        assert r"\x1b[31mred\x1b]0;title\x07" in text
        assert "[red]x[/]" in text


def test_texts_of_all_languages_stay_as_they_are() -> None:
    for text in ("été 🧺 日本語", "a\tb\nc", "नमस्ते"):
        assert output.visible(text) == text


def test_a_narrow_table_breaks_titles_and_cuts_nothing_off(capsys: pytest.CaptureFixture[str]) -> None:
    row = ("1029", 1, "10000085486", "CARDS EVERYDAY, CARDS SEASONAL", "DRUG GM", "Type B", "2018-01-07", 1.0)
    show(("user", "rank", "bundle", "title", "category", "kind", "ends", "score"), [row])
    found = capsys.readouterr().out
    assert len(found.splitlines()[0]) <= 80
    assert "10000085486" in found  # in one line, to be copied
    assert "…" not in found
