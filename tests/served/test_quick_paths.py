"""What is computed by a quicker way for a few people, beside the plain way of saying the same."""

from __future__ import annotations

from itertools import chain
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coheat.served import Csr
from coheat.served.bundles import FEW_PEOPLE, OVERLAY, STRETCH, Rows
from coheat.served.ranking import ROWS_TOGETHER, rank_rows
from coheat.served.relations import distinct, stable_order


@settings(deadline=None)
@given(st.lists(st.integers(0, 9)))
def test_distinct_numbers_are_those_of_numpy(numbers: list[int]) -> None:
    given_numbers = np.array(numbers, dtype=np.int64)
    found = distinct(given_numbers)
    for ours, expected in zip(found, np.unique(given_numbers, return_inverse=True), strict=True):
        np.testing.assert_array_equal(ours, expected)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9)), st.sampled_from([10, 1 << 62]))
def test_the_order_of_equal_numbers_stays(numbers: list[int], n_keys: int) -> None:
    keys = np.array(numbers, dtype=np.int32)
    np.testing.assert_array_equal(stable_order(keys, n_keys), np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("rows", [[], [2], [1], [3, 0, 2], [0, 0]])
def test_entries_of_some_rows_are_those_of_each(rows: list[int]) -> None:
    lists = [[4, 7], [], [1, 2, 9], [0]]
    ends = np.cumsum([0, *map(len, lists)])
    relation = Csr(ends, np.array([*chain(*lists)], dtype=np.int32), 10)
    columns, places = relation.entries(np.array(rows, dtype=np.int64))
    expected = [(place, column) for place, row in enumerate(rows) for column in lists[row]]
    assert list(zip(places.tolist(), columns.tolist(), strict=True)) == expected
    assert columns.dtype == places.dtype == np.int64


@pytest.mark.parametrize("people", [1, 2, FEW_PEOPLE - 1, FEW_PEOPLE])
@pytest.mark.parametrize("n", [0, 1, STRETCH, 2 * STRETCH + 5])
@pytest.mark.parametrize("order", ["C", "F"])
def test_products_for_few_and_for_many_people_are_the_same(
    people: int, n: int, order: Literal["C", "F"]
) -> None:
    rng = np.random.default_rng(people + n)
    matrix, vectors = (rng.integers(-9, 9, (size, 8)).astype(np.float32) for size in (n, people))
    changed = np.arange(0, n, 3)
    rows = Rows.of(np.array(matrix, order=order)).with_rows(changed, -matrix[changed], n)
    matrix[changed] *= -1
    np.testing.assert_array_equal(rows.take(np.arange(n)), matrix)
    scratch = np.full((people + 1, n), np.nan, dtype=np.float32)
    found = rows.product(vectors, scratch)
    np.testing.assert_array_equal(found, vectors @ matrix.T)
    assert n == 0 or np.shares_memory(found, scratch)


def test_rows_that_are_merged_keep_their_order_in_memory() -> None:
    matrix = np.asfortranarray(np.arange(8 * (OVERLAY + 1), dtype=np.float32).reshape(-1, 8))
    everything = np.arange(len(matrix))
    merged = Rows.of(matrix).with_rows(everything, -matrix, len(matrix))
    assert not len(merged.changed)
    assert merged.base.flags.f_contiguous
    np.testing.assert_array_equal(merged.base, -matrix)


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("different", [2, 1_000_000])
def test_lists_of_few_and_of_many_rows_are_the_same(k: int, different: int) -> None:
    rng = np.random.default_rng(k)
    scores = rng.integers(-different, different, (2 * ROWS_TOGETHER, 3_000)).astype(np.float32)
    scores[0, k // 2 :] = -np.inf
    scores[1, ::2] = -np.inf
    together, counts = rank_rows(scores, k)
    alone = [rank_rows(row[None], k) for row in scores]
    np.testing.assert_array_equal(np.concatenate([places for places, _ in alone]), together)
    np.testing.assert_array_equal(np.concatenate([count for _, count in alone]), counts)
    order = np.lexsort((np.arange(scores.shape[1]), -scores[2]))
    np.testing.assert_array_equal(alone[2][0], order[:k])
