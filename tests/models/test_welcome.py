"""Welcome: with the offsets found, stand-ins fill the places that were asked for, counted one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coheat.models.contest import FADE, LIST, LOW, Contest, offset_for_share, trusted
from coheat.models.curves import COUNTS

KNOTS = np.array(COUNTS)


def shop(n_users: int = 500, size: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scores in which some levels of stand-ins stand higher than others, and the evidence of all bundles."""
    rng = np.random.default_rng(0)
    n = 300 + 3 * size
    kept = np.concatenate([rng.integers(20, 200, 300), np.repeat([0, 1, 4], size)])
    is_stand_in = np.arange(n) >= 300
    popularity = np.where(is_stand_in, kept + rng.integers(10, 60, n), kept)
    scores = rng.normal(size=(n_users, n)) + np.select([kept == 1, kept == 4], [2.0, -1.0], 0.0)
    return scores.astype(np.float32), is_stand_in, kept, popularity


def shares(
    scores: np.ndarray, offsets: np.ndarray, is_stand_in: np.ndarray, kept: np.ndarray
) -> dict[int, float]:
    """The obvious way: rank every list, count the places of each level."""
    moved = scores + np.where(is_stand_in, np.interp(kept, KNOTS, offsets), 0.0)
    best = np.argsort(-moved, axis=1, kind="stable")[:, :LIST]
    return {level: float((is_stand_in & (kept == level))[best].mean()) for level in (0, 1, 4)}


@pytest.mark.parametrize("welcome", [0.5, 1.0, 2.0])
def test_every_level_fills_its_places_and_the_welcome_fades(welcome: float) -> None:
    scores, is_stand_in, kept, popularity = shop(size=400)
    offsets = Contest.of(scores, is_stand_in, kept, popularity).offsets(welcome, KNOTS)
    found = shares(scores, offsets, is_stand_in, kept)
    for level, share in found.items():
        fair = popularity[is_stand_in & (kept == level)].sum() / popularity.sum()
        wanted = fair * (1 + (welcome - 1) / np.sqrt(1 + level / FADE))
        assert share == pytest.approx(wanted, rel=0.3)


def test_offsets_rise_with_the_welcome_and_end_where_takers_are_many() -> None:
    scores, is_stand_in, kept, popularity = shop()
    contest = Contest.of(scores, is_stand_in, kept, popularity)
    lines = [contest.offsets(welcome, KNOTS) for welcome in (0.0, 0.5, 1.0, 2.0, 4.0, 100.0)]
    assert all((np.diff([line[at] for line in lines]) > 0).all() for at in range(3))
    assert all((line[KNOTS >= 16] == 0).all() for line in lines)
    assert sum(shares(scores, lines[-1], is_stand_in, kept).values()) == pytest.approx(1.0, abs=0.02)


def test_a_group_too_small_for_its_places_does_not_tower_above_the_others() -> None:
    """Five popular bundles stand for one level: asked for more places than five, they get an offset as the
    others have it, and who turns the welcome up does not push new bundles down behind them."""
    scores, is_stand_in, kept, popularity = shop()
    few = is_stand_in & ((kept != 4) | (np.arange(480) >= 475))
    scores[:, is_stand_in & ~few] = -np.inf
    popularity[few & (kept == 4)] += 3000
    contest = Contest.of(scores, few, kept, popularity)
    lines = [contest.offsets(welcome, KNOTS) for welcome in (1.0, 2.0, 4.0)]
    assert max(np.abs(np.diff(line)).max() for line in lines) < 8
    shares_of_new = [shares(scores, line, few, kept)[0] for line in lines]
    assert shares_of_new == sorted(shares_of_new)


def test_in_a_small_shop_lists_are_short() -> None:
    """Lists of 20 would hold everything, whatever the welcome."""
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(400, 24)).astype(np.float32)
    is_stand_in, kept = np.arange(24) >= 18, np.where(np.arange(24) >= 18, 0, 50)
    contest = Contest.of(scores, is_stand_in, kept, np.full(24, 50))
    places = []
    for welcome in (0.5, 1.0, 2.0):
        moved = scores + np.where(is_stand_in, contest.offsets(welcome, KNOTS)[0], 0)
        places.append(float(is_stand_in[np.argsort(-moved, axis=1)[:, :6]].mean()))
    assert places == pytest.approx([0.125, 0.25, 0.5], abs=0.03)


