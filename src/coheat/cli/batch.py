"""coheat batch: lists for all users, to Parquet."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from coheat.cli import app
from coheat.cli.output import errors, note, print_json, say
from coheat.cli.serving import (
    CANDIDATE,
    EXCLUDE,
    FIELDS,
    KNOB,
    NEW_BUNDLES,
    NOT_ON_OFFER,
    NOW,
    ON,
    RULES,
    RUN,
    SHOWN,
    WHERE,
    K,
    asked_for,
    candidates_of,
    named_bundles,
    opened,
    turned,
)
from coheat.errors import ConfigError


@app.command()
def batch(
    run: Path = RUN,
    out: Path = typer.Option(
        ..., metavar="DIR", help="Where to write the parts; use the same directory to go on."
    ),
    k: int = K,
    candidates: str = typer.Option("all", help="all bundles, or new: those nobody took in training."),
    candidate_ids: list[str] = CANDIDATE,
    exclude: list[str] = EXCLUDE,
    new_bundles: list[str] = NEW_BUNDLES,
    knob: float | None = KNOB,
    include_seen: bool = typer.Option(False, "--include-seen", help="Include what the user took already."),
    where: str | None = WHERE,
    fields: str | None = FIELDS,
    include_not_on_offer: bool = NOT_ON_OFFER,
    now: str | None = NOW,
    rules: str | None = RULES,
    shown: Path | None = SHOWN,
    shard: str = typer.Option("1/1", metavar="I/N", help="Do every N-th part, starting with the I-th."),
    part_size: int = typer.Option(
        10_000, min=1, help="Users per part; memory grows with this, not with the number of users."
    ),
    on: str = ON,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Write lists for all users in training as Parquet (user_id, bundle_id, score, rank).

    Finished parts are kept, so the same command goes on where it was stopped.

    Examples:

        coheat batch runs/youshu --out lists -k 20

        coheat batch runs/shop --out lists --where '{"price": {"at_most": 30}}' --fields title

        coheat batch runs/shop --out lists --shown shop-today/shown.parquet

        coheat batch runs/youshu --out lists --on 10.0.0.1:6379

        coheat batch runs/youshu --out lists --shard 1/2 & coheat batch runs/youshu --out lists --shard 2/2
    """
    from coheat.batch import Source, recommend_all
    from coheat.tasks import place_for

    chosen, which = candidates_of(candidates, candidate_ids), _parse_shard(shard)
    asked = asked_for(where, fields, include_not_on_offer, now, rules)
    recommender, _ = opened(run, new_bundles, as_json, knob)
    source = Source(run, turned(knob), named_bundles(new_bundles))
    read = [run] if shown is None else [run, shown]
    with errors.status("recommending to all users") as status, place_for(on, out=out, reads=read) as place:

        def told(done: int, parts: int) -> None:
            status.update(", ".join(filter(None, (f"part {done} of {parts}", place.describe()))))

        report = recommend_all(
            recommender,
            out,
            k,
            chosen,
            not include_seen,
            which,
            part_size,
            told,
            on_again=lambda part, why: note(f"{part}: {why}; it is begun again"),
            **asked,
            exclude=exclude,
            shown=shown,
            place=place,
            source=source,
        )
    if as_json:
        print_json({"out": str(out), **asdict(report)})
        return
    for one in report.notes:
        note(one)
    if report.short_lists:
        why = "no more candidates are left, or a rule lets no more in"
        note(f"{report.short_lists} lists have fewer than {k} bundles: {why}")
    kept = f", {report.parts_kept} parts kept" if report.parts_kept else ""
    say(f"{report.rows} rows for {report.users} users in {report.parts_written} parts{kept}")


def _parse_shard(text: str) -> tuple[int, int]:
    number, slash, total = text.partition("/")
    if not (slash and number.isdecimal() and total.isdecimal()):
        raise ConfigError(f"--shard {text!r}: write it as i/n, for example 1/4")
    return int(number), int(total)
