"""Stand-ins: a division that loses nothing, keeps the earliest takers and gives nothing away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coheat.data.dataset import BundleData, pairs, relation
from coheat.data.synthetic import planted_world
from coheat.models.stand_ins import (
    LEVELS,
    Before,
    StandIns,
    complete_share,
    divide,
    least_takers,
    without_explained,
)
from coheat.testing import bundle_data, id_pairs, small_data


def division(data: BundleData, seed: int = 0) -> StandIns:
    return divide(data, np.random.default_rng(seed))


@given(bundle_data(), st.integers(0, 5))
def test_nothing_is_lost_and_nothing_is_in_both(data: BundleData, seed: int) -> None:
    found = division(data, seed)
    kept = id_pairs(found.kept.user_bundle, data.users, data.bundles)
    hidden = id_pairs(found.held_out, data.users, data.bundles)
    assert not kept & hidden
    assert kept | hidden == id_pairs(data.user_bundle, data.users, data.bundles)


@given(bundle_data(), st.integers(0, 5))
def test_stand_ins_keep_a_level_and_others_keep_a_taker(data: BundleData, seed: int) -> None:
    found = division(data, seed)
    left, had = found.kept.popularity, data.popularity
    assert set(left[found.is_stand_in]) <= {0, *LEVELS}
    assert (left[found.is_stand_in] < had[found.is_stand_in]).all()
    assert (left[~found.is_stand_in & (had > 0)] > 0).all()


def test_only_bundles_with_some_success_stand_in() -> None:
    rng = np.random.default_rng(0)
    popularity = rng.permutation(np.repeat([1, 2, 5, 30], 250))
    users = np.concatenate([rng.permutation(400)[:n] for n in popularity])
    bundles = np.repeat(np.arange(1000), popularity)
    data = small_data([(f"{u:03}", f"{b:04}") for u, b in zip(users, bundles, strict=True)])
    assert least_takers(data.popularity) == 30  # these have four fifths of all interactions
    found = division(data)
    new = found.is_stand_in & (found.kept.popularity == 0)
    assert new.sum() == pytest.approx(0.12 * 250, abs=1)
    assert (data.popularity[found.is_stand_in] == 30).all()
    assert set(found.kept.popularity[found.is_stand_in]) == {0, *LEVELS}


def test_where_all_are_alike_any_may_stand_in() -> None:
    assert least_takers(np.array([0, 3, 3, 3])) == 3
    assert least_takers(np.array([0, 0])) == 1


def test_dated_stand_ins_keep_their_earliest_takers() -> None:
    rng = np.random.default_rng(3)
    took = [(f"{u:02}", f"{b:02}") for u in range(40) for b in range(30) if rng.random() < 0.7]
    data = small_data(took, timestamps=rng.permutation(len(took)))
    found = division(data)
    assert data.timestamps is not None
    assert found.kept.timestamps is not None
    users, bundles = pairs(data.user_bundle)
    when = dict(zip(zip(users, bundles, strict=True), data.timestamps, strict=True))
    assert list(found.kept.timestamps) == [
        when[pair] for pair in zip(*pairs(found.kept.user_bundle), strict=True)
    ]
    for bundle in np.flatnonzero(found.is_stand_in & (found.kept.popularity > 0)):
        kept = [when[u, bundle] for u in found.kept.user_bundle[:, [bundle]].nonzero()[0]]
        hidden = [when[u, bundle] for u in found.held_out[:, [bundle]].nonzero()[0]]
        assert max(kept) < min(hidden)


def test_the_same_generator_gives_the_same_division() -> None:
    data = planted_world().train
    one, same, other = division(data, 1), division(data, 1), division(data, 2)
    assert (one.held_out - same.held_out).count_nonzero() == 0
    assert (one.held_out - other.held_out).count_nonzero() > 0


def test_what_only_held_out_bundles_explain_is_taken_from_the_users_items() -> None:
    held = relation([0, 0, 1, 1, 2], [0, 1, 1, 2, 3], (3, 4))  # bundles of two, two and one items
    kept, hidden = relation([0], [0], (1, 3)), relation([0], [1], (1, 3))
    owned = relation([0, 0, 0, 0], [0, 1, 2, 3], (1, 4))
    left = without_explained(owned, kept, hidden, held)
    assert list(left.indices) == [0, 1, 3]  # 2 is only in the hidden bundle, 1 in both, 3 in neither


def test_items_that_come_with_a_bundle_leave_with_it_and_others_stay() -> None:
    data = planted_world().train
    apart = division(data)
    assert complete_share(data) < 0.5
    assert apart.kept.user_item is data.user_item
    comes_with = relation(*pairs(data.user_bundle @ data.bundle_item), data.user_item.shape)
    bought = replace(data, user_item=comes_with)
    assert complete_share(bought) == 1.0
    found = division(bought)
    explained = found.kept.user_bundle @ data.bundle_item
    assert (found.kept.user_item - found.kept.user_item.multiply(explained.sign())).sum() == 0


def before(found: StandIns) -> Before:
    return Before(found.seen, found.held_out, found.is_stand_in, found.took_items)


def some(data: BundleData, kept: npt.NDArray[np.bool_]) -> BundleData:
    users, bundles = pairs(data.user_bundle)
    return data.with_user_bundle(relation(users[kept], bundles[kept], data.user_bundle.shape))


@given(bundle_data(), st.integers(0, 5), st.lists(st.floats(0.3, 1), min_size=1, max_size=4))
def test_what_a_rehearsal_has_seen_is_held_out_of_none_that_goes_on_from_it(
    data: BundleData, seed: int, shares: list[float]
) -> None:
    """Whatever comes and goes from night to night."""
    rng, seen, last = np.random.default_rng(seed), set[tuple[str, str]](), None
    for share in shares:
        today = some(data, rng.random(data.user_bundle.nnz) < share)
        last = divide(today, rng, before=None if last is None else before(last))
        if not last.goes_on:
            seen = set()  # it starts from scratch
        kept = id_pairs(last.kept.user_bundle, data.users, data.bundles)
        hidden = id_pairs(last.held_out, data.users, data.bundles)
        assert kept | hidden == id_pairs(today.user_bundle, data.users, data.bundles)
        assert not hidden & (seen | kept)
        assert (last.kept.popularity[~last.is_stand_in & (today.popularity > 0)] > 0).all()
        seen |= kept


def test_a_division_that_goes_on_keeps_its_stand_ins_and_adds_of_what_is_new() -> None:
    rng = np.random.default_rng(0)
    popularity = np.full(1000, 20)
    users = np.concatenate([rng.permutation(400)[:n] for n in popularity])
    bundles = np.repeat(np.arange(1000), popularity)
    data = small_data([(f"{u:03}", f"{b:04}") for u, b in zip(users, bundles, strict=True)])
    columns = pairs(data.user_bundle)[1]
    yesterday = some(data, (columns < 500) & (rng.random(len(columns)) < 0.9))
    first = division(yesterday)
    found = divide(data, np.random.default_rng(1), before=before(first))
    assert found.goes_on
    assert (found.is_stand_in[:500] == first.is_stand_in[:500]).all()
    assert (found.kept.popularity[first.is_stand_in] == first.kept.popularity[first.is_stand_in]).all()
    assert found.is_stand_in[500:].sum() == pytest.approx(0.3 * 500, abs=2), "of bundles that are new"
    old = ~found.is_stand_in & (np.arange(1000) < 500)
    held_out = 1 - found.kept.popularity[old].sum() / data.popularity[old].sum()
    assert held_out == pytest.approx(0.1, abs=0.01), "of new takers as many as of old ones"


def test_a_division_starts_anew_where_the_one_before_left_items_that_give_themselves_away() -> None:
    data = planted_world().train
    first = division(data)
    assert not first.took_items
    owned = (data.user_item + data.user_bundle @ data.bundle_item).sign()
    given_away = replace(data, user_item=relation(*pairs(owned.tocsr()), owned.shape))
    assert complete_share(given_away) == 1
    assert not divide(given_away, np.random.default_rng(0), before=before(first)).goes_on
    assert divide(data, np.random.default_rng(0), before=before(division(given_away))).goes_on
