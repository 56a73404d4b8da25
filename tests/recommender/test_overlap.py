"""A score of views, overlaps and a knob, weighed by evidence (Ember), served: against sums one by one."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import recommender_of, relations
from factorisation import factorisation
from test_artifact import save

from coheat.artifact import load_artifact
from coheat.batch import recommend_all
from coheat.cli import main
from coheat.data.dataset import DAY, BundleData
from coheat.data.split import Split
from coheat.errors import ArtifactError, ConfigError
from coheat.export import export
from coheat.models.base import Progress
from coheat.models.curves import COUNTS, Numbers
from coheat.models.ember import WELCOMES, Ember, EmberConfig
from coheat.recommender import Explanation, Recommender, catalogue
from coheat.rng import Randomness
from coheat.served import Block, Curve, Knob, Overlap, Served
from coheat.served import bundles as bundles_module
from coheat.served import overlap as overlap_module
from coheat.served.forest import Forest


def trained(data: BundleData) -> Ember:
    """A few steps are enough: what is tested is arithmetic, not learning. Every knot has its own weight."""
    settings = {"embedding_size": 8, "companion_size": 4, "choose": "fixed", "companion_ridge": 1.0}
    model = Ember(data, EmberConfig.create(settings), Randomness(5))
    optimizers = model.optimizers()
    model.begin_epoch(Progress(1, 1))
    for batch in model.batches(64):
        model.step(batch, optimizers)
    rng = np.random.default_rng(6)
    model.curves.add_(torch.from_numpy(0.3 * rng.normal(size=model.curves.shape)))
    fading = 1 / (1 + np.array(COUNTS) / 8)
    lift = np.interp(WELCOMES, [0, 1, 100], [-60, 0, 60])
    model.lines.copy_(torch.from_numpy(np.outer(lift, fading)))
    return model.eval()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, _planted: Split) -> Path:
    place = tmp_path_factory.mktemp("ember") / "model"
    model = trained(_planted.train)
    save(place, model, "ember")
    return place


@pytest.fixture
def recommender(directory: Path) -> Recommender:
    return Recommender.load(directory)


class Oracle:
    """The score as the model's text has it, one pair at a time, from dictionaries of ids."""

    def __init__(self, directory: Path, welcome: float | None = None):
        artifact = load_artifact(directory)
        data, served = artifact.training_data(), artifact.served()
        self.data, self.served = data, served
        self.knob = served.knobs["welcome"] if welcome is None else replace_value(served, welcome)
        self.users = dict(zip(data.users.ids, served.users.astype(float), strict=True))
        blocks = [block for block, _ in served.columns]
        assert [(block.name, block.width) for block in blocks] == [
            ("history", 8), ("affiliation", 8), ("companions", 4), ("prospects", 1),
        ]  # fmt: skip
        plain = served.bundles.plain.base.astype(float)
        self.learned = dict(zip(data.bundles.ids, plain, strict=True))
        self.vectors_of_items = {
            block.name: dict(zip(data.items.ids, block.items.astype(float), strict=True))
            for block in blocks
            if block.items is not None
        }
        self.contents = {
            name: [data.items[int(item)] for item in data.bundle_item[[row]].indices]
            for row, name in enumerate(data.bundles.ids)
        }
        self.taken = dict(zip(data.bundles.ids, data.popularity.tolist(), strict=True))
        self.youth: dict[str, float] = {name: 2.0**-n for name, n in self.taken.items()}
        self.recorded: set[tuple[str, str]] = set()
        self.has: dict[str, tuple[list[str], list[str]]] = {}
        for row, user in enumerate(data.users.ids):
            items = [data.items[int(item)] for item in data.user_item[[row]].indices]
            bundles = [data.bundles[int(bundle)] for bundle in data.user_bundle[[row]].indices]
            self.has[user] = items, bundles
        self.first = {name: list(items) for name, items in self.contents.items()}

    def add(self, bundle: str, items: list[str]) -> None:
        self.contents[bundle] = items
        self.taken[bundle], self.youth[bundle] = 0, 1.0
        self.learned[bundle] = self.of_items(items, np.zeros(21))

    def replace(self, bundle: str, items: list[str]) -> None:
        """The columns that items fill come from the items, the others stay as learned."""
        self.contents[bundle] = items
        self.learned[bundle] = self.of_items(items, self.learned[bundle])

    def of_items(self, items: list[str], learned: Numbers) -> Numbers:
        """Vectors are the mean of those of the items; how popular it may become is asked of the trees."""
        found = learned.copy()
        for block, columns in self.served.columns:
            if block.name in self.vectors_of_items:
                vectors = [self.vectors_of_items[block.name][item] for item in items]
                forest = block.forest
                found[columns] = np.mean(vectors, axis=0) if forest is None else foretold(forest, vectors)
        return found

    def remove(self, bundle: str) -> None:
        self.recorded = {pair for pair in self.recorded if pair[1] != bundle}

    def record(self, user: str, bundle: str) -> None:
        self.recorded.add((user, bundle))
        self.taken[bundle] += 1

    def overlap(self, overlap: Overlap, user: str, bundle: str) -> float:
        """What the user has counts as it was in training, what was recorded by the items that it has now."""
        own, taken = self.has[user]
        contents = [self.first.get(name, self.contents[name]) for name in taken]
        contents += [self.contents[name] for who, name in self.recorded if who == user]
        total = 0.0
        for item in self.contents[bundle]:
            said = overlap.own * own.count(item)
            for held in contents:
                said += overlap.taken * held.count(item) / len(held) ** overlap.taken_exponent
            rare = overlap.item_weights
            total += said * (1.0 if rare is None else float(rare[self.data.items.position(item)]))
        return total

    def weight(self, curve: Curve, bundle: str) -> float:
        old, young = (
            float(np.interp(float(self.taken[bundle]), COUNTS, line)) for line in (curve.old, curve.young)
        )
        return old + self.youth[bundle] * (young - old)

    def welcome(self, bundle: str) -> float:
        return self.weight(self.knob.curve, bundle)

    def learned_part(self, user: str, bundle: str) -> float:
        found = 0.0
        for block, columns in self.served.columns:
            part = self.users[user][columns] @ self.learned[bundle][columns]
            found += self.weight(block.curve, bundle) * float(part)
        return found

    def score(self, user: str, bundle: str) -> float:
        found = self.learned_part(user, bundle) + self.weight(self.served.bias, bundle) + self.welcome(bundle)
        for overlap in self.served.overlaps:
            size = max(len(self.contents[bundle]), 1) ** overlap.size_exponent
            shared = self.overlap(overlap, user, bundle) / (overlap.scale * size)
            shared = math.log1p(shared) if overlap.kind == "log" else shared**4
            found += self.weight(overlap.curve, bundle) * shared
        return found


