"""Recommendations as frames, tables and HTML."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow
import pytest
from by_hand import recommender_of, relations

from coheat.errors import CoheatError, DataError
from coheat.recommender import Recommendations, Recommender
from coheat.served import Block, Served

HOSTILE = ["<script>alert(1)</script>", "\"><img src=x onerror='y'>", "&amp;", "[red]"]


@pytest.fixture
def recommender() -> Recommender:
    users = np.array([[1.0], [2.0], [3.0], [0.1]], dtype=np.float32)
    bundles = np.array([[0.5], [0.25], [-1.0]], dtype=np.float32)
    block = Block("score", "items", 1, items=np.ones((1, 1), dtype=np.float32))
    taken = np.zeros((4, 3))
    taken[3, :2] = 1
    known = relations(taken, np.zeros((4, 1)), np.zeros((3, 1)))
    return recommender_of(Served.create(known, [(block, users, bundles)]), HOSTILE)


@pytest.fixture
def found(recommender: Recommender) -> Recommendations:
    recommender.add_bundles({"<b>bold</b>": ["i0"]})
    return recommender.recommend(HOSTILE[:2], 2)


ROWS = [
    (HOSTILE[0], "<b>bold</b>", 1.0, 1, True),
    (HOSTILE[0], "b0", 0.5, 2, False),
    (HOSTILE[1], "<b>bold</b>", 2.0, 1, True),
    (HOSTILE[1], "b0", 1.0, 2, False),
]
COLUMNS = ["user_id", "bundle_id", "score", "rank", "is_new"]


def test_they_are_a_sequence(found: Recommendations) -> None:
    assert len(found) == 4
    assert [tuple(row) for row in found] == ROWS
    assert found == ROWS
    assert found[-1] == ROWS[-1]
    assert found[1:3] == ROWS[1:3]


def test_they_become_a_frame_of_pandas(found: Recommendations) -> None:
    frame = found.to_pandas()
    assert list(frame.columns) == COLUMNS
    assert list(frame.itertuples(index=False, name=None)) == ROWS
    assert frame["is_new"].dtype == bool
    assert str(frame["score"].dtype) == "float32"


def test_they_become_a_table_of_arrow(found: Recommendations) -> None:
    table = found.to_arrow()
    assert table.column_names == COLUMNS
    assert [tuple(row.values()) for row in table.to_pylist()] == ROWS
    assert table.schema.field("user_id").type == pyarrow.string()
    assert table.schema.field("rank").type == pyarrow.int32()


def test_an_empty_list_has_the_same_columns(recommender: Recommender) -> None:
    nothing = recommender.recommend(["[red]"], 3, candidates=["b0", "b1"])
    assert len(nothing) == 0
    assert nothing.to_arrow().column_names == list(nothing.to_pandas().columns) == COLUMNS
    assert nothing.to_arrow().schema == recommender.recommend(["[red]"], 1).to_arrow().schema
    assert "0 rows" in nothing._repr_html_()


def test_hostile_ids_are_text_in_html(found: Recommendations) -> None:
    html = found._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "&lt;b&gt;bold&lt;/b&gt;" in html
    for name in (*HOSTILE[:2], "<b>bold</b>", "<img"):
        assert name not in html
    assert html.count("<tr>") == 1 + len(ROWS)
    assert "4 rows" in html


def test_long_answers_are_cut_in_print_and_html(recommender: Recommender) -> None:
    recommender.add_bundles({f"n{n}": ["i0"] for n in range(60)})
    many = recommender.recommend(HOSTILE[:1], 63)
    assert len(repr(many).splitlines()) == 22
    assert repr(many).endswith("... 43 more rows")
    assert "(new)" in repr(many)
    assert many._repr_html_().count("<tr>") == 51
    assert "63 rows" in many._repr_html_()


def test_an_audience_is_one_too(recommender: Recommender) -> None:
    frame = recommender.audience("b2", 2).to_pandas()
    assert frame["user_id"].tolist() == ["[red]", HOSTILE[0]]
    assert frame["bundle_id"].tolist() == ["b2", "b2"]


@pytest.mark.parametrize("wrong", [17, None, 1.5, b"b0", ["b0"], {"id": "b0"}], ids=repr)
def test_what_is_no_text_in_the_place_of_an_id_is_refused_by_name(
    recommender: Recommender, wrong: Any
) -> None:
    user, said = HOSTILE[0], re.escape(f"id must be a string, not {wrong!r}")
    asked: list[Callable[[], object]] = [
        lambda: recommender.recommend([wrong]),
        lambda: recommender.recommend([user], candidates=["b0", wrong]),
        lambda: recommender.recommend([user], exclude=[wrong]),
        lambda: recommender.recommend([user], items={user: [wrong]}),
        lambda: recommender.recommend([user], bundles={user: [wrong]}),
        lambda: recommender.recommend([user], shown={user: [wrong]}),
        lambda: recommender.add_bundles({"new": ["i0", wrong]}),
        lambda: recommender.replace_bundles({"b0": [wrong]}),
        lambda: recommender.remove_bundles([wrong]),
        lambda: recommender.record(wrong, "b0"),
        lambda: recommender.record(user, wrong),
        lambda: recommender.withdraw_many([(user, wrong)]),
        lambda: recommender.withdraw_many([(wrong, "b0")]),
        lambda: recommender.audience(items=[wrong]),
        lambda: recommender.explain(wrong, "b0"),
        lambda: recommender.explain(user, wrong),
        lambda: recommender.takers(wrong),
    ]
    if wrong is not None:  # None asks for the audience of items instead
        asked += [lambda: recommender.audience(wrong), lambda: recommender.similar_bundles(wrong)]
    before = recommender.recommend(HOSTILE, 3).to_arrow()
    for ask in asked:
        with pytest.raises(DataError, match=said):
            ask()
    assert recommender.recommend(HOSTILE, 3).to_arrow() == before


@pytest.mark.parametrize("wrong", [17, 1.5, ["b0"], "b0"], ids=repr)
def test_what_has_the_wrong_shape_is_refused_in_a_sentence(recommender: Recommender, wrong: Any) -> None:
    """It was an error of Python's; a text in the place of a list was taken apart into letters."""
    user = HOSTILE[0]
    asked: list[Callable[[], object]] = [
        lambda: recommender.recommend([user], items=wrong),
        lambda: recommender.recommend([user], rules=wrong),
        lambda: recommender.recommend([user], shown=wrong),
        lambda: recommender.lists(shown=wrong),
        lambda: recommender.lists(rules=wrong),
        lambda: recommender.add_bundles(wrong),
        lambda: recommender.add_bundles({"new": ["i0"]}, wrong),
        lambda: recommender.add_bundles({"new": ["i0"]}, {"new": wrong}),
        lambda: recommender.replace_bundles(wrong),
        lambda: recommender.describe_bundles(wrong),
        lambda: recommender.describe_bundles({"b0": wrong}),
        lambda: recommender.describe_items({"i0": wrong}),
    ]
    if not isinstance(wrong, list):
        asked += [
            lambda: recommender.recommend(wrong),
            lambda: recommender.recommend([user], items={user: wrong}),
            lambda: recommender.recommend([user], bundles={user: wrong}),
            lambda: recommender.recommend([user], shown={user: wrong}),
            lambda: recommender.explain(user, "b0", items=wrong),
            lambda: recommender.add_bundles({"new": wrong}),
            lambda: recommender.hide_bundles(wrong),
        ]
    if not isinstance(wrong, str):
        asked += [lambda: recommender.search_bundles(wrong), lambda: recommender.search_items(wrong)]
    before = recommender.recommend(HOSTILE, 3).to_arrow()
    for ask in asked:
        with pytest.raises(CoheatError):
            ask()
    assert recommender.recommend(HOSTILE, 3).to_arrow() == before


def test_a_recommender_says_what_it_is(recommender: Recommender) -> None:
    assert repr(recommender).endswith(": 4 users, 3 bundles, 1 items)")
