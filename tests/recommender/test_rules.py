"""Rules against a slow, obvious version; what they mean for single lists; what comes with a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import NOWHERE, names, relations
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from coheat.artifact import Contents
from coheat.attributes import Attributes, column_of
from coheat.batch import recommend_all
from coheat.errors import ArtifactError, ConfigError
from coheat.ids import Vocabulary
from coheat.recommender import Recommender, Rules
from coheat.served import Block, Knob, Served

N, N_ITEMS, N_USERS = 12, 6, 3


def shop_of(seed: int) -> Recommender:
    """A dozen bundles with whole-number scores, negative ones too, some items in common and categories."""
    rng = np.random.default_rng(seed)
    users = rng.integers(-2, 3, (N_USERS, 2)).astype(np.float32)
    bundles = rng.integers(-2, 3, (N, 2)).astype(np.float32)
    taken, held = rng.random((N_USERS, N)) < 0.15, rng.random((N, N_ITEMS)) < 0.4
    known = relations(taken, np.zeros((N_USERS, N_ITEMS)), held)
    block = Block("score", "items", 2, items=np.ones((N_ITEMS, 2), dtype=np.float32))
    youth = (rng.random(N) < 0.5).astype(np.float32)
    served = Served.create(known, [(block, users, bundles)], youth=youth)
    people, sold, parts = (
        Vocabulary(names(kind, size), kind)
        for kind, size in (("user", N_USERS), ("bundle", N), ("item", N_ITEMS))
    )
    categories = [[None, "A", "B", "C"][kind] for kind in rng.integers(0, 4, N)]
    about = Attributes({"category": column_of(categories, "text", "category")})
    return Recommender(Contents(served, people, sold, parts, NOWHERE, None, about))


def slowly(shop: Recommender, user: str, k: int, rules: Mapping[str, Any], exclude_seen: bool) -> list[str]:
    """The rules by hand: place after place, the first bundle that breaks none."""
    whole = [(row.bundle_id, row.score) for row in shop.recommend([user], N, exclude_seen=exclude_seen)]
    least = min((score for _, score in whole), default=0.0)
    factor = {name: 1.0 for name, _ in whole}
    for boost in rules.get("boost", ()):
        for name in factor:
            category = shop.fields_of(name, ["category"])["category"]
            meant = boost.get("where", {}).get("category", {}).get("in", ())
            if name in boost.get("bundles", ()) or category in meant:
                factor[name] *= boost["factor"]
    order = sorted(range(len(whole)), key=lambda n: (-(whole[n][1] - least) * factor[whole[n][0]], n))
    left = [whole[n][0] for n in order]
    pins = {place: name for name, place in rules.get("pin", {}).items() if name in left}
    left = [name for name in left if name not in pins.values()]
    items = {name: set(shop.bundle(name).item_ids) for name in factor}
    category_of = {name: shop.fields_of(name, ["category"])["category"] for name in factor}

    young = {name for name in factor if shop._catalogue.bundles.is_young[shop._catalogue.rows[name]]}
    most_young = int(rules["at_most_young"] * k) if "at_most_young" in rules else N

    def alike(one: str, other: str) -> bool:
        return len(items[one] & items[other]) * 2 > min(len(items[one]), len(items[other]))

    found: list[str] = []
    while len(found) < k:
        place = len(found) + 1
        if place in pins:
            found.append(pins.pop(place))
            continue
        fitting = []
        for name in left:
            everybody = [*found, *pins.values()]
            same = sum(category_of[other] == category_of[name] for other in everybody)
            most = rules.get("at_most_per_category")
            if most and category_of[name] is not None and same >= most:
                continue
            if name in young and len(young.intersection(everybody)) >= most_young:
                continue
            neighbours = [*found[-1:], *([pins[place + 1]] if place + 1 in pins else [])]
            if rules.get("diverse") and any(alike(name, other) for other in neighbours):
                continue
            fitting.append(name)
        if fitting:
            left.remove(fitting[0])
            found.append(fitting[0])
        elif pins:
            found.append(pins.pop(min(pins)))
        else:
            break
    return found


some_pins = st.dictionaries(
    st.sampled_from([*names("bundle", N), "b99"]), st.integers(1, 8), max_size=3
).filter(lambda pins: len(set(pins.values())) == len(pins))
some_rules = st.fixed_dictionaries(
    {},
    optional={
        "pin": some_pins,
        "boost": st.lists(
            st.fixed_dictionaries(
                {"factor": st.sampled_from([0.25, 0.5, 2.0, 10.0]), "bundles": st.just(["b1", "b5", "b99"])},
                optional={"where": st.just({"category": {"in": ["A"]}})},
            ),
            max_size=2,
        ),
        "at_most_per_category": st.integers(1, 3),
        "at_most_young": st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        "diverse": st.booleans(),
    },
)


@given(st.integers(0, 1000), some_rules, st.integers(1, N), st.booleans())
@settings(max_examples=300, deadline=None)
def test_rules_are_obeyed_as_if_by_hand(seed: int, rules: dict[str, Any], k: int, exclude_seen: bool) -> None:
    shop = shop_of(seed)
    scores = {row.bundle_id: row.score for row in shop.recommend(["u1"], N, exclude_seen=False)}
    answer = shop.recommend(["u1"], k, rules=rules, exclude_seen=exclude_seen)
    assert [row.bundle_id for row in answer] == slowly(shop, "u1", k, rules, exclude_seen)
    assert all(row.score == pytest.approx(scores[row.bundle_id]) for row in answer)  # they stay the model's
    assert [row.rank for row in answer] == list(range(1, len(answer) + 1))
    if len(answer) < k:
        assert any("instead of" in note for note in answer.notes)


@given(st.integers(0, 1000), st.sampled_from([0.5, 0.9, 1.1, 3.0]), st.integers(0, N - 1))
@settings(max_examples=60, deadline=None)
def test_a_boost_lifts_whatever_the_sign_of_scores(seed: int, factor: float, which: int) -> None:
    shop, name = shop_of(seed), f"b{which}"

    def place(rules: dict[str, Any]) -> int:
        found = [row.bundle_id for row in shop.recommend(["u0"], N, rules=rules, exclude_seen=False)]
        return found.index(name)

    before, after = place({}), place({"boost": [{"factor": factor, "bundles": [name]}]})
    assert after <= before if factor > 1 else after >= before


def test_what_leaves_a_list_short_is_said() -> None:
    shop = shop_of(0)
    answer = shop.recommend(["u0"], 10, rules={"at_most_per_category": 1})
    assert 0 < len(answer) < 10
    why = "no more of the 200 best fit the rules and were not taken or shown before"
    assert answer.notes == [f"user 'u0': {len(answer)} instead of 10, {why}"]
    shop.hide_bundles(["b3"])
    answer = shop.recommend(["u0"], 2, rules={"pin": {"b3": 1, "nothing": 2}})
    assert answer.notes == [
        "the pinned bundle 'b3' is not among what may be listed; left out",
        "the pinned bundle 'nothing' is not in the catalogue; left out",
    ]


def test_pins_beyond_the_limit_of_their_category_stand_and_are_told(tmp_path: Path) -> None:
    shop = shop_of(0)
    names_of: dict[str, list[str]] = {}
    for name in shop.bundle_ids:
        names_of.setdefault(str(shop.fields_of(name, ["category"])["category"]), []).append(name)
    category, (first, second, third, *_) = next(
        (kind, found) for kind, found in names_of.items() if kind != "None" and len(found) > 2
    )
    rules = {"pin": {first: 1, second: 2, third: 9}, "at_most_per_category": 1}
    found = shop.recommend(["u0"], 3, rules=rules, exclude_seen=False)
    assert [row.bundle_id for row in found][:2] == [first, second]
    assert [note for note in found.notes if "pinned" in note] == [
        f"2 pinned bundles are of the category {category!r}, more than at_most_per_category = 1; pins come "
        "first, so all of them stand"
    ]
    assert recommend_all(shop, tmp_path / "lists", 3, rules=rules).notes == tuple(found.notes)
    within = {**rules, "at_most_per_category": 2}
    assert not any("pinned" in note for note in shop.recommend(["u0"], 3, rules=within).notes)


def test_at_most_a_share_of_young_ones_where_they_are_the_best_by_far() -> None:
    """Only the model's own limit held, which nobody can set for one list; and with rules not even that."""
    n, half = 600, 300
    known = relations(np.zeros((1, n)), np.zeros((1, 2)), np.zeros((n, 2)))
    block = Block("score", "items", 1, items=np.ones((2, 1), dtype=np.float32))
    scores = np.arange(n, 0, -1, dtype=np.float32)[:, None]
    youth = np.repeat(np.array([1, 0], dtype=np.float32), half)
    lines = ((0.0, 0.0), (0.0, 0.0))
    knob = Knob(1.0, (0.0, 1.0), (0.0, 1.0), lines, (0.0, 0.3), "")
    served = Served.create(known, [(block, np.ones((1, 1), np.float32), scores)], youth=youth)
    ids = (
        Vocabulary(["u0"], "user"),
        Vocabulary(names("bundle", n), "bundle"),
        Vocabulary(["i0", "i1"], "item"),
    )
    free = Recommender(Contents(served, *ids, NOWHERE))
    limited = Recommender(Contents(replace(served, knobs={"welcome": knob}), *ids, NOWHERE))

    def young(shop: Recommender, k: int = 10, **rules: Any) -> int:
        found = shop.recommend(["u0"], k, rules=rules)
        assert len(found) == k
        return sum(int(row.bundle_id[1:]) < half for row in found)

    assert (young(free), young(free, at_most_young=0.25), young(free, at_most_young=0)) == (10, 2, 0)
    assert (young(limited), young(limited, at_most_young=0.1), young(limited, at_most_young=0.9)) == (3, 1, 3)
    assert young(limited, diverse=True) == 3
    assert young(limited, at_most_young=0.5, pin={"b4": 1, "b5": 2, "b6": 3, "b7": 4}) == 4
    assert young(free, 200, at_most_young=0.01) == 2
    whole = [row.bundle_id for row in limited.recommend(["u0"], 400, rules={"diverse": True})]
    assert sum(int(name[1:]) < half for name in whole) == 120
    few = limited.recommend(["u0"], 10, candidates=names("bundle", 20), rules={"at_most_young": 0.5})
    assert len(few) == 5
    assert "fit the rules" in few.notes[-1]
    assert len(limited.recommend(["u0"], 8, candidates=names("bundle", 8), rules={"pin": {"b1": 1}})) == 8


