"""The arithmetic of tables: differences, intervals, time left, failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coheat.evaluation.intervals import bootstrap, holm, p_value
from coheat.experiments.certainty import intervals
from coheat.experiments.jobs import Job
from coheat.experiments.kept import carry_over, forecast
from coheat.experiments.pages import decimal, mean_and_deviation, relative_difference
from coheat.tasks import Estimate


def test_numbers_are_written_as_the_paper_writes_them() -> None:
    assert decimal(0.0) == ".0000"
    assert mean_and_deviation([0.1, 0.2, 0.3]) == ".2000 ± .1000"
    assert mean_and_deviation([0.25]) == ".2500"
    assert relative_difference(0.0154, 0.0183) == "-16%"
    assert relative_difference(0.3, 0.2) == "+50%"
    assert relative_difference(0.3, 0.0) == ""


def test_with_one_seed_an_interval_is_the_bootstrap_over_users() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.random(50), rng.random(50)
    found = intervals({0: {"a": one[None]}, 1: {"a": other[None]}}, {0: [1], 1: [0]})
    alone, gap = bootstrap(one), bootstrap(one - other)
    assert (found[0]["low"], found[0]["high"]) == pytest.approx((alone.low, alone.high))
    assert found[0]["difference"] == pytest.approx([gap.mean, gap.low, gap.high])
    assert (found[0]["rival"], found[1]["rival"]) == (1, 0)
    assert found[1]["difference"][0] == -found[0]["difference"][0]


def test_seeds_and_splits_that_differ_widen_the_interval() -> None:
    """Users who all agree leave only seeds to vary; on splits of their own, rows vary together."""
    low, high = np.zeros(40), np.ones(40)
    found = intervals({0: {"a": np.stack([low, high])}, 1: {"a": np.stack([low, low])}}, {0: [1], 1: [0]})
    assert (found[0]["low"], found[0]["high"]) == (0.0, 1.0)
    assert found[0]["p"] > 0.05
    assert (found[1]["low"], found[1]["high"]) == (0.0, 0.0)
    apart = {"a": low[None], "b": high[None]}
    ahead = {"a": low[None] + 0.1, "b": high[None] + 0.1}
    found = intervals({0: ahead, 1: apart}, {0: [1], 1: [0]})
    assert (found[0]["low"], found[0]["high"]) == pytest.approx((0.1, 1.1))
    assert found[0]["difference"] == pytest.approx([0.1, 0.1, 0.1])
    assert found[0]["p"] < 0.01


def test_rows_judged_on_different_splits_are_not_compared() -> None:
    found = intervals({0: {"a": np.ones((1, 4))}, 1: {"b": np.ones((1, 4))}}, {0: [1], 1: [0]})
    assert all("difference" not in one for one in found.values())


def test_p_values_are_two_sided_and_corrected() -> None:
    assert p_value(np.array([-1.0, 1.0, 1.0, 1.0])) == pytest.approx(2 * 2 / 5)
    assert p_value(np.zeros(9)) == 1.0
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])


def document(seeds: list[int], settings: dict[str, float], recall: float = 0.5) -> dict[str, Any]:
    row = {
        "name": "M",
        "model": "m",
        "family": "warm-start",
        "at": None,
        "seeds": seeds,
        "seconds": [10.0 for _ in seeds],
        "settings": settings,
        "test": {"recall@20": [recall for _ in seeds]},
        **dict.fromkeys(("note", "origin", "overrides", "published"), ""),
    }
    return {"experiment": "x", "tables": [{"dataset": "A", "division": "cold", "rows": [row]}]}


def test_a_kept_row_is_carried_over_where_settings_are_the_same() -> None:
    def row(found: dict[str, Any]) -> Any:
        return found["tables"][0]["rows"][0]

    fresh, kept = document([], {"rate": 1.0, "later": 2.0}), document([0, 1], {"rate": 1.0, "gone": 3.0})
    carried = row(carry_over(fresh, [kept]))
    assert (carried["seeds"], carried["carried"]) == ([0, 1], True)
    assert carried["settings"] == {"rate": 1.0, "later": 2.0}
    # Another experiment may have the same row, with no seeds or with more than belong here.
    for seeds in ([], [0, 1, 2, 3, 4]):
        other = {**document(seeds, {"rate": 1.0}), "experiment": "y"}
        for both in ([kept, other], [other, kept]):
            assert row(carry_over(fresh, both)) == carried

    changed = row(carry_over(document([], {"rate": 2.0}), [kept]))
    assert changed["seeds"] == [], "its own command would not give these figures"
    own = row(carry_over(document([0, 1, 2], {"rate": 1.0}, 0.7), [kept]))
    assert own["test"] == {"recall@20": [0.7] * 3}


def test_a_row_is_compared_with_its_best_rival_of_all_or_with_none() -> None:
    def table(**recalls: float) -> dict[str, Any]:
        """Rows that were measured, if they are named, each compared with its best rival among them."""
        rows = []
        for name in "MNO":
            seeds = [0] if name in recalls else []
            row = document(seeds, {}, recalls.get(name, 0.0))["tables"][0]["rows"][0]
            others = {one: recall for one, recall in recalls.items() if one != name}
            best = max(others, key=lambda one: others[one]) if seeds and others else None
            compared = {"rival": best, "difference": [0.1, 0.0, 0.2], "p": 0.1} if best else {}
            bounds = {"low": 0.4, "high": 0.6}
            intervals = {"recall@20": {**bounds, **compared}} if seeds else {}
            rows.append({**row, "name": name, "model": name.lower(), "intervals": intervals})
        return {"experiment": "x", "tables": [{"dataset": "A", "division": "cold", "rows": rows}]}

    def rivals(fresh: dict[str, Any], kept: dict[str, Any]) -> dict[str, str | None]:
        rows = carry_over(fresh, [kept])["tables"][0]["rows"]
        return {row["name"]: row["intervals"]["recall@20"].get("rival") for row in rows}

    kept = table(M=0.3, N=0.5, O=0.2)
    assert rivals(table(), kept) == {"M": "N", "N": "M", "O": "N"}
    # O is measured anew beside M, which comes out as before: N, carried, was with M in one run.
    assert rivals(table(M=0.3, O=0.4), kept) == {"M": "N", "N": None, "O": None}
    # N comes out otherwise, so nothing that was compared with it stands.
    assert rivals(table(N=0.6), kept) == {"M": None, "N": None, "O": None}
    assert rivals(table(M=0.3, N=0.5), kept) == {"M": "N", "N": "M", "O": "N"}


def test_time_is_told_beforehand_from_what_trainings_took(tmp_path: Path) -> None:
    jobs = [
        job("A/cold/m-1/seed-2", "m", 5),
        job("A/warm/m-2/seed-0", "m", 5),
        job("A/warm/n-3/seed-0", "n", 5),
    ]
    found = forecast(jobs, 2, tmp_path, [document([0, 1], {})], "docs/results")
    assert found.seconds == pytest.approx(3 * 10 / 2)
    assert (found.timed, found.similar, found.guessed) == (1, 1, 1)
    assert "3 trainings to do, about 15 s with 2 at a time. 1 of these were timed in docs/results" in str(
        found
    )
    assert "not known" in str(forecast(jobs, 2, tmp_path, [], "out"))


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
