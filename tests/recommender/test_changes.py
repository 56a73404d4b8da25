"""Any sequence of changes against a slow model that keeps plain dictionaries; and changes under readers."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
from by_hand import recommender_of, relations
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coheat.errors import CoheatError
from coheat.recommender import Recommender, catalogue
from coheat.served import Block, Curve, Layers, Served, bundles
from coheat.served.ranking import best, best_of_rows

N_USERS, N_BUNDLES, N_ITEMS, WIDTH = 5, 4, 6, 2
TEMPERATURE = 3.0


def floats(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def world(seed: int = 0) -> tuple[Recommender, dict[str, Any]]:
    """A two-view recommender of random tables, and the tables."""
    rng = np.random.default_rng(seed)
    taken = rng.random((N_USERS, N_BUNDLES)) < 0.4
    taken[:, -1] = False  # the last bundle is cold
    held = rng.random((N_BUNDLES, N_ITEMS)) < 0.5
    users, items = floats(rng, N_USERS, 2 * WIDTH), floats(rng, N_ITEMS, WIDTH)
    history = floats(rng, N_BUNDLES, WIDTH)
    affiliation = np.array([items[row].mean(0) if row.any() else np.zeros(WIDTH) for row in held])
    user_layers = floats(rng, 1, N_USERS, WIDTH)
    layers = Layers(user_layers, history[None], floats(rng, 1, N_ITEMS, WIDTH), True)
    rising = Curve.tabulated(lambda n: np.tanh(n / TEMPERATURE), 40)
    falling = Curve.tabulated(lambda n: 1 - np.tanh(n / TEMPERATURE), 40)
    of_items = affiliation.astype(np.float32)
    blocks = [
        (Block("history", "history", WIDTH, rising), users[:, :WIDTH], history),
        (Block("affiliation", "items", WIDTH, falling, items), users[:, WIDTH:], of_items),
    ]
    known = relations(taken, np.zeros((N_USERS, N_ITEMS)), held)
    recommender = recommender_of(Served.create(known, blocks, layers=layers))
    tables = {"users": users, "items": items, "history": history, "user_layers": user_layers[0]}
    return recommender, tables | {"taken": taken, "held": held}


names = st.sampled_from(["b0", "b1", "b3", "n0", "n1", "n2"])
people = st.sampled_from(["u0", "u2", "u4", "stranger"])
contents = st.lists(st.sampled_from([f"i{n}" for n in range(N_ITEMS)]), min_size=1, max_size=4)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.tuples(people, st.sampled_from(["b0", "b1", "b3", "n0"])), max_size=30), max_size=3)
)
def test_many_at_once_come_to_the_same_as_one_by_one(parts: list[list[tuple[str, str]]]) -> None:
    """Pairs of training, pairs recorded before and the same pair twice among them."""
    (together, _), (alone, _) = world(), world()
    for one in (together, alone):
        one.add_bundles({"n0": ["i1"]})
    for pairs in parts:
        found = together.record_many(pairs)
        expected = [alone.record(*pair) for pair in pairs]
        assert [row.counted for row in found] == [row.counted for row in expected]
        # What is said of a bundle is said after all of them.
        assert {row.bundle_id: (row.popularity, row.history_weight) for row in found} == {
            row.bundle_id: (row.popularity, row.history_weight) for row in expected
        }
        for user in ("u0", "u2", "u4", "stranger"):
            assert together.user(user) == alone.user(user)
        names = ["u0", "u1", "stranger"]
        for row, other in zip(together.recommend(names, k=4), alone.recommend(names, k=4), strict=True):
            assert (row.user_id, row.bundle_id) == (other.user_id, other.bundle_id)
            assert row.score == pytest.approx(other.score, rel=1e-5)


class Changes(RuleBasedStateMachine):
    """The slow model: items and takers of each bundle, in dictionaries; vectors computed when asked."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(catalogue, "DEAD", 1)  # so that gaps are closed in short sequences too
        self.recommender, self.tables = world()
        taken, held = self.tables["taken"], self.tables["held"]
        self.items = {f"b{b}": {f"i{i}" for i in np.flatnonzero(held[b])} for b in range(N_BUNDLES)}
        self.takers = {f"b{b}": [f"u{u}" for u in np.flatnonzero(taken[:, b])] for b in range(N_BUNDLES)}
        self.trained = {name: int(name[1:]) for name in self.items}  # those still in their first life

    def teardown(self) -> None:
        self.patch.undo()

    @rule(name=names, items=contents)
    def add(self, name: str, items: list[str]) -> None:
        if name in self.items:
            with pytest.raises(CoheatError, match="taken already"):
                self.recommender.add_bundles({"other": items, name: items})
        else:
            self.recommender.add_bundles({name: items})
            self.items[name], self.takers[name] = set(items), []

    @rule(name=names)
    def remove(self, name: str) -> None:
        if name not in self.items:
            with pytest.raises(CoheatError, match="unknown bundle"):
                self.recommender.remove_bundles([name])
        else:
            self.recommender.remove_bundles([name])
            del self.items[name], self.takers[name]
            self.trained.pop(name, None)

    @rule(name=names, items=contents)
    def change(self, name: str, items: list[str]) -> None:
        if name not in self.items:
            with pytest.raises(CoheatError, match="unknown bundle"):
                self.recommender.replace_bundles({name: items})
        else:
            self.recommender.replace_bundles({name: items})
            self.items[name] = set(items)

    @rule(user=people, name=names)
    def record(self, user: str, name: str) -> None:
        if name not in self.items:
            with pytest.raises(CoheatError, match="unknown bundle"):
                self.recommender.record(user, name)
        else:
            new = user not in self.takers[name]
            assert self.recommender.record(user, name).counted == new
            self.takers[name] += [user] if new else []

    def score(self, user: int, name: str) -> float:
        tables, takers = self.tables, self.takers[name]
        g = math.tanh(len(takers) / TEMPERATURE)
        trained = self.trained.get(name)
        history = np.zeros(WIDTH) if trained is None else tables["history"][trained].astype(float)
        if takers and (trained is None or not tables["taken"][:, trained].any()):
            known = [int(taker[1:]) for taker in takers if taker != "stranger"]
            degrees = np.maximum(tables["taken"].sum(1), 1)
            given = np.array([tables["user_layers"][u] / math.sqrt(degrees[u]) for u in known])
            history += given.sum(0) / np.linalg.norm(given.sum(0)) if known else 0
        rows = [int(item[1:]) for item in sorted(self.items[name])]
        affiliation = tables["items"][rows].mean(0) if rows else np.zeros(WIDTH)
        h, a = np.split(tables["users"][user], 2)
        return float(g * h @ history + (1 - g) * a @ affiliation)

    @invariant()
    def answers_are_those_of_the_slow_model(self) -> None:
        assert set(self.recommender.bundle_ids) == set(self.items)
        for user in (0, 2):
            found = {row.bundle_id: row.score for row in self.recommender.recommend([f"u{user}"], k=99)}
            expected = {n: self.score(user, n) for n in self.items if f"u{user}" not in self.takers[n]}
            assert found == pytest.approx(expected, abs=1e-5)
        for name in self.items:
            info = self.recommender.bundle(name)
            assert (info.popularity, set(info.item_ids)) == (len(self.takers[name]), self.items[name])
            shown = {row.user_id for row in self.recommender.audience(name, k=99)}
            assert shown == {f"u{n}" for n in range(N_USERS)} - set(self.takers[name])


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_many_changes_merge_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The overlay is merged again and again; the answers are those of one that never is."""
    small, large = world()[0], world()[0]
    for n in range(40):
        for recommender, limit in ((small, 3), (large, 10**6)):
            monkeypatch.setattr(bundles, "OVERLAY", limit)
            recommender.add_bundles({f"n{n}": [f"i{n % 6}", f"i{n % 4}"]})
            recommender.record("u1", f"n{n // 2}")
            recommender.replace_bundles({f"n{n // 3}": [f"i{n % 5}"]})
            if n % 7 == 3:
                recommender.remove_bundles([f"n{n}"])
                recommender.add_bundles({f"n{n}": ["i0"]})
    one, other = small.vectors()["bundle"], large.vectors()["bundle"]
    assert one[0] == other[0]
    assert np.array_equal(one[1], other[1])


def test_bundles_that_come_and_go_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "OVERLAY", 30)
    recommender, _ = world()
    recommender.remove_bundles(["b1"])
    recommender.add_bundles({"b1": ["i3"], "stays": ["i0", "i1"]})
    recommender.record("u0", "stays")
    before = recommender.recommend(["u0", "u1"], k=99)
    table = recommender.vectors()["bundle"]
    longest = 0
    for n in range(3 * catalogue.DEAD):
        recommender.add_bundles({f"n{n}": ["i0"]})
        recommender.record("u1", f"n{n}")
        recommender.remove_bundles([f"n{n}"])
        longest = max(longest, len(recommender._catalogue))
    assert longest <= N_BUNDLES + 2 + catalogue.DEAD + 2
    after = recommender.recommend(["u0", "u1"], k=99)
    # What was merged into the large matrix is added up in another order.
    assert [row._replace(score=0.0) for row in after] == [row._replace(score=0.0) for row in before]
    assert [row.score for row in after] == pytest.approx([row.score for row in before], abs=1e-6)
    again = recommender.vectors()["bundle"]
    assert again[0] == table[0]
    assert np.array_equal(again[1], table[1])
    assert recommender.bundle("b1").item_ids == ["i3"]


def test_readers_see_whole_states_while_one_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two bundles of every change have the same items, so a reader must always score them alike."""
    monkeypatch.setattr(catalogue, "DEAD", 5)
    recommender, _ = world()
    recommender.add_bundles({"left": ["i0"], "right": ["i0"]})
    stop = threading.Event()
    wrong: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            try:
                found = recommender.recommend(["u0", "u1"], k=999)
                for user in ("u0", "u1"):
                    scores = {row.bundle_id: row.score for row in found if row.user_id == user}
                    if scores["left"] != scores["right"]:
                        wrong.append(scores)
                recommender.explain("u0", "left")
                recommender.similar_bundles("right", k=2)
            except Exception as error:  # a thread's exception would otherwise be lost
                wrong.append({"error": repr(error)})

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for n in range(300):
        items = [f"i{n % 6}", f"i{(n + 1) % 5}"]
        recommender.replace_bundles({"left": items, "right": items})
        recommender.add_bundles({f"n{n}": items})
        recommender.record("u3", f"n{n}")
        if n % 3:
            recommender.remove_bundles([f"n{n}"])
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []


@pytest.mark.parametrize("columns", [1, 5, 700, 3000])
@pytest.mark.parametrize("k", [1, 3, 9, 5000])
def test_the_best_of_rows_are_those_of_sorting(columns: int, k: int) -> None:
    rng = np.random.default_rng(columns + k)
    scores = rng.integers(-40, 40, (6, columns)).astype(np.float32)  # many ties
    scores[rng.random(scores.shape) < 0.2] = -np.inf
    scores[0] = -np.inf
    scores[1] = 7
    for line, found in zip(scores, best_of_rows(scores, k), strict=True):
        real = [place for place in range(columns) if line[place] > -np.inf]
        expected = sorted(real, key=lambda place: (-line[place], place))[:k]
        assert found.tolist() == expected
        assert best(line, k).tolist() == expected


@pytest.mark.parametrize("rows", [255, 256, 257])
def test_no_row_of_a_full_block_is_lost(rows: int) -> None:
    scores = np.random.default_rng(rows).standard_normal((rows, 300)).astype(np.float32)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :2].tolist()
    assert [found.tolist() for found in best_of_rows(scores, 2)] == expected
