"""Splits: disjoint, complete, cold where they say so, the same for the same seed, and never a crash."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coheat.data import (
    SCENARIOS,
    BundleData,
    Shown,
    Split,
    Vocabulary,
    pairs,
    planted_world,
    realistic_world,
    relation,
)
from coheat.data.dataset import Sparse
from coheat.data.split import split
from coheat.errors import DataError
from coheat.testing import bundle_data, id_pairs, small_data

DIVIDING = tuple(name for name in SCENARIOS if name != "everything")
WORLD = realistic_world(400, 150, 300, 4_000, 5_000, 1_200, seed=1)


def make(data: BundleData, scenario: str, seed: int = 0, cold_share: float = 0.3) -> Split:
    return split(data, scenario, seed, cold_share=cold_share if scenario == "cold-ratio" else None)


def cells(matrix: Sparse) -> set[tuple[int, int]]:
    return set(zip(*(part.tolist() for part in pairs(matrix)), strict=True))


@settings(deadline=None, max_examples=200)
@given(bundle_data(timestamps=True), st.sampled_from(DIVIDING), st.integers(0, 50))
def test_parts_are_disjoint_and_complete_or_a_sentence_says_why_not(
    data: BundleData, scenario: str, seed: int
) -> None:
    try:
        made = make(data, scenario, seed)
    except DataError:  # its sentences are tested below
        return
    train, validation, test = (cells(part) for part in made.parts.values())
    assert train | validation | test == cells(data.user_bundle)
    assert len(train) + len(validation) + len(test) == data.user_bundle.nnz
    assert train
    assert test
    assert made.train.bundle_item is data.bundle_item
    if scenario == "cold":
        warm = {bundle for _, bundle in train}
        assert warm.isdisjoint(bundle for _, bundle in validation | test)


@pytest.mark.parametrize("scenario", DIVIDING)
def test_ratios_are_those_asked_for(scenario: str) -> None:
    made = make(WORLD, scenario)
    shares = [part.nnz / WORLD.user_bundle.nnz for part in made.parts.values()]
    if made.warm_up is not None:  # what the ratios divide is everything but the thinned bundles
        others = made.warm_up.levels < 0
        sizes = np.array([others[part.indices].sum() for part in made.parts.values()])
        shares = list(sizes / sizes.sum())
    # Whole bundles of unequal size make the cold scenario coarse, equal times make that of time.
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.08 if scenario == "cold" else 0.002)
    if scenario == "cold":
        bundles = [len(np.unique(part.indices)) for part in made.parts.values()]
        assert np.array(bundles) / sum(bundles) == pytest.approx(np.array([0.7, 0.1, 0.2]), abs=0.01)


def test_everything_holds_nothing_out_and_keeps_what_tells_young_from_old() -> None:
    made = split(WORLD, "everything")
    assert cells(made.train.user_bundle) == cells(WORLD.user_bundle)
    assert made.validation.nnz == made.test.nnz == 0
    assert made.train.fingerprint == WORLD.fingerprint


def test_other_ratios() -> None:
    made = split(WORLD, "warm", 0, ratios=(8, 0, 2))
    assert [part.nnz for part in made.parts.values()] == [3_200, 0, 800]


@pytest.mark.parametrize("scenario", DIVIDING)
def test_the_same_seed_gives_the_same_split_and_another_seed_another(scenario: str) -> None:
    one, same, other = (make(WORLD, scenario, seed) for seed in (3, 3, 4))
    assert [cells(p) for p in one.parts.values()] == [cells(p) for p in same.parts.values()]
    differs = cells(one.test) != cells(other.test)
    assert differs == (scenario != "time")
    assert (one.scenario, one.seed) == (scenario, 3)


@settings(deadline=None)
@given(bundle_data(min_interactions=3), st.integers(0, 99), st.sampled_from(["warm", "cold", "all"]))
def test_the_order_of_rows_does_not_matter(data: BundleData, order: int, scenario: str) -> None:
    rows, columns = pairs(data.user_bundle)
    shuffled = np.random.default_rng(order).permutation(len(rows))
    again = replace(data, user_bundle=relation(rows[shuffled], columns[shuffled], data.user_bundle.shape))
    found: list[object] = []
    for world in (data, again):
        try:
            found.append([cells(part) for part in make(world, scenario).parts.values()])
        except DataError as error:
            found.append(str(error))
    assert found[0] == found[1]


@pytest.mark.parametrize("cold_share", [0.0, 0.1, 0.35, 0.5, 0.9, 1.0])
def test_the_chosen_share_falls_on_cold_bundles(cold_share: float) -> None:
    made = split(WORLD, "cold-ratio", 0, cold_share=cold_share)
    report = made.report()
    for part in ("validation", "test"):
        assert report[part]["cold_interaction_share"] == pytest.approx(cold_share, abs=0.01)


def test_half_of_the_all_scenario_is_cold_and_the_other_half_truly_warm() -> None:
    made = split(WORLD, "all", 0)
    report = made.report()
    assert report["test"]["cold_interaction_share"] == pytest.approx(0.5, abs=0.01)
    assert report["validation"]["cold_interaction_share"] == pytest.approx(0.5, abs=0.01)
    # No cold bundle of validation has interactions in test, or it would not be a bundle held out.
    cold = made.cold_bundles
    held_out = [set(part.indices[cold[part.indices]].tolist()) for part in (made.validation, made.test)]
    assert held_out[0].isdisjoint(held_out[1])


def test_time_divides_at_the_moments_and_late_bundles_are_cold() -> None:
    data = small_data(
        [("ann", "old"), ("bob", "old"), ("ann", "mid"), ("bob", "mid"), ("ann", "new")],
        timestamps=[10, 25, 20, 30, 30],
    )
    made = split(data, "time", times=(20, 30))
    found = {part: id_pairs(matrix, data.users, data.bundles) for part, matrix in made.parts.items()}
    assert found == {
        "train": {("ann", "old")},
        "validation": {("ann", "mid"), ("bob", "old")},
        "test": {("bob", "mid"), ("ann", "new")},
    }
    assert [data.bundles[int(b)] for b in np.flatnonzero(made.cold_bundles)] == ["mid", "new"]
    assert made.train.timestamps is not None
    assert made.train.timestamps.tolist() == [10]


def test_time_by_default_follows_the_ratios() -> None:
    made = split(WORLD, "time")
    assert WORLD.timestamps is not None
    assert made.train.timestamps is not None
    times = {pair: int(t) for pair, t in zip(sorted(cells(WORLD.user_bundle)), WORLD.timestamps, strict=True)}
    latest = {part: max(times[pair] for pair in cells(m)) for part, m in made.parts.items()}
    earliest = {part: min(times[pair] for pair in cells(m)) for part, m in made.parts.items()}
    assert latest["train"] < earliest["validation"] <= latest["validation"] < earliest["test"]
    assert made.train.timestamps.tolist() == [times[pair] for pair in sorted(cells(made.train.user_bundle))]
    first_seen = {b: min(t for (_, c), t in times.items() if c == b) for b in {b for _, b in times}}
    assert {b for b, t in first_seen.items() if t >= earliest["validation"]} == {
        b for _, b in cells(made.validation) | cells(made.test) if made.cold_bundles[b]
    }


def test_time_leaves_out_what_came_after_the_cut() -> None:
    """What a user bought later, and what was shown later, is not there to learn from."""
    data = small_data(
        [("ann", "old"), ("ann", "mid"), ("bob", "new")],
        [("ann", "cup"), ("ann", "hat"), ("bob", "cup"), ("bob", "hat")],
        [("old", "cup"), ("mid", "hat"), ("new", "hat")],
        timestamps=[10, 20, 30],
        item_timestamps=[5, 19, 20, 35],
    )
    shown = Shown(np.array([0, 0, 1]), np.array([2, 0, 1]), np.array([9, 20, 29]))
    data = replace(
        data, launched=np.array([18.0, 25, np.nan]), ends=np.array([19.0, np.nan, 22]), shown=shown
    )
    assert data.bundles.ids == ("mid", "new", "old")
    made = split(data, "time", times=(20, 30))
    train = made.train
    assert id_pairs(train.user_item, data.users, data.items) == {("ann", "cup"), ("ann", "hat")}
    assert train.item_timestamps is not None
    assert train.item_timestamps.tolist() == [5, 19]
    assert train.exposure is not None
    assert train.exposure.tolist() == [0, 0, 1]
    assert train.now == 20, "the model is asked at the cut, not at its last interaction"
    assert train.launched is not None
    assert train.ends is not None
    # What is on offer while it is judged: mid has ended before, new comes during validation, old ends then.
    assert list(made.times or ()) == [20, 30, 30]
    assert made.on_offer("validation").tolist() == [False, True, True]
    assert made.on_offer("test").tolist() == [False, True, False]
    assert split(data, "warm").on_offer("test").all()
    # Showings without times might be of the days to come.
    undated = replace(data, shown=Shown(shown.users, shown.bundles))
    assert split(undated, "time", times=(20, 30)).train.shown is None


def test_splits_at_random_keep_nothing_that_tells_how_old_a_bundle_is() -> None:
    shown = Shown(np.array([0]), np.array([0]))
    launched = np.zeros(WORLD.n_bundles)
    data = replace(WORLD, launched=launched, ends=launched + 9, shown=shown)
    for scenario in ("warm", "cold", "all", "cold-ratio"):
        train = make(data, scenario).train
        assert [train.launched, train.ends, train.shown] == [None, None, None]


def test_bundles_that_nobody_has_stay_candidates() -> None:
    data = small_data([(f"u{n}", f"b{n}") for n in range(10)], bundle_item=[("b0", "x"), ("unseen", "x")])
    for scenario in ("warm", "cold"):
        made = split(data, scenario)
        assert "unseen" in made.train.bundles
        assert made.train.n_bundles == 11
        assert made.cold_bundles[data.bundles.position("unseen")]


@pytest.mark.parametrize(
    ("pairs_of_ids", "scenario", "options", "message"),
    [
        ([], "warm", {}, "0 interactions cannot be divided into 3 parts"),
        ([("u", "a"), ("u", "b")], "warm", {}, "2 interactions cannot be divided into 3 parts"),
        ([("u", "a"), ("v", "a"), ("w", "a")], "cold", {}, "1 bundles cannot be divided into 3 parts"),
        ([("u", "a"), ("v", "a"), ("w", "a")], "all", {}, "interactions of .* every bundle"),
        ([("u", "a"), ("v", "b"), ("w", "c")], "cold-ratio", {"cold_share": 0.0}, "only 0 can be"),
        ([("u", "a"), ("v", "b"), ("w", "c")], "cold-ratio", {"cold_share": 1.5}, "from 0 to 1, not 1.5"),
        ([("u", "a")], "warm", {"cold_share": 0.5}, "belongs to the scenario cold-ratio"),
        ([("u", "a")], "cold-ratio", {}, "needs the share of cold interactions"),
        ([("u", "a")], "warm", {"times": (1, 2)}, "cut times belong to the scenario time"),
        ([("u", "a")], "time", {}, "add a column `timestamp`"),
        ([("u", "a")], "lukewarm", {}, "no scenario 'lukewarm'; choose one of warm, cold, all, cold-ratio"),
        ([("u", "a")], "warm", {"at_least": 5}, "belongs to the scenario warm-up; this is warm"),
        ([("u", "a"), ("v", "b")], "warm-up", {}, "0 bundles have 2 takers and more, which is too few"),
        ([("u", "a")], "warm-up", {"at_least": 9}, "0 bundles have 9 takers and more.*from 2 to 20"),
        ([("u", "a")], "warm", {"ratios": (1, 2)}, "must be three numbers"),
        ([("u", "a")], "warm", {"ratios": (0, 1, 1)}, "those of train and test above 0"),
    ],
)
def test_what_cannot_be_divided_is_a_sentence(
    pairs_of_ids: list[tuple[str, str]], scenario: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        split(small_data(pairs_of_ids), scenario, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ((30, 20), "swap the two"),
        ((0, 5), r"train would be empty: all interactions lie between 1970-01-01T00:00:05"),
        ((6, 100), "test would be empty"),
    ],
)
def test_moments_that_leave_a_part_empty(times: tuple[float, float], message: str) -> None:
    data = small_data([("u", "a"), ("u", "b"), ("u", "c")], timestamps=[5, 6, 7])
    with pytest.raises(DataError, match=message):
        split(data, "time", times=times)


def test_one_moment_for_all_cannot_be_divided_by_time() -> None:
    data = small_data([("u", "a"), ("u", "b"), ("u", "c")], timestamps=[5, 5, 5])
    with pytest.raises(DataError, match="train would be empty"):
        split(data, "time")


def test_a_split_refuses_parts_that_overlap_or_do_not_fit() -> None:
    data = small_data([("u", "a"), ("u", "b")])
    nothing = relation([], [], (1, 2))
    with pytest.raises(DataError, match="1 interactions are in both train and test"):
        Split(data, nothing, relation([0], [1], (1, 2)))
    with pytest.raises(DataError, match="validation has shape"):
        Split(data, relation([], [], (2, 2)), nothing)
    made = Split(data.with_user_bundle(nothing), nothing, relation([0], [1], (1, 2)))
    with pytest.raises(ValueError, match="read-only"):
        made.test.indices[0] = 0


def test_the_report_counts_what_is_there() -> None:
    users, bundles = Vocabulary(["ann", "bob", "eve"], "user"), Vocabulary(["a", "b", "c"], "bundle")
    shape = (3, 3)
    world = BundleData(
        users,
        bundles,
        Vocabulary([], "item"),
        relation([0, 0], [0, 1], shape),
        relation([], [], (3, 0)),
        relation([], [], (3, 0)),
    )
    made = Split(world, relation([1], [0], shape), relation([0, 1, 1], [2, 1, 2], shape), "by hand", 7)
    assert made.report() == {
        "scenario": "by hand",
        "seed": 7,
        "train": {"interactions": 2, "users": 1, "bundles": 2},
        "validation": {
            "interactions": 1,
            "users": 1,
            "bundles": 1,
            "cold_users": 1,
            "cold_bundles": 0,
            "cold_interaction_share": 0.0,
        },
        "test": {
            "interactions": 3,
            "users": 2,
            "bundles": 2,
            "cold_users": 1,
            "cold_bundles": 1,
            "cold_interaction_share": 2 / 3,
        },
    }


def test_planted_worlds_can_be_split_again() -> None:
    world = planted_world().train
    assert split(world, "cold").report()["test"]["cold_interaction_share"] == 1.0
