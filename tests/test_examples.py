"""The scripts do what they say; notebooks run from top to bottom, and are kept without what they printed."""

from __future__ import annotations

import ast
import csv
import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from quick_python import quick
from service_common import SMALL, serving, write_random_artifact

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def run_script(name: str, *arguments: str | Path) -> str:
    command = [quick("python"), str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_database(path: Path) -> None:
    """Customers like one of three aisles; offers are made of products of one aisle."""
    orders, purchases, contents = [], [], []
    for offer in range(30):
        contents += [
            (f"offer {offer}", f"product {offer % 3 + 3 * (offer // 3 + step)}") for step in range(4)
        ]
    for customer in range(90):
        liked = [offer for offer in range(30) if offer % 3 == customer % 3]
        taken = [liked[(customer + step) % 10] for step in range(4)]
        orders += [(f"customer {customer}", f"offer {offer}", "2024-05-01") for offer in taken]
        purchases += [(f"customer {customer}", f"product {customer % 3 + 3 * step}") for step in range(5)]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (customer, offer, ordered_at)")
        connection.execute("CREATE TABLE purchases (customer, product)")
        connection.execute("CREATE TABLE offer_products (offer, product)")
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", orders)
        connection.executemany("INSERT INTO purchases VALUES (?, ?)", purchases)
        connection.executemany("INSERT INTO offer_products VALUES (?, ?)", contents)
        connection.commit()


def test_from_a_database_to_a_mailing(tmp_path: Path) -> None:
    write_database(tmp_path / "shop.sqlite")
    kept, mailing = tmp_path / "kept", tmp_path / "mailing.csv"
    shown = run_script("train_from_database.py", tmp_path / "shop.sqlite", "--out", kept, "--epochs", "4")
    assert "1  offer" in shown
    items = ("product 0", "product 3", "product 6")
    run_script("launch_campaign.py", kept, "new", *items, "--people", "10", "--out", mailing)
    with mailing.open(encoding="utf-8") as file:
        people = list(csv.DictReader(file))
    assert len(people) == 10
    assert all(int(one["user_id"].split()[1]) % 3 == 0 for one in people), "those of the aisle"


def test_the_client_publishes_lists_and_reports(tmp_path: Path) -> None:
    write_random_artifact(tmp_path / "model", SMALL)
    with serving(tmp_path / "model") as server:
        items = ("--item", "item-1", "--item", "item-2")
        shown = run_script("http_client.py", f"http://127.0.0.1:{server.port}", "--user", "user-3", *items)
    first, second = (line.partition(": ")[2].split(", ") for line in shown.splitlines())
    assert len(first) == len(second) == 5
    assert first[0] not in second, "what was taken is not recommended again"


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
