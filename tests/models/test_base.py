"""What the base gives every model: weight decay in one place, and draws that belong to an epoch."""

from __future__ import annotations

from typing import Any

import pytest
from pretrained import with_random_backbone
from worlds import small_data

from coheat.contract import small_config
from coheat.models import MODELS
from coheat.models.base import Model, Progress
from coheat.models.popularity import Popularity
from coheat.rng import Randomness

DECAYING = [name for name, model in MODELS.items() if "weight_decay" in model.Config.model_fields]
DECAY = 0.125


def decaying(name: str, **settings: Any) -> Model:
    model = MODELS[name]
    return model(small_data(), small_config(model, weight_decay=DECAY, **settings), Randomness(0))


@pytest.mark.parametrize(
    ("name", "settings"), [*((name, {}) for name in DECAYING), ("coheat", {"weight_decay_as": "loss"})]
)
def test_weight_decay_is_in_the_loss_or_in_adam_and_never_in_both(
    name: str, settings: dict[str, Any]
) -> None:
    model = decaying(name, **settings)
    if model.backbone is not None:
        with_random_backbone(model)
    model.begin_epoch(Progress(1, 2))
    in_loss = "decay" in model.loss(next(iter(model.batches(8))))
    in_adam = DECAY in [group["weight_decay"] for one in model.optimizers() for group in one.param_groups]
    assert in_loss is not in_adam


def test_an_epoch_drops_the_same_whenever_it_comes_and_unlike_the_others() -> None:
    model = Popularity(small_data(), Popularity.Config(), Randomness(0))

    def draws(epoch: int) -> list[float]:
        model.begin_epoch(Progress(epoch, 3))
        return [float(number) for number in model.dropout_rng.random(4)]

    first, second = draws(1), draws(2)
    assert first != second
    assert draws(1) == first