def foretold(forest: Forest, items: list[Numbers]) -> float:
    """Question by question, from what is known of each item: the weight of its bundles, their log takers and
    takers, its log users."""
    size, (weight, log_takers, takers, log_users) = len(items), np.sum(items, axis=0)
    known = weight > 1e-6
    features = [
        math.log(size),
        math.log1p(weight / size),
        log_takers / weight if known else 0.0,
        math.log1p(takers / weight) if known else 0.0,
        log_users / size,
    ]
    found = 0.0
    for asked, thresholds, values in zip(forest.asked, forest.thresholds, forest.values, strict=True):
        answers = [features[int(one)] > limit for one, limit in zip(asked, thresholds, strict=True)]
        found += values[int("".join("1" if answer else "0" for answer in answers), 2)]
    return found


def replace_value(served: Served, welcome: float) -> Knob:
    return dataclasses.replace(served.knobs["welcome"], value=welcome)


def listed(recommender: Recommender, user: str, candidates: list[str] | None = None) -> dict[str, float]:
    found = recommender.recommend([user], 1000, candidates or "all", exclude_seen=False)
    return {row.bundle_id: row.score for row in found}


def assert_as(oracle: Oracle, recommender: Recommender, users: Iterable[str]) -> None:
    """Lists of everything, of a few candidates, and audiences all have the oracle's scores."""
    names = recommender.bundle_ids
    few = names[-3:]
    for user in users:
        expected = {bundle: oracle.score(user, bundle) for bundle in names}
        assert listed(recommender, user) == pytest.approx(expected, abs=1e-4)
        assert listed(recommender, user, few) == pytest.approx({b: expected[b] for b in few}, abs=1e-4)
    for bundle in few:
        audience = recommender.audience(bundle, 1000, exclude_seen=False)
        expected = {user: oracle.score(user, bundle) for user in recommender.user_ids}
        assert {row.user_id: row.score for row in audience} == pytest.approx(expected, abs=1e-4)


