"""coheat data: check, describe, split and make up data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich.box import SIMPLE_HEAD

from coheat.cli import app
from coheat.cli.output import console, errors, print_json, say, table
from coheat.errors import ConfigError

if TYPE_CHECKING:
    from coheat.data import BundleData, Split
    from coheat.data.stats import Stats

data_app = typer.Typer(name="data", help="Check, describe, split and make up data.", no_args_is_help=True)
app.add_typer(data_app)

DIRECTORY = typer.Argument(
    ...,
    metavar="DIR",
    help="Tables (.parquet, .csv, .tsv), research text files, or a DuckDB or SQLite file with the tables.",
)
AS_JSON = typer.Option(False, "--json", help="Print one JSON document instead.")
FORMAT = typer.Option("parquet", "--format", help="Parquet tables, or the text layout of published data.")
SEED = typer.Option(0, min=0, help="Same seed, same outcome.")
OVERWRITE = typer.Option(False, "--overwrite", help="Replace the data in --out.")
Format = Literal["parquet", "research"]
COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


@contextmanager
def _working(what: str, as_json: bool) -> Iterator[None]:
    """A spinner on standard error while something takes long, where somebody is looking."""
    if as_json or not errors.is_terminal:
        yield
        return
    with errors.status(what):
        yield


@data_app.command()
def check(directory: Path = DIRECTORY, as_json: bool = AS_JSON) -> None:
    """Report everything that is wrong with the data in DIR, with rows and hints.

    Exit status 0: the data can be used; 1: errors were found.

    Example:

        coheat data check shop
    """
    from coheat.data.check import check as check_directory

    with _working(f"reading {directory}", as_json):
        report = check_directory(directory)
    if as_json:
        print_json(report.to_dict())
        raise typer.Exit(0 if report.ok else 1)
    for problem in report.problems:
        place = str(directory / problem.file) + (f":{problem.row}" if problem.row else "")
        console.print(f"[bold {COLOURS[problem.severity]}]{problem.severity}[/]", end=" ")
        say(f"{place}: {problem.what}")
        if problem.hint:
            say(f"  {problem.hint}", style="dim")
    if report.counts:
        say(", ".join(f"{count:,} {name}" for name, count in report.counts.items()))
    for line in _columns(report.columns or {}):
        say(line)
    if report.leakage is not None and report.leakage.pairs:
        say(str(report.leakage))
    found = f"{len(report.errors)} errors, {len(report.warnings)} warnings"
    say(f"{'usable' if report.ok else 'not usable'}: {found}", style="bold")
    raise typer.Exit(0 if report.ok else 1)


@data_app.command()
def stats(
    directory: Path = DIRECTORY,
    plot: Path | None = typer.Option(None, metavar="FILE", help="Draw the skew: .png or .svg."),
    as_json: bool = AS_JSON,
) -> None:
    """Print the paper's Table 1 for the data in DIR, and how unevenly bundles are taken (Figure 1a).

    Examples:

        coheat data stats shop

        coheat data stats shop --plot skew.png
    """
    from coheat.data import read_data
    from coheat.data.stats import plot_skew, sketch_skew
    from coheat.data.stats import stats as statistics

    with _working(f"reading {directory}", as_json):
        data = read_data(directory)
        found = statistics(data)
        if plot is not None:
            plot_skew(data, plot, title=directory.resolve().name)
    if as_json:
        print_json(found.to_dict() | {"plot": None if plot is None else str(plot)})
        return
    title = directory.resolve().name
    made = table(("", "count", "density"), ("",), title=title, title_style="bold", box=SIMPLE_HEAD)
    for name in ("users", "bundles", "items"):
        made.add_row(name, f"{getattr(found, name):,}")
    for name in ("user_bundle", "user_item", "bundle_item"):
        density = f"{getattr(found, f'{name}_density'):.2f}%"
        made.add_row(name.replace("_", "-"), f"{getattr(found, name):,}", density)
    made.add_row("average bundle size", f"{found.average_bundle_size:.2f}")
    console.print(made)
    say(sketch_skew(data))
    say(
        f"interactions on the top 10% of bundles: {found.top_10_percent_share:.0%}, "
        f"top 20%: {found.top_20_percent_share:.0%}, Gini {found.gini:.2f}; "
        f"{found.bundles_without_interactions:,} bundles without any"
    )
    for line in (*_what_is_dated(found), *_columns(found.columns)):
        say(line)
    if plot is not None:
        say(f"drawn: {plot}")


def _columns(tables: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The further columns of each table, and what they are taken for."""
    from coheat.attributes import UNDERSTOOD

    def said(name: str, kind: str) -> str:
        return f"{name} ({kind})" if name in UNDERSTOOD else f"{name} ({kind}, kept as it is)"

    return [
        f"columns of {table}: {', '.join(said(*column) for column in columns.items())}"
        for table, columns in tables.items()
        if columns
    ]


