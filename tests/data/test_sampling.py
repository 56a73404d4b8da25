"""Training batches: every interaction once, and a negative is never a positive."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coheat.data import BundleData, pairs, relation
from coheat.data.sampling import contains, draw_negatives, triples
from coheat.testing import bundle_data


@settings(deadline=None)  # the first call compiles
@given(bundle_data(), st.data())
def test_contains_is_membership(data: BundleData, draws: st.DataObject) -> None:
    rows = np.array(draws.draw(st.lists(st.integers(0, data.n_users - 1), max_size=20)), dtype=np.int64)
    columns = np.array([draws.draw(st.integers(0, data.n_bundles - 1)) for _ in rows], dtype=np.int64)
    dense = data.user_bundle.toarray()
    assert contains(data.user_bundle, rows, columns).tolist() == [
        bool(dense[row, column]) for row, column in zip(rows, columns, strict=True)
    ]


@settings(deadline=None)  # the first call compiles
@given(bundle_data(min_interactions=1), st.integers(1, 40), st.integers(0, 100))
def test_batches_hold_every_interaction_once_and_negatives_are_never_positives(
    data: BundleData, batch_size: int, seed: int
) -> None:
    batches = list(triples(data.user_bundle, batch_size, np.random.default_rng(seed)))
    n = data.user_bundle.nnz
    whole = n - n % batch_size if n >= batch_size else n
    assert sum(len(batch) for batch in batches) == whole
    assert len(batches) == max(n // batch_size, 1)
    known = set(zip(*(part.tolist() for part in pairs(data.user_bundle)), strict=True))
    seen = [(u, b) for batch in batches for u, b in zip(batch.users, batch.positives, strict=True)]
    assert len(set(seen)) == len(seen)
    assert set(seen) <= known
    saturated = {u for u in range(data.n_users) if data.user_bundle[[u]].nnz == data.n_bundles}
    for batch in batches:
        for user, negative in zip(batch.users, batch.negatives, strict=True):
            assert user in saturated or (user, negative) not in known


@settings(deadline=None)  # the first call compiles
@given(bundle_data(min_interactions=1), st.data())
def test_negatives_come_from_the_candidates(data: BundleData, draws: st.DataObject) -> None:
    chosen = draws.draw(st.sets(st.integers(0, data.n_bundles - 1), min_size=1))
    candidates = np.array(sorted(chosen), dtype=np.int64)
    users = np.arange(data.n_users, dtype=np.int64)
    drawn = draw_negatives(data.user_bundle, users, np.random.default_rng(0), candidates)
    assert set(drawn.tolist()) <= chosen
    for user, negative in zip(users, drawn, strict=True):
        own = set(data.user_bundle[[user]].indices.tolist())
        assert chosen <= own or int(negative) not in own


def test_a_user_with_all_bundles_but_one_gets_that_one() -> None:
    n = 5000
    others = np.delete(np.arange(n), 1234)
    matrix = relation(np.zeros(n - 1, dtype=np.int64), others, (2, n))
    drawn = draw_negatives(matrix, np.zeros(3, dtype=np.int64), np.random.default_rng(0))
    assert drawn.tolist() == [1234] * 3


def test_negatives_are_uniform_over_what_the_user_does_not_have() -> None:
    matrix = relation([0, 0], [1, 3], (1, 6))
    drawn = draw_negatives(matrix, np.zeros(40_000, dtype=np.int64), np.random.default_rng(0))
    counts = np.bincount(drawn, minlength=6)
    assert counts[[1, 3]].tolist() == [0, 0]
    assert counts[[0, 2, 4, 5]] == pytest.approx(np.full(4, 10_000), rel=0.05)


def test_the_same_generator_gives_the_same_batches() -> None:
    matrix = relation(np.repeat(np.arange(20), 5), np.tile(np.arange(5), 20), (20, 30))
    one, other = (list(triples(matrix, 32, np.random.default_rng(3))) for _ in range(2))
    for left, right in zip(one, other, strict=True):
        assert np.array_equal(left.users, right.users)
        assert np.array_equal(left.positives, right.positives)
        assert np.array_equal(left.negatives, right.negatives)
