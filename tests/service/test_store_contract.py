"""What every store promises, in SQLite and in PostgreSQL: it holds what a dictionary would, it tells of each
change in its order, and it refuses what was overtaken."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from postgres import database, needs_postgres

from coheat.attributes import Value
from coheat.service.sqlite_store import SqliteStore
from coheat.service.store import (
    KINDS,
    BundleChange,
    Details,
    Interaction,
    Kind,
    NewInteraction,
    Origin,
    Overtaken,
    Recorded,
    Store,
    Subject,
    Withdrawal,
    Withdrawn,
)

NAMES = st.sampled_from(["a", "b", "ä/🧺\0", "'; --"])
ITEMS = st.lists(st.sampled_from(["1", "2", "\n", "é"]), min_size=1, max_size=3)


COLUMNS = st.dictionaries(
    st.sampled_from(["title", "é"]), st.sampled_from(["x", 1.5, True, None]), min_size=1
)
LISTS = st.sampled_from(["", "list", "é"])
TIMES = st.integers(0, 3).map(float)


def _identity(one: Interaction) -> tuple[str, str, Kind, str]:
    return one.user_id, one.bundle_id, one.kind, one.recommendation_id


class StoreAgainstDictionary(RuleBasedStateMachine):
    """Whatever is done to it, the store holds what a dictionary would; also opened anew, or copied."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="coheat-store-"))
        self.store = self.make()
        self.kept: dict[str, tuple[str, ...] | None] = {}
        self.born: dict[str, int] = {}
        self.created_on: dict[str, str | None] = {}
        self.order: list[str] = []
        self.met: dict[tuple[str, str, Kind, str], float] = {}
        self.said: dict[tuple[Subject, str], dict[str, Value]] = {}
        self.latest = self.withdrawn = 0

    def make(self) -> Store:
        """An empty one."""
        raise NotImplementedError

    def open_again(self) -> Store:
        """The same, by somebody else."""
        raise NotImplementedError

    def left_by_a_killed_process(self) -> Store:
        raise NotImplementedError

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.place)

    def _written(self, name: str, sequence: int) -> None:
        assert sequence > self.latest
        self.latest = sequence
        self.order = [one for one in self.order if one != name] + [name]

    @rule(name=NAMES, items=ITEMS, created_on=st.sampled_from([None, "model", "other"]))
    def put(self, name: str, items: list[str], created_on: str | None) -> None:
        self._written(name, self.store.put_bundle(name, items, created_on))
        if self.kept.get(name) is None:
            self.born[name] = self.latest if created_on else 0
            self.created_on[name] = created_on
        self.kept[name] = tuple(items)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self._written(name, self.store.remove_bundle(name))
        self.kept[name] = None
        self.met = {one: at for one, at in self.met.items() if one[1] != name}
        self.said.pop(("bundle", name), None)

    @rule(subject=st.sampled_from(["bundle", "item"]), name=NAMES, columns=COLUMNS)
    def say(self, subject: Subject, name: str, columns: dict[str, Value]) -> None:
        sequence = self.store.put_columns(subject, name, columns)
        assert sequence > self.latest
        self.latest = sequence
        self._said(subject, name, columns)

    @rule(name=NAMES, columns=COLUMNS)
    def put_with_columns(self, name: str, columns: dict[str, Value]) -> None:
        self._written(name, self.store.put_bundle(name, ["1"], None, None, columns))
        if self.kept.get(name) is None:
            self.born[name], self.created_on[name] = 0, None
        self.kept[name] = ("1",)
        self._said("bundle", name, columns)

    def _said(self, subject: Subject, name: str, columns: dict[str, Value]) -> None:
        before = self.said.pop((subject, name), {})
        self.said[subject, name] = {**before, **columns}

    @rule(rows=st.lists(st.tuples(NAMES, NAMES, st.sampled_from(KINDS), LISTS, TIMES), max_size=5))
    def record(self, rows: list[tuple[str, str, Kind, str, float]]) -> None:
        new = []
        for user, name, kind, where, at in rows:
            identity = user, name, kind, where
            new.append(identity not in self.met)
            known = self.met.setdefault(identity, at)
            if kind != "took":
                self.met[identity] = max(known, at)
        found = self.store.add_interactions(
            [NewInteraction(user, name, kind, at, where) for user, name, kind, where, at in rows]
        )
        assert (found.is_new, found.sequence) == (new, self.latest + sum(new))
        self.latest = found.sequence

    @rule(
        user=NAMES,
        name=NAMES,
        kind=st.none() | st.sampled_from(KINDS),
        where=st.none() | LISTS,
        again=st.booleans(),
    )
    def withdraw(self, user: str, name: str, kind: Kind | None, where: str | None, again: bool) -> None:
        gone = [
            one
            for one in self.met
            if one[:2] == (user, name) and kind in (None, one[2]) and where in (None, one[3])
        ]
        found = self.store.remove_interactions([Withdrawal(user, name, kind, where)] * (1 + again))
        assert [_identity(one) for one in found.interactions] == gone
        assert found.sequence == self.latest + bool(gone)
        if gone:
            self.latest = self.withdrawn = found.sequence
        for one in gone:
            del self.met[one]

    @rule()
    def open_anew(self) -> None:
        self.store.close()
        self.store = self.open_again()

    @rule()
    def killed(self) -> None:
        self.store = self.left_by_a_killed_process()

    @precondition(lambda self: self.latest)
    @rule(share=st.floats(0, 1))
    def read_in_two_parts(self, share: float) -> None:
        middle = int(share * self.latest)
        parts = [*self.store.bundles(0, middle), *self.store.bundles(middle)]
        assert parts == list(self.store.bundles())
        read = [*self.store.interactions(0, middle), *self.store.interactions(middle)]
        assert read == list(self.store.interactions())

    @invariant()
    def is_as_written(self) -> None:
        found = list(self.store.bundles())
        assert [change.bundle_id for change in found] == self.order
        for change in found:
            assert change == self.store.bundle(change.bundle_id)
            assert change.item_ids == self.kept[change.bundle_id]
            if change.item_ids is not None:
                assert change.born == self.born[change.bundle_id]
                assert change.created_on == self.created_on[change.bundle_id]
        assert [((one.subject, one.id), one.columns) for one in self.store.details()] == [*self.said.items()]
        assert self.store.columns_of("item", "a") == self.said.get(("item", "a"), {})
        assert {_identity(one): one.timestamp for one in self.store.interactions()} == self.met
        assert [_identity(one) for one in self.store.interactions()] == list(self.met)
        for kinds in (KINDS, ("took",), ("shown", "clicked")):
            pairs = [one[:2] for one in self.met if one[2] in kinds]
            steps = self.store.pairs(kinds=kinds)
            assert [pair for step in steps for pair in zip(*step, strict=True)] == pairs
            for name in self.kept:
                takers = [user for user, taken in dict.fromkeys(pairs) if taken == name]
                assert self.store.takers(name, kinds) == takers
                assert self.store.has_taken("a", name, kinds) == ("a" in takers)
        assert (self.store.last_sequence(), self.store.last_withdrawal()) == (self.latest, self.withdrawn)


