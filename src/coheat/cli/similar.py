"""coheat similar: the bundles most like one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from coheat.cli import app
from coheat.cli.output import print_json
from coheat.cli.serving import (
    FIELDS,
    NEW_BUNDLES,
    NOT_ON_OFFER,
    NOW,
    RUN,
    WHERE,
    K,
    asked_for,
    cells,
    fields_shown,
    opened,
    show,
)

MOST_ITEMS = 10


@app.command()
def similar(
    run: Path = RUN,
    bundle: str = typer.Argument(..., metavar="BUNDLE", help="The bundle, old or new."),
    k: int = K,
    new_bundles: list[str] = NEW_BUNDLES,
    where: str | None = WHERE,
    fields: str | None = FIELDS,
    include_not_on_offer: bool = NOT_ON_OFFER,
    now: str | None = NOW,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Find the bundles most similar to one, by the cosine of their item vectors.

    Examples:

        coheat similar runs/youshu 15 -k 5

        coheat similar runs/youshu summer --new-bundle summer=4,8,15 --json
    """
    recommender, unknown = opened(run, new_bundles, as_json)
    asked = asked_for(where, fields, include_not_on_offer, now)
    found = recommender.similar_bundles(bundle, k, **asked)
    if as_json:
        print_json({"similar": [asdict(row) for row in found], "unknown_items": unknown})
        return
    names = fields_shown(recommender, asked["fields"])
    rows = [
        (
            row.rank,
            row.bundle_id,
            *cells(recommender, row.bundle_id, names),
            row.similarity,
            ", ".join(row.shared_items[:MOST_ITEMS])
            + (", ..." if len(row.shared_items) > MOST_ITEMS else ""),
        )
        for row in found
    ]
    show(("rank", "bundle", *names, "similarity", "shared items"), rows)
