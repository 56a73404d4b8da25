"""coheat recommend: the best bundles for users, and the best users for a new bundle."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from coheat.cli import app
from coheat.cli.output import console, note, print_json
from coheat.errors import ConfigError


@app.command()
def recommend(
    run: Path = typer.Argument(..., metavar="RUN", help="What coheat train --out wrote, or the model in it."),
    users: list[str] = typer.Option([], "--user", metavar="ID", help="For whom; repeatable."),
    k: int = typer.Option(20, "-k", "--k", min=1, help="How many."),
    candidates: str = typer.Option("all", help="all bundles, or new: those nobody took in training."),
    new_bundles: list[str] = typer.Option(
        [],
        "--new-bundle",
        metavar="ID=ITEM,ITEM",
        help="A bundle that did not exist in training; repeatable.",
    ),
    audience: str | None = typer.Option(
        None, metavar="BUNDLE", help="Instead: the users whom this bundle suits best."
    ),
    include_seen: bool = typer.Option(False, "--include-seen", help="Also what the user took in training."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Recommend bundles to users, or find the audience of a bundle.

    Examples:

        coheat recommend runs/youshu --user 17 -k 20 --json

        coheat recommend runs/youshu --user 17 --user 42 --candidates new

        coheat recommend runs/youshu --new-bundle summer=4,8,15 --audience summer
    """
    from coheat.recommender import Recommender

    if bool(users) == (audience is not None):
        raise ConfigError(
            "say for whom: --user ID (repeatable), or --audience BUNDLE for the other direction"
        )
    if candidates not in ("all", "new"):
        raise ConfigError(f"--candidates {candidates!r}: choose all or new")
    recommender = Recommender.load(run)
    added = (
        recommender.add_bundles(dict(_parse_bundle(text) for text in new_bundles)) if new_bundles else None
    )
    if audience is not None:
        found = recommender.audience(audience, k, exclude_seen=not include_seen)
    else:
        found = recommender.recommend(users, k, candidates, exclude_seen=not include_seen)
    rows = [asdict(row) for row in found]
    unknown = added.unknown_items if added else {}
    if as_json:
        print_json({"recommendations": rows, "unknown_items": unknown})
        return
    for bundle, items in unknown.items():
        note(f"bundle {bundle!r}: the model does not know the items {', '.join(items)}; left out")
    _show(rows)


def _parse_bundle(text: str) -> tuple[str, list[str]]:
    name, equals, items = text.partition("=")
    ids = [item.strip() for item in items.split(",") if item.strip()]
    if not equals or not name.strip() or not ids:
        raise ConfigError(f"--new-bundle {text!r}: write it as id=item,item, for example summer=4,8,15")
    return name.strip(), ids


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in ("user", "rank", "bundle", "score"):
        table.add_column(name, justify="left" if name in ("user", "bundle") else "right")
    for row in rows:
        # Text, not str: an id such as "[red]" is to be shown, not obeyed.
        table.add_row(Text(row["user_id"]), str(row["rank"]), Text(row["bundle_id"]), f"{row['score']:.4f}")
    console.print(table)
