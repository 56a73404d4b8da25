"""The warm-up scenario: exact levels, nothing lost, the earliest kept, and the thinned ones young."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from coheat.cli.data import data_app
from coheat.data import (
    BundleData,
    Shown,
    Split,
    Vocabulary,
    pairs,
    read_data,
    read_split,
    realistic_world,
    relation,
    write_tables,
)
from coheat.data.check import check
from coheat.data.dataset import DAY, Sparse
from coheat.data.split import split
from coheat.data.warm_up import LEVELS, WarmUp
from coheat.errors import DataError

PUBLISHED = Path(__file__).parents[3] / "shared" / "data"
DATED = realistic_world(400, 150, 300, 4_000, 5_000, 1_200, seed=1)
UNDATED = realistic_world(400, 150, 300, 4_000, 5_000, 1_200, seed=1, with_timestamps=False)


def cells(matrix: Sparse) -> set[tuple[int, int]]:
    return set(zip(*(part.tolist() for part in pairs(matrix)), strict=True))


def warm_up(made: Split) -> WarmUp:
    assert made.warm_up is not None
    return made.warm_up


@st.composite
def shops(draw: st.DrawFn) -> BundleData:
    """Worlds from tiny to those with all levels, dated or not, with and without launches and showings."""
    n_users, n_bundles = draw(st.integers(2, 40)), draw(st.integers(2, 30))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    taken = rng.random((n_users, n_bundles)) < rng.random(n_bundles) * draw(st.floats(0.1, 1))
    takers, bundles = np.nonzero(taken)
    n_shown = int(rng.integers(0, 200))
    moments = rng.integers(0, 50 * DAY, n_shown) if draw(st.booleans()) else None
    shown = Shown(rng.integers(0, n_users, n_shown), rng.integers(0, n_bundles, n_shown), moments)
    return BundleData(
        Vocabulary([f"u{n}" for n in range(n_users)], "user"),
        Vocabulary([f"b{n}" for n in range(n_bundles)], "bundle"),
        Vocabulary(["i"], "item"),
        relation(takers, bundles, (n_users, n_bundles)),
        relation([], [], (n_users, 1)),
        relation([], [], (n_bundles, 1)),
        rng.integers(0, 50 * DAY, len(takers)) if draw(st.booleans()) else None,
        np.where(rng.random(n_bundles) < 0.5, np.nan, 5.0 * DAY) if draw(st.booleans()) else None,
        shown=shown if draw(st.booleans()) else None,
    )


@settings(deadline=None, max_examples=150)
@given(shops(), st.integers(0, 50))
def test_levels_are_exact_and_nothing_is_lost_or_doubled(data: BundleData, seed: int) -> None:
    try:
        made = split(data, "warm-up", seed)
    except DataError:  # its sentences are tested with those of the other scenarios
        return
    train, validation, test = (cells(part) for part in made.parts.values())
    assert train | validation | test == cells(data.user_bundle)
    assert len(train) + len(validation) + len(test) == data.user_bundle.nnz
    levels = warm_up(made).levels
    thinned = np.flatnonzero(levels >= 0)
    assert made.train.popularity[thinned].tolist() == levels[thinned].tolist()
    assert data.popularity[thinned].min() >= warm_up(made).at_least
    for part in (validation, test):
        assert {bundle for _, bundle in part} >= set(thinned.tolist()), "every level is judged"
    sizes = [int((levels == level).sum()) for level in np.unique(levels[thinned])]
    assert max(sizes) - min(sizes) <= 1
    again = split(data, "warm-up", seed)
    assert again.train.fingerprint == made.train.fingerprint
    assert cells(again.test) == test
    # Times stay consistent: no bundle is launched after its first taker, and nothing lies ahead of now.
    ages, first = made.train.age_days, made.train.first_seen
    assert not np.isnan(ages[thinned]).any()
    assert made.train.launched is not None
    if data.timestamps is not None:
        assert not (made.train.launched > first)[thinned].any() or data.shown is not None
        assert np.nanmax(first, initial=0) <= made.train.now


def test_all_levels_where_there_are_enough_bundles_and_another_seed_draws_others() -> None:
    made, other = split(UNDATED, "warm-up", 0), split(UNDATED, "warm-up", 1)
    found = warm_up(made)
    eligible = int((UNDATED.popularity >= 20).sum())
    assert found.at_least == 20
    assert int((found.levels >= 0).sum()) == int(0.3 * eligible)
    assert set(found.levels.tolist()) == {-1, *LEVELS}
    assert found.levels.tolist() != warm_up(other).levels.tolist()
    report = made.report()["warm_up"]
    assert list(report["levels"]) == ["0", "1", "2", "4", "8", "16", "others"]
    assert sum(row["test"] for row in report["levels"].values()) == made.test.nnz
    assert sum(row["bundles"] for row in report["levels"].values()) == UNDATED.n_bundles
    others = report["levels"]["others"]
    assert others["test"] == pytest.approx(2 * others["validation"], abs=2)


def test_small_data_lower_the_bound_and_leave_out_levels() -> None:
    few = realistic_world(60, 30, 40, 300, 300, 120, with_timestamps=False)
    found = warm_up(split(few, "warm-up"))
    assert found.at_least < 20
    used = [level for level in LEVELS if level + 2 <= found.at_least]
    assert sorted(set(found.levels.tolist())) == [-1, *used]
    # One more would have been too many: too few bundles have as many takers.
    more = [level for level in LEVELS if level + 2 <= found.at_least + 1]
    assert int((few.popularity >= found.at_least + 1).sum()) < 2 * len(more)
    assert warm_up(split(few, "warm-up", at_least=6)).at_least == 6


def test_without_times_the_thinned_are_young_and_all_others_old() -> None:
    made = split(UNDATED, "warm-up")
    thinned = warm_up(made).levels >= 0
    assert made.train.timestamps is None
    assert set(made.train.age_days[thinned].tolist()) == {1.0}
    assert made.train.age_days[~thinned].min() > 900
    assert made.train.new_bundles(90).tolist() == (warm_up(made).levels == 0).tolist()
    # Launches that are known stay, except those of the thinned.
    launched = np.full(UNDATED.n_bundles, 40.0 * DAY)
    launched[:75] = 10.0 * DAY
    made = split(replace(UNDATED, launched=launched), "warm-up")
    thinned = warm_up(made).levels >= 0
    assert made.train.launched is not None
    np.testing.assert_equal(made.train.launched, np.where(thinned, 39.0 * DAY, launched))


def test_with_times_the_earliest_takers_stay_and_the_life_of_a_thinned_bundle_ends_now() -> None:
    made = split(DATED, "warm-up", 3)
    assert DATED.timestamps is not None
    assert DATED.launched is not None
    assert made.train.timestamps is not None
    assert made.train.launched is not None
    now = made.train.now
    assert now == DATED.now
    users, bundles = pairs(DATED.user_bundle)
    real = {pair: int(t) for pair, t in zip(zip(users, bundles, strict=True), DATED.timestamps, strict=True)}
    kept_pairs = zip(*pairs(made.train.user_bundle), strict=True)
    moved = {pair: int(t) for pair, t in zip(kept_pairs, made.train.timestamps, strict=True)}
    levels = warm_up(made).levels
    for bundle in np.flatnonzero(levels >= 0):
        kept = {pair: t for pair, t in real.items() if pair[1] == bundle and pair in moved}
        held_out = [t for pair, t in real.items() if pair[1] == bundle and pair not in moved]
        assert max(kept.values(), default=0) <= min(held_out)
        shift = now - min(held_out)
        assert {pair: t + shift for pair, t in kept.items()} == {p: moved[p] for p in kept}
        assert made.train.launched[bundle] == DATED.launched[bundle] + shift
    for pair, moment in moved.items():
        if levels[pair[1]] < 0:
            assert moment == real[pair]
    others = levels < 0
    np.testing.assert_equal(made.train.launched[others], DATED.launched[others])
    # With few takers they are younger than with many, as in life.
    ages = [np.median(made.train.age_days[levels == level]) for level in (0, 16)]
    assert ages[0] < ages[1]


def test_where_launches_are_not_known_the_first_kept_taker_is_the_launch() -> None:
    made = split(replace(DATED, launched=None), "warm-up", 3)
    assert made.train.launched is not None
    levels, launched = warm_up(made).levels, made.train.launched
    some = levels > 0
    np.testing.assert_equal(launched[some], made.train.first_seen[some])
    assert set(launched[levels == 0].tolist()) == {made.train.now}
    assert np.isnan(launched[levels < 0]).all()


def test_showings_are_thinned_with_their_bundle() -> None:
    users, bundles = pairs(DATED.user_bundle)
    assert DATED.timestamps is not None
    shown = Shown(users, bundles, DATED.timestamps - 60)  # everybody who took a bundle was shown it before
    made = split(replace(DATED, shown=shown), "warm-up")
    levels = warm_up(made).levels
    assert made.train.exposure is not None
    assert (made.train.exposure[levels < 0] == DATED.popularity[levels < 0]).all()
    assert made.train.shown is not None
    assert made.train.shown.timestamps is not None
    assert made.train.shown.timestamps.max() <= made.train.now
    # Those of the kept takers, and those of later ones within the minute: the first held-out one at least.
    extra = (made.train.exposure - levels)[levels >= 0]
    assert (extra >= 1).all()
    assert np.median(extra) == 1
    # Without times they are thinned in proportion, at random.
    made = split(replace(UNDATED, shown=Shown(users, bundles)), "warm-up")
    levels, exposure = warm_up(made).levels, made.train.exposure
    assert exposure is not None
    assert exposure[levels == 0].max() == 0
    assert (exposure[levels < 0] == DATED.popularity[levels < 0]).all()
    assert 0 < exposure[levels == 4].mean() < exposure[levels == 16].mean()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_tables(split(UNDATED, "warm-up"), tmp_path / "young")
    return tmp_path / "young"


def change_facts(directory: Path, **changes: object) -> None:
    path = directory / "split.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_levels_come_back_and_the_union_is_whole(directory: Path) -> None:
    assert read_split(directory).report() == split(UNDATED, "warm-up").report()
    assert cells(read_data(directory).user_bundle) == cells(UNDATED.user_bundle)
    assert check(directory).ok


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"warm_up": {"at_least": 20, "levels": {"0": ["no"]}}}, "1 of the thinned bundles stand in no"),
        ({"warm_up": {"at_least": 20, "levels": {"3": []}}}, "it must hold"),
        ({"warm_up": {"at_least": 20, "levels": {"0": "bundle-001"}}}, "it must hold"),
        ({"warm_up": {"at_least": 20, "levels": {"0": [7]}}}, "it must hold"),
        ({"warm_up": {"levels": {}}}, "it must hold"),
        ({"warm_up": []}, "it must hold"),
        ({"as_of": float("nan")}, "it must hold"),
        ({"times": [1, 2]}, "it must hold"),
    ],
)  # fmt: skip
def test_facts_that_cannot_be_are_told(changes: dict[str, object], what: str, directory: Path) -> None:
    change_facts(directory, **changes)
    found = check(directory).errors
    assert [problem.file for problem in found] == ["split.json"]
    assert found[0].what.startswith(what)


def test_parts_changed_by_hand_are_told(directory: Path) -> None:
    facts = json.loads((directory / "split.json").read_text())
    levels = facts["warm_up"]["levels"]
    levels["1"], levels["2"] = levels["2"], levels["1"]
    change_facts(directory, warm_up=facts["warm_up"])
    (problem,) = check(directory).errors
    assert "of the thinned bundles have other numbers of training takers" in problem.what
    assert "has 2, not 1" in problem.what


def test_the_command_shows_the_levels_and_says_where_the_bound_is_lower(tmp_path: Path) -> None:
    write_tables(UNDATED, tmp_path / "shop")
    words = ["split", str(tmp_path / "shop"), "--scenario", "warm-up", "--out"]
    said = CliRunner().invoke(data_app, [*words, str(tmp_path / "one")]).stdout
    assert "some of the bundles with 20 takers and more" in said
    assert "others" in said
    assert "is usual" not in said
    few = realistic_world(60, 30, 40, 300, 300, 120, with_timestamps=False)
    write_tables(few, tmp_path / "shop", overwrite=True)
    said = CliRunner().invoke(data_app, [*words, str(tmp_path / "two")]).stdout
    assert "20 is usual, but too few bundles here have so many" in said


@pytest.mark.real_data
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
def test_youshu_has_as_many_young_bundles_as_were_looked_at_before() -> None:
    made = split(read_data(PUBLISHED / "warm" / "Youshu"), "warm-up")
    assert int((warm_up(made).levels >= 0).sum()) == 145
    assert min(row["test"] for row in made.report()["warm_up"]["levels"].values()) > 500
