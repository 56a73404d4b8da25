"""From Arrow tables with named columns to a world: ids become positions in vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coheat.attributes import Attributes
from coheat.data.columns import encode_ids, encode_timestamps
from coheat.data.dataset import BundleData
from coheat.data.describing import note_unread
from coheat.data.joins import FEWEST
from coheat.data.lists import IdList, read_list
from coheat.data.problems import Problems, counted, listed, places
from coheat.data.sources import Source, find_column
from coheat.data.world import Evidence, PairRows, World, build_world
from coheat.errors import DataError
from coheat.ids import Vocabulary

KINDS = ("user", "bundle", "item")
PAIR_TABLES = {
    "user_bundle": ("user", "bundle"),
    "user_item": ("user", "item"),
    "bundle_item": ("bundle", "item"),
}
SHOWN = "shown"
"""The optional table of who was shown which bundle; each of its rows counts."""
DATED_TABLES = (("user", "bundle"), ("user", "item"))


@dataclass(frozen=True)
class CodedTable:
    """A table of pairs as codes into the distinct ids of each of its two columns."""

    kinds: tuple[str, str]
    ids: tuple[Any, Any]
    pairs: PairRows


def world_from_tables(
    sources: Mapping[str, Source | None], id_lists: Mapping[str, Source], problems: Problems
) -> World | None:
    """Build a world from tables; None where errors (told to `problems`) make that impossible.

    `sources` holds `user_item`, `bundle_item`, the interactions ("all", or the parts of a split) and, where
    there is one, `shown`. A vocabulary holds the ids of every table, sorted, but no bundle that was only
    shown; where `id_lists` has a table for the kind, its ids come first, in its order. Tables that could not
    be opened (None) do not keep the others from being checked.
    """
    coded = {
        name: code_table(source, PAIR_TABLES.get(name, PAIR_TABLES["user_bundle"]), problems)
        for name, source in sources.items()
        if source is not None
    }
    lists = {kind: read_list(source, kind, problems) for kind, source in id_lists.items()}
    tables = {name: table for name, table in coded.items() if table is not None}
    if len(tables) < len(sources):
        return None
    _report_swapped(list(tables.values()), problems)
    shown = tables.pop(SHOWN, None)
    ids = {
        kind: _merge_ids(
            kind, list(tables.values()), lists.get(kind), problems, None if kind == "bundle" else shown
        )
        for kind in KINDS
    }
    found = {name: _positions(table, ids) for name, table in tables.items()}
    users, bundles, items = (Vocabulary(ids[kind].to_pylist(), kind) for kind in KINDS)
    about = lists.get("bundle") or IdList(pa.array([], pa.string()))
    return build_world(
        (users, bundles, items),
        found.pop("user_item"),
        found.pop("bundle_item"),
        found,
        problems,
        Evidence(
            about.moments("launched", len(bundles)),
            about.moments("ends", len(bundles)),
            None if shown is None else _known_bundles(_positions(shown, ids), shown, problems),
            about.attributes,
            Attributes() if (listed_items := lists.get("item")) is None else listed_items.attributes,
        ),
    )


def code_table(source: Source, kinds: tuple[str, str], problems: Problems) -> CodedTable | None:
    """Encode a table's two id columns and its timestamps; None where a column is missing."""
    columns = [find_column(source, f"{kind}_id", problems) for kind in kinds]
    if columns[0] is None or columns[1] is None:
        return None
    one, other = encode_ids(columns[0]), encode_ids(columns[1])
    timestamps = None
    if kinds in DATED_TABLES and "timestamp" in source.table.column_names:
        column = find_column(source, "timestamp", problems)
        timestamps = None if column is None else encode_timestamps(column)
    read = {*(f"{kind}_id" for kind in kinds), *(("timestamp",) if kinds in DATED_TABLES else ())}
    note_unread(source, read, problems)
    pairs = PairRows(source.name, one.codes, other.codes, source.show_rows, timestamps)
    good = (one.codes >= 0) & (other.codes >= 0)
    return CodedTable(kinds, (one.ids, other.ids), pairs if good.all() else pairs.keep(good))


def _merge_ids(
    kind: str, tables: list[CodedTable], first: IdList | None, problems: Problems, shown: CodedTable | None
) -> Any:
    """All ids of a kind, sorted; those of the id list, where there is one, before the others.

    Users who are only `shown` bundles are users too, but as a misspelled table looks the same, they are told.
    """
    arrays = [ids for table in tables for ids, of in zip(table.ids, table.kinds, strict=True) if of == kind]
    distinct = pc.unique(pa.concat_arrays(arrays))
    if shown is not None and kind in shown.kinds:
        known = distinct if first is None else pa.concat_arrays([distinct, first.ids])
        own = shown.ids[shown.kinds.index(kind)]
        strangers = own.filter(pc.invert(pc.is_in(own, known)))
        if len(strangers):
            _report_strangers(kind, strangers, len(own), shown.pairs.source, problems)
            distinct = pa.concat_arrays([distinct, strangers])
    distinct = distinct.take(pc.sort_indices(distinct))
    if first is None:
        return distinct
    others = distinct.filter(pc.invert(pc.is_in(distinct, first.ids)))
    if len(others):
        names = listed([repr(name) for name in others.to_pylist()])
        what = f"{counted(len(others), f'{kind} id')} not in this list: {names}"
        problems.warning(f"{kind}s", what, "added after those that are")
    return pa.concat_arrays([first.ids, others])


