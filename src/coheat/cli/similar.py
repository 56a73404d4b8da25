"""coheat similar: the bundles most like one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from coheat.cli import app
from coheat.cli.output import print_json
from coheat.cli.serving import NEW_BUNDLES, RUN, K, add_bundles, show


@app.command()
def similar(
    run: Path = RUN,
    bundle: str = typer.Argument(..., metavar="BUNDLE", help="The bundle, old or new."),
    k: int = K,
    new_bundles: list[str] = NEW_BUNDLES,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Find the bundles most like one, by the cosine of what their items say.

    Examples:

        coheat similar runs/youshu 15 -k 5

        coheat similar runs/youshu summer --new-bundle summer=4,8,15 --json
    """
    from coheat.recommender import Recommender

    recommender = Recommender.load(run)
    unknown = add_bundles(recommender, new_bundles, quiet=as_json)
    found = recommender.similar_bundles(bundle, k)
    if as_json:
        print_json({"similar": [asdict(row) for row in found], "unknown_items": unknown})
        return
    rows = [(row.rank, row.bundle_id, row.similarity, ", ".join(row.shared_items)) for row in found]
    show(("rank", "bundle", "similarity", "shared items"), rows)
