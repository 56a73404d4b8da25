"""Recommendations as frames, tables and HTML."""

from __future__ import annotations

import numpy as np
import pyarrow
import pytest
from by_hand import recommender_of, relations

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
