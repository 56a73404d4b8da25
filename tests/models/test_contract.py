"""Every registered model keeps the contract; a broken model is caught by it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coheat.contract import CHECKS, run_check
from coheat.models import MODELS
from coheat.models.base import Model
from coheat.models.coheat import CoHeat
from coheat.models.two_views import Prepared
from coheat.presets import preset_names, resolve_settings
from coheat.served import Served


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", MODELS)
def test_contract(name: str, check: str, tmp_path: Path) -> None:
    run_check(check, MODELS[name], tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_every_exception_names_a_check_and_a_reason(name: str) -> None:
    for check, reason in MODELS[name].contract_exceptions.items():
        assert check in CHECKS
        assert len(reason) > 10


@pytest.mark.parametrize("name", MODELS)
def test_every_preset_is_valid(name: str) -> None:
    assert {"default", "youshu", "netease", "ifashion"} <= set(preset_names(name))
    for preset in preset_names(name):
        config, _ = resolve_settings(name, preset, {})
        assert isinstance(config, MODELS[name].Config)


class Forgetful(CoHeat):
    """Broken on purpose, one fault for each check below."""

    def loss(self, batch: Prepared) -> dict[str, torch.Tensor]:
        return {"bpr": super().loss(batch)["bpr"] * 0 + self.users.sum() * 0}


class Random(CoHeat):
    def served(self) -> Served:
        noise = torch.randn(self.data.n_users, 4), torch.randn(self.data.n_bundles, 4)
        return self.one_block(*noise)


class Exploding(CoHeat):
    def loss(self, batch: Prepared) -> dict[str, torch.Tensor]:
        return {"bpr": super().loss(batch)["bpr"] / 0}


@pytest.mark.parametrize(
    ("check", "model"),
    [
        ("loss_falls", Forgetful),
        ("planted_answer_is_ranked_first", Random),
        ("planted_cold_answer_is_ranked_first", Random),
        ("same_seed_same_scores", Random),
        ("loss_terms_are_finite", Exploding),
    ],
)
def test_a_broken_model_is_caught(check: str, model: type[Model], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        run_check(check, model, tmp_path)


def test_an_exception_that_is_not_needed_is_caught(tmp_path: Path) -> None:
    class Modest(CoHeat):
        contract_exceptions = {"scores_are_finite": "a reason that does not hold"}  # noqa: RUF012

    with pytest.raises(AssertionError, match="take its exception out"):
        run_check("scores_are_finite", Modest, tmp_path)
