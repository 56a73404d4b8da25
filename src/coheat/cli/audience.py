"""coheat audience: the users whom a bundle suits best."""

from __future__ import annotations

from pathlib import Path

import typer

from coheat.cli import app
from coheat.cli.output import note, print_json
from coheat.cli.serving import KNOB, NEW_BUNDLES, RUN, K, opened, show


@app.command()
def audience(
    run: Path = RUN,
    bundle: str = typer.Argument(..., metavar="BUNDLE", help="The bundle, old or new."),
    k: int = K,
    new_bundles: list[str] = NEW_BUNDLES,
    knob: float | None = KNOB,
    include_seen: bool = typer.Option(False, "--include-seen", help="Include users who took it already."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Find the users most likely to want a bundle.

    Examples:

        coheat audience runs/youshu 15 -k 100

        coheat audience runs/youshu summer --new-bundle summer=4,8,15 --json
    """
    recommender, unknown = opened(run, new_bundles, as_json, knob)
    found = recommender.audience(bundle, k, exclude_seen=not include_seen)
    if as_json:
        rows = [row._asdict() for row in found]
        print_json({"audience": rows, "notes": found.notes, "unknown_items": unknown})
        return
    for sentence in found.notes:
        note(sentence)
    show(("rank", "user", "score"), [(row.rank, row.user_id, row.score) for row in found])
