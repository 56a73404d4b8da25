"""coheat explain: why a bundle has its score for a user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coheat.cli import app
from coheat.cli.output import print_json, say, visible
from coheat.cli.serving import FIELDS, KNOB, NEW_BUNDLES, RUN, asked_for, opened, show

if TYPE_CHECKING:
    from coheat.attributes import Value


@app.command()
def explain(
    run: Path = RUN,
    user: str = typer.Argument(..., metavar="USER", help="The user."),
    bundle: str = typer.Argument(..., metavar="BUNDLE", help="The bundle, old or new."),
    items: list[str] = typer.Option(
        [], "--item", metavar="ITEM", help="An item the user has besides those in training; repeatable."
    ),
    bundles: list[str] = typer.Option(
        [], "--bundle", metavar="BUNDLE", help="A bundle the user took besides those in training; repeatable."
    ),
    new_bundles: list[str] = NEW_BUNDLES,
    knob: float | None = KNOB,
    fields: str | None = FIELDS,
    k: int = typer.Option(5, "-k", "--k", min=1, help="Lines to show of each part; --json has all."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Break a score down: by its terms, by the bundle's items, and by what the user has.

    Examples:

        coheat explain runs/youshu 17 15

        coheat explain runs/youshu 17 summer --new-bundle summer=4,8,15 --json

        coheat explain runs/shop 17 15 --fields title,category
    """
    recommender, unknown = opened(run, new_bundles, as_json, knob)
    named = asked_for(None, fields, False, None)["fields"]
    found = recommender.explain(user, bundle, items, bundles, fields=named)
    if as_json:
        print_json({**asdict(found), "unknown_items": unknown})
        return
    say(f"score {found.score:.4f} ({found.source}){said(found.fields)}")
    terms = [(term.name, term.about, term.weight, term.share) for term in found.terms]
    show(("term", "about", "weight", "share"), terms, "the terms of the sum")
    if found.bundle_items:
        carried = [(part.item_id, part.share) for part in found.bundle_items[:k]]
        show(("item", "share"), carried, "of that, by the bundle's items")
    had = [(f"item {part.item_id}", part.share) for part in found.user_items]
    had += [(f"bundle {part.bundle_id}{said(part.fields)}", part.share) for part in found.user_bundles]
    had = sorted(had, key=lambda pair: -abs(pair[1]))[:k]
    show(("what", "share"), [*had, ("everything else", found.own)], "by what the user has")


def said(fields: Mapping[str, Value] | None) -> str:
    """What the columns say, behind an id."""
    known = [visible(str(value)) for value in (fields or {}).values() if value is not None]
    return f" ({', '.join(known)})" if known else ""