def _what_is_dated(found: Stats) -> list[str]:
    """What the data tell of times and of exposure; nothing where they tell nothing."""
    lines = []
    if found.first_interaction is not None:
        also = ", user-item pairs dated too" if found.user_item_dated else ""
        lines.append(f"interactions from {found.first_interaction} to {found.last_interaction}{also}")
    if found.bundles_with_launch or found.bundles_with_end:
        launches, ends = (f"{n:,}" for n in (found.bundles_with_launch, found.bundles_with_end))
        lines.append(f"on offer: the launch of {launches} bundles is known, the end of {ends}")
    if found.showings:
        lines.append(f"shown: {found.showings:,} times")
    return lines


@data_app.command()
def split(
    directory: Path = DIRECTORY,
    scenario: str = typer.Option(
        ..., help="warm, cold, all, cold-ratio, time, warm-up, or published: as DIR is split already."
    ),
    out: Path = typer.Option(..., metavar="DIR", help="Where to write the split."),
    seed: int = SEED,
    ratios: str = typer.Option("7:1:2", help="train : validation : test."),
    cold_share: float | None = typer.Option(
        None, help="cold-ratio: the share (0 to 1) of test interactions with cold bundles."
    ),
    times: tuple[str, str] | None = typer.Option(
        None, metavar="T1 T2", help="time: when validation and test begin (dates or Unix seconds)."
    ),
    at_least: int | None = typer.Option(
        None, min=2, help="warm-up: takers a bundle needs to be thinned. Default: 20, fewer in small data."
    ),
    clean: bool = typer.Option(
        False, "--without-leaks", help="Remove items from user_item that only held-out bundles explain."
    ),
    file_format: Format = FORMAT,
    overwrite: bool = OVERWRITE,
    as_json: bool = AS_JSON,
) -> None:
    """Divide the interactions in DIR into train, validation and test.

    warm: interactions at random. cold: bundles at random. all: half of validation and test from bundles
    that are not in training. cold-ratio: a chosen share of them. time: later interactions. warm-up:
    some bundles keep only 0, 1, 2, 4, 8 or 16 of their takers, as if they were just launched.

    Examples:

        coheat data split shop --scenario cold --seed 0 --out shop-cold

        coheat data split shop --scenario cold-ratio --cold-share 0.3 --out shop-30

        coheat data split shop --scenario time --times 2024-05-01 2024-06-01 --out shop-may

        coheat data split shop --scenario warm-up --out shop-young

        coheat data split meals --scenario published --without-leaks --out meals-clean
    """
    from coheat.data import read_data, read_split
    from coheat.data.leaks import without_leaks
    from coheat.data.split import split as divide

    moments = times and _moments(times)
    with _working(f"splitting {directory}", as_json):
        if scenario == "published":
            made = read_split(directory)
        else:
            data = read_data(directory)
            made = divide(data, scenario, seed, _numbers(ratios), cold_share, moments, at_least)
        before = made.train.user_item.nnz
        made = without_leaks(made) if clean else made
        _write(made, out, file_format, overwrite)
    report = made.report()
    removed = {"user_item_removed": int(before - made.train.user_item.nnz)} if clean else {}
    if as_json:
        print_json(report | removed | {"out": str(out)})
        return
    names, title = ("pairs", "users", "bundles", "cold users", "cold bundles", "on cold"), made.scenario
    parts = table(
        ("part", *names), ("part",), title=f"{title}, seed {made.seed}", title_style="bold", box=SIMPLE_HEAD
    )
    for column in parts.columns[1:]:
        column.no_wrap = True
    for part in ("train", "validation", "test"):
        row = report[part]
        counts = [row[name] for name in ("interactions", "users", "bundles")]
        cold = [f"{row[name]:,}" for name in ("cold_users", "cold_bundles") if name in row]
        share = [f"{row['cold_interaction_share']:.1%}"] if cold else []
        parts.add_row(part, *(f"{count:,}" for count in counts), *cold, *share)
    console.print(parts)
    if "warm_up" in report:
        _show_levels(report["warm_up"])
    for count in removed.values():
        say(f"without leaks: {count:,} user-item pairs taken out")
    say(f"written: {out}")


def _show_levels(report: dict[str, Any]) -> None:
    """How many bundles keep how many takers, and how many of their takers are held out."""
    from coheat.data.warm_up import AT_LEAST

    names, first = ("bundles", "validation", "test"), "takers kept"
    made = table((first, *names), (first,), title="thinned bundles", title_style="bold", box=SIMPLE_HEAD)
    for level, counts in report["levels"].items():
        made.add_row(level, *(f"{counts[name]:,}" for name in names))
    console.print(made)
    least = report["at_least"]
    say(f"thinned: some of the bundles with {least} takers and more")
    if least < AT_LEAST:
        say(
            f"  {AT_LEAST} is usual, but too few bundles here have so many; levels without bundles are those "
            "that leave nothing to hold out",
            style="dim",
        )


