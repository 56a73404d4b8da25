"""coheat recommend: the best bundles for users."""

from __future__ import annotations

from pathlib import Path

import typer

from coheat.cli import app
from coheat.cli.output import note, print_json
from coheat.cli.serving import (
    CANDIDATE,
    EXCLUDE,
    FIELDS,
    KNOB,
    NEW_BUNDLES,
    NOT_ON_OFFER,
    NOW,
    RULES,
    RUN,
    SHOWN,
    WHERE,
    K,
    asked_for,
    candidates_of,
    cells,
    fields_shown,
    opened,
    show,
)
from coheat.errors import ConfigError


@app.command()
def recommend(
    run: Path = RUN,
    users: list[str] = typer.Option([], "--user", metavar="ID", help="The user to recommend to; repeatable."),
    k: int = K,
    candidates: str = typer.Option("all", help="all bundles, or new: those nobody took in training."),
    candidate_ids: list[str] = CANDIDATE,
    exclude: list[str] = EXCLUDE,
    items: list[str] = typer.Option(
        [], "--item", metavar="ITEM", help="An item the user also has, for example in a basket; repeatable."
    ),
    bundles: list[str] = typer.Option(
        [], "--bundle", metavar="BUNDLE", help="A bundle the user also took; repeatable."
    ),
    new_bundles: list[str] = NEW_BUNDLES,
    knob: float | None = KNOB,
    audience: str | None = typer.Option(
        None, metavar="BUNDLE", help="List the users whom this bundle suits best instead (coheat audience)."
    ),
    include_seen: bool = typer.Option(False, "--include-seen", help="Include what the user took already."),
    where: str | None = WHERE,
    fields: str | None = FIELDS,
    include_not_on_offer: bool = NOT_ON_OFFER,
    now: str | None = NOW,
    rules: str | None = RULES,
    shown: Path | None = SHOWN,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Recommend bundles to users.

    The items and bundles given here are added to what is known about the user. A user about whom nothing is
    known or given gets popular and new bundles, and a note says so.

    Examples:

        coheat recommend runs/youshu --user 17 -k 20 --json

        coheat recommend runs/youshu --user 17 --user 42 --candidates new

        coheat recommend runs/youshu --user newcomer --item 4 --item 8 --bundle 15

        coheat recommend runs/youshu --new-bundle summer=4,8,15 --audience summer

        coheat recommend runs/shop --user 17 --where '{"price": {"at_most": 30}}' --fields title,category
    """
    if bool(users) == (audience is not None):
        raise ConfigError(
            "say for whom: --user ID (repeatable), or --audience BUNDLE for the other direction"
        )
    chosen = candidates_of(candidates, candidate_ids)
    if (items or bundles) and len(users) != 1:
        raise ConfigError("--item and --bundle describe one user; name just that one with --user")

    asked = asked_for(where, fields, include_not_on_offer, now, rules)
    from coheat.batch import shown_to_users

    recommender, unknown = opened(run, new_bundles, as_json, knob)
    if audience is not None:
        found = recommender.audience(audience, k, exclude_seen=not include_seen)
    else:
        own_items, own_bundles = dict.fromkeys(users, items), dict.fromkeys(users, bundles)
        found = recommender.recommend(
            users,
            k,
            chosen,
            not include_seen,
            exclude,
            own_items,
            own_bundles,
            **asked,
            shown=shown_to_users(shown),
        )
    if as_json:
        print_json(
            {
                "recommendations": [row.as_dict() for row in found],
                "sources": found.sources,
                "short": found.short,
                "notes": found.notes,
                "unknown_items": unknown,
            }
        )
        return
    for sentence in found.notes:
        note(sentence)
    names = [] if audience is not None else fields_shown(recommender, asked["fields"])
    rows = [(r.user_id, r.rank, r.bundle_id, *cells(recommender, r.bundle_id, names), r.score) for r in found]
    show(("user", "rank", "bundle", *names, "score"), rows)