class SqliteMachine(StoreAgainstDictionary):
    def make(self) -> SqliteStore:
        self.path = self.place / "store.sqlite"
        return SqliteStore(self.path)

    def open_again(self) -> SqliteStore:
        return SqliteStore(self.path)

    def left_by_a_killed_process(self) -> SqliteStore:
        """The file, and its log."""
        elsewhere = Path(tempfile.mkdtemp(dir=self.place))
        for ending in ("", "-wal"):
            shutil.copy(f"{self.path}{ending}", elsewhere / f"store.sqlite{ending}")
        self.store.close()
        self.path = elsewhere / "store.sqlite"
        return SqliteStore(self.path)


class PostgresMachine(StoreAgainstDictionary):
    def make(self) -> Store:
        self.address = database()
        return self.open_again()

    def open_again(self) -> Store:
        from coheat.service.postgres_store import PostgresStore

        return PostgresStore(self.address)

    def left_by_a_killed_process(self) -> Store:
        """What was committed: another process looks at it while this one still is there."""
        other = self.open_again()
        self.store.close()
        return other


TestSqlite = SqliteMachine.TestCase
TestSqlite.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
TestPostgres = needs_postgres(PostgresMachine.TestCase)
TestPostgres.settings = settings(max_examples=5, stateful_step_count=15, deadline=None)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=needs_postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        opened: Store = SqliteStore(tmp_path / "store.sqlite")
    else:
        from coheat.service.postgres_store import PostgresStore

        opened = PostgresStore(database())
    yield opened
    opened.close()


