from __future__ import annotations

import json
from statistics import mean

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ranking_oracle import (
    Case,
    TableScorer,
    cases,
    random_relation,
    row_set,
    slow_list,
    slow_ndcg,
    slow_recall,
    world_with,
)

from coheat.data import relation
from coheat.errors import ConfigError, DataError
from coheat.evaluation import POPULARITY_GROUPS, Candidates, evaluate, evaluate_shifted
from coheat.served.ranking import ROWS


@settings(deadline=None)
@given(cases(), st.integers(1, 15), st.sampled_from(["all", "cold"]))
def test_equal_to_the_protocol_in_plain_python(case: Case, k: int, candidates: Candidates) -> None:
    n_users, n_bundles = case.table.shape
    counts = case.train.popularity.tolist()
    open_bundles = {b for b in range(n_bundles) if candidates == "all" or counts[b] == 0}
    positives = {u: row_set(case.held_out, u) & open_bundles for u in range(n_users)}
    positives = {u: wanted for u, wanted in positives.items() if wanted}
    assume(positives)
    lists = {}
    for user in positives:
        banned = row_set(case.train.user_bundle, user) | (set(range(n_bundles)) - open_bundles)
        lists[user] = slow_list(case.table[user], banned, k)

    result = evaluate(TableScorer(case.table), case.train, case.held_out, (k,), candidates)

    assert result.n_users == len(positives)
    assert result.users.tolist() == list(positives)
    recalls = [slow_recall(lists[u], positives[u], k) for u in positives]
    ndcgs = [slow_ndcg(lists[u], positives[u], k) for u in positives]
    assert result.per_user[f"recall@{k}"] == pytest.approx(recalls)
    assert result.per_user[f"ndcg@{k}"] == pytest.approx(ndcgs)
    listed = [b for one in lists.values() for b in one]
    assert result.metrics == pytest.approx(
        {
            f"recall@{k}": mean(recalls),
            f"ndcg@{k}": mean(ndcgs),
            f"coverage@{k}": len(set(listed)) / len(open_bundles),
            f"cold_share@{k}": mean(counts[b] == 0 for b in listed) if listed else 0.0,
        }
    )
    assert all(0 <= value <= 1 for value in result.metrics.values())

    for name, (low, high) in POPULARITY_GROUPS.items():
        group = {b for b in range(n_bundles) if low <= counts[b] and (high is None or counts[b] <= high)}
        inside = {u: wanted & group for u, wanted in positives.items() if wanted & group}
        if not inside:
            assert name not in result.by_popularity
            continue
        assert result.by_popularity[name] == pytest.approx(
            {
                "bundles": len(group),
                "users": len(inside),
                "positives": sum(map(len, inside.values())),
                f"recall@{k}": mean(slow_recall(lists[u], inside[u], k) for u in inside),
            }
        )


@settings(deadline=None)
@given(cases(), st.integers(1, 15), st.integers(0, 2**32 - 1))
def test_shifts_of_one_pass_are_each_evaluated_alone(case: Case, k: int, seed: int) -> None:
    assume(case.held_out.nnz)
    shifts = np.random.default_rng(seed).integers(-3, 4, size=(4, case.table.shape[1])).astype(np.float32)
    offered = np.arange(case.table.shape[1]) % 3 < 2
    assume(offered[case.held_out.indices].any())
    found, added = evaluate_shifted(
        TableScorer(case.table), case.train, case.held_out, k, shifts, [None] * 4, offered=offered
    )
    assert len(found) == 4
    assert (added[:, ~offered] == 0).all()
    for metrics, of_bundles, shift in zip(found, added, shifts, strict=True):
        assert of_bundles.sum() == pytest.approx(sum(metrics.values()))
        scorer = TableScorer(case.table + shift)
        alone = evaluate(scorer, case.train, case.held_out, (k,), "offered", offered).metrics
        expected = {name: alone[name] for name in (f"recall@{k}", f"ndcg@{k}")}
        assert metrics == pytest.approx(expected, abs=1e-12)


