"""What the commands around a trained model share: options, reading new bundles, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from coheat.cli.output import console, note, table, visible
from coheat.errors import ConfigError

if TYPE_CHECKING:
    from coheat.recommender import Recommender

UNBROKEN = 20
"""Ids of up to so many characters stay on one line of a table."""
RUN: Any = typer.Argument(..., metavar="RUN", help="What coheat train --out wrote, or the model in it.")
K: Any = typer.Option(20, "-k", "--k", min=1, help="How many.")
KNOB: Any = typer.Option(
    None,
    "--welcome",
    help="How many list places new bundles get, as a multiple of their fair share; 0 hides them. For "
    "models with this knob (ember). Default: as trained.",
)
NEW_BUNDLES: Any = typer.Option(
    [],
    "--new-bundle",
    metavar="ID=ITEM,ITEM",
    help="A bundle that did not exist in training; repeatable. Ids with = or , are written as JSON: "
    '\'{"a=b": ["4", "8,15"]}\'.',
)


WHERE: Any = typer.Option(
    None,
    metavar="JSON",
    help="Only bundles whose columns meet these conditions: "
    '\'{"category": {"in": ["TEA"]}, "price": {"at_most": 30}}\'. Operators: is, in, not_in, at_least, '
    "at_most, above, below, contains, missing.",
)
FIELDS: Any = typer.Option(None, metavar="A,B", help="Columns to show with each bundle: title,category.")
NOT_ON_OFFER: Any = typer.Option(
    False, "--include-not-on-offer", help="Include what is unavailable, not launched yet or has ended."
)
RULES: Any = typer.Option(
    None,
    metavar="JSON",
    help="Rules for the order of lists: "
    '\'{"pin": {"summer": 1}, "at_most_per_category": 3, "at_most_young": 0.3, "diverse": true, '
    '"boost": [{"factor": 2, "where": {"category": {"is": "TEA"}}}]}\'.',
)
ON: Any = typer.Option(
    "here",
    metavar="PLACE",
    help="Where to run: here, on this machine; ray, on the Ray cluster of RAY_ADDRESS or else on a local "
    "Ray that ends with the command; or the address of a cluster: 10.0.0.1:6379, "
    "ray://10.0.0.1:10001 (docs/cluster.md).",
)
EXCLUDE: Any = typer.Option([], metavar="BUNDLE", help="Leave this bundle out; repeatable.")
CANDIDATE: Any = typer.Option(
    [], "--candidate", metavar="BUNDLE", help="Choose among these bundles only; repeatable."
)
SHOWN: Any = typer.Option(
    None,
    metavar="FILE",
    help="What was shown lately and is not to be shown again: a table with user_id and bundle_id, such as "
    "shown.parquet of coheat data collect.",
)
NOW: Any = typer.Option(None, metavar="TIME", help="As of this moment instead of now: 2024-05-31.")


def asked_for(
    where: str | None,
    fields: str | None,
    include_not_on_offer: bool,
    now: str | None,
    rules: str | None = None,
) -> dict[str, Any]:
    """--where, --fields, --include-not-on-offer, --now and --rules as `Recommender.recommend` takes them."""
    obeyed = {} if rules is None else {"rules": parse_object("--rules", rules)}
    return obeyed | {
        "where": None if where is None else parse_object("--where", where),
        "fields": None if fields is None else [name.strip() for name in fields.split(",") if name.strip()],
        "only_on_offer": not include_not_on_offer,
        "now": now,
    }


def parse_object(option: str, text: str) -> dict[str, Any]:
    """The JSON object that an option was given."""
    import json

    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{option} {text!r}: not valid JSON ({error}); write an object between single quotes, such as "
            "'{\"a\": ...}'"
        ) from None
    if not isinstance(found, dict):
        raise ConfigError(f'{option} {text!r}: write a JSON object, such as {{"price": {{"at_most": 30}}}}')
    return found


def turned(knob: float | None) -> dict[str, float]:
    """The knob of the command line as `Recommender.load` takes it."""
    return {} if knob is None else {"welcome": knob}


def named_bundles(texts: Sequence[str]) -> dict[str, list[str]]:
    """The items of the bundles of --new-bundle."""
    found: dict[str, list[str]] = {}
    for text in texts:
        for name, items in parse_bundles(text).items():
            if name in found:
                raise ConfigError(f"--new-bundle names {name!r} twice; name each once")
            found[name] = items
    return found


def opened(
    run: Path, new_bundles: Sequence[str], quiet: bool, knob: float | None = None
) -> tuple[Recommender, dict[str, list[str]]]:
    """A recommender that knows the bundles of --new-bundle; the items left out of them, by bundle, which are
    noted unless quiet."""
    from coheat.recommender import Recommender

    recommender = Recommender.load(run, **turned(knob))
    if not new_bundles:
        return recommender, {}
    added = recommender.add_bundles(named_bundles(new_bundles))
    for bundle, items in added.unknown_items.items():
        if not quiet and bundle not in added.placed_by:
            note(f"bundle {bundle!r}: the model does not know the items {', '.join(items)}; left out")
    return recommender, added.unknown_items


def parse_bundles(text: str) -> dict[str, list[str]]:
    """`id=item,item`, or a JSON object of lists for ids that contain = or a comma."""
    if text.lstrip().startswith("{"):
        return _parse_json(text)
    name, equals, items = text.partition("=")
    ids = [item.strip() for item in items.split(",") if item.strip()]
    if not equals or not name.strip() or not ids:
        raise ConfigError(f"--new-bundle {text!r}: write it as id=item,item, for example summer=4,8,15")
    return {name.strip(): ids}


def _parse_json(text: str) -> dict[str, list[str]]:
    document = parse_object("--new-bundle", text)
    lists = all(
        isinstance(items, list) and all(isinstance(item, str) for item in items)
        for items in document.values()
    )
    if not lists:
        raise ConfigError(f'--new-bundle {text!r}: write JSON as {{"id": ["item", "item"]}}')
    return document


def candidates_of(word: str, ids: Sequence[str]) -> Any:
    """--candidates all|new, or the ids of --candidate."""
    if word not in ("all", "new"):
        raise ConfigError(f"--candidates {word!r}: choose all or new, or name bundles with --candidate ID")
    if ids and word == "new":
        raise ConfigError("--candidates new and --candidate ID exclude each other; leave one out")
    return list(ids) or word


def fields_shown(recommender: Recommender, fields: Sequence[str] | None) -> list[str]:
    """The columns of a table of bundles: those asked for, else titles where there are any."""
    return ["title"] * ("title" in recommender.bundle_columns) if fields is None else list(fields)


def cells(recommender: Recommender, bundle: str, fields: Sequence[str]) -> list[object]:
    """What the columns say of a bundle, for a table."""
    found = recommender.fields_of(bundle, fields).values() if fields else ()
    return ["" if value is None else value for value in found]


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table; numbers stand to the right. On a narrow screen cells are broken into lines and never cut off;
    ids, which are there to be copied, not even broken as long as they are short."""
    from rich.text import Text

    numbers = {"rank", "score", "share", "similarity", "weight", "price"}
    ids = {"user", "bundle", "item"}
    texts = [
        [f"{cell:.4f}" if isinstance(cell, float) else visible(str(cell)) for cell in row] for row in rows
    ]
    made = table(columns, {*columns} - numbers, title=title)
    for place, column in enumerate(made.columns):
        column.overflow = "fold"
        longest = max((len(row[place]) for row in texts), default=0)
        column.no_wrap = columns[place] in ids and longest <= UNBROKEN
    for row in texts:
        made.add_row(*map(Text, row))  # not str: an id such as "[red]" is to be shown, not obeyed
    console.print(made)
