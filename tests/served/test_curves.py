"""Curves over evidence, and knobs that turn them: by hand, and against interpolation point by point."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coheat.errors import ConfigError
from coheat.served import Curve, Knob


def at(curve: Curve, taken: float, youth: float = 0.0) -> float:
    return float(curve.at(np.array([taken]), np.array([youth], dtype=np.float32))[0])


def test_straight_lines_between_knots_and_level_beyond() -> None:
    curve = Curve.through([0, 4, 10], [1, 3, -3])
    assert [at(curve, n) for n in (0, 1, 2, 4, 7, 10, 11, 10**9)] == [1, 1.5, 2, 3, 0, -3, -3, -3]


def test_youth_lies_between_the_two_lines() -> None:
    curve = Curve.through([0, 10], [0, 10], [100, 0])
    assert [at(curve, 0, youth) for youth in (0, 0.25, 1)] == [0, 25, 100]
    assert [at(curve, 5, youth) for youth in (0, 0.5, 1)] == [5, 27.5, 50]
    assert at(Curve.constant(0.6, 3.0), 7, 0.5) == pytest.approx(1.8)
    assert [at(Curve.constant(0.6), 7, youth) for youth in (0, 1)] == pytest.approx([0.6, 0.6])


@given(
    knots=st.lists(st.integers(1, 50), min_size=1, max_size=6, unique=True),
    values=st.lists(st.floats(-5, 5), min_size=14, max_size=14),
    taken=st.lists(st.integers(0, 80), min_size=1, max_size=9),
    youth=st.floats(0, 1, width=32),
)
def test_many_at_once_are_each_alone_by_the_formula(
    knots: list[int], values: list[float], taken: list[int], youth: float
) -> None:
    counts = [0, *sorted(knots)]
    old, young = values[: len(counts)], values[7 : 7 + len(counts)]
    found = Curve.through(counts, old, young).at(np.array(taken), np.full(len(taken), youth, np.float32))

    def line(heights: list[float], n: int) -> float:
        if n >= counts[-1]:
            return heights[-1]
        right = next(place for place, count in enumerate(counts) if count > n)
        left, step = counts[right - 1], counts[right] - counts[right - 1]
        return heights[right - 1] + (heights[right] - heights[right - 1]) * (n - left) / step

    expected = [(1 - youth) * line(old, n) + youth * line(young, n) for n in taken]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found.dtype == np.float32


def test_a_tabulated_curve_is_exact_at_whole_numbers() -> None:
    curve = Curve.tabulated(lambda n: np.tanh(n / np.float32(7)), 70)
    found = curve.at(np.arange(71), np.zeros(71, np.float32))
    assert np.array_equal(found, np.tanh(np.arange(71, dtype=np.float32) / np.float32(7)))
    assert at(curve, 1000) == 1


def test_only_a_curve_that_is_0_everywhere_is_zero() -> None:
    assert Curve.constant(0).is_zero
    assert not Curve.constant(0, 1).is_zero
    assert not Curve.through([0, 9], [0, 1]).is_zero


def test_a_knob_lies_between_what_was_measured() -> None:
    knob = Knob(
        2.0,
        (0.0, 1.0, 3.0),
        (0.0, 10.0),
        ((-8.0, -4.0), (0.0, 0.0), (1.0, 0.5)),
        (0.0, 0.2, 1.0),
        "0 hides them",
    )
    turned = {value: knob.turned("welcome", value).curve for value in (0, 0.5, 1, 2, 3, 100)}
    assert {value: at(curve, 0, 1) for value, curve in turned.items()} == {
        0: -8, 0.5: -4, 1: 0, 2: 0.5, 3: 1, 100: 1,
    }  # fmt: skip
    assert [at(turned[0], n, 1) for n in (0, 5, 10, 99)] == [-8, -6, -4, -4]
    shares = [knob.turned("welcome", value).share for value in (0, 0.5, 1, 2, 100)]
    assert shares == pytest.approx([0, 0.1, 0.2, 0.6, 1])
    for value in (-1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"welcome = .*: 0 hides them"):
            knob.turned("welcome", value)


def test_a_knob_ends_with_youth() -> None:
    curve = Knob(0.0, (0.0, 1.0), (0.0, 10.0), ((-8.0, -4.0), (0.0, 0.0)), (0.0, 1.0), "").curve
    assert [at(curve, 5, youth) for youth in (1, 0.5, 0)] == [-6, -3, 0]