def test_scores_are_those_that_evaluation_ranks(directory: Path, recommender: Recommender) -> None:
    users = list(recommender.user_ids)
    expected = load_artifact(directory).model().served().scores(np.arange(len(users)))
    found = recommender.recommend(users, 1000, exclude_seen=False)
    row_of = {name: row for row, name in enumerate(recommender.bundle_ids)}
    user_of = {name: row for row, name in enumerate(users)}
    scores = np.zeros_like(expected)
    for row in found:
        scores[user_of[row.user_id], row_of[row.bundle_id]] = row.score
    assert np.allclose(scores, expected, atol=1e-5)
    for name, column in row_of.items():
        for one in recommender.audience(name, 1000, exclude_seen=False):
            wanted = expected[user_of[one.user_id], column]
            assert one.score == pytest.approx(wanted, abs=1e-5)


def by_hand() -> Recommender:
    """Two users, two bundles (the second new), three items; all numbers chosen."""
    items = np.array([[1.0], [1.0], [5.0]], dtype=np.float32)
    users = np.array([[1.0, 2.0], [0.5, 0.0]], dtype=np.float32)
    bundles = np.array([[10.0, 1.0], [0.0, 3.0]], dtype=np.float32)
    overlap = Overlap(
        "overlap", "log", Curve.constant(3.0, 4.0), own=2.0, taken_exponent=0.5, scale=0.5,
        item_weights=np.array([1.0, 0.5, 0.25], dtype=np.float32),
    )  # fmt: skip
    blocks = [
        (Block("history", "history", 1), users[:, :1], bundles[:, :1]),
        (Block("affiliation", "items", 1, items=items), users[:, 1:], bundles[:, 1:]),
    ]
    welcome = Knob(1.0, (1.0,), (0.0, 2.0), ((-1.0, 0.0),), (1.0,), "")
    known = relations([[1, 0], [0, 0]], [[0, 1, 0], [0, 0, 1]], [[1, 1, 0], [0, 1, 1]])
    return recommender_of(Served.create(known, blocks, overlaps=(overlap,), knobs={"welcome": welcome}))


ROOT = math.sqrt(2)
BOTH, SECOND = 1 + 1.5 / ROOT, 1 + 0.5 / ROOT
"""What b0 and b1 have in common with u0, who has i1 of its own (2 x 0.5) and took b0 (i0: 1 / sqrt 2,
i1: 0.5 / sqrt 2)."""


def test_scores_by_hand() -> None:
    served = by_hand()
    log = math.log
    b0, b1 = 12 + 3 * log(1 + BOTH / 0.5), 6 + 4 * log(1 + SECOND / 0.5) - 1
    assert listed(served, "u0") == pytest.approx({"b0": b0, "b1": b1}, abs=1e-5)
    assert listed(served, "u1") == pytest.approx({"b0": 5, "b1": 4 * log(2) - 1}, abs=1e-5)
    # A new bundle of i1 and i2 has the mean of their vectors, (0, 3), like b1.
    served.add_bundles({"new": ["i2", "i1"]})
    assert listed(served, "u0")["new"] == pytest.approx(b1, abs=1e-5)
    # b0 keeps its first column, which no item fills, and its second becomes that of i2.
    served.replace_bundles({"b0": ["i2"]})
    assert listed(served, "u1")["b0"] == pytest.approx(5 + 3 * log(2), abs=1e-5)
    assert listed(served, "u0")["b0"] == pytest.approx(10 + 2 * 5, abs=1e-5)
    # u1 takes b0, now just i2, worth 0.25 / sqrt(1).
    served.record("u1", "b0")
    assert listed(served, "u1")["b1"] == pytest.approx(4 * log(1 + 0.75 / 0.5) - 1, abs=1e-5)
    # Half of what the knob adds is gone after one of two takers.
    served.record("u2", "b1")
    assert listed(served, "u1")["b1"] == pytest.approx(4 * log(1 + 0.75 / 0.5) - 0.5, abs=1e-5)


