"""From frames to lists in memory, in three lines; and `train_run` from data that is in no file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest

from coheat import Recommender, fit_recommender
from coheat.data import Split, pairs
from coheat.data.dataset import BundleData
from coheat.errors import ConfigError, DataError
from coheat.models import MODELS
from coheat.runs import train_run

MAKERS = [pandas.DataFrame, polars.DataFrame, pa.table]
SMALL: dict[str, Any] = {"epochs": 2, "embedding_size": 8, "companion_size": 4}


def columns(data: BundleData) -> dict[str, dict[str, list[str]]]:
    """The three tables, each as its columns of ids."""
    vocabularies = {"user": data.users, "bundle": data.bundles, "item": data.items}
    found = {}
    for name in ("user_bundle", "user_item", "bundle_item"):
        left, right = name.split("_")
        rows, places = pairs(getattr(data, name))
        found[name] = {
            f"{left}_id": [vocabularies[left][int(row)] for row in rows],
            f"{right}_id": [vocabularies[right][int(place)] for place in places],
        }
    return found


@pytest.fixture(scope="module")
def lists(_planted: Split) -> list[Any]:
    """Those of a model that is fitted to a `BundleData`."""
    recommender = fit_recommender(_planted.train, model="ember", **SMALL)
    return list(recommender.recommend([*_planted.train.users.ids], 5))


@pytest.mark.parametrize("make", MAKERS)
def test_every_kind_of_frame_gives_the_lists_of_the_data(
    make: Any, planted: Split, lists: list[Any], tmp_path: Path
) -> None:
    frames = {name: make(table) for name, table in columns(planted.train).items()}
    recommender = fit_recommender(**frames, model="ember", **SMALL)
    assert set(recommender.user_ids) == set(planted.train.users.ids)
    assert set(recommender.bundle_ids) == set(planted.train.bundles.ids)
    found = recommender.recommend(["user-0-0"], k=5)
    assert list(found.to_pandas()["rank"]) == [1, 2, 3, 4, 5]
    recommender.save(tmp_path / "shop")
    assert Recommender.load(tmp_path / "shop").recommend(["user-0-0"], k=5) == found
    if tuple(recommender.user_ids) == planted.train.users.ids:  # then all draws are the same too
        assert list(recommender.recommend([*planted.train.users.ids], 5)) == lists


def test_nothing_is_held_out_and_nothing_validated(planted: Split) -> None:
    recommender = fit_recommender(planted.train, model="coheat", epochs=3, embedding_size=8, seed=5)
    about = recommender.description
    assert (about.best_epoch, about.metrics, about.seed) == (3, {}, 5)
    assert about.data_fingerprint == planted.train.fingerprint
    assert np.array_equal(recommender.popularity, planted.train.popularity)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"ember", "coheat"}))
def test_every_model_is_fitted_saved_and_loaded(name: str, planted: Split, tmp_path: Path) -> None:
    small: dict[str, Any] = {"epochs": 1, **({"backbone_epochs": 1} if MODELS[name].backbone else {})}
    recommender = fit_recommender(planted.train, model=name, **small)
    found = recommender.recommend([*planted.train.users.ids], 5)
    recommender.save(tmp_path / "shop")
    assert Recommender.load(tmp_path / "shop").recommend([*planted.train.users.ids], 5) == found


def test_what_is_wrong_is_said(planted: Split) -> None:
    with pytest.raises(ConfigError, match="epoch_s"):
        fit_recommender(planted.train, model="ember", epoch_s=3)
    with pytest.raises(ConfigError, match="embers"):
        fit_recommender(planted.train, model="embers")
    table = pa.table({"user_id": ["a"], "bundle_id": ["b"]})
    with pytest.raises(DataError, match="user_item"):
        fit_recommender(table)


def test_it_is_silent_where_nobody_looks(planted: Split, capfd: pytest.CaptureFixture[str]) -> None:
    fit_recommender(planted.train, model="ember", **SMALL)
    assert capfd.readouterr() == ("", "")


def test_a_run_is_trained_from_data_or_from_frames(planted: Split, tmp_path: Path) -> None:
    settings = {"epochs": 1, "embedding_size": 8, "companion_size": 4, "choose": "fixed"}
    frames = {name: pandas.DataFrame(table) for name, table in columns(planted.train).items()}
    for place, source in (("data", planted.train), ("frames", frames)):
        run = train_run(source, tmp_path / place, "ember", overrides=settings, scenario="warm")
        assert run.finished
        assert run.record.makes_split
        assert run.record.scenario == "warm"
        found = Recommender.load(tmp_path / place).recommend(["user-0-0"], 3)
        assert [row.rank for row in found] == [1, 2, 3]
        with pytest.raises(DataError, match="say where it is with --data"):
            run.evaluate()
