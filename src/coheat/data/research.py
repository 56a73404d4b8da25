"""The text layout of published bundle data: integers in tab-separated columns, sizes in a file of their own.

    <name>_data_size.txt      one line: number of users, bundles, items
    user_item.txt             user, item
    bundle_item.txt           bundle, item
    user_bundle_train.txt     user, bundle; likewise _tune and _test, or one unsplit user_bundle.txt

Integers count from 0 and are the ids, as texts "0", "1", ... in numeric order. Where tables `users`,
`bundles` or `items` (as `write_research` makes them) stand beside, row n of them names integer n, and
`bundles` and `items` may say more in further columns, such as `title`, `launched` and `ends`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coheat.attributes import Attributes
from coheat.data.dataset import Moments
from coheat.data.describing import read_attributes
from coheat.data.lists import offer_times
from coheat.data.problems import Problems, counted, places
from coheat.data.sources import Source, read_parquet_table
from coheat.data.text import read_text
from coheat.data.world import Evidence, PairRows, World, build_world
from coheat.ids import Vocabulary
from coheat.memory_limit import shortage

SIZE_FILE = "*_data_size.txt"
PART_FILES = {
    "train": "user_bundle_train.txt",
    "validation": "user_bundle_tune.txt",
    "test": "user_bundle_test.txt",
}
UNSPLIT_FILE = "user_bundle.txt"
LONGEST_SIZES = 1000
"""Bytes of the file of sizes that are read; three numbers take fewer."""
BYTES_PER_ID = 300
"""In memory: the text, its places in a vocabulary, and a row in each of the relations."""
WHOLE_NUMBER = r"^\s*-?\d{1,18}\s*$"


def read_sizes(directory: Path, problems: Problems) -> dict[str, int] | None:
    """Declared numbers of users, bundles and items, by kind."""
    files = sorted(file for file in directory.glob(SIZE_FILE) if file.is_file())
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        problems.error(
            SIZE_FILE,
            f"there must be exactly one such file; found: {found}",
            "it holds one line: the numbers of users, bundles and items, with tabs between them",
        )
        return None
    with files[0].open("rb") as file:
        content = file.read(LONGEST_SIZES)
    words = content.split()
    if len(words) != 3 or not all(word.isdigit() and len(word) < 19 for word in words):
        text = content[:60].decode("utf-8", "replace")
        problems.error(
            files[0].name,
            f"three whole numbers are expected, not {text!r}",
            "write the numbers of users, bundles and items with tabs between them",
            row=1,
        )
        return None
    sizes = {kind: int(word) for kind, word in zip(("user", "bundle", "item"), words, strict=True)}
    if short := shortage(BYTES_PER_ID * sum(sizes.values())):
        declared = ", ".join(f"{size:,} {kind}s" for kind, size in sizes.items())
        problems.error(files[0].name, f"{declared}; {short}", "write the numbers that there are", row=1)
        return None
    return sizes


def read_world(directory: Path, parts: Mapping[str, str], problems: Problems) -> World | None:
    """Everything in a directory of this layout; None where errors (told to `problems`) prevent it."""
    sizes = read_sizes(directory, problems)
    found = {
        part: read_pairs(directory / name, ("user", "bundle"), sizes, problems)
        for part, name in parts.items()
    }
    user_item = read_pairs(directory / "user_item.txt", ("user", "item"), sizes, problems)
    bundle_item = read_pairs(directory / "bundle_item.txt", ("bundle", "item"), sizes, problems)
    if sizes is None or user_item is None or bundle_item is None:
        return None
    interactions = {part: pairs for part, pairs in found.items() if pairs is not None}
    names = {kind: _names(directory, kind, size, problems) for kind, size in sizes.items()}
    if len(interactions) < len(parts) or None in names.values():
        return None
    users, bundles, items = (Vocabulary(ids or (), kind) for kind, ids in names.items())
    evidence = _described(directory, sizes, problems)
    return build_world((users, bundles, items), user_item, bundle_item, interactions, problems, evidence)


def _described(directory: Path, sizes: Mapping[str, int], problems: Problems) -> Evidence:
    """What the tables that name bundles and items say of them in further columns."""
    times: dict[str, Moments] = {}
    attributes = {"bundle": Attributes(), "item": Attributes()}
    for kind in attributes:
        path, rows = directory / f"{kind}s.parquet", np.arange(sizes[kind])
        table = read_parquet_table(path, problems) if path.is_file() else None
        if table is not None and len(table) == len(rows):
            source = Source(path.name, table)
            if kind == "bundle":
                times = offer_times(source, rows, len(rows), problems)
            read = {f"{kind}_id", *(times if kind == "bundle" else ())}
            attributes[kind] = read_attributes(source, rows, problems, read)
    return Evidence(
        times.get("launched"),
        times.get("ends"),
        bundle_attributes=attributes["bundle"],
        item_attributes=attributes["item"],
    )


def _names(directory: Path, kind: str, size: int, problems: Problems) -> list[str] | None:
    """The ids behind the integers of a kind: from the table beside the text where there is one."""
    path = directory / f"{kind}s.parquet"
    if not path.is_file():
        return [str(number) for number in range(size)]
    table = read_parquet_table(path, problems)
    if table is None:
        return None
    try:
        names: list[str] = table.column(f"{kind}_id").cast(pa.string()).to_pylist()
    except (pa.ArrowException, KeyError) as error:
        problems.error(path.name, f"no readable table of {kind}_id: {error}", "write it again or delete it")
        return None
    if len(set(names)) != size or len(names) != size or not all(names):
        problems.error(
            path.name,
            f"{len(names)} ids, {len(set(names))} of them distinct, for the {size} {kind}s declared",
            "row n names integer n, so there must be one id for each",
        )
        return None
    return names


def read_pairs(
    path: Path, kinds: tuple[str, str], sizes: dict[str, int] | None, problems: Problems
) -> PairRows | None:
    """The pairs of one file; lines that hold no pair of valid integers are told and left out."""
    if not path.is_file():
        problems.error(path.name, "there is no such file", f"it holds a {kinds[0]} and a {kinds[1]} per line")
        return None
    pairs = _fast_integers(path, kinds)
    if pairs is None:
        pairs = _careful_integers(path, kinds, problems)
    return pairs if pairs is None or sizes is None else _within_sizes(pairs, kinds, sizes, problems)


def _fast_integers(path: Path, kinds: tuple[str, str]) -> PairRows | None:
    """The pairs of a file that holds nothing but pairs of integers; None where it holds anything else."""
    problems = Problems()
    try:
        found = read_text(path, "\t", problems, list(kinds), pa.int64())
    except pa.ArrowInvalid:
        return None
    if found is None or problems.found or any(found.table[kind].null_count for kind in kinds):
        return None
    rows, columns = (found.table[kind].to_numpy() for kind in kinds)
    return PairRows(path.name, rows, columns, found.show_rows)


def _careful_integers(path: Path, kinds: tuple[str, str], problems: Problems) -> PairRows | None:
    """The same by way of text, so that every line that is wrong can be told."""
    found = read_text(path, "\t", problems, list(kinds))
    if found is None:
        return None
    texts = [found.table[kind].combine_chunks() for kind in kinds]
    good = np.ones(len(found.table), dtype=bool)
    for kind, text in zip(kinds, texts, strict=True):
        is_number = pc.match_substring_regex(text, WHOLE_NUMBER).to_numpy(zero_copy_only=False)
        good &= is_number
        wrong = np.flatnonzero(~is_number)
        if len(wrong):
            where, line = places("line", wrong, found.show_rows)
            problems.error(
                path.name,
                f"{counted(len(wrong), kind)} not a whole number ({where}); "
                f"the first is {text[int(wrong[0])].as_py()!r}",
                "this layout knows integers from 0 up; other ids belong in .csv, .tsv or .parquet tables",
                row=line,
            )
    rows, columns = (
        pc.cast(pc.utf8_trim_whitespace(text.filter(pa.array(good))), pa.int64()).to_numpy() for text in texts
    )
    kept = np.flatnonzero(good)
    return PairRows(path.name, rows, columns, lambda wanted: found.show_rows(kept[wanted]))


def _within_sizes(
    pairs: PairRows, kinds: tuple[str, str], sizes: dict[str, int], problems: Problems
) -> PairRows:
    """Only the pairs whose integers lie within the declared sizes; the others are told."""
    good = np.ones(len(pairs.rows), dtype=bool)
    swapped_fits = np.all(pairs.rows < sizes[kinds[1]]) and np.all(pairs.columns < sizes[kinds[0]])
    for kind, values in zip(kinds, (pairs.rows, pairs.columns), strict=True):
        outside = np.flatnonzero((values < 0) | (values >= sizes[kind]))
        good[outside] = False
        if len(outside):
            where, line = places("line", outside, pairs.show_rows)
            problems.error(
                pairs.source,
                f"{counted(len(outside), kind)} outside 0..{sizes[kind] - 1} ({where}); "
                f"the first is {values[outside[0]]}",
                f"the columns are {kinds[0]}, {kinds[1]} and seem to be swapped"
                if swapped_fits
                else f"{SIZE_FILE} declares {sizes[kind]} {kind}s, counted from 0",
                row=line,
            )
    return pairs if good.all() else pairs.keep(good)
