"""coheat data collect: what a service recorded, merged into the tables that training reads."""

from __future__ import annotations

from pathlib import Path

import typer

from coheat.cli.data import data_app
from coheat.cli.output import note, print_json, say

SOURCE = (
    "A state directory (RUN.service, or --state), a backup of it, a database (postgresql://...), or the "
    "address of a running service."
)
KEY = typer.Option(None, "--key", envvar="COHEAT_KEY", help="The service's key, if it requires one.")
POSITIVE = typer.Option(
    ["took"],
    "--positive",
    metavar="KIND",
    help="Which interactions count as taken: took, clicked; repeatable.",
)


@data_app.command()
def collect(
    source: str = typer.Argument(..., metavar="SOURCE", help=SOURCE),
    data: Path = typer.Option(..., "--data", metavar="DIR", help="The tables to add to."),
    out: Path = typer.Option(..., "--out", metavar="DIR2", help="Where to write the merged tables."),
    positive: list[str] = POSITIVE,
    key: str | None = KEY,
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace the data that stand in --out."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document instead."),
) -> None:
    """Merge what a service recorded and published into the tables of DIR, times included.

    The service may be running. Collecting again adds only what is new.

    Examples:

        coheat data collect runs/shop.service --data shop --out shop-today

        coheat data collect http://127.0.0.1:8000 --data shop --out shop-today
    """
    from dataclasses import asdict

    from coheat.retraining import collect as collect_into

    found = collect_into(source, data, out, positive, key, overwrite)
    if as_json:
        print_json({"out": str(out), **asdict(found)})
        return
    say_collected(found.counts)
    state = "as it was" if found.is_unchanged else "written"
    say(f"{out}: {state}; all that {found.source} held up to write {found.sequence}")


def say_collected(counts: dict[str, int]) -> None:
    """What is new, in words."""
    words = {
        "interactions": "new interactions",
        "showings": "showings",
        "withdrawn": "withdrawn",
        "new_users": "new users",
        "new_bundles": "new bundles",
        "changed_bundles": "bundles with other items",
        "ended_bundles": "bundles ended",
        "described_bundles": "bundles with other columns",
        "described_items": "items with other columns",
    }
    said = [f"{counts[name]:,} {word}" for name, word in words.items() if counts.get(name)]
    say(f"collected: {', '.join(said) or 'nothing new'}")
    if unknown := counts.get("of_unknown_bundles"):
        note(f"{unknown} interactions are with bundles that the tables do not have; left out")
    if unfit := counts.get("unfit_values"):
        note(
            f"{unfit} values do not fit the columns of the tables (a text where they have numbers); left out"
        )