def test_shifts_over_several_blocks_of_users() -> None:
    rng = np.random.default_rng(4)
    n_users = 2 * ROWS + 40
    held_out = random_relation(rng, (n_users, 30), 0.1)
    train = world_with(random_relation(rng, (n_users, 30), 0.1))
    table, shifts = rng.normal(size=(n_users, 30)), rng.normal(size=(2, 30)).astype(np.float32)
    found, _ = evaluate_shifted(TableScorer(table), train, held_out, 5, shifts, [None] * 2)
    for metrics, shift in zip(found, shifts, strict=True):
        alone = evaluate(TableScorer(table.astype(np.float32) + shift), train, held_out, (5,)).metrics
        assert metrics == pytest.approx({name: alone[name] for name in metrics}, abs=1e-12)


def test_groups_of_popularity_cover_every_count_once() -> None:
    bounds = list(POPULARITY_GROUPS.values())
    assert bounds[0][0] == 0
    assert bounds[-1][1] is None
    assert [low for low, _ in bounds[1:]] == [high + 1 for _, high in bounds[:-1] if high is not None]


def test_recall_by_popularity_worked_out_by_hand() -> None:
    """Bundle 0 was taken by 6 users, bundle 1 by 1, bundle 2 by none; lists of 2 of the rest."""
    train = world_with(relation([0, 1, 2, 3, 4, 5, 0], [0] * 6 + [1], (8, 4)))
    held_out = relation([6, 6, 7, 7], [0, 2, 0, 1], (8, 4))
    table = np.zeros((8, 4))
    table[6] = [9, 1, 0, 5]  # finds 0, not 2
    table[7] = [0, 9, 1, 0]  # finds 1, not 0
    result = evaluate(TableScorer(table), train, held_out, ks=(2,))
    assert result.by_popularity == {
        "0": {"bundles": 2, "users": 1, "positives": 1, "recall@2": 0.0},
        "1-4": {"bundles": 1, "users": 1, "positives": 1, "recall@2": 1.0},
        "5-19": {"bundles": 1, "users": 2, "positives": 2, "recall@2": 0.5},
    }


def test_only_training_bundles_are_masked() -> None:
    """The user took 0 in training and 1 in validation; at test only 0 makes room for others."""
    train = world_with(relation([0], [0], (1, 4)))
    result = evaluate(TableScorer([[9, 8, 7, 6]]), train, relation([0], [2], (1, 4)), ks=(1, 2))
    assert result.metrics["recall@1"] == 0
    assert result.metrics["recall@2"] == 1


def test_a_shelf_of_cold_bundles_judges_only_cold_positives() -> None:
    train = world_with(relation([0, 1], [0, 1], (3, 4)))
    held_out = relation([0, 0, 1, 2], [1, 3, 0, 2], (3, 4))
    result = evaluate(TableScorer([[0, 9, 1, 2]] * 3), train, held_out, ks=(1,), candidates="cold")
    assert result.users.tolist() == [0, 2]  # user 1 has only a warm positive
    assert result.per_user["recall@1"].tolist() == [1, 0]
    assert result.metrics["coverage@1"] == 1 / 2
    assert result.metrics["cold_share@1"] == 1


def test_the_result_is_ready_for_json() -> None:
    train = world_with(relation([0], [0], (2, 3)))
    result = evaluate(TableScorer(np.eye(2, 3)), train, relation([1], [1], (2, 3)), ks=(1,))
    written = json.loads(json.dumps(result.to_dict()))
    assert written["metrics"] == result.metrics
    assert written["by_popularity"]["0"]["recall@1"] == 1.0
    assert (written["n_users"], written["candidates"]) == (1, "all")
    assert written["seconds"] > 0


def test_nothing_to_judge_is_said() -> None:
    train, scorer = world_with(relation([0], [0], (1, 1))), TableScorer([[1]])
    with pytest.raises(DataError, match="nothing to measure"):
        evaluate(scorer, train, relation([], [], (1, 1)))
    with pytest.raises(DataError, match="no cold candidates"):
        evaluate(scorer, train, relation([0], [0], (1, 1)), candidates="cold")


def test_wrong_settings_are_named() -> None:
    train, held_out = world_with(relation([0], [0], (1, 2))), relation([0], [1], (1, 2))
    with pytest.raises(ConfigError, match="ks = "):
        evaluate(TableScorer([[1, 2]]), train, held_out, ks=())
    with pytest.raises(ConfigError, match="ks = "):
        evaluate(TableScorer([[1, 2]]), train, held_out, ks=(20, 0))
    with pytest.raises(ConfigError, match="'warm'"):
        evaluate(TableScorer([[1, 2]]), train, held_out, candidates="warm")  # type: ignore[arg-type]
