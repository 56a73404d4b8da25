"""A warm start: what is taken over, what is new, and what cannot be started from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from coheat.artifact import Artifact, Description, load_artifact, save_artifact
from coheat.checkpoint import model_state
from coheat.contract import small_config
from coheat.data.dataset import BundleData, pairs, relation
from coheat.data.synthetic import planted_world
from coheat.errors import ConfigError
from coheat.ids import Vocabulary
from coheat.models import MODELS
from coheat.models.base import Model
from coheat.models.ember import Ember
from coheat.models.stand_ins import StandIns
from coheat.rng import Randomness
from coheat.runs import contents_of, open_run, train_run
from coheat.training import TrainingSettings, Watcher, shortened
from coheat.warm_start import start_from, starts_warm

ABOUT = Description("", {}, {}, 0, "everything", "", "", 1, {}, 0.0, "")
WARM = [name for name, model in MODELS.items() if starts_warm(model)]
SHORT: dict[str, Any] = {"embedding_size": 8, "epochs": 16, "rehearsal_epochs": 2, "batch_size": 64}


def grown(data: BundleData) -> BundleData:
    """The same world with its ids in another order, and a new user, bundle and item before all others."""

    def turned(vocabulary: Vocabulary) -> Vocabulary:
        return Vocabulary([f"new {vocabulary.kind}", *reversed(vocabulary.ids)], vocabulary.kind)

    def moved(matrix: Any) -> Any:
        rows, columns = pairs(matrix)
        (n_rows, n_columns), shape = matrix.shape, (matrix.shape[0] + 1, matrix.shape[1] + 1)
        return relation(np.append(n_rows - rows, 0), np.append(n_columns - columns, 0), shape)

    return BundleData(
        turned(data.users),
        turned(data.bundles),
        turned(data.items),
        moved(data.user_bundle),
        moved(data.user_item),
        moved(data.bundle_item),
    )


def saved(model: Model, directory: Path) -> Artifact:
    model.eval()
    save_artifact(directory, contents_of(model, ABOUT), model_state(model))
    return load_artifact(directory)


@pytest.mark.parametrize("name", WARM)
def test_everything_learned_is_taken_over_id_by_id(name: str, tmp_path: Path) -> None:
    data = planted_world(bundles_per_group=5).train  # no two of the counts are the same
    assert len({data.n_users, data.n_bundles, data.n_items}) == 3
    config = small_config(MODELS[name])
    before = MODELS[name](data, config, Randomness(0))
    after = MODELS[name](grown(data), config, Randomness(1))
    drawn = {key: value.detach().clone() for key, value in after.named_parameters()}
    found = start_from(after, saved(before, tmp_path / "before"))
    assert found.new == {"user": 1, "bundle": 1, "item": 1}
    assert found.known == {"user": data.n_users, "bundle": data.n_bundles, "item": data.n_items}
    then = {key: value.detach() for key, value in before.named_parameters()}
    part = before.warm_part
    for key, parameter in after.named_parameters():
        if parameter.shape == then[key].shape:
            assert torch.equal(parameter, then[key]), key
        else:
            expected = torch.lerp(drawn[key][1:].flip(0), then[key], part)
            assert torch.equal(parameter[1:].flip(0), expected), key
            assert torch.equal(parameter[0], drawn[key][0]), key


def test_a_start_goes_on_with_the_schedule() -> None:
    settings = shortened(TrainingSettings(epochs=80))
    assert (settings.epochs, settings.skipped) == (5, 75)
    assert shortened(TrainingSettings(epochs=1)).epochs == 1


def test_a_warm_run_of_coheat_ends_at_the_temperature_of_a_fresh_one(tmp_path: Path) -> None:
    data = planted_world().train
    fresh = train_run(data, tmp_path / "fresh", "coheat", overrides={"epochs": 16, "batch_size": 64},
                      scenario="everything", watcher=Watcher())  # fmt: skip
    warm = train_run(data, tmp_path / "warm", "coheat", overrides={"epochs": 16, "batch_size": 64},
                     scenario="everything", watcher=Watcher(), start=fresh.path)  # fmt: skip
    facts = [record["facts"] for record in fresh.history]
    assert [record["facts"] for record in warm.history] == facts[-1:]


def test_ember_goes_on_from_the_rehearsal_of_the_run_that_it_starts_from(tmp_path: Path) -> None:
    """It has seen nothing of what is held out, so it is as short as the training itself."""

    class Counting(Watcher):
        epochs: ClassVar[list[int]] = []
        division: ClassVar[StandIns]
        begun: ClassVar[Ember]

        def rehearsal(self, model: Model) -> Watcher:
            assert isinstance(model, Ember)
            rehearsal, _ = model.rehearsal() or (None, 0)
            assert isinstance(rehearsal, Ember)
            Counting.division, Counting.begun = model._stand_ins, rehearsal
            return Counting()

        def epoch(self, record: dict[str, Any], standing: Any) -> None:
            self.epochs.append(standing.epoch)

    data = planted_world(bundles_per_group=5).train
    settings = {**SHORT, "epochs": 6, "rehearsal_epochs": 20}
    run = train_run(data, tmp_path / "old", overrides=settings, scenario="everything", watcher=Watcher())
    kept = load_file(run.artifact.directory / "parameters.safetensors")
    warm = train_run(grown(data), tmp_path / "new", overrides=settings, scenario="everything",
                     watcher=Counting(), start=run.path)  # fmt: skip
    assert warm.record.training["epochs"] == 1
    assert Counting.epochs == [1, 1, 2, 3], "one of its own, and three instead of twenty of the rehearsal"
    assert warm.record.start_fingerprint == run.artifact.fingerprint
    for name in ("users", "bundles", "items"):
        assert torch.equal(getattr(Counting.begun, name)[1:].flip(0), kept[f"handed_on.{name}"]), name
    users, bundles = (len(part.ids) - 1 for part in (data.users, data.bundles))
    old = {(users - u + 1, bundles - b + 1) for u, b in kept["handed_on.seen"].T.tolist()}
    held_out = set(zip(*(part.tolist() for part in pairs(Counting.division.held_out)), strict=True))
    assert old
    assert held_out
    assert not old & held_out
    assert old <= set(zip(*(part.tolist() for part in pairs(Counting.division.seen)), strict=True))
    again = warm.artifact.model()
    assert isinstance(again, Ember)
    assert torch.equal(again.users, load_file(warm.artifact.directory / "parameters.safetensors")["users"])


def test_a_run_without_a_rehearsal_to_go_on_from_is_rehearsed_in_full(tmp_path: Path) -> None:
    class Counting(Watcher):
        epochs: ClassVar[list[int]] = []

        def rehearsal(self, model: Model) -> Watcher:
            assert isinstance(model, Ember)
            return Counting()

        def epoch(self, record: dict[str, Any], standing: Any) -> None:
            self.epochs.append(standing.epoch)

    data = planted_world().train
    without, settings = ({**SHORT, "epochs": 6, "rehearsal_epochs": n} for n in (0, 3))
    run = train_run(data, tmp_path / "old", overrides=without, scenario="everything", watcher=Watcher())
    train_run(data, tmp_path / "new", overrides=settings, scenario="everything", watcher=Counting(),
              start=run.path)  # fmt: skip
    assert Counting.epochs == [1, 1, 2, 3]


def test_a_warm_run_that_was_interrupted_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    class Stopping(Watcher):
        def epoch(self, record: dict[str, Any], standing: Any) -> None:
            if standing.epoch == 1:
                raise KeyboardInterrupt

    data = planted_world().train
    options: dict[str, Any] = {"overrides": {**SHORT, "warm_share": 0.125}, "scenario": "everything"}
    start = train_run(data, tmp_path / "start", watcher=Watcher(), **options).path
    whole = train_run(data, tmp_path / "whole", watcher=Watcher(), start=start, **options)
    with pytest.raises(Exception, match="interrupted") as stopped:
        train_run(data, tmp_path / "cut", watcher=Stopping(), start=start, **options)
    assert f"--start {start}" in str(stopped.value)
    cut = train_run(data, tmp_path / "cut", watcher=Watcher(), start=start, resume=True, **options)
    for name, values in whole.artifact.served().arrays().items():
        assert np.array_equal(values, cut.artifact.served().arrays()[name]), name
    other = train_run(data, tmp_path / "other", watcher=Watcher(), seed=1, **options).path
    with pytest.raises(ConfigError, match="start_fingerprint"):
        train_run(data, tmp_path / "cut", watcher=Watcher(), start=other, resume=True, **options)


def test_what_cannot_be_started_from_is_said(tmp_path: Path) -> None:
    data = planted_world().train
    counting = train_run(data, tmp_path / "counting", "counting", scenario="everything", watcher=Watcher())
    ember = train_run(data, tmp_path / "ember", overrides=SHORT, scenario="everything", watcher=Watcher())
    for name, start, overrides, said in (
        ("counting", counting.path, {}, "learns nothing"),
        ("heater", ember.path, {}, "backbone"),
        ("crosscbr", ember.path, {}, "own kind only"),
        ("ember", ember.path, {"embedding_size": 16}, "embedding_size is 8"),
    ):
        with pytest.raises(ConfigError, match=said):
            train_run(data, tmp_path / "out", name, overrides=overrides, start=start, watcher=Watcher())
    assert not (tmp_path / "out").exists()
    config = small_config(MODELS["ember"], embedding_size=16)
    with pytest.raises(ConfigError, match=r"'users' in it has another shape.*--fresh"):
        start_from(MODELS["ember"](data, config, Randomness(0)), ember.artifact)
    assert open_run(ember.path).record == replace(ember.record)
