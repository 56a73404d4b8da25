"""The notebooks run from top to bottom, and are kept without what they printed."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["nbformat"] == 4
    return [cell for cell in document["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_order(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel would: one namespace, and the last expression of a cell is looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(path)):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{path.name}[{number}]", "exec"), names)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), f"{path.name}[{number}]", "eval"), names)
            assert repr(shown) or hasattr(shown, "_repr_html_")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_output(path: Path) -> None:
    assert cells(path)
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(path))