@pytest.mark.parametrize("late", [0, 6, 1 << 14])
def test_scores_stay_exact_through_many_changes(
    late: int, directory: Path, recommender: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bundles come, change and go, and are taken; however often the index is made anew."""
    monkeypatch.setattr(overlap_module, "LATE", late)
    monkeypatch.setattr(catalogue, "DEAD", 3)
    monkeypatch.setattr(bundles_module, "OVERLAY", 10)
    oracle, rng = Oracle(directory), np.random.default_rng(late)
    users, items = list(recommender.user_ids), list(recommender.item_ids)
    for step in range(100):
        bundles = recommender.bundle_ids
        chosen = [str(item) for item in rng.choice(items, rng.integers(1, 5), replace=False)]
        bundle = bundles[rng.integers(len(bundles))]
        change = rng.integers(4)
        if change == 0:
            recommender.add_bundles({f"new {step}": chosen})
            oracle.add(f"new {step}", chosen)
        elif change == 1:
            recommender.replace_bundles({bundle: chosen})
            oracle.replace(bundle, chosen)
        elif change == 2:
            recommender.remove_bundles([bundle])
            oracle.remove(bundle)
        elif recommender.record(user := users[rng.integers(4)], bundle).counted:
            oracle.record(user, bundle)
        if step % 20 == 19:
            assert_as(oracle, recommender, users[:4])


def test_a_preview_has_the_audience_that_the_bundle_gets(recommender: Recommender) -> None:
    items = ["item-0-0", "item-1-1"]
    before = [(row.user_id, row.score) for row in recommender.audience(items=items, k=10)]
    recommender.add_bundles({"new": items})
    after = [(row.user_id, row.score) for row in recommender.audience("new", k=10)]
    assert before == after
    assert "new" in listed(recommender, "user-0-0")


def test_a_new_bundle_moves_along_its_curves_when_it_is_taken(
    directory: Path, recommender: Recommender
) -> None:
    oracle = Oracle(directory)
    oracle.add("new", ["item-0-0", "item-0-1"])
    recommender.add_bundles({"new": ["item-0-0", "item-0-1"]})
    before = listed(recommender, "user-0-0")["new"]
    pairs = [("user-1-0", "new"), ("user-2-0", "new"), ("stranger", "new")]
    recommender.record_many(pairs)
    for pair in pairs:
        oracle.record(*pair)
    assert recommender.bundle("new").popularity == 3
    assert recommender.bundle("new").history_weight is None
    assert_as(oracle, recommender, ["user-1-0", "user-2-0", "user-0-0"])
    assert listed(recommender, "user-0-0")["new"] != before
    assert "new" not in {row.bundle_id for row in recommender.recommend(["user-1-0"], 1000)}


def test_a_newcomer_is_scored_by_what_they_say_and_by_lookalikes(
    directory: Path, recommender: Recommender
) -> None:
    """A copy of a user's items and bundles has that user's overlaps; the vector is the takers' mean."""
    oracle = Oracle(directory)
    user = "user-0-0"
    info = recommender.user(user)
    takers = [
        np.mean(
            [v for name, v in oracle.users.items() if bundle in recommender.user(name).bundle_ids], axis=0
        )
        for bundle in info.bundle_ids
    ]
    oracle.has["copy"], oracle.users["copy"] = oracle.has[user], np.mean(takers, axis=0)
    found = recommender.recommend(
        ["copy"], 1000, exclude_seen=False, items={"copy": info.item_ids}, bundles={"copy": info.bundle_ids}
    )
    assert found.sources == {"copy": "folded-in"}
    expected = {bundle: oracle.score("copy", bundle) for bundle in recommender.bundle_ids}
    assert {row.bundle_id: row.score for row in found} == pytest.approx(expected, abs=1e-4)


def test_newcomers_with_items_only_or_with_new_bundles_only(
    directory: Path, recommender: Recommender
) -> None:
    oracle = Oracle(directory)
    owners = [v for name, v in oracle.users.items() if "item-0-0" in recommender.user(name).item_ids]
    oracle.has["a"], oracle.users["a"] = (["item-0-0"], []), np.mean(owners, axis=0)
    oracle.add("new", ["item-1-0", "item-1-1"])
    recommender.add_bundles({"new": ["item-1-0", "item-1-1"]})
    everybody = np.mean(list(oracle.users.values())[:-1], axis=0)
    oracle.has["b"], oracle.users["b"] = ([], []), everybody
    recommender.record("b", "new")
    oracle.record("b", "new")
    found = recommender.recommend(["a", "b"], 1000, exclude_seen=False, items={"a": ["item-0-0"]})
    assert found.sources == {"a": "folded-in", "b": "folded-in"}
    expected = {(u, b): oracle.score(u, b) for u in ("a", "b") for b in recommender.bundle_ids}
    assert {(row.user_id, row.bundle_id): row.score for row in found} == pytest.approx(expected, abs=1e-4)
    unknown = recommender.recommend(["c"], 3, items={"c": ["moon"]})
    assert unknown.sources == {"c": "popular-and-new"}


def test_what_a_known_user_gives_enters_the_profile_of_this_question(
    directory: Path, recommender: Recommender
) -> None:
    oracle, user = Oracle(directory), "user-0-0"
    recommender.add_bundles({"new": ["item-1-0", "item-1-1"]})
    oracle.add("new", ["item-1-0", "item-1-1"])
    recommender.record(user, "bundle-2-0")
    oracle.record(user, "bundle-2-0")
    before, (items, bundles) = listed(recommender, user), oracle.has[user]
    given = {"items": ["item-1-0", "item-1-2", items[0]], "bundles": ["bundle-1-0", bundles[0]]}
    oracle.has[user] = [*items, "item-1-0", "item-1-2"], [*bundles, "bundle-1-0"]
    asked: Any = {kind: {user: names} for kind, names in given.items()}
    found = recommender.recommend([user], 1000, exclude_seen=False, **asked)
    expected = {bundle: oracle.score(user, bundle) for bundle in recommender.bundle_ids}
    assert {row.bundle_id: row.score for row in found} == pytest.approx(expected, abs=1e-4)
    assert found.sources == {user: "model"}
    assert listed(recommender, user) == before, "a question changes nothing"
    for bundle in ("new", "bundle-1-1", "bundle-0-0"):
        why = recommender.explain(user, bundle, given["items"], given["bundles"])
        assert adds_up(why)
        assert why.score == pytest.approx(expected[bundle], abs=1e-4)
        assert {"item-1-0", "item-1-2"} <= {part.item_id for part in why.user_items}
        assert {"bundle-1-0", "bundle-2-0"} <= {part.bundle_id for part in why.user_bundles}


def adds_up(explanation: Explanation, tolerance: float = 1e-6) -> bool:
    """All ways of taking the score apart give it back, and the items give the share that is about items."""
    e = explanation
    terms, about = sum(term.share for term in e.terms), e.history + e.items + e.youth
    user = sum(p.share for p in e.user_items) + sum(p.share for p in e.user_bundles) + e.own
    items = sum(part.share for part in e.bundle_items)
    whole = (terms, e.score), (about, e.score), (user, e.score), (items, e.items)
    return all(math.isclose(found, wanted, abs_tol=tolerance) for found, wanted in whole)


def test_explanations_add_up(directory: Path, recommender: Recommender) -> None:
    recommender.add_bundles({"new": ["item-0-0", "item-2-1"]})
    recommender.replace_bundles({"bundle-1-0": ["item-0-3"]})
    recommender.record_many([("user-0-0", "new"), ("guest", "new"), ("guest", "bundle-0-1")])
    oracle = Oracle(directory)
    oracle.add("new", ["item-0-0", "item-2-1"])
    oracle.replace("bundle-1-0", ["item-0-3"])
    for user, bundle in (("user-0-0", "new"), ("guest", "new"), ("guest", "bundle-0-1")):
        oracle.record(user, bundle)
    for user in ("user-0-0", "user-2-3", "guest"):
        scores = listed(recommender, user)
        for bundle in ("new", "bundle-1-0", "bundle-0-0", "bundle-2-1"):
            found = recommender.explain(user, bundle)
            assert adds_up(found), (user, bundle)
            assert found.score == pytest.approx(scores[bundle], abs=1e-5)
            assert found.history_weight is None
            assert {part.item_id for part in found.bundle_items} == set(recommender.bundle(bundle).item_ids)
            welcome = [term.share for term in found.terms if term.name == "welcome"]
            assert sum(welcome) == pytest.approx(oracle.welcome(bundle), abs=1e-5)
            youth = [term.share for term in found.terms if term.about == "youth"]
            assert found.youth == pytest.approx(sum(youth))
            info = recommender.user(user)
            assert {part.bundle_id for part in found.user_bundles} == {*info.bundle_ids, *info.recorded_ids}
            assert {part.item_id for part in found.user_items} == set(info.item_ids)
            if user != "guest":  # all of the overlap comes from what the user has, and nothing else does
                rest = oracle.learned_part(user, bundle) + sum(welcome)
                rest += oracle.weight(oracle.served.bias, bundle)
                assert found.own == pytest.approx(rest, abs=1e-5)


def test_an_explanation_by_hand() -> None:
    served = by_hand()
    found = served.explain("u0", "b0")
    common = 3 * math.log(1 + BOTH / 0.5)
    assert {term.name: term.share for term in found.terms} == pytest.approx(
        {"history": 10, "affiliation": 2, "overlap": common}, abs=1e-5
    )
    assert (found.history, found.items, found.youth) == pytest.approx((10, 2 + common, 0), abs=1e-5)
    # Of the overlap, i0 brings 1 / sqrt 2 and i1 the rest; of the vectors, each item 2 / 2.
    assert {part.item_id: part.share for part in found.bundle_items} == pytest.approx(
        {"i0": 1 + common / ROOT / BOTH, "i1": 1 + common * SECOND / BOTH}, abs=1e-5
    )
    assert {part.item_id: part.share for part in found.user_items} == pytest.approx(
        {"i1": common / BOTH}, abs=1e-5
    )
    assert {part.bundle_id: part.share for part in found.user_bundles} == pytest.approx(
        {"b0": common * 1.5 / ROOT / BOTH}, abs=1e-5
    )
    new = served.explain("u0", "b1")
    assert [(term.name, term.about, term.share) for term in new.terms][-1] == ("welcome", "youth", -1.0)
    assert adds_up(new)
    assert adds_up(found)
    nothing = served.explain("u1", "b0")
    assert all(part.share == 0 for part in nothing.bundle_items)


def test_alike_are_bundles_with_alike_items(recommender: Recommender) -> None:
    """By the columns that items fill, so a new bundle is comparable from the start."""
    recommender.add_bundles({"twin": recommender.bundle("bundle-1-2").item_ids})
    first = recommender.similar_bundles("twin", 1)[0]
    assert first.bundle_id == "bundle-1-2"
    assert first.similarity == pytest.approx(1, abs=1e-5)
    assert recommender.similar_bundles("bundle-1-2", 1)[0].bundle_id == "twin"


def test_vectors_alone_are_not_exported(recommender: Recommender, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"have in common \(.*own items.*--dense-part.*coheat batch"):
        export(recommender, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_dense_part_is_the_sum_without_overlaps(recommender: Recommender, tmp_path: Path) -> None:
    recommender.add_bundles({"new": ["item-0-0", "item-2-1"]})
    recommender.record("user-0-0", "new")
    export(recommender, tmp_path / "out", dense_part=True)
    kept = json.loads((tmp_path / "out" / "_export.json").read_text())
    assert "own items" in kept["left_out"]
    assert kept["model"]["model"] == "ember"
    (users, one), (bundles, other) = (recommender.vectors(True)[kind] for kind in ("user", "bundle"))
    overlaps = {"overlap", "own items", "items of own bundles", "owned share"}
    for bundle in ("new", "bundle-1-2"):
        terms = recommender.explain("user-1-1", bundle).terms
        wanted = sum(term.share for term in terms if term.name not in overlaps)
        score = one[users.index("user-1-1")] @ other[bundles.index(bundle)]
        assert score == pytest.approx(wanted, abs=1e-5)


def test_lists_for_everybody_are_those_of_each(recommender: Recommender, tmp_path: Path) -> None:
    from pyarrow import parquet

    recommender.add_bundles({"new": ["item-0-0", "item-2-1"]})
    recommender.record("user-0-0", "new")
    recommend_all(recommender, tmp_path / "lists", k=5)
    rows = parquet.read_table(next((tmp_path / "lists").glob("part-*"))).to_pylist()
    found = recommender.recommend(list(recommender.user_ids), 5)
    assert [(r["user_id"], r["bundle_id"], r["score"]) for r in rows] == [(r[0], r[1], r[2]) for r in found]


def new_places(recommender: Recommender) -> int:
    rows = recommender.recommend(list(recommender.user_ids), 5)
    return sum(row.is_new for row in rows)


def test_the_knob_turns_without_training(directory: Path, recommender: Recommender) -> None:
    for welcome in (0.0, 1.0, 1.25, 7.5):
        oracle = Oracle(directory, welcome)
        assert_as(oracle, Recommender.load(directory, welcome=welcome), ["user-0-0", "user-1-1"])
    places = [new_places(Recommender.load(directory, welcome=welcome)) for welcome in (0, 0.5, 2, 1000)]
    assert places == sorted(places)
    assert places[0] == 0
    assert places[-1] == 5 * len(recommender.user_ids) - _too_few(recommender)
    as_trained = Recommender.load(directory, welcome=load_artifact(directory).served().knobs["welcome"].value)
    assert listed(as_trained, "user-0-0") == listed(recommender, "user-0-0")


def _too_few(recommender: Recommender) -> int:
    """Places in lists of 5 that new bundles cannot fill, because there are fewer of them."""
    return max(5 - sum(recommender.bundle(name).is_new for name in recommender.bundle_ids), 0) * len(
        recommender.user_ids
    )


@pytest.mark.parametrize("welcome", [-1.0, math.nan, math.inf])
def test_a_welcome_that_means_nothing_is_refused(welcome: float, directory: Path) -> None:
    with pytest.raises(ConfigError, match="0 hides new bundles"):
        Recommender.load(directory, welcome=welcome)


def test_a_model_without_the_knob_says_so(planted: Split, tmp_path: Path) -> None:
    model = factorisation(planted.train)
    save(tmp_path / "model", model)
    with pytest.raises(ConfigError, match="no knob"):
        Recommender.load(tmp_path / "model", welcome=1.0)


def test_lists_of_another_welcome_are_not_mixed_in(directory: Path, tmp_path: Path) -> None:
    recommend_all(Recommender.load(directory, welcome=0.0), tmp_path / "lists", k=5)
    with pytest.raises(ArtifactError, match="another knobs"):
        recommend_all(Recommender.load(directory, welcome=2.0), tmp_path / "lists", k=5)


def test_the_knob_on_the_command_line(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["recommend", str(directory), "--user", "user-0-0", "-k", "5", "--json", "--welcome"]
    found = {}
    for welcome in ("0", "100"):
        monkeypatch.setattr(sys, "argv", ["coheat", *words, welcome])
        with pytest.raises(SystemExit):
            main()
        rows = json.loads(capsys.readouterr().out)["recommendations"]
        found[welcome] = [(row["bundle_id"], row["score"]) for row in rows]
    for welcome, answered in found.items():
        expected = Recommender.load(directory, welcome=float(welcome)).recommend(["user-0-0"], 5)
        assert answered == [(row.bundle_id, row.score) for row in expected]
    assert found["0"] != found["100"]


def test_an_old_bundle_that_nobody_took_is_not_new_when_served(tmp_path: Path, planted: Split) -> None:
    data = planted.train
    old, *young = np.flatnonzero(data.popularity == 0)
    launched = np.full(data.n_bundles, 200.0 * DAY)
    launched[old] = 0
    moments = np.full(data.user_bundle.nnz, 200.0 * DAY)
    model = trained(dataclasses.replace(data, launched=launched, timestamps=moments))
    save(tmp_path / "model", model, "ember")
    served = Recommender.load(tmp_path / "model")
    name = data.bundles[int(old)]
    assert not served.bundle(name).is_new
    offered = {row.bundle_id for row in served.recommend([data.users[0]], 1000, candidates="new")}
    assert offered == {data.bundles[int(bundle)] for bundle in young}

    oracle = Oracle(tmp_path / "model")
    oracle.youth = dict.fromkeys(data.bundles.ids, 1.0)  # launched today, but for one
    oracle.youth[name] = 1 / (1 + (200 / 90) ** 2)
    assert_as(oracle, served, [data.users[0]])
    explained = served.explain(data.users[0], name)
    assert sum(term.share for term in explained.terms) == pytest.approx(oracle.score(data.users[0], name))
    (welcome,) = [term for term in explained.terms if term.name == "welcome"]
    assert welcome.weight == pytest.approx(oracle.youth[name], rel=1e-5)
    # The saved model has no launch times any more, but remembers what they said.
    again = load_artifact(tmp_path / "model").model().served().scores(np.arange(1))
    assert again[0, old] == pytest.approx(oracle.score(data.users[0], name), abs=1e-4)
