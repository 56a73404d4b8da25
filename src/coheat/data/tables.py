"""From Arrow tables with named columns to a world: ids become positions in vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coheat.data.columns import Column, encode_ids, encode_launches, encode_timestamps
from coheat.data.dataset import BundleData, Indices, Moments
from coheat.data.problems import Problems, ShowRows, counted, listed
from coheat.data.world import PairRows, World, build_world
from coheat.errors import DataError
from coheat.ids import Vocabulary

KINDS = ("user", "bundle", "item")
PAIR_TABLES = {
    "user_bundle": ("user", "bundle"),
    "user_item": ("user", "item"),
    "bundle_item": ("bundle", "item"),
}
SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "bars", " ": "spaces"}


def count_from_one(rows: Indices) -> list[int]:
    return [int(row) + 1 for row in rows]


@dataclass(frozen=True)
class Source:
    """An Arrow table, the name it goes by in messages, and how its rows are numbered there."""

    name: str
    table: Any
    show_rows: ShowRows = count_from_one


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

    `sources` holds `user_item`, `bundle_item` and the interactions: "all", or the parts of a split. A
    vocabulary holds the ids of every table, sorted; where `id_lists` has a table for the kind, its ids
    come first, in its order. Tables that could not be opened (None) do not keep the others from being
    checked.
    """
    coded = {
        name: _code_table(source, PAIR_TABLES.get(name, PAIR_TABLES["user_bundle"]), problems)
        for name, source in sources.items()
        if source is not None
    }
    lists = {kind: _read_list(source, kind, problems) for kind, source in id_lists.items()}
    tables = {name: table for name, table in coded.items() if table is not None}
    if len(tables) < len(sources):
        return None
    _report_swapped(list(tables.values()), problems)
    ids = {kind: _merge_ids(kind, list(tables.values()), lists.get(kind), problems) for kind in KINDS}
    found = {name: _positions(table, ids) for name, table in tables.items()}
    users, bundles, items = (Vocabulary(ids[kind].to_pylist(), kind) for kind in KINDS)
    return build_world(
        (users, bundles, items),
        found.pop("user_item"),
        found.pop("bundle_item"),
        found,
        problems,
        _launches(lists.get("bundle"), len(bundles)),
    )


def _code_table(source: Source, kinds: tuple[str, str], problems: Problems) -> CodedTable | None:
    """Encode a table's two id columns and its timestamps; None where a column is missing."""
    columns = [_find_column(source, f"{kind}_id", problems) for kind in kinds]
    if columns[0] is None or columns[1] is None:
        return None
    one, other = encode_ids(columns[0]), encode_ids(columns[1])
    timestamps = None
    if kinds == PAIR_TABLES["user_bundle"] and "timestamp" in source.table.column_names:
        column = _find_column(source, "timestamp", problems)
        timestamps = None if column is None else encode_timestamps(column)
    pairs = PairRows(source.name, one.codes, other.codes, source.show_rows, timestamps)
    good = (one.codes >= 0) & (other.codes >= 0)
    return CodedTable(kinds, (one.ids, other.ids), pairs if good.all() else pairs.keep(good))


def _find_column(source: Source, name: str, problems: Problems) -> Column | None:
    """The column of that name; where it is missing or stands twice, an error with a guess at the reason."""
    names = source.table.column_names
    if names.count(name) == 1:
        return Column(source.table.column(name), name, source.name, source.show_rows, problems)
    if name in names:
        problems.error(source.name, f"{names.count(name)} columns are named {name}", "keep one of them")
        return None
    hint = f"its columns are {', '.join(map(repr, names)) or 'none'}; rename the right one"
    separator = next(
        (letter for letter in SEPARATORS if len(names) == 1 and letter in names[0].strip()), None
    )
    if separator:
        hint = f"the header {names[0]!r} holds {SEPARATORS[separator]}; a .csv has commas, a .tsv has tabs"
    problems.error(source.name, f"there is no column named {name}", hint)
    return None


