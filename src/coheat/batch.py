"""Lists for everybody, written to Parquet in parts: bounded memory, several machines, restartable.

    OUT/part-00000-of-00011.parquet   user_id, bundle_id, score, rank and the fields asked for, of so many
                                      users, in the order of rows

Nothing else stands there, so whatever reads a directory of Parquet files reads it as it is. Each part says in
its metadata what was asked, so that a restart cannot mix two questions.

Users are cut into parts of `part_size`. A part is written to a temporary file and renamed, so it is whole or
absent, and one that is there is not computed again. With `shard` i/n, parts i-1, i-1+n, ... are done, so n
processes or machines that share the directory do all of them between them. A `place` of `coheat.tasks` does
the same for the machines of a cluster: a task is one part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
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
from coheat.tasks import Follower, Here, Place, Task, run_tasks

ASKED = b"coheat.asked"
"""Key in the metadata of a part; its value is the question, as JSON."""
PART = 10_000
"""Users in a part, unless the caller chooses otherwise."""


@dataclass(frozen=True)
class BatchReport:
    """What a call did: parts written, parts that were there already, users and rows written, lists short, and
    what there is to say about candidates and rules."""

    parts_written: int
    parts_kept: int
    users: int
    rows: int
    short_lists: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """How another process makes the same recommender: from a run or artifact, with knobs and new bundles."""

    run: Path
    knobs: Mapping[str, float] = field(default_factory=dict)
    new_bundles: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def load(self) -> Recommender:
        found = Recommender.load(self.run, **self.knobs)
        if self.new_bundles:
            found.add_bundles(self.new_bundles)
        return found


class Parts:
    """The parts of one question, to be written one by one in any order."""

    def __init__(
        self,
        recommender: Recommender,
        out: Path,
        question: Mapping[str, Any],
        now: float,
        shown: Path | None = None,
    ):
        """`question` has the arguments of `Recommender.lists`; `now` is the moment it is answered for;
        `shown` is a file of what is not to be shown again, of which parts keep no more than a digest."""
        self.out, self.k, self.part_size = out, int(question["k"]), int(question["part_size"])
        if self.part_size < 1:
            raise ConfigError(f"part_size = {self.part_size}: a part has at least one user")
        self.lists = recommender.lists(**{**question, "now": now}, shown=shown_to_users(shown))
        asked = {
            **question,
            **({} if shown is None else {"shown": sha256(shown.read_bytes()).hexdigest()}),
            "users": self.lists.n_users,
            "bundles": self.lists.n_candidates,
            "model": asdict(recommender.description),
            "knobs": recommender.knobs,
        }
        self.question = _as_read(asked)

    def path(self, part: int) -> Path:
        return self.out / f"part-{part:05d}-of-{self.lists.n_parts:05d}.parquet"

    def write(self, part: int) -> None:
        user_ids, found = self.lists.part(part)
        _write_part(self.path(part), user_ids, self.lists, found, self.question)

    def written(self, part: int) -> tuple[int, int, int]:
        """Users and rows of a part on the disk, and how many of its lists are short."""
        from pyarrow import compute, parquet

        ranks = parquet.read_table(self.path(part), columns=["rank"]).column("rank")
        first = part * self.part_size
        users = min(first + self.part_size, self.lists.n_users) - first
        whole = compute.sum(compute.equal(ranks, self.k)).as_py() or 0  # a list of k has one row of rank k
        return users, len(ranks), users - int(whole)


@dataclass(frozen=True)
class PartTask(Task):
    """One part, for a process that may have to load the model first."""

    run_path: str
    knobs: dict[str, float]
    new_bundles: dict[str, list[str]]
    out: str
    question: dict[str, Any]
    """What `recommender.lists` was asked here; the answer there has to be to the same."""
    expected: dict[str, Any]
    now: float
    shown: str | None
    part: int
    path: str
    _parts: Parts | None = None

    @property
    def name(self) -> str:
        return Path(self.path).name

    def run(self) -> None:
        parts = self._parts or _parts_of(self)
        if parts.question != self.expected:
            different = [key for key, value in self.expected.items() if parts.question.get(key) != value]
            raise ArtifactError(
                f"{self.run_path}: here it has another {', '.join(different)} than where the command runs; "
                "is it the same file, or was it retrained meanwhile?"
            )
        parts.write(self.part)

    def is_done(self) -> bool:
        return Path(self.path).exists()


_loaded: dict[str, Parts] = {}


def _parts_of(task: PartTask) -> Parts:
    """Load the model once for all the parts that this process is given."""
    key = json.dumps(
        [task.run_path, task.knobs, task.new_bundles, task.out, task.question, task.now, task.shown]
    )
    if key not in _loaded:
        _loaded.clear()
        source = Source(Path(task.run_path), task.knobs, task.new_bundles)
        shown = None if task.shown is None else Path(task.shown)
        _loaded[key] = Parts(source.load(), Path(task.out), task.question, task.now, shown)
    return _loaded[key]


def shown_to_users(path: Path | None) -> dict[str, list[str]]:
    """By user: the bundles that a table (user_id, bundle_id) says were shown to them."""
    found: dict[str, list[str]] = {}
    if path is None:
        return found
    from coheat.data.files import read_pairs

    for user, bundle in zip(*read_pairs(path), strict=True):
        found.setdefault(user, []).append(bundle)
    return found


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
    on_again: Callable[[str, str], None] | None = None,
    where: Where | None = None,
    fields: Sequence[str] | None = None,
    only_on_offer: bool = True,
    now: str | float | None = None,
    rules: Rules | Mapping[str, Any] | None = None,
    exclude: Sequence[str] = (),
    shown: Path | None = None,
    place: Place | None = None,
    source: Source | None = None,
) -> BatchReport:
    """Write the k best bundles of every user of training; `on_part` is told (parts done, parts to do).

    `on_again` is told of a part that is begun again, and why: its machine was lost.

    All lists are those of the moment of the call: bundles added meanwhile are for the next one. `where`,
    `fields`, what is on offer, `rules` and `exclude` are those of `Recommender.recommend`; a field is one
    more column. `shown` is a table (user_id, bundle_id) of what is not to be shown again.
    Another `place` than this process (`coheat.tasks.place_for`) needs a `source` to load `recommender` from.
    """
    number, n_shards = shard
    if not 1 <= number <= n_shards:
        raise ConfigError(f"shard {number}/{n_shards}: write i/n with i from 1 to n")
    if place is not None and source is None:
        raise ConfigError(
            "the lists are made elsewhere, so say where to load the model from: source=Source(...)"
        )
    obeyed = Rules.of(rules)
    question = {
        "k": k,
        "candidates": candidates if isinstance(candidates, str) else list(candidates),
        "exclude_seen": exclude_seen,
        "part_size": part_size,
        # What was not asked for is left out, as it is in directories that were begun before one could ask.
        **({"where": where} if where else {}),
        **({"fields": list(fields)} if fields else {}),
        **({} if only_on_offer else {"only_on_offer": False}),
        **({} if now is None else {"now": now}),
        **({} if obeyed is None else {"rules": obeyed.model_dump(mode="json")}),
        **({"exclude": list(exclude)} if len(exclude) else {}),
    }
    moment = recommender.moment(now)  # one for all machines
    parts = Parts(recommender, out, question, moment, shown)
    _claim(out, parts.question)
    tasks = [
        PartTask(
            run_path="" if source is None else str(source.run.resolve()),
            knobs={} if source is None else dict(source.knobs),
            new_bundles={}
            if source is None
            else {name: list(items) for name, items in source.new_bundles.items()},
            out=str(out.resolve()),
            question=_as_read(question),
            expected=parts.question,
            now=moment,
            shown=None if shown is None else str(shown.resolve()),
            part=part,
            path=str(parts.path(part).resolve()),
            _parts=parts,
        )
        for part in range(number - 1, parts.lists.n_parts, n_shards)
    ]
    report = _do(parts, tasks, place or Here(), on_part, on_again)
    return replace(report, notes=tuple(parts.lists.asked.notes))


def _do(
    parts: Parts,
    tasks: Sequence[PartTask],
    place: Place,
    on_part: Callable[[int, int], None] | None,
    on_again: Callable[[str, str], None] | None,
) -> BatchReport:
    """Have the parts written that are not there, and report from the files."""
    kept = {task.part for task in tasks if task.is_done()}
    told = _Counting(len(kept), len(tasks), on_part, on_again)
    run_tasks(tasks, place, told)
    written = np.array([parts.written(task.part) for task in tasks if task.part not in kept], dtype=np.int64)
    users, rows, short = written.reshape(-1, 3).sum(axis=0).tolist()
    for path in parts.out.glob(
        "part-*"
    ):  # another process may have begun with another question at the same time
        _check_same(path, parts.question)
    if all(parts.path(part).exists() for part in range(parts.lists.n_parts)):
        for path in parts.out.glob(".part-*.part"):  # of processes that were killed while they wrote
            path.unlink(missing_ok=True)
    return BatchReport(len(tasks) - len(kept), len(kept), users, rows, short)


class _Counting(Follower):
    """Tells how many parts are done."""

    def __init__(
        self,
        done: int,
        parts: int,
        on_part: Callable[[int, int], None] | None,
        on_again: Callable[[str, str], None] | None,
    ):
        self.done, self.parts, self.on_part, self.on_again = done, parts, on_part, on_again

    def again(self, task: Task, why: str) -> None:
        if self.on_again:
            self.on_again(task.name, why)

    def end(self, task: Task, failed: str | None) -> None:  # noqa: ARG002
        self.done += 1
        if self.on_part:
            self.on_part(self.done, self.parts)


def _as_read(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document as it is read back, numbers and lists included."""
    read: dict[str, Any] = json.loads(json.dumps(document))
    return read


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
            "write to a new directory, or use the same settings to go on"
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
