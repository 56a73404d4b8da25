"""Filters against a slow, obvious version; what is refused, and that nothing is run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coheat.attributes import OPERATORS, Attributes, column_of, matching, on_offer
from coheat.attributes.arrow import from_arrow, table_of
from coheat.errors import ConfigError
from coheat.testing import attributes

N = 6
WANTED: dict[str, list[Any]] = {
    "text": ["a", "ab", "é", "A"],
    "number": [0, 1, -2.25, 0.5],
    "truth": [True, False],
    "time": [0, 5, "1970-01-01", "2000-01-01T00:00:00Z"],
}
SECONDS = {"1970-01-01": 0, "2000-01-01T00:00:00Z": 946_684_800}


@st.composite
def questions(draw: st.DrawFn) -> tuple[Attributes, dict[str, dict[str, Any]]]:
    table = draw(attributes(N))
    where: dict[str, dict[str, Any]] = {}
    names = st.lists(st.sampled_from(list(table)), unique=True, max_size=3) if table else st.just([])
    for name in draw(names):
        kind = table.columns[name].kind
        values = st.sampled_from(WANTED[kind])
        known = ["is", "in", "not_in", "missing"]
        known += ["contains"] if kind == "text" else []
        known += [] if kind == "truth" else ["at_least", "at_most", "above", "below"]
        for operator in draw(st.lists(st.sampled_from(known), min_size=1, max_size=2, unique=True)):
            several = operator in ("in", "not_in")
            wanted = draw(st.lists(values, max_size=3)) if several else draw(values)
            where.setdefault(name, {})[operator] = draw(st.booleans()) if operator == "missing" else wanted
    return table, where


def slowly(value: Any, operator: str, wanted: Any) -> bool:
    """The same by hand, for one value; times come as texts and are compared as seconds."""
    if operator == "missing":
        return bool((value is None) == wanted)
    if value is None:
        return operator == "not_in"
    if operator in ("in", "not_in"):
        return (value in wanted) == (operator == "in")
    if operator == "contains":
        return str(wanted).casefold() in str(value).casefold()
    return bool(
        {
            "is": value == wanted,
            "at_least": value >= wanted,
            "at_most": value <= wanted,
            "above": value > wanted,
            "below": value < wanted,
        }[operator]
    )


@given(questions())
@settings(max_examples=300, deadline=None)
def test_a_filter_is_what_it_says(question: tuple[Attributes, dict[str, dict[str, Any]]]) -> None:
    table, where = question
    found = matching(table, where, N).tolist()
    assert found == matching(table, where, N).tolist()  # from the masks that are kept
    for row in range(N):
        holds = []
        for name, conditions in where.items():
            column = table.columns[name]
            value = column.value(row)
            if column.kind == "time" and value is not None:
                value = float(column.data[row])
            for operator, wanted in conditions.items():
                if column.kind == "time" and operator != "missing":
                    seconds = [SECONDS.get(one, one) for one in np.atleast_1d(np.array(wanted, object))]
                    wanted = seconds if isinstance(wanted, list) else seconds[0]
                holds.append(slowly(value, operator, wanted))
        assert found[row] == all(holds)


@given(attributes(N))
@settings(max_examples=100, deadline=None)
def test_columns_survive_the_way_through_arrow(table: Attributes) -> None:
    arrow = table_of(table, N + 1)
    again = Attributes({name: from_arrow(arrow.column(name)) or column_of((), "text", "") for name in table})
    assert again.kinds() == table.kinds()
    assert again.digest(N + 1) == table.digest(N + 1)
    assert [again.values(row) for row in range(N + 1)] == [table.values(row) for row in range(N + 1)]


@given(attributes(N), st.dictionaries(st.integers(0, N + 3), st.sampled_from(["a", "new", None]), max_size=4))
@settings(max_examples=100, deadline=None)
def test_a_change_makes_a_new_table(table: Attributes, titles: dict[int, str | None]) -> None:
    before = [table.values(row, ["title", "price"]) for row in range(N + 4)]
    changed = table.changed({row: {"title": title} for row, title in titles.items()})
    assert [table.values(row, ["title", "price"]) for row in range(N + 4)] == before
    for row in range(N + 4):
        title = titles[row] if row in titles else before[row]["title"]
        assert changed.values(row, ["title", "price"]) == {"title": title, "price": before[row]["price"]}
    if "title" not in changed:
        return
    wanted = matching(changed, {"title": {"is": "new"}}, N + 4)
    assert np.flatnonzero(wanted).tolist() == [row for row in sorted(titles) if titles[row] == "new"]


TABLE = Attributes(
    {
        "title": column_of(["Tea", None], "text", "title"),
        "price": column_of([3, 4.5], "number", "price"),
        "available": column_of([True, False], "truth", "available"),
    }
)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"colour": {"is": "red"}}, "there is no column 'colour'; the columns are: title, price, available"),
        # Understood by name, and not there: this gave an empty list, as if there were no tea.
        ({"category": {"in": ["TEA"]}}, "there is no column 'category'; the columns are: title, price"),
        ({"price": {"like": 3}}, "where, price: there is no operator 'like'; there are is, in, not_in"),
        ({"price": {"is": "3"}}, "where, price: is is a number; '3' is not"),
        ({"price": {"at_most": None}}, "where, price: at_most needs a value"),
        ({"price": 3}, "where, price: write an operator and a value, for example"),
        ({"title": {"in": "Tea"}}, r"where, title: in takes a list of values, such as \[\"TEA\""),
        ({"price": {"contains": "3"}}, "where, price: contains looks for a text in a column of texts"),
        ({"available": {"above": True}}, "has no meaning for true and false; use is"),
        ({"title": {"missing": 1}}, "where, title: missing is true or false, not '1'"),
        ({"title": {"in": ["a"] * 10_001}}, "takes at most 10,000 values"),
        ({"title": {"is": None}}, "ask for what is not known with missing"),
        (["price"], "where is an object with a condition for each column"),
        ({"price": {"is": float("nan")}}, "; nan is not"),
    ],
)  # fmt: skip
def test_what_is_no_filter_is_refused_in_a_sentence(where: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        matching(TABLE, where, 2)


def test_every_operator_is_documented() -> None:
    assert all(OPERATORS.values())


DAY = 86_400.0


def test_what_is_on_offer_depends_on_the_moment() -> None:
    table = Attributes(
        {
            "launched": column_of([None, 10 * DAY, None, None], "time", "launched"),
            "ends": column_of([None, None, "1970-01-06", 5 * DAY + 60], "time", "ends"),
            "available": column_of([True, None, None, None], "truth", "available"),
        }
    )
    # A date without a time includes that day; a moment is the last one.
    for now, expected, until in (
        (5 * DAY, [1, 0, 1, 1, 1], 5 * DAY + 60),
        (5 * DAY + 61, [1, 0, 1, 0, 1], 6 * DAY - 1),
        (6 * DAY, [1, 0, 0, 0, 1], 10 * DAY),
        (10 * DAY, [1, 1, 0, 0, 1], np.inf),
    ):
        offered, changes = on_offer(table, 5, now)
        assert offered.astype(int).tolist() == expected
        assert changes == until
    hidden = table.changed({0: {"available": False}, 4: {"available": False}})
    assert on_offer(hidden, 5, 10 * DAY)[0].astype(int).tolist() == [0, 1, 0, 0, 0]