def test_without_stand_ins_there_is_nothing_to_add() -> None:
    scores, _, kept, popularity = shop(5)
    contest = Contest.of(scores, np.zeros(480, dtype=bool), kept, popularity)
    assert not contest.offsets(2.0, KNOTS).any()


def test_hidden_takes_every_stand_in_off_the_lists() -> None:
    scores, is_stand_in, kept, popularity = shop()
    hidden = Contest.of(scores, is_stand_in, kept, popularity).hidden()
    assert hidden < 0
    assert sum(shares(scores, np.full(len(KNOTS), hidden), is_stand_in, kept).values()) == 0
    nothing = Contest.of(scores, np.zeros(480, dtype=bool), kept, popularity).hidden()
    assert nothing == -LOW


@given(
    known=arrays.arrays(np.float32, (7, 5), elements=st.floats(-3, 3, width=32)),
    new=arrays.arrays(np.float32, (7, 5), elements=st.floats(-3, 3, width=32)),
    places=st.integers(0, 35),
)
def test_the_offset_gives_new_bundles_their_places(known: np.ndarray, new: np.ndarray, places: int) -> None:
    rng = np.random.default_rng(0)  # so that no two scores are equal
    known = -np.sort(-(known + rng.uniform(0, 1e-2, known.shape).astype(np.float32)), axis=1)
    new = -np.sort(-(new + rng.uniform(0, 1e-2, new.shape).astype(np.float32)), axis=1)
    offset = offset_for_share(known, new, places / 35)
    both = np.concatenate([known, new + offset + 1e-6], axis=1)
    lists = np.argsort(-both, axis=1, kind="stable")[:, :5]
    assert abs(int((lists >= 5).sum()) - places) <= 1  # one entry may turn within the rounding


VALUES = np.array([0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0])


def judged(wanted: np.ndarray) -> np.ndarray:
    """Bundles each of which is found best with one of the VALUES (n_values, n_bundles)."""
    return np.asarray(np.exp(-np.abs(np.log(VALUES + 0.25)[:, None] - np.log(wanted + 0.25))))


def welcome_of(added: np.ndarray, usual: float, established: np.ndarray | None = None) -> float:
    found = np.ones(len(VALUES)) if established is None else established
    return float(VALUES[trusted(VALUES, added, found, usual, np.random.default_rng(0))])


def test_validation_is_believed_where_many_bundles_agree() -> None:
    assert welcome_of(judged(np.full(300, 10.0)), usual=2.0) == 10.0
    assert welcome_of(judged(np.full(300, 0.0)), usual=4.0) == 0.0


def test_a_single_popular_bundle_does_not_settle_the_welcome() -> None:
    """Eight bundles are found best as usual; a ninth, that outweighs them, if new ones come first."""
    added = judged(np.array([2.0] * 8 + [10.0]))
    added[:, -1] *= 12
    assert VALUES[added.sum(axis=1).argmax()] == 10.0
    assert 2.0 < welcome_of(added, usual=2.0) < 10.0
    assert welcome_of(np.tile(added, 100), usual=2.0) == 10.0


def test_where_validation_finds_nothing_the_usual_welcome_stays() -> None:
    assert welcome_of(np.zeros((len(VALUES), 5)), usual=3.0) == 3.0


def test_established_bundles_pay_for_young_ones_up_to_a_limit_or_as_usual() -> None:
    """Half of what is found of them is lost from 2 on, and from 4 on all."""
    established = np.array([0.2, 0.2, 0.19, 0.18, 0.1, 0.1, 0.0, 0.0, 0.0])
    added = judged(np.full(300, 10.0))
    assert welcome_of(added, 0.5, established) == 1.0
    assert welcome_of(added, 3.0, established) == 3.0
    assert welcome_of(added, 3.0, established / 10) == 10.0  # which is little of all that people took
