"""Backbones: trained once, kept, and carried along by whatever a run writes."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor, nn

from coheat.backbone import CACHE_VARIABLE, cache_directory
from coheat.config import Settings
from coheat.data.dataset import BundleData, relation
from coheat.data.sampling import Triples
from coheat.data.split import Split
from coheat.losses import bpr, dot_rows
from coheat.models import MODELS
from coheat.models.base import Model, PretrainedConfig, Progress
from coheat.models.mfbpr import MFBPR, MFBPRConfig
from coheat.progress import ProgressBar
from coheat.rng import Randomness
from coheat.runs import train_run
from coheat.served import Served
from coheat.training import (
    Record,
    Standing,
    TrainingInterrupted,
    TrainingSettings,
    Watcher,
    fit,
    pretrain,
)

SETTINGS = TrainingSettings(epochs=4, batch_size=50, evaluate_every=2, checkpoint_every=1)
SMALL = {"embedding_size": 4, "backbone_epochs": 3, "backbone_batch_size": 50}


class Stretched(Model):
    """Pretrained vectors, of which it learns to stretch the dimensions: as little as needs a backbone."""

    Config: ClassVar[type[Settings]] = PretrainedConfig
    backbone: ClassVar[str | None] = "mfbpr"

    def __init__(self, data: BundleData, config: PretrainedConfig, rng: Randomness):
        super().__init__(data, config, rng)
        self.stretch = nn.Parameter(torch.ones(config.embedding_size))

    def loss(self, batch: Triples) -> dict[str, Tensor]:
        users, *sides = (torch.from_numpy(x) for x in (batch.users, batch.positives, batch.negatives))
        stretched, bundles = self.pretrained_users * self.stretch, self.pretrained_bundles
        return {"bpr": bpr(*(dot_rows(stretched, bundles, users, side) for side in sides))}

    def served(self) -> Served:
        return self.one_block(self.pretrained_users * self.stretch, self.pretrained_bundles)


def stretched(data: BundleData, seed: int = 0, **settings: object) -> Stretched:
    return Stretched(data, PretrainedConfig.create({**SMALL, **settings}), Randomness(seed))


class Counter(Watcher):
    """Says how often a backbone was trained."""

    def __init__(self) -> None:
        self.trained = 0

    def backbone(self, model: Model) -> Watcher:
        assert model.backbone == "mfbpr"
        self.trained += 1
        return Watcher()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for one test; the directory where backbones stand."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "backbones"


def fitted(split: Split, seed: int = 0, **settings: object) -> tuple[Stretched, int]:
    """A trained model, and how many backbones were trained for it."""
    model, counter = stretched(split.train, seed, **settings), Counter()
    fit(model, split, SETTINGS, watcher=counter)
    return model, counter.trained


def same(one: Model, other: Model) -> bool:
    states = one.state_dict(), other.state_dict()
    return all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_the_vectors_are_those_of_mfbpr_after_the_last_epoch_with_zeros_for_the_unknown(
    planted: Split,
) -> None:
    rows, columns = planted.train.user_bundle.nonzero()
    others = rows != 5  # user 5 has no training interactions
    shape = planted.train.user_bundle.shape
    data = planted.train.with_user_bundle(relation(rows[others], columns[others], shape))
    model, _ = fitted(Split(data, planted.validation, planted.test))
    settings = MFBPRConfig(embedding_size=4, weight_decay=1e-2, negatives="warm")
    alone = MFBPR(data, settings, Randomness(0).child("backbone"))
    optimizers = alone.optimizers()
    for epoch in (1, 2, 3):
        alone.begin_epoch(Progress(epoch, 3))
        for batch in alone.batches(50):
            alone.step(batch, optimizers)
    users, bundles = alone.users.detach().clone(), alone.bundles.detach().clone()
    users[5] = 0
    bundles[data.popularity == 0] = 0
    assert (data.popularity == 0).any()
    assert torch.equal(model.pretrained_users, users)
    assert torch.equal(model.pretrained_bundles, bundles)


def test_held_out_interactions_cannot_influence_the_vectors(planted: Split) -> None:
    swapped = Split(planted.train, planted.test, planted.validation)
    assert torch.equal(fitted(planted)[0].pretrained_users, fitted(swapped)[0].pretrained_users)


def test_it_is_trained_once_and_read_the_next_time(planted: Split, cache: Path) -> None:
    first, trained = fitted(planted)
    assert trained == 1
    second, trained = fitted(planted)
    assert trained == 0
    assert same(first, second)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"embedding_size": 5},
        {"backbone_epochs": 2},
        {"backbone_batch_size": 40},
        {"backbone_learning_rate": 0.002},
        {"backbone_weight_decay": 0.0},
        {"seed": 1},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_whatever_decides_its_numbers_makes_another_one(
    planted: Split, cache: Path, settings: dict[str, Any]
) -> None:
    first, _ = fitted(planted)
    other, trained = fitted(planted, **settings)
    assert trained == 1
    assert not torch.equal(first.pretrained_users[:, :4], other.pretrained_users[:, :4])


def test_other_training_interactions_make_another_one_and_the_models_own_settings_do_not(
    planted: Split, cache: Path
) -> None:
    fitted(planted)
    assert fitted(planted, learning_rate=0.5)[1] == 0
    fewer = planted.train.user_bundle.copy()
    rows, columns = fewer.nonzero()
    data = planted.train.with_user_bundle(relation(rows[1:], columns[1:], fewer.shape))
    assert fitted(Split(data, planted.validation, planted.test))[1] == 1


@pytest.mark.parametrize("damage", ["cut", "altered", "not a tensor file", "other tensors"])
def test_a_damaged_file_is_trained_again(planted: Split, cache: Path, damage: str) -> None:
    first, _ = fitted(planted)
    (path,) = cache.iterdir()
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[:-40])
    elif damage == "altered":
        content[-7] ^= 1
        path.write_bytes(content)
    elif damage == "not a tensor file":
        path.write_text("nothing of the kind")
    else:
        save_file({"users": torch.zeros(2, 2)}, path)
    second, trained = fitted(planted)
    assert trained == 1
    assert same(first, second)
    assert fitted(planted)[1] == 0, "the damaged file was not replaced"


def test_a_cache_that_cannot_be_written_costs_only_a_warning(planted: Split, cache: Path) -> None:
    cache.parent.write_text("a file where a directory should be")
    model = stretched(planted.train)
    with pytest.warns(UserWarning, match="cannot be kept there.*COHEAT_CACHE=DIR"):
        fit(model, planted, SETTINGS)
    assert not model.awaits_backbone


def test_where_backbones_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "off")
    assert cache_directory() is None
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert cache_directory() == tmp_path / "backbones"
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "coheat" / "backbones"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "coheat" / "backbones"


def test_without_a_cache_nothing_is_written(
    planted: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "off")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [fitted(planted)[1] for _ in range(2)] == [1, 1]
    assert not list(tmp_path.iterdir())


def test_a_model_that_has_its_vectors_keeps_them(planted: Split) -> None:
    model, counter = stretched(planted.train), Counter()
    pretrain(model, None, counter)
    vectors = model.pretrained_users.clone()
    fit(model, planted, SETTINGS, watcher=counter)
    assert counter.trained == 1
    assert torch.equal(model.pretrained_users, vectors)


def test_resuming_gives_the_same_numbers_without_training_it_again(planted: Split, tmp_path: Path) -> None:
    whole, _ = fitted(planted)

    class Cut(Counter):
        def epoch(self, record: Record, standing: Standing) -> None:
            if standing.epoch == 3:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fit(stretched(planted.train), planted, SETTINGS, tmp_path / "run", watcher=Cut())
    again, counter = stretched(planted.train), Counter()
    fit(again, planted, SETTINGS, tmp_path / "run", resume=True, watcher=counter)
    assert counter.trained == 0
    assert same(whole, again)


def test_interrupted_before_the_first_epoch_it_begins_anew(planted: Split, tmp_path: Path) -> None:
    class Impatient(Watcher):
        def backbone(self, model: Model) -> Watcher:
            raise KeyboardInterrupt

    with pytest.raises(TrainingInterrupted, match="no epoch was finished yet"):
        fit(stretched(planted.train), planted, SETTINGS, tmp_path / "run", watcher=Impatient())
    again, counter = stretched(planted.train), Counter()
    fit(again, planted, SETTINGS, tmp_path / "run", resume=True, watcher=counter)
    assert counter.trained == 1
    assert same(fitted(planted)[0], again)


def test_an_artifact_stands_on_its_own(
    planted_directory: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "stretched", Stretched)
    run = train_run(planted_directory, tmp_path / "run", "stretched", overrides={**SMALL, "epochs": 2})
    assert cache.is_dir()
    shutil.rmtree(cache)
    loaded = run.artifact.model()
    assert not loaded.awaits_backbone
    served = run.artifact.served()
    scores = loaded.served().scores(np.arange(loaded.data.n_users))
    assert np.allclose(scores, served.users @ served.bundles.plain.base.T, atol=1e-6)
    assert np.abs(scores).max() > 0


def test_the_bar_says_what_is_trained_first(planted: Split) -> None:
    screen = io.StringIO()
    bar = ProgressBar(Console(file=screen, force_terminal=True, width=100))
    fit(stretched(planted.train), planted, SETTINGS, watcher=bar)
    shown = screen.getvalue()
    assert "first mfbpr, whose vectors this model starts from" in shown
    assert "epoch 3/3" in shown
    assert "epoch 4/4" in shown
