from __future__ import annotations

import time
import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from by_hand import relations
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ranking_oracle import Case, TableScorer, cases, random_relation, row_set, slow_list

from coheat.data import relation
from coheat.data.dataset import Indices
from coheat.errors import ConfigError, TrainingError
from coheat.evaluation import top_bundles
from coheat.models.base import FloatArray
from coheat.served import Block, Served
from coheat.served.ranking import ROWS, Ration, Scored


@settings(deadline=None)
@given(cases(), st.integers(1, 15))
def test_lists_equal_the_slow_version(case: Case, k: int) -> None:
    n_users, n_bundles = case.table.shape
    seen = case.train.user_bundle
    ids, scores = top_bundles(TableScorer(case.table), np.arange(n_users), seen, k, case.candidates)
    outside = set(range(n_bundles)) - set(np.flatnonzero(case.candidates).tolist())
    for user in range(n_users):
        expected = slow_list(case.table[user], row_set(seen, user) | outside, k)
        filled = len(expected)
        assert ids[user].tolist() == expected + [-1] * (k - filled)
        assert scores[user].tolist() == case.table[user][expected].tolist() + [-np.inf] * (k - filled)


def test_ties_go_to_the_lower_position_and_own_bundles_never_appear() -> None:
    table = [[1, 2, 2, 0, 2], [5, 5, 5, 5, 5]]
    seen = relation([0, 1, 1], [1, 0, 3], (2, 5))
    ids, scores = top_bundles(TableScorer(table), np.array([0, 1]), seen, 4)
    assert ids.tolist() == [[2, 4, 0, 3], [1, 2, 4, -1]]
    assert scores.tolist() == [[2, 2, 1, 0], [5, 5, 5, -np.inf]]
    assert ids.dtype == np.int32
    assert scores.dtype == np.float32


def test_users_in_any_order_and_repeated() -> None:
    table = np.eye(3)
    ids, _ = top_bundles(TableScorer(table), np.array([2, 0, 2]), relation([], [], (3, 3)), 1)
    assert ids.tolist() == [[2], [0], [2]]


def test_every_user_of_several_tiles_gets_the_own_list() -> None:
    n_users = 2 * ROWS + 100
    table = np.random.default_rng(0).integers(50, size=(n_users, 40)).astype(np.float32)
    ids, _ = top_bundles(TableScorer(table), np.arange(n_users), relation([], [], (n_users, 40)), 40)
    assert np.array_equal(ids, np.argsort(-table, axis=1, kind="stable"))


def test_no_users_give_no_lists() -> None:
    ids, scores = top_bundles(TableScorer(np.ones((2, 3))), np.array([], int), relation([], [], (2, 3)), 4)
    assert ids.shape == scores.shape == (0, 4)


class ShapeSensitiveScorer:
    """Scores that depend on how many users are asked for and on their place, as rounding in BLAS may."""

    def __init__(self, table: FloatArray):
        self.table = table

    def scores(self, users: Indices) -> FloatArray:
        place = np.arange(len(users), dtype=np.float32)[:, None]
        return np.asarray(np.sin(self.table[users] * (len(users) + place)), dtype=np.float32)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3 * ROWS), st.integers(0, 10**6))
