from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranking_oracle import Case, cases, row_set, slow_list, slow_ndcg, slow_recall

from coheat.data import relation
from coheat.data.dataset import Sparse
from coheat.evaluation import metrics

Lists = npt.NDArray[np.int32]


def padded(lists: list[list[int]], width: int) -> Lists:
    return np.array([one + [-1] * (width - len(one)) for one in lists], dtype=np.int32).reshape(-1, width)


@settings(deadline=None)
@given(cases(), st.integers(1, 15), st.integers(0, 5))
def test_recall_and_ndcg_equal_the_slow_version(case: Case, k: int, deeper: int) -> None:
    lists = [slow_list(line, set(), k + deeper) for line in case.table]
    ranked = padded(lists, k + deeper)
    recall, ndcg = metrics.recall(ranked, case.held_out, k), metrics.ndcg(ranked, case.held_out, k)
    for user, one in enumerate(lists):
        positives = row_set(case.held_out, user)
        if not positives:
            assert math.isnan(recall[user])
            assert math.isnan(ndcg[user])
            continue
        assert recall[user] == pytest.approx(slow_recall(one, positives, k), abs=1e-12)
        assert ndcg[user] == pytest.approx(slow_ndcg(one, positives, k), abs=1e-12)
        assert 0 <= recall[user] <= 1
        assert 0 <= ndcg[user] <= 1


def test_values_worked_out_by_hand() -> None:
    """Positives {1, 3, 4, 6}; the list 3, 0, 1 has hits at ranks 1 and 3."""
    relevant = relation([0, 0, 0, 0], [1, 3, 4, 6], (1, 8))
    ranked = padded([[3, 0, 1]], 5)
    gain = 1 + 1 / 2  # 1 / log2(2) + 1 / log2(4)
    ideal_3 = 1 + 1 / math.log2(3) + 1 / 2
    assert metrics.recall(ranked, relevant, 1).tolist() == [1 / 4]
    assert metrics.recall(ranked, relevant, 3).tolist() == [2 / 4]
    assert metrics.recall(ranked, relevant, 50).tolist() == [2 / 4]
    assert metrics.ndcg(ranked, relevant, 1).tolist() == [1.0]
    assert metrics.ndcg(ranked, relevant, 3)[0] == pytest.approx(gain / ideal_3)
    assert metrics.ndcg(ranked, relevant, 50)[0] == pytest.approx(gain / (ideal_3 + 1 / math.log2(5)))


def test_coverage_counts_distinct_candidates_at_the_depth() -> None:
    ranked = padded([[0, 1], [0, 2], [0]], 2)
    everything = np.ones(8, dtype=np.bool_)
    assert metrics.coverage(ranked, everything, 1) == 1 / 8
    assert metrics.coverage(ranked, everything, 2) == 3 / 8
    assert metrics.coverage(ranked, np.arange(8) < 3, 2) == 1.0


def test_cold_share_is_of_filled_places() -> None:
    popularity = np.array([0, 7, 0])
    ranked = padded([[1, 0], [1, 2], [0]], 2)
    assert metrics.cold_share(ranked, popularity, 1) == 1 / 3
    assert metrics.cold_share(ranked, popularity, 2) == 3 / 5
    assert metrics.cold_share(padded([[]], 2), popularity, 2) == 0.0


@settings(deadline=None)
@given(cases())
def test_restricting_keeps_exactly_the_bundles_of_the_mask(case: Case) -> None:
    kept = metrics.restrict(case.held_out, case.candidates)
    assert np.array_equal(kept.toarray(), case.held_out.toarray() * case.candidates)


@pytest.fixture(scope="module")
def lists_and_positives() -> tuple[Lists, Sparse]:
    """200 users with 1 to some 60 positives among 300 bundles, lists of 5 to 50 (so that hits are common)."""
    rng = np.random.default_rng(3)
    wanted = rng.random((200, 300)) < rng.choice([0.0, 0.1, 0.2], size=(200, 1))
    wanted[np.arange(200), rng.integers(300, size=200)] = True
    rows, columns = np.nonzero(wanted)
    lists = [rng.permutation(300)[: rng.integers(5, 51)].tolist() for _ in range(200)]
    return padded(lists, 50), relation(rows, columns, (200, 300))


@pytest.mark.parametrize("k", [1, 5, 20, 50])
def test_equal_to_ranx(lists_and_positives: tuple[Lists, Sparse], k: int) -> None:
    import ranx.metrics
    from numba.typed import List

    ranked, relevant = lists_and_positives
    # Tables of (id, relevance) and (id, score): ranx.Qrels and ranx.Run hold the same, but compile for long.
    positives = List([np.array([(b, 1) for b in row_set(relevant, user)]) for user in range(200)])
    lists = List(
        [np.array([(b, 100 - place) for place, b in enumerate(line) if b >= 0]) for line in ranked.tolist()]
    )
    assert np.abs(metrics.recall(ranked, relevant, k) - ranx.metrics.recall(positives, lists, k)).max() < 1e-9
    assert np.abs(metrics.ndcg(ranked, relevant, k) - ranx.metrics.ndcg(positives, lists, k)).max() < 1e-9


@pytest.mark.parametrize("k", [1, 5, 20, 50])
def test_equal_to_lenskit(lists_and_positives: tuple[Lists, Sparse], k: int) -> None:
    """LensKit's recall divides by min(|T|, k), and its nDCG discounts by log2(rank + 1) when asked to."""
    from lenskit.data import ItemList
    from lenskit.metrics import NDCG, LogRankWeight, Recall

    ranked, relevant = lists_and_positives
    recall, ndcg = metrics.recall(ranked, relevant, k), metrics.ndcg(ranked, relevant, k)
    their_recall, their_ndcg = Recall(k), NDCG(k, weight=LogRankWeight(offset=1))
    compared = 0
    for user in range(200):
        shown = ItemList(item_ids=ranked[user][ranked[user] >= 0], ordered=True)
        truth = ItemList(item_ids=sorted(row_set(relevant, user)))
        assert ndcg[user] == pytest.approx(their_ndcg.measure_list(shown, truth), abs=1e-9)
        if len(truth) <= k:
            assert recall[user] == pytest.approx(their_recall.measure_list(shown, truth), abs=1e-9)
            compared += 1
    assert compared > 10