@dataclass(frozen=True)
class IdList:
    """The ids of a table that lists users, bundles or items, in its order, each once.

    `launched`, where the table has such a column, says when each was first on offer, NaN for not known.
    """

    ids: Any
    launched: Moments | None = None


def _read_list(source: Source, kind: str, problems: Problems) -> IdList | None:
    """What a table of ids lists; None where it has no column of them."""
    column = _find_column(source, f"{kind}_id", problems)
    if column is None:
        return None
    coded = encode_ids(column)
    # Codes number the ids by first appearance, so the distinct ids already stand in the table's order.
    repeated = int((coded.codes >= 0).sum()) - len(coded.ids)
    if repeated:
        problems.warning(source.name, f"{counted(repeated, 'repeated id')} dropped", "each id counts once")
    if kind != "bundle" or "launched" not in source.table.column_names:
        return IdList(coded.ids)
    moments = _find_column(source, "launched", problems)
    if moments is None:
        return IdList(coded.ids)
    rows = np.flatnonzero(coded.codes >= 0)[::-1]  # of a repeated id the first row counts
    launched = np.full(len(coded.ids), np.nan)
    launched[coded.codes[rows]] = encode_launches(moments)[rows]
    return IdList(coded.ids, launched)


def _launches(listed: IdList | None, n_bundles: int) -> Moments | None:
    """When each bundle was first on offer; those that the list does not have stand after those it has."""
    if listed is None or listed.launched is None:
        return None
    return np.pad(listed.launched, (0, n_bundles - len(listed.launched)), constant_values=np.nan)


def _merge_ids(kind: str, tables: list[CodedTable], first: IdList | None, problems: Problems) -> Any:
    """All ids of a kind, sorted; those of the id list, where there is one, before the others."""
    arrays = [ids for table in tables for ids, of in zip(table.ids, table.kinds, strict=True) if of == kind]
    distinct = pc.unique(pa.concat_arrays(arrays))
    distinct = distinct.take(pc.sort_indices(distinct))
    if first is None:
        return distinct
    others = distinct.filter(pc.invert(pc.is_in(distinct, first.ids)))
    if len(others):
        names = listed([repr(name) for name in others.to_pylist()])
        what = f"{counted(len(others), f'{kind} id')} not in this list: {names}"
        problems.warning(f"{kind}s", what, "added after those that are")
    return pa.concat_arrays([first.ids, others])


def _positions(table: CodedTable, ids: Mapping[str, Any]) -> PairRows:
    """The pairs as positions in the vocabularies instead of codes."""
    maps = [
        pc.index_in(own, ids[kind]).to_numpy().astype(np.int64)
        for own, kind in zip(table.ids, table.kinds, strict=True)
    ]
    pairs = table.pairs
    return PairRows(
        pairs.source, maps[0][pairs.rows], maps[1][pairs.columns], pairs.show_rows, pairs.timestamps
    )


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


def from_frames(user_bundle: Any, user_item: Any, bundle_item: Any, bundles: Any = None) -> BundleData:
    """Data from pandas, polars or pyarrow tables with columns user_id, bundle_id, item_id (and timestamp).

    `bundles`, with the columns bundle_id and launched, says since when each is on offer, where that is known.
    Anything that speaks Arrow's stream interface is accepted too. Warnings and errors are those of
    reading files; rows are counted from 1.
    """
    problems = Problems()
    frames = {"user_bundle": user_bundle, "user_item": user_item, "bundle_item": bundle_item}
    sources = {name: Source(name, _as_arrow(frame, name)) for name, frame in frames.items()}
    sources["all"] = sources.pop("user_bundle")
    lists = {} if bundles is None else {"bundle": Source("bundles", _as_arrow(bundles, "bundles"))}
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
    columns = (
        [f"{kind}_id" for kind in PAIR_TABLES[name]] if name in PAIR_TABLES else ["bundle_id", "launched"]
    )
    raise DataError(
        f"{name}: a {type(frame).__name__} is no table; give a pandas, polars or pyarrow frame "
        f"with the columns {' and '.join(columns)}"
    )