def test_changes_come_in_their_order_with_all_that_following_needs(store: Store) -> None:
    assert store.changes(0) == []
    store.put_bundle("a", ["1", "\0"], "model", "key:body", {"title": "x\0"})
    store.add_interactions([NewInteraction("u", "a"), NewInteraction("u", "a"), NewInteraction("v\0", "a")])
    assert store.add_interactions([NewInteraction("u", "a")]).sequence == 3
    store.add_interactions([NewInteraction("u", "a", "clicked"), NewInteraction("u", "a")])
    store.put_columns("item", "i", {"price": 2.5, "title": None})
    store.remove_interactions([Withdrawal("u", "a", "took"), Withdrawal("v\0", "a")])
    store.remove_bundle("a")
    store.put_bundle("a", ["2"], "other")
    made, recorded, more, said, gone, removed, again = store.changes(0)
    assert isinstance(made, BundleChange)
    assert (made.item_ids, made.created_on, made.born, made.request) == (("1", "\0"), "model", 1, "key:body")
    assert isinstance(recorded, Recorded)
    assert [(one.user_id, one.kind) for one in recorded.interactions] == [("u", "took"), ("v\0", "took")]
    assert isinstance(more, Recorded)
    assert [(one.user_id, one.kind) for one in more.interactions] == [("u", "clicked")]
    assert said == Details(5, "item", "i", {"price": 2.5, "title": None})
    assert isinstance(gone, Withdrawn)
    assert [(one.sequence, one.user_id) for one in gone.interactions] == [(2, "u"), (3, "v\0")]
    assert gone.remaining == {("u", "a", "clicked")}
    assert isinstance(removed, BundleChange)
    assert isinstance(again, BundleChange)
    assert (removed.item_ids, again.born, again.created_on) == (None, 8, "other")
    assert [change.sequence for change in store.changes(0)] == [1, 3, 4, 5, 6, 7, 8]
    assert [change.sequence for change in store.changes(5)] == [6, 7, 8]
    assert store.wait(7, 5) == 8
    assert store.wait(8, 0.01) == 8


def test_what_was_overtaken_is_refused_and_changes_nothing(store: Store) -> None:
    first = store.put_bundle("a", ["1"], "model")
    store.put_bundle("b", ["1"], "model", origin=Origin(0))  # of another bundle: nothing is in its way
    for write in (
        lambda seen: store.put_bundle("a", ["2"], "model", origin=seen),
        lambda seen: store.remove_bundle("a", seen),
        lambda seen: store.put_columns("bundle", "a", {"title": "x"}, seen),
        lambda seen: store.add_interactions([NewInteraction("u", "b"), NewInteraction("u", "a")], seen),
    ):
        with pytest.raises(Overtaken):
            write(Origin(0))
    assert store.last_sequence() == 2
    described = store.put_columns("bundle", "a", {"title": "x"}, Origin(first))
    with pytest.raises(Overtaken):
        store.put_bundle("a", ["2"], None, origin=Origin(first))
    replaced = store.put_bundle("a", ["2"], None, origin=Origin(described))
    assert store.add_interactions([NewInteraction("u", "a")], Origin(first)).is_new == [True]
    store.remove_bundle("a", Origin(replaced))
    with pytest.raises(Overtaken):
        store.add_interactions([NewInteraction("v", "a")], Origin(replaced))
    assert list(store.interactions()) == []


@needs_postgres
def test_of_many_who_make_one_bundle_at_once_one_does() -> None:
    from coheat.service.postgres_store import PostgresStore

    address = database()
    told: list[str] = []
    start = threading.Barrier(4)

    def make(number: int) -> None:
        one = PostgresStore(address)
        for name in range(10):
            start.wait(30)
            try:
                one.put_bundle(f"bundle {name}", [str(number)], "model", origin=Origin(0))
                told.append(f"{name} {number}")
            except Overtaken:
                pass
        one.close()

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    reader = PostgresStore(address)
    assert sorted(told) == sorted(
        f"{n.bundle_id.split()[1]} {n.item_ids[0]}" for n in reader.bundles() if n.item_ids
    )
    assert len(told) == 10
    assert [change.sequence for change in reader.changes(0)] == list(range(1, 11))
    reader.close()
