"""The steps of a retraining by themselves: what judges, who is worse, and how a run is published."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from retraining_shop import write_shop

from coheat.artifact import Artifact
from coheat.data.dataset import BundleData, pairs
from coheat.data.files import read_data
from coheat.data.merging import Recorded, Row, WrittenBundle, merge
from coheat.errors import ConfigError
from coheat.evaluation.intervals import Interval
from coheat.recommender import Recommender
from coheat.retraining import publishing
from coheat.retraining.judging import (
    FEWEST_USERS,
    LARGEST_SHARE,
    Judgement,
    _lists,
    catch_up,
    judge,
    prepare,
)
from coheat.retraining.retrain import retrain
from coheat.runs import Run, train_run
from coheat.service.sqlite_store import SqliteStore
from coheat.training import Watcher


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("steps")
    write_shop(place / "data")
    return train_run(place / "data", place / "run", "counting", scenario="everything", watcher=Watcher())


def later(data: BundleData, n: int) -> BundleData:
    """Another n interactions, each a second after the one before, and a new bundle."""
    rows = [Row(1 + k, f"u{k % 90}", f"b{(7 * k + 3) % 78}", "took", 1_800_000_000 + k) for k in range(n)]
    return merge(data, Recorded(rows, [WrittenBundle("fresh", ("i0", "i4"), 1.0)], n)).data


def artifact(run: Run) -> Artifact:
    return run.artifact


def test_the_newer_half_of_what_is_new_judges(old: Run) -> None:
    before = artifact(old).training_data()
    data = later(read_data(old.record.data_resolved), 60)
    exam = prepare(data, artifact(old), [])
    new = data.user_bundle.nnz - before.user_bundle.nnz
    assert len(exam.users) == new // 2
    assert exam.known.user_bundle.nnz == data.user_bundle.nnz - new // 2
    assert data.timestamps is not None
    assert exam.known.timestamps is not None
    keys = dict(zip(zip(*(part.tolist() for part in pairs(data.user_bundle)), strict=True),
                    data.timestamps.tolist(), strict=True))  # fmt: skip
    judging = [keys[pair] for pair in zip(exam.users.tolist(), exam.bundles.tolist(), strict=True)]
    assert min(judging) > exam.known.timestamps.max()
    assert exam.known.as_of == min(judging)
    assert exam.offered.all()
    launched = np.full(data.n_bundles, np.nan)
    launched[:3] = min(judging) - 1, min(judging) + 1, max(judging) + 1  # before, while it lasts, after
    assert not prepare(replace(data, launched=launched), artifact(old), []).offered[2]
    assert prepare(replace(data, launched=launched), artifact(old), []).offered[:2].all()


def test_never_more_than_a_tenth_judges(old: Run) -> None:
    data = later(read_data(old.record.data_resolved), 400)
    assert len(prepare(data, artifact(old), []).users) == int(LARGEST_SHARE * data.user_bundle.nnz)


def test_nothing_new_judges_nothing(old: Run) -> None:
    assert not prepare(read_data(old.record.data_resolved), artifact(old), []).is_possible


def test_the_old_model_is_brought_up_to_date_as_a_service_does_it(old: Run) -> None:
    data = later(read_data(old.record.data_resolved), 60)
    recommender = Recommender.load(old.path)
    catch_up(recommender, data)
    assert recommender.bundle("fresh").item_ids == ["i0", "i4"]
    found = [recommender.bundle(name).popularity for name in data.bundles.ids]
    assert found == data.popularity.tolist()


def test_a_model_is_level_with_itself(old: Run) -> None:
    exam = prepare(later(read_data(old.record.data_resolved), 60), artifact(old), [])
    found = judge(exam, Recommender.load(old.path), Recommender.load(old.path))
    # The second was not brought up to date by judging: it is what was trained, as a new model would be.
    assert found.users == len(np.unique(exam.users))
    other = Recommender.load(old.path)
    catch_up(other, exam.known)
    same = judge(exam, Recommender.load(old.path), other)
    assert all(gap == Interval(0.0, 0.0, 0.0) for gap in same.differences.values())
    assert not same.is_worse


def test_what_was_taken_after_its_end_is_judged_all_the_same(old: Run) -> None:
    data = later(read_data(old.record.data_resolved), 60)
    over = replace(data, ends=np.full(data.n_bundles, 1_000_000_000.0))
    exam = prepare(over, artifact(old), [])
    assert np.array_equal(np.flatnonzero(exam.offered), np.unique(exam.bundles))
    found = judge(exam, Recommender.load(old.path), Recommender.load(old.path))
    assert found.old["recall@20"] > 0


def test_an_old_model_that_knows_nothing_of_what_was_taken_lists_nothing(old: Run) -> None:
    data = later(read_data(old.record.data_resolved), 60)
    exam = prepare(data, artifact(old), [])
    only_fresh = np.array([name == "fresh" for name in data.bundles.ids])
    removed = Recommender.load(old.path)
    catch_up(removed, exam.known)
    removed.remove_bundles(["fresh"])
    assert (_lists(removed, ["u1"], exam.known, only_fresh) == -1).all()


def test_clearly_worse_needs_a_whole_interval_and_enough_users() -> None:
    below, around = Interval(-0.2, -0.3, -0.1), Interval(-0.1, -0.3, 0.1)
    assert Judgement(FEWEST_USERS, 50, {}, {}, {"recall@20": below, "ndcg@20": around}).is_worse
    assert not Judgement(FEWEST_USERS - 1, 50, {}, {}, {"recall@20": below, "ndcg@20": below}).is_worse
    assert not Judgement(FEWEST_USERS, 50, {}, {}, {"recall@20": around, "ndcg@20": around}).is_worse


def test_a_judgement_is_the_same_after_it_was_written() -> None:
    one = Judgement(40, 50, {"recall@20": 0.5}, {"recall@20": 0.4}, {"recall@20": Interval(-0.1, -0.2, 0.0)})
    assert Judgement.from_dict(one.to_dict()) == one


def make(place: Path, text: str) -> Path:
    place.mkdir()
    (place / "run.json").write_text(text)
    return place


def test_a_directory_is_kept_and_a_link_takes_its_place(tmp_path: Path) -> None:
    served, new = make(tmp_path / "shop", "old"), make(tmp_path / "tuesday", "new")
    assert publishing.publish(served, new) == tmp_path / "shop.before"
    assert (served / "run.json").read_text() == "new"
    assert (tmp_path / "shop.before" / "run.json").read_text() == "old"
    assert publishing.publish(served, new) is None, "again it changes nothing"
    assert publishing.publish(served, make(tmp_path / "wednesday", "newer")) is None
    assert (served / "run.json").read_text() == "newer"
    shutil.move(str(tmp_path), f"{tmp_path}-moved")  # links are relative
    assert (Path(f"{tmp_path}-moved") / "shop" / "run.json").read_text() == "newer"


def test_killed_between_the_two_renames_the_old_run_is_found_again(tmp_path: Path) -> None:
    served = make(tmp_path / "shop", "old")
    served.rename(tmp_path / "shop.before")
    publishing.recover(served)
    assert (served / "run.json").read_text() == "old"
    assert publishing.publish(served, make(tmp_path / "new", "new")) is None


def test_what_was_kept_before_is_not_lost(tmp_path: Path) -> None:
    served = make(tmp_path / "shop", "old")
    make(tmp_path / "shop.before", "older")
    with pytest.raises(ConfigError, match="move it away"):
        publishing.publish(served, make(tmp_path / "new", "new"))
    assert (served / "run.json").read_text() == "old"


def test_a_wrong_source_does_not_tie_the_next_try_to_it(old: Run, tmp_path: Path) -> None:
    for source in ("nowhere", "elsewhere"):
        with pytest.raises(ConfigError, match=f"{source}: there is nothing to collect from"):
            retrain(old.path, tmp_path / source, tmp_path / "new", data=tmp_path)


def test_nothing_is_written_into_a_directory_that_holds_something_else(old: Run, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    SqliteStore(tmp_path / "state" / "store.sqlite").close()
    other = train_run(
        old.record.data_resolved, tmp_path / "other", "counting", scenario="everything", watcher=Watcher()
    )
    before = sorted(other.path.rglob("*"))
    with pytest.raises(ConfigError, match="holds something else already; choose a new --out"):
        retrain(old.path, tmp_path / "state", other.path)
    assert sorted(other.path.rglob("*")) == before
