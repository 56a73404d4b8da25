"""Lists for everybody, written to Parquet in parts: bounded memory, several machines, restartable.

    OUT/part-00000-of-00011.parquet   user_id, bundle_id, score, rank and the fields asked for, of so many
                                      users, in the order of rows

Nothing else stands there, so whatever reads a directory of Parquet files reads it as it is. Each part says in
its metadata what was asked, so that a restart cannot mix two questions.

Users are cut into parts of `part_size`. A part is written to a temporary file and renamed, so it is whole or
absent, and one that is there is not computed again. With `shard` i/n, parts i-1, i-1+n, ... are done, so n
processes or machines that share the directory do all of them between them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coheat.attributes import Where
from coheat.errors import ArtifactError, ConfigError
from coheat.recommender import Recommender, Rules
from coheat.recommender.answers import field_arrays
from coheat.recommender.choosing import Candidates
from coheat.recommender.lists import Lists
from coheat.served.ranking import Ranked
from coheat.storage import replacing_file

ASKED = b"coheat.asked"
"""Key in the metadata of a part; its value is the question, as JSON."""
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
    candidates: Candidates = "all",
    exclude_seen: bool = True,
    shard: tuple[int, int] = (1, 1),
    part_size: int = PART,
    on_part: Callable[[int, int], None] | None = None,
    *,
    where: Where | None = None,
    fields: Sequence[str] | None = None,
    only_on_offer: bool = True,
    now: str | float | None = None,
    rules: Rules | Mapping[str, Any] | None = None,
) -> BatchReport:
    """Write the k best bundles of every user of training; `on_part` is told (parts done, parts to do).

    All lists are those of the moment of the call: bundles added meanwhile are for the next one. `where`,
    `fields`, what is on offer and `rules` are those of `Recommender.recommend`; a field is one more column.
    """
    number, n_shards = shard
    if not 1 <= number <= n_shards:
        raise ConfigError(f"shard {number}/{n_shards}: write i/n with i from 1 to n")
    if part_size < 1:
        raise ConfigError(f"part_size = {part_size}: at least one user is in a part")
    obeyed = Rules.of(rules)
    lists = recommender.lists(
        k,
        candidates,
        exclude_seen,
        part_size,
        where=where,
        fields=fields,
        only_on_offer=only_on_offer,
        now=now,
        rules=rules,
    )
    question = {
        "k": k,
        "candidates": candidates if isinstance(candidates, str) else list(candidates),
        "exclude_seen": exclude_seen,
        "part_size": part_size,
        "users": lists.n_users,
        "bundles": lists.n_candidates,
        "model": asdict(recommender.description),
        "knobs": recommender.knobs,
        # What was not asked for is left out, as it is in directories that were begun before one could ask.
        **({"where": where} if where else {}),
        **({"fields": list(fields)} if fields else {}),
        **({} if only_on_offer else {"only_on_offer": False}),
        **({} if now is None else {"now": now}),
        **({} if obeyed is None else {"rules": obeyed.model_dump(mode="json")}),
    }
    question = json.loads(json.dumps(question))  # as it is read back, numbers and lists included
    _claim(out, question)
    written = kept = users = rows = short = 0
    mine = range(number - 1, lists.n_parts, n_shards)
    for done, part in enumerate(mine, start=1):
        path = out / f"part-{part:05d}-of-{lists.n_parts:05d}.parquet"
        if path.exists():
            _check_same(path, question)
            kept += 1
        else:
            user_ids, found = lists.part(part)
            _write_part(path, user_ids, lists, found, question)
            written, users, rows = written + 1, users + len(user_ids), rows + int(found.counts.sum())
            short += int((found.counts < k).sum())
        if on_part:
            on_part(done, len(mine))
    for path in out.glob("part-*"):  # another process may have begun with another question at the same time
        _check_same(path, question)
    return BatchReport(written, kept, users, rows, short)


def _claim(out: Path, question: dict[str, Any]) -> None:
    """Make the directory; refuse one that answers another question."""
    if out.exists() and not out.is_dir():
        raise ArtifactError(f"{out}: in the way; write to a new directory")
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(out.glob("part-*")):
        _check_same(path, question)


def _check_same(path: Path, question: dict[str, Any]) -> None:
    """Refuse to go on beside a part that answers another question."""
    from pyarrow import ArrowException, parquet

    try:
        found = json.loads((parquet.read_schema(path).metadata or {})[ASKED])
    except (ArrowException, OSError, KeyError, ValueError):
        raise ArtifactError(f"{path}: not a part that this command wrote; write to a new directory") from None
    different = sorted(key for key in {*found, *question} if found.get(key) != question.get(key))
    if different:
        raise ArtifactError(
            f"{path.parent}: holds lists made with another {', '.join(different)}; "
            "write to a new directory, or ask the same question to go on"
        )


def _write_part(
    path: Path,
    user_ids: Sequence[str],
    lists: Lists,
    found: Ranked,
    question: dict[str, Any],
) -> None:
    """Write the lists of these users."""
    import pyarrow
    from pyarrow import parquet

    counts = found.counts
    owner = np.repeat(np.arange(len(counts)), counts)
    rank = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    used, codes = np.unique(found.bundles, return_inverse=True)
    names = pyarrow.array(list(map(lists.bundle_id, used.tolist())), pyarrow.string())
    people = pyarrow.array(user_ids, pyarrow.string())
    table = pyarrow.table(
        {
            "user_id": people.take(pyarrow.array(owner)),
            "bundle_id": names.take(pyarrow.array(codes)),
            "score": pyarrow.array(found.scores, pyarrow.float32()),
            "rank": pyarrow.array(rank, pyarrow.int32()),
            **{
                name: column.take(pyarrow.array(codes))
                for name, column in field_arrays(lists.fields(used), len(used)).items()
            },
        },
        metadata={ASKED: json.dumps(question, ensure_ascii=False)},
    )
    with replacing_file(path) as aside:
        parquet.write_table(table, aside, compression="zstd")
