"""Exposure against the slow and obvious version of the same definitions."""

from __future__ import annotations

from statistics import mean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coheat.data.dataset import relation
from coheat.data.split import Split
from coheat.evaluation import evaluate
from coheat.evaluation import exposure as module
from coheat.evaluation.exposure import YOUNG, exposure, gini
from coheat.models import MODELS
from coheat.presets import resolve_settings
from coheat.rng import Randomness


def slow_gini(amounts: list[int]) -> float:
    """Half the mean difference of all pairs, relative to the mean."""
    if not sum(amounts):
        return 0.0
    return mean(abs(a - b) for a in amounts for b in amounts) / (2 * mean(amounts))


def slow_exposure(
    lists: list[list[int]], profiles: list[list[int]], popularity: list[int], candidates: list[int], k: int
) -> dict[str, float | None]:
    lists = [one[:k] for one in lists]
    places = [bundle for one in lists for bundle in one]
    who = [u for u in range(len(lists)) if lists[u] and profiles[u]]
    lift = None
    if who:
        shown = mean(mean(popularity[b] for b in lists[u]) for u in who)
        own = mean(mean(popularity[b] for b in profiles[u]) for u in who)
        lift = shown / own - 1
    return {
        f"gini@{k}": slow_gini([places.count(b) for b in candidates]),
        f"coverage@{k}": mean(b in places for b in candidates),
        f"popularity_lift@{k}": lift,
        f"young_share@{k}": mean(popularity[b] <= YOUNG for b in places) if places else 0.0,
        "young_of_candidates": mean(popularity[b] <= YOUNG for b in candidates),
    }


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    n_users, n_bundles, k = draw(st.integers(1, 9)), draw(st.integers(1, 8)), draw(st.integers(1, 5))
    bundles = st.integers(0, n_bundles - 1)
    candidates = sorted(draw(st.sets(bundles, min_size=1)))
    lists = draw(
        st.lists(
            st.lists(st.sampled_from(candidates), max_size=k, unique=True), min_size=n_users, max_size=n_users
        )
    )
    profiles = draw(st.lists(st.sets(bundles), min_size=n_users, max_size=n_users))
    # Popularity of a larger training part than these users': at least once where somebody took it.
    more = draw(st.lists(st.integers(0, 9), min_size=n_bundles, max_size=n_bundles))
    popularity = [more[b] + sum(b in profile for profile in profiles) for b in range(n_bundles)]
    return {
        "lists": lists,
        "profiles": [sorted(profile) for profile in profiles],
        "popularity": popularity,
        "candidates": candidates,
        "k": k,
    }


@given(worlds(), st.integers(1, 4))
def test_figures_are_those_counted_by_hand(world: dict[str, Any], block: int) -> None:
    lists, k, n_bundles = world["lists"], world["k"], len(world["popularity"])
    ranked = np.array([one + [-1] * (k - len(one)) for one in lists], dtype=np.int32)
    pairs = [(user, bundle) for user, own in enumerate(world["profiles"]) for bundle in own]
    users, bundles = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    taken = relation(users, bundles, (len(lists), n_bundles))
    mask = np.zeros(n_bundles, dtype=np.bool_)
    mask[world["candidates"]] = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        found = exposure(ranked, taken, np.array(world["popularity"]), mask, (k, 1))
    for depth in (k, 1):
        for name, value in slow_exposure(**{**world, "k": depth}).items():
            assert found[name] == (None if value is None else pytest.approx(value)), name


def test_gini_of_what_is_known() -> None:
    assert gini(np.array([3, 3, 3])) == pytest.approx(0)
    assert gini(np.array([0, 0, 0, 8])) == pytest.approx(3 / 4)
    assert gini(np.array([1, 2, 3])) == pytest.approx(2 / 9)
    assert gini(np.zeros(5)) == 0


def test_popularity_is_shown_as_what_it_is(planted: Split) -> None:
    """The same few bundles for everybody: a high Gini, a small share, more popular than what people took."""
    found = {}
    for name in ("popularity", "counting"):
        config, _ = resolve_settings(name, "default", {})
        served = MODELS[name](planted.train, config, Randomness(0)).served()
        found[name] = evaluate(served, planted.train, planted.test, (5,)).exposure
        assert found[name]["coverage@5"] == pytest.approx(
            evaluate(served, planted.train, planted.test, (5,)).metrics["coverage@5"]
        )
    popular, counting = found["popularity"], found["counting"]
    for figure in ("gini@5", "popularity_lift@5"):
        mine, theirs = popular[figure], counting[figure]
        assert mine is not None
        assert theirs is not None
        assert mine > theirs, figure
    assert popular["young_share@5"] == 0