def test_strangers_get_their_rules_too_and_nothing_twice() -> None:
    shop = shop_of(1)
    first = [row.bundle_id for row in shop.recommend(["stranger"], 4)]
    pinned = next(name for name in shop.bundle_ids if name not in first)
    answer = shop.recommend(["stranger"], 4, rules={"pin": {pinned: 2}}, shown={"stranger": first[:1]})
    found = [row.bundle_id for row in answer]
    without = [row.bundle_id for row in shop.recommend(["stranger"], 4, shown={"stranger": first[:1]})]
    assert found == [without[0], pinned, *[name for name in without[1:] if name != pinned][:2]]
    assert first[0] not in found
    assert [row.score for row in answer] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])


def test_what_was_shown_lately_is_not_shown_again() -> None:
    shop = shop_of(2)
    before = {user: [row.bundle_id for row in shop.recommend([user], 5)] for user in ("u0", "u1")}
    shown = {"u0": [before["u0"][0], "gone"], "u1": before["u1"][1:3]}
    baskets: list[dict[str, Sequence[str]]] = [{}, {"u0": ["i0"]}]
    for basket in baskets:
        answer = shop.recommend(["u0", "u1"], 3, shown=shown, exclude_seen=False, items=basket)
        assert not {row.bundle_id for row in answer if row.user_id == "u0"} & set(shown["u0"])
        assert not {row.bundle_id for row in answer if row.user_id == "u1"} & set(shown["u1"])
    assert [row.bundle_id for row in shop.recommend(["u0"], 4, shown=shown)] == before["u0"][1:]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"pins": {}}, "rules: unknown key 'pins' .*did you mean 'pin'"),
        ({"pin": {"b0": 0}}, "a pinned place is a number from 1 up"),
        ({"pin": {"b0": 2, "b1": 2}}, "two bundles are pinned to place 2"),
        ({"boost": [{"factor": -1, "bundles": ["b0"]}]}, "boost.0.factor = -1"),
        ({"boost": [{"factor": 2}]}, "a boost needs `bundles` or `where`"),
        ({"boost": [{"factor": 2, "where": {"size": {"is": 1}}}]}, "there is no column 'size'"),
        ({"at_most_per_category": 0}, "at_most_per_category = 0"),
        ({"at_most_young": 20}, "at_most_young = 20"),
        ({"diverse": "yes"}, "diverse = .yes.: input should be a valid boolean"),
    ],
)
def test_rules_that_make_no_sense_are_refused_in_a_sentence(rules: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        shop_of(0).recommend(["u0"], 3, rules=rules)


def test_batch_obeys_rules_and_a_restart_must_have_the_same(tmp_path: Path) -> None:
    shop, rules = shop_of(3), {"pin": {"b7": 1}, "at_most_per_category": 2}
    recommend_all(shop, tmp_path / "lists", k=4, exclude_seen=False, rules=rules, fields=["category"])
    [part] = (tmp_path / "lists").glob("part-*")
    table = parquet.read_table(part)
    assert table.column_names == ["user_id", "bundle_id", "score", "rank", "category"]
    found = shop.recommend(names("user", N_USERS), 4, exclude_seen=False, rules=Rules.create(rules))
    assert table.column("bundle_id").to_pylist() == [row.bundle_id for row in found]
    recommend_all(shop, tmp_path / "lists", k=4, exclude_seen=False, rules=rules, fields=["category"])
    with pytest.raises(ArtifactError, match="another rules"):
        recommend_all(shop, tmp_path / "lists", k=4, exclude_seen=False, fields=["category"])
