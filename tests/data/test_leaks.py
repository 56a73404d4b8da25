"""Held-out bundles that give themselves away: measured, warned of, and taken out; no others touched."""

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
from coheat.data import BundleData, leaks, pairs, read_split, realistic_world, relation, write_tables
from coheat.data.check import check
from coheat.data.dataset import Sparse
from coheat.data.leaks import Leakage, has_all_items, leakage, leakage_before_division, without_leaks
from coheat.data.split import Split, split
from coheat.testing import bundle_data, id_pairs, small_data

PUBLISHED = Path(__file__).parents[3] / "shared" / "data"
HONEST = realistic_world(200, 60, 120, 1_500, 2_000, 300, seed=2)


def with_items_of_taken_bundles(data: BundleData) -> BundleData:
    """What a careless shop writes: whoever takes a bundle also takes each of its items."""
    takers, taken = pairs(data.user_bundle @ data.bundle_item)
    owners, owned = pairs(data.user_item)
    users, items = np.concatenate([takers, owners]), np.concatenate([taken, owned])
    return replace(data, user_item=relation(users, items, data.user_item.shape), item_timestamps=None)


LEAKY = with_items_of_taken_bundles(HONEST)


def naive_owned(data: BundleData, user: int, bundle: int) -> bool:
    items = set(data.bundle_item.toarray()[bundle].nonzero()[0].tolist())
    return items <= set(data.user_item.toarray()[user].nonzero()[0].tolist())


@settings(deadline=None)
@given(bundle_data(), st.sampled_from([1, 3, 1000]))
def test_owning_all_items_equals_the_sets(data: BundleData, block: int) -> None:
    users, bundles = (grid.ravel() for grid in np.mgrid[: data.n_users, : data.n_bundles])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaks, "BLOCK", block)
        found = has_all_items(data.user_item, data.bundle_item, users, bundles)
    expected = [naive_owned(data, u, b) for u, b in zip(users.tolist(), bundles.tolist(), strict=True)]
    assert found.tolist() == expected


def test_a_planted_leak_is_measured_exactly() -> None:
    """Ten users, each with a bundle of two items of their own; of seven of them user_item holds both."""
    names = [str(n) for n in range(10)]
    data = small_data(
        [(f"u{n}", f"b{n}") for n in names],
        [(f"u{n}", f"{kind}{n}") for n in names[:7] for kind in "xy"]
        + [(f"u{n}", f"x{n}") for n in names[7:]],
        [(f"b{n}", f"{kind}{n}") for n in names for kind in "xy"],
    )
    shape = data.user_bundle.shape
    nothing = relation([], [], shape)
    divided = Split(data.with_user_bundle(nothing), nothing, data.user_bundle)
    assert leakage(divided) == Leakage(10, 0.7, 0.0, 0.0)
    assert leakage_before_division(data) == Leakage(10, 0.7, 0.0, 0.0)
    assert not leakage(divided).is_suspicious, "ten pairs are too few to say so"
    # Only what held-out bundles explain is taken out: here all of it, and then nothing is given away.
    clean = without_leaks(divided)
    assert clean.train.user_item.nnz == 0
    assert leakage(clean) == Leakage(10, 0.0, 0.0, 0.0)


def test_what_other_bundles_hold_is_no_leak() -> None:
    """Ann took two bundles that hold between them the items of a third, which is held out."""
    data = small_data(
        [("ann", "one"), ("ann", "two"), ("ann", "both"), ("ann", "else")],
        [("ann", "cup"), ("ann", "hat"), ("ann", "pot")],
        [("one", "cup"), ("two", "hat"), ("both", "cup"), ("both", "hat"), ("else", "pot")],
    )
    assert data.bundles.ids == ("both", "else", "one", "two")
    shape = data.user_bundle.shape
    train = data.with_user_bundle(relation([0, 0], [2, 3], shape))
    divided = Split(train, relation([], [], shape), relation([0, 0], [0, 1], shape))
    assert leakage(divided) == Leakage(2, 1.0, 0.0, 0.5)
    clean = without_leaks(divided)
    assert id_pairs(clean.train.user_item, data.users, data.items) == {("ann", "cup"), ("ann", "hat")}
    assert leakage(clean) == Leakage(2, 0.5, 0.0, 0.5)
    # Undivided, each bundle is looked at beside the others: all but the one with the pot are explained.
    assert leakage_before_division(data) == Leakage(4, 1.0, 0.0, 0.75)
    assert not Leakage(1000, 0.9, 0.0, 0.8).is_suspicious
    assert Leakage(1000, 0.9, 0.0, 0.6).is_suspicious


def test_honest_data_are_not_suspected_and_a_leak_is() -> None:
    for scenario in ("warm", "cold", "all"):
        assert not leakage(split(HONEST, scenario)).is_suspicious
        found = leakage(split(LEAKY, scenario))
        assert found.given_away == 1
        assert found.by_chance < 0.3
        assert found.is_suspicious
        assert not leakage(without_leaks(split(LEAKY, scenario))).is_suspicious
    assert leakage_before_division(LEAKY).is_suspicious
    assert not leakage_before_division(HONEST).is_suspicious
    assert leakage(split(LEAKY, "warm"), seed=5) == leakage(split(LEAKY, "warm"), seed=5)


