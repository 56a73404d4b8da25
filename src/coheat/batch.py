"""Lists for everybody, written to Parquet in parts: bounded memory, several machines, restartable.

    OUT/batch.json                    what was asked, so that a restart cannot mix two questions
    OUT/part-00000-of-00011.parquet   user_id, bundle_id, score, rank of so many users, in the order of rows

Users are cut into parts of `part_size`. A part is written aside and renamed, so it is whole or absent, and
one that is there is not computed again. With `shard` i/n, parts i-1, i-1+n, ... are done, so n processes or
machines that share the directory do all of them between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from coheat.errors import ArtifactError, ConfigError
from coheat.recommender import Recommender
from coheat.recommender.checks import candidate_rows, check_k
from coheat.recommender.lists import UNSEEN, Moment, Ranked, Scored, ahead, people_of, score, scratches
from coheat.recommender.mapped import let_go
from coheat.recommender.ranking import Floats, Positions
from coheat.recommender.scoring import BLOCK
from coheat.storage import read_json, replacing_file, write_json

INDEX = "batch.json"
PART = 10_000
"""Users in a part, unless the caller chooses otherwise."""


@dataclass(frozen=True)
class BatchReport:
    """What a call did: parts written, parts that were there already, users and rows written, lists short."""

    parts_written: int
    parts_kept: int
    users: int
    rows: int
    short_lists: int


def recommend_all(
    recommender: Recommender,
    out: Path,
    k: int = 20,
    candidates: Any = "all",
    exclude_seen: bool = True,
    shard: tuple[int, int] = (1, 1),
    part_size: int = PART,
    on_part: Callable[[int, int], None] | None = None,
) -> BatchReport:
    """Write the k best bundles of every user of training; `on_part` is told (parts done, parts to do).

    All lists are those of the moment of the call: bundles added meanwhile are for the next one.
    """
    number, n_shards = shard
    if not 1 <= number <= n_shards:
        raise ConfigError(f"shard {number}/{n_shards}: write i/n with i from 1 to n")
    if part_size < 1:
        raise ConfigError(f"part_size = {part_size}: at least one user is in a part")
    check_k(k)
    moment = recommender.moment()
    columns = candidate_rows(moment.catalogue, candidates, ())
    n_users = len(recommender.users.ids)
    n_parts = max(-(-n_users // part_size), 1)
    question = {
        "k": k,
        "candidates": candidates if isinstance(candidates, str) else list(candidates),
        "exclude_seen": exclude_seen,
        "part_size": part_size,
        "users": n_users,
        "bundles": len(columns),
        "model": asdict(recommender.description) if recommender.description else None,
        "new_offset": recommender.profiles.stored.new_offset if recommender.profiles else None,
    }
    _claim(out, question)
    written = kept = users = rows = short = 0
    mine = range(number - 1, n_parts, n_shards)
    for done, part in enumerate(mine, start=1):
        path = out / f"part-{part:05d}-of-{n_parts:05d}.parquet"
        if path.exists():
            kept += 1
        else:
            first, last = part * part_size, min((part + 1) * part_size, n_users)
            found = _lists(moment, columns, range(first, last), k, exclude_seen)
            _write_part(path, recommender.users.ids[first:last], moment.catalogue.ids, found)
            written, users, rows = written + 1, users + last - first, rows + int(found.counts.sum())
            short += int((found.counts < k).sum())
        if on_part:
            on_part(done, len(mine))
    return BatchReport(written, kept, users, rows, short)


def _claim(out: Path, question: dict[str, Any]) -> None:
    """Note the question in the directory; refuse a directory that answers another one."""
    if (out / INDEX).exists():
        found = read_json(out / INDEX)
        different = sorted(key for key in question if found.get(key) != question[key])
        if different:
            raise ArtifactError(
                f"{out}: holds lists made with another {', '.join(different)}; "
                "write to a new directory, or ask the same question to go on"
            )
        return
    if out.exists() and (not out.is_dir() or any(out.glob("part-*"))):
        raise ArtifactError(f"{out}: in the way; write to a new directory")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / INDEX, question)


def _lists(moment: Moment, columns: Positions, users: range, k: int, exclude_seen: bool) -> Ranked:
    """The lists of these rows of users, one after the other."""

    def job(start: int, scratch: Floats) -> Callable[[], Scored]:
        rows = np.arange(start, min(start + BLOCK, users.stop))
        names = moment.taken.users.ids[start : start + len(rows)]
        people = people_of(moment, names, rows)
        seen = moment.taken.pairs_of(names, rows, moment.catalogue) if exclude_seen else UNSEEN
        return partial(score, moment, people, columns, seen, scratch)

    starts = range(users.start, users.stop, BLOCK)
    jobs = (job(*place) for place in zip(starts, cycle(scratches(moment, len(users))), strict=False))
    lists = Ranked.joined([block.ranked(k) for block in ahead(jobs)])
    for mapped in (moment.model.users, moment.taken.trained.indptr, moment.taken.trained.indices):
        let_go(mapped)
    return lists


def _write_part(path: Path, user_ids: Sequence[str], bundle_ids: Sequence[str], found: Ranked) -> None:
    """Write the lists of these users; `bundle_ids` are those of all rows."""
    import pyarrow
    from pyarrow import parquet

    counts = found.counts
    owner = np.repeat(np.arange(len(counts)), counts)
    rank = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    used, codes = np.unique(found.bundles, return_inverse=True)
    names = pyarrow.array([bundle_ids[row] for row in used], pyarrow.string())
    people = pyarrow.array(user_ids, pyarrow.string())
    table = pyarrow.table(
        {
            "user_id": people.take(pyarrow.array(owner)),
            "bundle_id": names.take(pyarrow.array(codes)),
            "score": pyarrow.array(found.scores, pyarrow.float32()),
            "rank": pyarrow.array(rank, pyarrow.int32()),
        }
    )
    with replacing_file(path) as aside:
        parquet.write_table(table, aside, compression="zstd")
