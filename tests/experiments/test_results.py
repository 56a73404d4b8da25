"""The arithmetic of tables: differences, significance, time left, failures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from coheat.experiments.jobs import Job
from coheat.experiments.pages import decimal, mean_and_deviation, relative_difference
from coheat.experiments.results import paired_test
from coheat.tasks import Estimate


def test_numbers_are_written_as_the_paper_writes_them() -> None:
    assert decimal(0.0) == ".0000"
    assert mean_and_deviation([0.1, 0.2, 0.3]) == ".2000 ± .1000"
    assert mean_and_deviation([0.25]) == ".2500"
    assert relative_difference(0.0154, 0.0183) == "-16%"
    assert relative_difference(0.3, 0.2) == "+50%"
    assert relative_difference(0.3, 0.0) == ""


def test_the_paired_test_is_students() -> None:
    """t = mean / (sd / sqrt(n)) of the differences, over the users of the splits that both were judged on."""
    rng = np.random.default_rng(0)
    one, other = rng.random(50), rng.random(50)
    found = paired_test({"a": one, "b": np.ones(3)}, {"c": np.zeros(3), "a": other})
    difference = one - other
    statistic = difference.mean() / (difference.std(ddof=1) / math.sqrt(50))
    assert found["users"] == 50
    assert found["difference"] == pytest.approx(difference.mean())
    assert found["p"] == pytest.approx(2 * student.sf(abs(statistic), 49))


def test_equal_rows_are_not_told_apart() -> None:
    assert paired_test({"a": np.ones(4)}, {"a": np.ones(4)})["p"] == 1.0
    assert paired_test({"a": np.ones(4)}, {"b": np.ones(4)}) == {"difference": None, "p": None, "users": 0}


def job(place: str, model: str, epochs: int) -> Job:
    return Job("out", place, "data", model, "default", {}, 0, epochs)


def test_time_left_counts_epochs_by_their_kind() -> None:
    slow, fast, unseen = job("A/x", "slow", 10), job("A/y", "fast", 100), job("A/z", "unseen", 5)
    estimate = Estimate([slow, fast, unseen], parallel=1)
    assert estimate.remaining is None
    estimate.step(slow, 4, 3.0)
    estimate.step(fast, 90, 1.0)
    assert estimate.remaining == pytest.approx(6 * 3 + 10 * 1 + 5 * 2)
    estimate.done(slow)
    estimate.done(unseen)
    assert estimate.remaining == pytest.approx(10)
    estimate.done(fast)
    assert estimate.remaining == 0