def test_of_many_pairs_a_sample_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = leakage_before_division(HONEST)
    monkeypatch.setattr(leaks, "MOST_PAIRS", 700)
    some = leakage_before_division(HONEST)
    assert (whole.pairs, some.pairs) == (1_500, 700)
    assert some.given_away == pytest.approx(whole.given_away, abs=0.05)


@settings(deadline=None, max_examples=150)
@given(bundle_data(min_interactions=4, timestamps=True, evidence=True), st.integers(0, 9))
def test_an_item_goes_only_if_held_out_bundles_alone_explain_it(data: BundleData, seed: int) -> None:
    divided = split(data, "warm", seed)
    clean = without_leaks(divided)
    names = (data.users, data.bundles, data.items)
    holds = id_pairs(data.bundle_item, names[1], names[2])

    def explained(matrix: Sparse) -> set[tuple[str, str]]:
        taken = id_pairs(matrix, names[0], names[1])
        return {(user, item) for user, bundle in taken for holder, item in holds if holder == bundle}

    owned = id_pairs(data.user_item, names[0], names[2])
    held_out = explained(divided.validation) | explained(divided.test)
    expected = owned - (held_out - explained(divided.train.user_bundle))
    assert id_pairs(clean.train.user_item, names[0], names[2]) == expected
    if data.item_timestamps is not None:
        assert clean.train.item_timestamps is not None
        was = dict(zip(sorted(owned), data.item_timestamps.tolist(), strict=True))
        assert clean.train.item_timestamps.tolist() == [was[pair] for pair in sorted(expected)]
    assert (clean.test - divided.test).count_nonzero() == 0


def test_check_prints_the_figure_and_warns_with_the_remedy(tmp_path: Path) -> None:
    write_tables(split(LEAKY, "warm"), tmp_path / "leaky")
    report = check(tmp_path / "leaky")
    assert report.ok
    (warning,) = report.warnings
    assert warning.file == "user_item.parquet"
    assert "users already have all items of 100.0% of the bundles to be found" in warning.what
    assert "--without-leaks" in warning.hint
    said = CliRunner().invoke(data_app, ["check", str(tmp_path / "leaky"), "--json"])
    told = json.loads(said.stdout)["leakage"]
    assert told["given_away"] == 1.0
    assert told["suspicious"]
    # Undivided data are looked at too: any interaction may come to be held out.
    write_tables(LEAKY, tmp_path / "whole")
    assert len(check(tmp_path / "whole").warnings) == 1
    write_tables(split(HONEST, "warm"), tmp_path / "honest")
    assert check(tmp_path / "honest").warnings == []
    said = CliRunner().invoke(data_app, ["check", str(tmp_path / "honest")])
    assert "users already have all items of" in said.stdout
    assert "0 warnings" in said.stdout


def test_split_takes_leaks_out_when_told(tmp_path: Path) -> None:
    write_tables(LEAKY, tmp_path / "shop")
    words = ["split", str(tmp_path / "shop"), "--scenario", "warm", "--without-leaks", "--out"]
    done = CliRunner().invoke(data_app, [*words, str(tmp_path / "clean")])
    assert done.exit_code == 0
    expected = without_leaks(split(LEAKY, "warm"))
    assert read_split(tmp_path / "clean").train.fingerprint == expected.train.fingerprint
    removed = LEAKY.user_item.nnz - expected.train.user_item.nnz
    assert f"without leaks: {removed:,} user-item pairs taken out" in done.stdout
    assert check(tmp_path / "clean").warnings == []
    # A division that is there already is kept.
    write_tables(split(LEAKY, "all", 4), tmp_path / "divided")
    words[1:4] = [str(tmp_path / "divided"), "--scenario", "published"]
    assert CliRunner().invoke(data_app, [*words, str(tmp_path / "kept")]).exit_code == 0
    kept, was = read_split(tmp_path / "kept"), split(LEAKY, "all", 4)
    assert (kept.scenario, kept.seed) == ("all", 4)
    assert (kept.test - was.test).count_nonzero() == 0
    assert kept.train.fingerprint == without_leaks(was).train.fingerprint
    words[1:4] = [str(tmp_path / "shop"), "--scenario", "warm"]
    told = CliRunner().invoke(data_app, [*words, str(tmp_path / "again"), "--json"])
    assert json.loads(told.stdout)["user_item_removed"] == removed


@pytest.mark.real_data
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
def test_meals_leak_and_book_lists_do_not() -> None:
    meal = read_split(PUBLISHED / "meal")
    found = leakage(meal)
    assert (found.given_away, found.by_chance) == (1.0, 0.0)
    assert found.is_suspicious
    assert not leakage(without_leaks(meal)).is_suspicious
    assert leakage(read_split(PUBLISHED / "cold" / "Youshu")).given_away < 0.001