@example(2 * ROWS + 1, 0)
@example(2 * ROWS, 0)
def test_who_else_is_asked_for_changes_no_bit(n_users: int, seed: int) -> None:
    """Everybody's lists at once are those of any part of the users who stand at the same places of tiles."""
    rng = np.random.default_rng(seed)
    scorer = ShapeSensitiveScorer(rng.normal(size=(n_users, 9)).astype(np.float32))
    seen = random_relation(rng, (n_users, 9), 0.2)
    users = np.arange(n_users)
    expected_ids, expected_scores = top_bundles(scorer, users, seen, 5)
    first = int(rng.integers(-(-n_users // ROWS))) * ROWS
    last = int(rng.integers(first, n_users)) + 1
    ids, scores = top_bundles(scorer, users[first:last], seen, 5)
    assert np.array_equal(ids, expected_ids[first:last])
    assert np.array_equal(scores, expected_scores[first:last])


def test_who_else_is_asked_for_changes_no_bit_of_a_matrix_product() -> None:
    """For users at the same places of tiles. Elsewhere the last bit may differ: where processors have no
    AVX-512, OpenBLAS adds up six rows in one order and the next six in another."""
    rng = np.random.default_rng(0)
    users, bundles = (rng.normal(size=(n, 33)).astype(np.float32) for n in (1001, 77))
    known = relations(np.zeros((1001, 77)), np.zeros((1001, 1)), np.zeros((77, 1)))
    served = Served.create(known, [(Block("score", "history", 33), users, bundles)])
    seen = relation([], [], (1001, 77))
    ids, scores = top_bundles(served, np.arange(1001), seen, 77)
    for first, last in ((0, 1), (0, 300), (0, 512), (ROWS, ROWS + 1), (ROWS, 1001), (3 * ROWS, 1001)):
        found = top_bundles(served, np.arange(first, last), seen, 77)
        assert np.array_equal(found[0], ids[first:last])
        assert np.array_equal(found[1], scores[first:last])
    for some in (np.arange(700, 1001), np.arange(1000, 1001)):
        found = top_bundles(served, some, seen, 77)
        assert np.array_equal(found[0], ids[some])
        np.testing.assert_allclose(found[1], scores[some], rtol=0, atol=1e-5)


def test_memory_is_bounded_by_the_block() -> None:
    """However many users there are, only a block that is ranked and the next one are alive at a time."""

    class FlatScorer:
        def scores(self, users: Indices) -> FloatArray:
            return np.zeros((len(users), 2000), dtype=np.float32)

    users, seen = np.arange(10 * ROWS), relation([], [], (10 * ROWS, 2000))
    top_bundles(FlatScorer(), users[:1], seen, 2)  # compile
    tracemalloc.start()
    try:
        top_bundles(FlatScorer(), users, seen, 2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    block_bytes = 2 * ROWS * 2000 * 4
    assert block_bytes < peak < 1.2 * block_bytes


def test_nan_is_refused_with_advice() -> None:
    table = np.zeros((3, 4))
    table[2, 3] = np.nan
    with pytest.raises(TrainingError, match=r"NaN.*learning_rate"):
        top_bundles(TableScorer(table), np.arange(3), relation([], [], (3, 4)), 2)


def test_an_impossible_k_is_refused() -> None:
    with pytest.raises(ConfigError, match="k = 0"):
        top_bundles(TableScorer(np.ones((1, 2))), np.arange(1), relation([], [], (1, 2)), 0)


def test_a_scorer_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        top_bundles(TableScorer(np.ones((1, 2))), np.arange(1), relation([], [], (1, 3)), 1)
    with pytest.raises(ValueError, match="3 bundles"):
        top_bundles(TableScorer(np.ones((1, 3))), np.arange(1), relation([], [], (1, 3)), 1, np.ones(2, bool))


def test_much_faster_than_sorting_everything() -> None:
    rng = np.random.default_rng(0)
    n_users, n_bundles, k = 2048, 4771, 20
    scorer = TableScorer(rng.normal(size=(n_users, n_bundles)))
    seen = random_relation(rng, (n_users, n_bundles), 0.001)
    users = np.arange(n_users)
    top_bundles(scorer, users[:1], seen, k)  # compile

    def plain() -> npt.NDArray[np.int64]:
        scores = scorer.scores(users)
        scores[seen.toarray() > 0] = -np.inf
        order: npt.NDArray[np.int64] = np.argsort(-scores, axis=1, kind="stable")
        return order[:, :k]

    started = time.perf_counter()
    expected = plain()
    plain_seconds = time.perf_counter() - started
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        ids, _ = top_bundles(scorer, users, seen, k)
        seconds.append(time.perf_counter() - started)
    assert np.array_equal(ids, expected)
    assert min(seconds) < plain_seconds / 3


@settings(deadline=None)
@given(cases(), st.integers(1, 12), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_a_list_holds_no_more_of_the_rationed_than_their_share(
    case: Case, k: int, share: float, seed: int
) -> None:
    n_users, n_bundles = case.table.shape
    rationed: npt.NDArray[np.bool_] = (
        np.random.default_rng(seed).integers(0, 2, (n_bundles,)).astype(np.bool_)
    )
    hidden = ~case.candidates
    scores, nobody = case.table.astype(np.float32), (np.zeros(0, np.int64), np.zeros(0, np.int64))
    found = Scored(scores.copy(), None, nobody, hidden, Ration(rationed, share)).ranked(k)
    for user, (bundles, values) in enumerate(found.split()):
        order = [b for b in np.argsort(-scores[user], kind="stable").tolist() if not hidden[b]]
        order = [b for b in order if scores[user, b] > -np.inf]
        others = [b for b in order if not rationed[b]]
        most = max(round(share * k), k - len(others))
        young = [b for b in order[:k] if rationed[b]][:most]
        expected = sorted(young + others[: k - len(young)], key=lambda b: (-scores[user, b], b))
        assert bundles.tolist() == expected
        assert values.tolist() == scores[user, expected].tolist()
    assert len(found.counts) == n_users