def _report_strangers(kind: str, strangers: Any, n_ids: int, source: str, problems: Problems) -> None:
    """Ids that only the table of showings has: an error where it has no others, and more than a few."""
    names = listed([repr(name) for name in strangers.to_pylist()])
    if len(strangers) == n_ids >= FEWEST:
        what = f"none of its {n_ids} {kind} ids is in any other table: {names}"
        problems.error(source, what, f"write the ids of {kind}s in all tables in the same way")
        return
    what = f"{counted(len(strangers), kind)} of {n_ids} in no other table: {names}"
    hint = f"they become {kind}s of whom nothing else is known; mend the ids where they are misspelled"
    problems.warning(source, what, hint)


def _positions(table: CodedTable, ids: Mapping[str, Any]) -> PairRows:
    """The pairs as positions in the vocabularies instead of codes; -1 for an id that is in none."""
    maps = [
        pc.fill_null(pc.index_in(own, ids[kind]), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        for own, kind in zip(table.ids, table.kinds, strict=True)
    ]
    pairs = table.pairs
    return PairRows(
        pairs.source, maps[0][pairs.rows], maps[1][pairs.columns], pairs.show_rows, pairs.timestamps
    )


def _known_bundles(pairs: PairRows, table: CodedTable, problems: Problems) -> PairRows:
    """The showings of known bundles; what was shown and is no bundle of any other table is an error."""
    known = pairs.columns >= 0
    if known.all():
        return pairs
    unknown = np.flatnonzero(~known)
    where, row = places("row", unknown, pairs.show_rows)
    codes = np.unique(table.pairs.columns[unknown])
    names = listed([repr(name) for name in table.ids[1].take(pa.array(codes)).to_pylist()])
    problems.error(
        pairs.source,
        f"{counted(len(unknown), 'row')} of bundles that no other table has ({where}): {names}",
        "mend the ids, delete the rows, or add these bundles to the table bundles",
        row=row,
    )
    return pairs.keep(known)


def _report_swapped(tables: list[CodedTable], problems: Problems) -> None:
    """A table neither of whose columns agrees with the other tables, but would if they were swapped."""
    for table in tables:
        one, other = table.kinds
        known: dict[str, list[Any]] = {one: [], other: []}
        for neighbour in tables:
            for kind, ids in zip(neighbour.kinds, neighbour.ids, strict=True):
                if neighbour.kinds != table.kinds and kind in known:
                    known[kind].append(ids)

        def shares(column: int, kind: str, table: CodedTable = table, known: Any = known) -> bool:
            own = table.ids[column]
            return any(pc.any(pc.is_in(own, ids)).as_py() for ids in known[kind])

        agrees = shares(0, one) or shares(1, other)
        if not agrees and (shares(0, other) or shares(1, one)):
            problems.error(
                table.pairs.source,
                f"its {one}_id column holds {other} ids and the other way round",
                "swap the two names in the header",
            )


def from_frames(
    user_bundle: Any,
    user_item: Any,
    bundle_item: Any,
    bundles: Any = None,
    shown: Any = None,
    items: Any = None,
) -> BundleData:
    """Data from pandas, polars or pyarrow tables with columns user_id, bundle_id, item_id (and timestamp).

    `bundles` (with bundle_id) and `items` (with item_id) describe them in any further columns, such as title,
    category and price; launched and ends of bundles say from when until when each is on offer, if known.
    `shown`, with user_id, bundle_id (and timestamp): who was shown what. Anything with Arrow's stream
    interface is accepted too. Warnings and errors are those of reading files; rows are counted from 1.
    """
    problems = Problems()
    frames = {"user_bundle": user_bundle, "user_item": user_item, "bundle_item": bundle_item}
    if shown is not None:
        frames[SHOWN] = shown
    sources = {name: Source(name, _as_arrow(frame, name)) for name, frame in frames.items()}
    sources["all"] = sources.pop("user_bundle")
    lists = {
        kind: Source(f"{kind}s", _as_arrow(frame, f"{kind}s"))
        for kind, frame in (("bundle", bundles), ("item", items))
        if frame is not None
    }
    world = world_from_tables(sources, lists, problems)
    problems.conclude(stacklevel=3)
    assert world is not None, "without an error there is a world"
    return world.data()


def _as_arrow(frame: Any, name: str) -> Any:
    """A frame as a pyarrow table, without importing the library it comes from."""
    if isinstance(frame, pa.Table):
        return frame
    try:
        if type(frame).__module__.split(".")[0] == "pandas":
            return pa.Table.from_pandas(frame, preserve_index=False)
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{name}: a column mixes types ({error}); turn its ids into texts first") from None
    pair_tables = {**PAIR_TABLES, SHOWN: PAIR_TABLES["user_bundle"]}
    listing = {"bundles": ["bundle_id", "launched"], "items": ["item_id", "title"]}
    columns = [f"{kind}_id" for kind in pair_tables[name]] if name in pair_tables else listing[name]
    raise DataError(
        f"{name}: a {type(frame).__name__} is not a table; give a pandas, polars or pyarrow frame "
        f"with the columns {' and '.join(columns)}"
    )
