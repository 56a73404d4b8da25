"""A recommender is saved with all that changed since training, and loaded as it was."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_artifact import save

from coheat.artifact import load_artifact
from coheat.contract import small_config
from coheat.data.split import Split
from coheat.errors import ArtifactError, ConfigError
from coheat.models import MODELS
from coheat.models.base import Progress
from coheat.recommender import Recommender
from coheat.rng import Randomness
from coheat.runs import fit_recommender

NAMES = ("coheat", "crosscbr", "ember", "counting", "popularity")


def trained(name: str, split: Split, directory: Path) -> Recommender:
    kind = MODELS[name]
    model = kind(split.train, small_config(kind), Randomness(3))
    model.begin_epoch(Progress(1, 2))
    save(directory, model.eval(), name)
    return Recommender.load(directory)


def changed(recommender: Recommender) -> Recommender:
    """Bundles added, replaced, removed, removed and added anew, and taken."""
    recommender.add_bundles({"new": ["item-0-0", "item-1-1"], "gone": ["item-0-1"], "🧺/": ["item-2-0"]})
    recommender.replace_bundles({"bundle-1-0": ["item-0-3"], "new": ["item-0-0"]})
    recommender.record_many([("user-0-0", "gone"), ("user-0-0", "bundle-3-1"), ("guest", "bundle-2-1")])
    recommender.remove_bundles(["gone", "bundle-3-1", "bundle-2-2"])
    recommender.add_bundles({"bundle-2-2": ["item-1-0", "item-1-2"]})
    recommender.record_many([("user-1-0", "new"), ("guest", "new"), ("user-2-0", "bundle-1-0")])
    return recommender


def answers(recommender: Recommender) -> dict[str, Any]:
    """Everything but scores, which may differ in the last digits where sums are made in another order."""
    users = [*recommender.user_ids[::7], "guest", "user-0-0", "stranger"]
    lists = recommender.recommend(users, 99)
    return {
        "bundles": {name: asdict(recommender.bundle(name)) for name in recommender.bundle_ids},
        "order": recommender.bundle_ids,
        "users": [asdict(recommender.user(name)) for name in users],
        "listed": {(row.user_id, row.bundle_id, row.is_new) for row in lists},
        "sources": lists.sources,
    }


def scores(recommender: Recommender) -> dict[tuple[str, str], float]:
    rows = recommender.recommend([*recommender.user_ids, "guest"], 99, exclude_seen=False)
    return {(row.user_id, row.bundle_id): row.score for row in rows}


@pytest.mark.parametrize("name", NAMES)
def test_changes_come_back(name: str, planted: Split, tmp_path: Path) -> None:
    recommender = changed(trained(name, planted, tmp_path / "model"))
    recommender.save(tmp_path / "shop")
    again = Recommender.load(tmp_path / "shop")
    assert answers(again) == answers(recommender)
    assert scores(again) == pytest.approx(scores(recommender), abs=1e-5)
    assert again.description == recommender.description
    assert not again.record("user-1-0", "new").counted
    assert not again.has_bundle("gone")
    for user, bundle in (("user-0-0", "new"), ("guest", "bundle-1-0")):
        one, other = (r.explain(user, bundle) if name != "popularity" or user != "guest" else None
                      for r in (recommender, again))  # fmt: skip
        if one is not None and other is not None:
            assert [term.name for term in one.terms] == [term.name for term in other.terms]
            assert one.score == pytest.approx(other.score, abs=1e-5)


def test_nothing_changed_leaves_nothing_to_say(planted: Split, tmp_path: Path) -> None:
    recommender = trained("ember", planted, tmp_path / "model")
    recommender.save(tmp_path / "shop")
    names = {path.name for path in (tmp_path / "shop").iterdir()}
    assert names == {path.name for path in (tmp_path / "model").iterdir()}
    assert scores(Recommender.load(tmp_path / "shop")) == scores(recommender)
    assert load_artifact(tmp_path / "shop").model().served().users.shape == (48, 97)


def test_a_saved_one_is_changed_and_saved_in_its_place(planted: Split, tmp_path: Path) -> None:
    trained("ember", planted, tmp_path / "model").save(tmp_path / "shop")
    shop = changed(Recommender.load(tmp_path / "shop"))
    shop.save(tmp_path / "shop")
    again = Recommender.load(tmp_path / "shop")
    assert answers(again) == answers(shop)
    again.add_bundles({"later": ["item-0-0"]})
    again.save(tmp_path / "shop")
    assert Recommender.load(tmp_path / "shop").bundle_ids == [*shop.bundle_ids, "later"]
    assert np.isfinite(list(scores(shop).values())).all(), "the one that was loaded before goes on"


def test_a_turned_knob_stays_turned(planted: Split, tmp_path: Path) -> None:
    trained("ember", planted, tmp_path / "model")
    hiding = Recommender.load(tmp_path / "model", welcome=0.0)
    hiding.save(tmp_path / "shop")
    assert Recommender.load(tmp_path / "shop").knobs == {"welcome": 0.0}
    assert scores(Recommender.load(tmp_path / "shop")) == scores(hiding)
    with pytest.raises(ConfigError, match="no knob 'welcom'; it has welcome"):
        Recommender.load(tmp_path / "shop", welcom=1.0)


def test_only_a_model_is_replaced(planted: Split, tmp_path: Path) -> None:
    """Saving into a directory of tables, or over a run, removed all that was there."""
    recommender = fit_recommender(planted.train, model="counting")
    tables, run, file = tmp_path / "shop", tmp_path / "run", tmp_path / "notes.txt"
    tables.mkdir()
    (tables / "user_bundle.csv").write_text("user_id,bundle_id\n")
    recommender.save(run / "model")
    (run / "run.json").write_text("{}")
    file.write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for place in (tables, run, file):
        with pytest.raises(ArtifactError, match="something else than a model"):
            recommender.save(place)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "empty").mkdir()
    recommender.save(tmp_path / "empty")
    recommender.save(tmp_path / "empty")
    assert Recommender.load(tmp_path / "empty").bundle_ids == recommender.bundle_ids