@data_app.command()
def synth(
    out: Path = typer.Option(..., metavar="DIR", help="Where to write the data."),
    like: str = typer.Option(
        "demo", help="Sizes: demo, small-bundles, large-bundles, youshu, netease or ifashion."
    ),
    seed: int = SEED,
    users: int | None = typer.Option(
        None, help="Number of users; this and the next options override --like."
    ),
    bundles: int | None = typer.Option(None, help="Number of bundles."),
    items: int | None = typer.Option(None, help="Number of items."),
    user_bundle: int | None = typer.Option(None, help="Number of user-bundle interactions."),
    user_item: int | None = typer.Option(None, help="Number of user-item interactions."),
    bundle_item: int | None = typer.Option(None, help="Number of bundle-item affiliations."),
    file_format: Format = FORMAT,
    overwrite: bool = OVERWRITE,
    as_json: bool = AS_JSON,
) -> None:
    """Make up a realistic shop: topics, popular and rare things, bundles taken for their items.

    Examples:

        coheat data synth --out shop

        coheat data synth --like netease --seed 1 --out netease

        coheat data synth --like demo --users 500 --user-item 9000 --out small-shop
    """
    from coheat.data.stats import stats as statistics
    from coheat.data.synthetic import LIKE, realistic_world

    if like not in LIKE:
        raise ConfigError(f"--like {like!r}: choose one of {', '.join(LIKE)}")
    asked = {
        "n_users": users,
        "n_bundles": bundles,
        "n_items": items,
        "n_user_bundle": user_bundle,
        "n_user_item": user_item,
        "n_bundle_item": bundle_item,
    }
    counts: Any = dict(LIKE[like]) | {name: count for name, count in asked.items() if count is not None}
    with _working("making up a world", as_json):
        data = realistic_world(**counts, seed=seed)
        _write(data, out, file_format, overwrite)
    if as_json:
        print_json({"out": str(out), "seed": seed, **statistics(data).to_dict()})
        return
    found = ", ".join(f"{count:,} {name[2:].replace('_', '-')}" for name, count in counts.items())
    say(f"written: {out} ({found})")


@data_app.command()
def prepare(
    directory: Path = typer.Argument(
        ..., metavar="DIR", help="Tables (.parquet, .csv, .tsv), or a DuckDB file with the tables."
    ),
    out: Path = typer.Option(..., metavar="DIR2", help="Where to write the prepared data."),
    memory_limit: str = typer.Option(
        "1GB", metavar="SIZE", help="About how much memory to use, whatever the size of the tables."
    ),
    overwrite: bool = OVERWRITE,
    as_json: bool = AS_JSON,
) -> None:
    """Turn tables of any size, even larger than memory, into memory-mapped arrays.

    DIR2 can then replace DIR in every command that takes data: train, evaluate, data stats, check and split.
    Ids, their order and all results stay the same. If the command is stopped or killed, run it again to go
    on. Needs pip install 'coheat\\[prepare]'.

    Examples:

        coheat data prepare shop --out shop-prepared

        coheat data prepare shop --out shop-prepared --memory-limit 4GB --overwrite
    """
    from time import perf_counter

    from coheat.data.preparing import prepare as prepare_tables

    started = perf_counter()
    with errors.status("") if errors.is_terminal and not as_json else nullcontext() as status:

        def tell(step: str) -> None:
            if status is not None:
                status.update(f"{directory}: {step}")

        made = prepare_tables(directory, out, memory_limit, overwrite, tell)
    seconds = perf_counter() - started
    if as_json:
        print_json({"out": str(out), "seconds": round(seconds, 3), **made})
        return
    from coheat.memory_limit import readable

    counts = ", ".join(f"{count:,} {name}" for name, count in made.items() if name != "bytes")
    say(f"prepared: {out} ({counts}; {readable(made['bytes'])}) in {seconds:.1f} s")


def _numbers(ratios: str) -> list[float]:
    try:
        return [float(number) for number in ratios.split(":")]
    except ValueError:
        raise ConfigError(f"--ratios {ratios!r}: write three numbers, for example 7:1:2") from None


def _moments(times: tuple[str, str]) -> tuple[float, float]:
    from coheat.data.columns import parse_time

    first, second = (parse_time(text) for text in times)
    if first is None or second is None:
        raise ConfigError(f"--times {' '.join(times)}: write dates like 2024-05-31, or Unix seconds")
    return first, second


def _write(data: BundleData | Split, out: Path, file_format: Format, overwrite: bool) -> None:
    from coheat.data.writing import write_research, write_tables

    if file_format == "research":
        write_research(data, out, out.resolve().name, overwrite)
    else:
        write_tables(data, out, overwrite)
